//! What every exported function does around its handler: it finds the state of this process, refuses the call if the
//! process has no share, marks the thread as inside a call, and stops panics from unwinding into C. errno is kept where
//! the core makes system calls (`vgpu_core::os::errno`).

use crate::codes::{NOT_PERMITTED, NVML_NO_PERMISSION, NVML_UNINITIALIZED, UNKNOWN};
use crate::names::slot;
use crate::process::Ready;
use crate::{real, start};
use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use vgpu_core::os::{stderr, thread};

/// The classes of a table's hooks ([`crate::table`]). True: calls of this class may change GPU memory or its charges, so
/// `vgpu_core::calls` tracks them.
pub(crate) mod class {
    pub(crate) const charged: bool = true;
    pub(crate) const released: bool = true;
    pub(crate) const limited: bool = true;
    pub(crate) const virtualised: bool = false;
}

/// A hook of the driver API: `handle` gets the state and the address of the real function.
#[inline(always)]
pub(crate) fn cuda(changes: bool, slot: usize, handle: impl FnOnce(&'static Ready, *const ()) -> c_int) -> c_int {
    /// Functions that only report sizes. They are called often and must stay cheap, so they are not tracked.
    const TELLS: [usize; 4] = [
        slot::cuMemGetInfo,
        slot::cuMemGetInfo_v2,
        slot::cuDeviceTotalMem,
        slot::cuDeviceTotalMem_v2,
    ];
    run(slot, NOT_PERMITTED, |ready, address| {
        let _call = (changes && !TELLS.contains(&slot)).then(|| ready.calls.begin(thread()));
        handle(ready, address)
    })
}

/// A hook of NVML.
#[inline(always)]
pub(crate) fn nvml(_changes: bool, slot: usize, handle: impl FnOnce(&'static Ready, *const ()) -> c_int) -> c_int {
    const INIT: [usize; 3] = [slot::nvmlInit, slot::nvmlInit_v2, slot::nvmlInitWithFlags];
    run(slot, NVML_NO_PERMISSION, |ready, address| {
        if ready.hides_nvml() && !INIT.contains(&slot) {
            return NVML_UNINITIALIZED;
        }
        handle(ready, address)
    })
}

#[inline(always)]
fn run(slot: usize, refused: c_int, handle: impl FnOnce(&'static Ready, *const ()) -> c_int) -> c_int {
    guarded(|| match start::ready() {
        Some(ready) => handle(ready, real::address(slot)),
        None => refused,
    })
    .unwrap_or(UNKNOWN)
}

/// Runs `body`. Returns None if it panicked, after a line on stderr.
#[inline(always)]
pub(crate) fn guarded<T>(body: impl FnOnce() -> T) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    if outcome.is_err() {
        stderr::say("a call failed inside libvgpu.so; this is a bug, please report the lines above");
    }
    outcome.ok()
}
