//! Memory and processes of a GPU, as NVML's functions return them: those of the share, from its ledger. If the share
//! may use host memory, total and used include it, as for cuMemGetInfo.
//!
//! Lists of processes contain those of this PID namespace, because a PID of another namespace means nothing here.

use crate::codes::{NVML_NO_PERMISSION, NVML_NOT_SUPPORTED, NVML_SUCCESS};
use crate::detour;
use crate::driver::Gpu;
use crate::hooks::nvml;
use crate::hooks::nvml::list::{Used, fill, keep};
use crate::names::slot;
use crate::out::put;
use crate::process::Ready;
use crate::{real, start};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong};
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

impl From<Used> for ProcessV1 {
    fn from((pid, used, _): Used) -> Self {
        Self { pid, used }
    }
}

pub(crate) fn gpu(ready: &'static Ready, device: usize) -> Option<&'static Gpu> {
    ready.gpus.get(nvml::devices::find(ready, device)?.gpu)
}

/// Total and used bytes of a GPU's shares.
pub(crate) fn figures(gpu: &Gpu) -> (u64, u64) {
    gpu.account.reap();
    room::refresh(gpu);
    (gpu.account.limit(), gpu.account.charged())
}

pub(crate) unsafe fn memory(
    ready: &'static Ready,
    device: usize,
    info: *mut Memory,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    let is_ours = has_answer(result) && !info.is_null();
    let Some(gpu) = is_ours.then(|| gpu(ready, device)).flatten() else {
        return result;
    };
    let (total, used) = figures(gpu);
    let free = total.saturating_sub(used);
    // SAFETY: not null, the caller's to be written.
    unsafe { put(info, Memory { total, free, used }) };
    NVML_SUCCESS
}

/// Returns true if the share's figures replace NVML's. NVML has none of a GPU whose memory is also the system's; of the
/// share there are some.
fn has_answer(result: c_int) -> bool {
    matches!(result, NVML_SUCCESS | NVML_NOT_SUPPORTED)
}

pub(crate) unsafe fn memory_v2(
    ready: &'static Ready,
    device: usize,
    info: *mut MemoryV2,
    next: impl FnOnce() -> c_int,
) -> c_int {
    const VERSION: c_uint = 2 << 24 | size_of::<MemoryV2>() as c_uint;
    let result = next();
    // SAFETY: null, or the caller's to be written; at least the version is there, which NVML reads first.
    let version = unsafe { info.cast::<c_uint>().as_ref() }.copied();
    // NVML may refuse an unsupported call before it looks at the version, which says how much may be written.
    let fits = result == NVML_SUCCESS || version == Some(VERSION);
    let (Some(gpu), Some(version)) = (
        (has_answer(result) && fits).then(|| gpu(ready, device)).flatten(),
        version,
    ) else {
        return result;
    };
    let (total, used) = figures(gpu);
    let told = MemoryV2 {
        version,
        total,
        reserved: 0,
        free: total.saturating_sub(used),
        used,
    };
    // SAFETY: not null, and as large as its version says.
    unsafe { put(info, told) };
    NVML_SUCCESS
}

pub(crate) fn running(ready: &'static Ready, device: usize) -> Option<Vec<(u32, u64)>> {
    let gpu = gpu(ready, device)?;
    gpu.account.reap();
    room::refresh(gpu);
    Some(gpu.account.processes())
}

/// The processes of the shares of a GPU or an instance, with the ids of the latter.
pub(crate) fn with_ids(ready: &'static Ready, device: usize) -> Option<Vec<Used>> {
    let ids = nvml::devices::find(ready, device)?.ids;
    let running = running(ready, device)?.into_iter();
    Some(running.map(|(pid, bytes)| (pid, bytes, ids)).collect())
}

/// Writes the list of compute processes, in either layout.
pub(crate) unsafe fn processes<T: From<Used> + Copy>(
    ready: &'static Ready,
    device: usize,
    count: *mut c_uint,
    list: *mut T,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let Some(running) = with_ids(ready, device) else {
        return next();
    };
    let found: Vec<T> = running.into_iter().map(T::from).collect();
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(&found, count, list) }
}

/// Writes empty lists for kinds of processes that no share has.
pub(crate) unsafe fn no_processes(
    ready: &'static Ready,
    device: usize,
    count: *mut c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if gpu(ready, device).is_none() {
        return next();
    }
    // SAFETY: the caller's promises to NVML.
    unsafe { fill::<u8>(&[], count, core::ptr::null_mut()) }
}

/// Returns a function that checks whether a PID belongs to a process of the share.
pub(crate) fn own_pids(ready: &'static Ready, device: usize) -> impl Fn(c_uint) -> bool {
    let own = running(ready, device).unwrap_or_default();
    move |pid| own.iter().any(|(known, _)| *known == pid)
}

pub(crate) unsafe fn accounting_pids(
    ready: &'static Ready,
    device: usize,
    count: *mut c_uint,
    pids: *mut c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if result == NVML_SUCCESS {
        let is_own = own_pids(ready, device);
        // SAFETY: NVML has written both.
        unsafe { keep(count, pids, |pid| is_own(*pid)) };
    }
    result
}

/// Refuses calls that list all processes of a GPU in forms that do not exist for shares.
pub(crate) fn unsupported(_ready: &'static Ready, _next: impl FnOnce() -> c_int) -> c_int {
    NVML_NOT_SUPPORTED
}

/// Returns NVML's own text, or ours for a refusal.
pub(crate) fn error_text(error: c_int) -> *const c_char {
    let ready = detour::guarded(start::ready).flatten();
    if ready.is_some() && real::has(slot::nvmlErrorString) {
        let describe: unsafe extern "C" fn(c_int) -> *const c_char = real::function(slot::nvmlErrorString);
        // SAFETY: the function has this signature.
        return unsafe { describe(error) };
    }
    match error {
        NVML_SUCCESS => c"Success",
        NVML_NO_PERMISSION => c"Insufficient Permissions: see the line of vgpu on stderr",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
