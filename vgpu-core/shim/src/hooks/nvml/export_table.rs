//! nvmlInternalGetExportTable: nvidia-smi gets its lists of processes only from there. It receives a copy of the
//! driver's table in which the lists are the share's.
//!
//! The slots and the layout of an entry are published in NVIDIA's k8s-test-infra for the drivers in [`KNOWN`]. Nothing
//! guarantees that they are the same in another driver, where a wrong function in a slot would write to arbitrary
//! memory. So under another driver the table is passed through, and nvidia-smi lists what the driver shows to this
//! process: no processes of other containers, if each container has a PID namespace of its own. All public functions
//! return the share's figures under every driver.

use crate::codes::{NVML_INVALID_ARGUMENT, NVML_NO_PERMISSION, NVML_SUCCESS};
use crate::detour;
use crate::hooks::nvml::info::with_ids;
use crate::hooks::nvml::list::{Used, fill};
use crate::process::Ready;
use crate::real::real;
use crate::start;
use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

/// Driver versions, up to the first full stop, that have this table.
const KNOWN: [&str; 2] = ["535", "550"];
/// The lists of compute, graphics and MPS processes, by their index in the table. The table's first word is its size.
const COMPUTE: usize = 213;
const OTHERS: [usize; 2] = [214, 215];
const LARGEST: usize = 64 << 10;

/// One process as nvidia-smi reads it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    padding: u64,
    name: [u8; 4096],
}
const _: () = assert!(size_of::<Entry>() == 4128 && core::mem::offset_of!(Entry, name) == 32);

pub(crate) unsafe fn get(ready: &'static Ready, table: *mut *const c_void, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result != NVML_SUCCESS || table.is_null() || !is_known() {
        return result;
    }
    // SAFETY: NVML has written there.
    let theirs = unsafe { *table }.cast::<usize>();
    // SAFETY: a table of these drivers begins with its size.
    let Some(size) = (unsafe { theirs.as_ref() }).copied() else {
        return result;
    };
    if size > LARGEST || size / size_of::<usize>() <= OTHERS[1] {
        return result;
    }
    let mut known = ready.export_tables.lock();
    let at = match known.iter().position(|(of, _)| *of == theirs.addr()) {
        Some(at) => at,
        None => {
            // SAFETY: as above: it has `size` bytes, and is never changed.
            let mut own: Box<[usize]> =
                unsafe { core::slice::from_raw_parts(theirs, size / size_of::<usize>()) }.into();
            own[COMPUTE] = compute as *const () as usize;
            OTHERS
                .into_iter()
                .for_each(|slot| own[slot] = nobody as *const () as usize);
            known.push((theirs.addr(), own));
            known.len() - 1
        }
    };
    // SAFETY: NVML has written there. The copy is never dropped, and its words stay where they are.
    unsafe { *table = known[at].1.as_ptr().cast() };
    result
}

fn is_known() -> bool {
    let mut version = [0 as c_char; 96];
    // SAFETY: to be written within its length.
    let result = unsafe { real!(nvmlSystemGetDriverVersion(*mut c_char, c_uint))(version.as_mut_ptr(), 95) };
    // SAFETY: the last byte is zero.
    let version = unsafe { CStr::from_ptr(version.as_ptr()) }.to_string_lossy();
    result == NVML_SUCCESS && KNOWN.iter().any(|known| version.split('.').next() == Some(known))
}

/// Writes the processes of `list` as NVML does.
fn answer(count: *mut c_uint, entries: *mut Entry, list: impl FnOnce(&'static Ready) -> Vec<Entry>) -> c_int {
    if count.is_null() {
        return NVML_INVALID_ARGUMENT;
    }
    let answer = || match start::ready() {
        // SAFETY: nvidia-smi's promises to NVML.
        Some(ready) => unsafe { fill(&list(ready), count, entries) },
        None => NVML_NO_PERMISSION,
    };
    detour::guarded(answer).unwrap_or(NVML_NO_PERMISSION)
}

extern "C" fn compute(device: usize, count: *mut c_uint, entries: *mut Entry) -> c_int {
    let entry = |(pid, used, [gpu_instance, compute_instance]): Used| Entry {
        pid,
        used,
        gpu_instance,
        compute_instance,
        padding: 0,
        name: name(pid),
    };
    answer(count, entries, |ready| {
        with_ids(ready, device).into_iter().flatten().map(entry).collect()
    })
}

extern "C" fn nobody(_device: usize, count: *mut c_uint, entries: *mut Entry) -> c_int {
    answer(count, entries, |_| Vec::new())
}

/// Returns the command line of a process.
fn name(pid: u32) -> [u8; 4096] {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut name = [0; 4096];
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    // The last byte stays zero.
    name.iter_mut().take(4095).zip(first).for_each(|(to, from)| *to = *from);
    name
}
