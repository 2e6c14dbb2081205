//! Lists as NVML writes them: the number of entries, and the entries.

use crate::codes::{NVML_INSUFFICIENT_SIZE, NVML_INVALID_ARGUMENT, NVML_SUCCESS};
use core::ffi::{c_int, c_uint, c_ulonglong};

/// nvmlProcessInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Process {
    pub(crate) pid: c_uint,
    pub(crate) used: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

/// A process by its PID, its bytes, and the ids of the instances in which it is.
pub(crate) type Used = (u32, u64, [c_uint; 2]);

impl From<Used> for Process {
    fn from((pid, used, [gpu_instance, compute_instance]): Used) -> Self {
        Self {
            pid,
            used,
            gpu_instance,
            compute_instance,
        }
    }
}

/// Writes `found` as NVML does: only the count if there is no room.
///
/// # Safety
/// `count` is null or readable and writable; `list` is null or has `*count` entries.
pub(crate) unsafe fn fill<T: Copy>(found: &[T], count: *mut c_uint, list: *mut T) -> c_int {
    // SAFETY: as promised.
    let Some(count) = (unsafe { count.as_mut() }) else {
        return NVML_INVALID_ARGUMENT;
    };
    let room = std::mem::replace(count, found.len() as c_uint) as usize;
    if room < found.len() {
        return NVML_INSUFFICIENT_SIZE;
    }
    if !found.is_empty() {
        if list.is_null() {
            return NVML_INVALID_ARGUMENT;
        }
        // SAFETY: as promised: there is room.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), list, found.len()) };
    }
    NVML_SUCCESS
}

/// Keeps only the share's own entries of the list that NVML has written.
///
/// # Safety
/// `count` is null or was written; `list` is null or has that many entries.
pub(crate) unsafe fn keep<T: Copy>(count: *mut c_uint, list: *mut T, is_own: impl Fn(&T) -> bool) {
    // SAFETY: as promised.
    if let (Some(count), false) = (unsafe { count.as_mut() }, list.is_null()) {
        // SAFETY: as promised, and not null.
        let entries = unsafe { core::slice::from_raw_parts_mut(list, *count as usize) };
        let mut kept = 0;
        for at in 0..entries.len() {
            if is_own(&entries[at]) {
                entries[kept] = entries[at];
                kept += 1;
            }
        }
        *count = kept as c_uint;
    }
}
