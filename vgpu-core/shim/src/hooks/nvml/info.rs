//! Memory and processes of a GPU, as NVML's functions return them: those of the share, from its ledger. If the share
//! may use host memory as well, total and used contain both, as for cuMemGetInfo.
//!
//! Lists of processes contain those of this PID namespace, because a PID of another namespace means nothing here.

use crate::codes::{NVML_NO_PERMISSION, NVML_NOT_SUPPORTED, NVML_SUCCESS};
use crate::detour;
use crate::driver::Gpu;
use crate::hooks::nvml;
use crate::hooks::nvml::list::{Process, fill, keep};
use crate::names::slot;
use crate::out::put;
use crate::process::Ready;
use crate::{real, start};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use vgpu_core::memory::room;

/// nvmlMemory_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// nvmlMemory_v2_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// nvmlProcessInfo_v1_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV1 {
    pid: c_uint,
    used: c_ulonglong,
}

pub(crate) fn gpu(ready: &'static Ready, device: usize) -> Option<&'static Gpu> {
    let found = nvml::devices::list(ready)
        .into_iter()
        .find(|known| known.handle == device)?;
    ready.gpus.get(found.gpu)
}

/// Total and used bytes of a GPU's shares.
pub(crate) fn figures(gpu: &Gpu) -> (u64, u64) {
    gpu.account.reap();
    room::refresh(gpu);
    (gpu.account.limit(), gpu.account.charged())
}

pub(crate) unsafe fn memory(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut Memory) -> c_int,
    device: usize,
    info: *mut Memory,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, info) };
    if let (NVML_SUCCESS, Some(gpu)) = (result, gpu(ready, device)) {
        let (total, used) = figures(gpu);
        let free = total.saturating_sub(used);
        // SAFETY: NVML has written there.
        unsafe { put(info, Memory { total, free, used }) };
    }
    result
}

pub(crate) unsafe fn memory_v2(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut MemoryV2) -> c_int,
    device: usize,
    info: *mut MemoryV2,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, info) };
    // SAFETY: null, or NVML has written there.
    if let (NVML_SUCCESS, Some(gpu), Some(info)) = (result, gpu(ready, device), unsafe { info.as_mut() }) {
        let (total, used) = figures(gpu);
        let free = total.saturating_sub(used);
        let version = info.version;
        *info = MemoryV2 {
            version,
            total,
            reserved: 0,
            free,
            used,
        };
    }
    result
}

pub(crate) fn running(ready: &'static Ready, device: usize) -> Option<Vec<(u32, u64)>> {
    let gpu = gpu(ready, device)?;
    gpu.account.reap();
    room::refresh(gpu);
    Some(gpu.account.processes())
}

pub(crate) unsafe fn processes_v1(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint, *mut ProcessV1) -> c_int,
    device: usize,
    count: *mut c_uint,
    list: *mut ProcessV1,
) -> c_int {
    let Some(running) = running(ready, device) else {
        // SAFETY: passed on.
        return unsafe { real(device, count, list) };
    };
    let found: Vec<_> = running.into_iter().map(|(pid, used)| ProcessV1 { pid, used }).collect();
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(&found, count, list) }
}

pub(crate) unsafe fn processes(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint, *mut Process) -> c_int,
    device: usize,
    count: *mut c_uint,
    list: *mut Process,
) -> c_int {
    let Some(running) = running(ready, device) else {
        // SAFETY: passed on.
        return unsafe { real(device, count, list) };
    };
    let found = running.into_iter().map(|(pid, used)| Process {
        pid,
        used,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    });
    let found: Vec<_> = found.collect();
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(&found, count, list) }
}

/// Lists of kinds of processes that no share counts.
pub(crate) unsafe fn no_processes(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint, *mut u8) -> c_int,
    device: usize,
    count: *mut c_uint,
    list: *mut u8,
) -> c_int {
    if gpu(ready, device).is_none() {
        // SAFETY: passed on.
        return unsafe { real(device, count, list) };
    }
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(&[], count, list) }
}

/// Returns true if a PID is that of a process of the share.
pub(crate) fn own_pids(ready: &'static Ready, device: usize) -> impl Fn(c_uint) -> bool {
    let own = running(ready, device).unwrap_or_default();
    move |pid| own.iter().any(|(known, _)| *known == pid)
}

pub(crate) unsafe fn accounting_pids(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint, *mut c_uint) -> c_int,
    device: usize,
    count: *mut c_uint,
    pids: *mut c_uint,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, count, pids) };
    if result == NVML_SUCCESS {
        let is_own = own_pids(ready, device);
        // SAFETY: NVML has written both.
        unsafe { keep(count, pids, |pid| is_own(*pid)) };
    }
    result
}

/// Lists of all processes of a GPU in forms that no share has.
pub(crate) unsafe fn unsupported(
    _ready: &'static Ready,
    _real: unsafe extern "C" fn(usize, *mut c_void) -> c_int,
    _device: usize,
    _list: *mut c_void,
) -> c_int {
    NVML_NOT_SUPPORTED
}

/// NVML's own text, else ours for the refusal.
pub(crate) fn error_text(error: c_int) -> *const c_char {
    let ready = detour::guarded(start::ready).flatten();
    if ready.is_some() && real::has(slot::nvmlErrorString) {
        // SAFETY: the real function of this name has this signature.
        return unsafe {
            core::mem::transmute::<*const (), unsafe extern "C" fn(c_int) -> *const c_char>(real::address(
                slot::nvmlErrorString,
            ))(error)
        };
    }
    match error {
        NVML_SUCCESS => c"Success",
        NVML_NO_PERMISSION => c"Insufficient Permissions: see the line of vgpu on stderr",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
