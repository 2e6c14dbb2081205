//! CUDA_VISIBLE_DEVICES numbers the GPUs of this process's shares, not those of the machine: a program that has a share
//! of one GPU names it 0, whichever GPU it is.
//!
//! ```text
//!  cuInit ─► keep the value, hide the variable ─► the driver's cuInit: all GPUs ─► restore the variable
//!  first use of devices ─► those with a share, in the driver's order ─► those that the value selects
//! ```
//!
//! The driver reads the variable in cuInit only. It is hidden by one store that replaces its entry in `environ` by
//! another string, and restored by one more store. Nothing moves and nothing is freed: threads that read the
//! environment meanwhile see either string, and children inherit what the program has set.
//!
//! Where shares are of instances of a GPU in MIG mode, the driver finds these by name instead of a hidden variable: drivers
//! before r570 give a process one instance alone, the first unless the variable names another. A value that names instances
//! is the driver's to read.
//!
//! How it fails: a thread that calls setenv while another calls cuInit may move `environ` meanwhile; getenv has the
//! same problem. In a child that is forked during cuInit the variable stays hidden, and the child sees the GPUs of all
//! its shares.

use crate::process::Ready;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::time::Duration;
use vgpu_core::visible::names_instances;

const NAME: &[u8] = b"CUDA_VISIBLE_DEVICES=";
/// Replaces the variable while it is hidden.
static STAND_IN: &CStr = c"VGPU_HIDES=CUDA_VISIBLE_DEVICES";
/// How long a thread waits for another's cuInit before it calls its own.
const INIT_WAIT: Duration = Duration::from_secs(30);

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Calls the driver's cuInit with the variable hidden and its value kept.
pub(crate) fn hidden(ready: &'static Ready, init: impl FnOnce() -> c_int) -> c_int {
    if ready.knows_devices() {
        return init();
    }
    let Some(initialising) = ready.initialising.lock_within(INIT_WAIT) else {
        return init();
    };
    // An injected library (a profiler, a sanitizer) calls cuInit within the driver's. The variable is hidden already.
    if initialising.is_nested() {
        return init();
    }
    let places = places(|text| text.starts_with(NAME));
    let texts: Vec<*mut c_char> = places.iter().map(|place| place.load(Ordering::Relaxed)).collect();
    // SAFETY: a string of the environment; of several, getenv answers the first.
    let value = texts.first().map(|text| unsafe { CStr::from_ptr(*text) }.to_bytes());
    let value = value.map(|text| String::from_utf8_lossy(&text[NAME.len()..]).into_owned());
    let value = value.filter(|value| !names_instances(value));
    let stand_in = stand_in(ready);
    if value.is_some() {
        let stand_in = stand_in.as_ptr().cast_mut();
        places.iter().for_each(|place| place.store(stand_in, Ordering::Release));
    }
    *ready.visible.lock() = value;
    let result = init();
    // Searched again: the environment may have moved.
    let stood_in = self::places(|text| core::ptr::eq(text.as_ptr(), stand_in.to_bytes().as_ptr()));
    for (place, text) in stood_in.into_iter().zip(texts) {
        place.store(text, Ordering::Release);
    }
    drop(initialising);
    result
}

/// The value in place of the variable: nothing that the driver reads, or this process's instances.
fn stand_in(ready: &'static Ready) -> &'static CStr {
    let uuids = ready.gpus.iter().map(|gpu| gpu.uuid.as_str());
    let own: Vec<&str> = uuids.filter(|uuid| names_instances(uuid)).collect();
    if own.is_empty() || own.len() < ready.gpus.len() {
        return STAND_IN;
    }
    let text = [NAME, own.join(",").as_bytes()].concat();
    // Leaked, because another thread may be reading the environment. It is made once a process.
    CString::new(text).map_or(STAND_IN, |text| Box::leak(text.into_boxed_c_str()))
}

/// Returns the entries of the environment for which `wanted` is true.
fn places(wanted: impl Fn(&[u8]) -> bool) -> Vec<&'static AtomicPtr<c_char>> {
    let mut found = Vec::new();
    // SAFETY: libc's variable: null, or an array that ends with null.
    let mut at = unsafe { environ };
    while !at.is_null() {
        // SAFETY: within the array; its elements are aligned pointers that nobody frees.
        let place = unsafe { AtomicPtr::from_ptr(at) };
        let text = place.load(Ordering::Acquire);
        if text.is_null() {
            break;
        }
        // SAFETY: an element before the last is a C string.
        if wanted(unsafe { CStr::from_ptr(text) }.to_bytes()) {
            found.push(place);
        }
        // SAFETY: the array goes on to its null.
        at = unsafe { at.add(1) };
    }
    found
}
