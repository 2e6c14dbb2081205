//! NVML's list of devices: only GPUs in which this process has a share, in NVML's order; then instances of GPUs in MIG mode,
//! which NVML itself lists below their GPU alone.
//!
//! The GPU of an instance is in no list. NVML hands out its handle (nvmlDeviceGetDeviceHandleFromMigDeviceHandle, events),
//! which programs need for its name, its PCI address and its power. Memory and processes of that handle are those of this
//! process's first share in an instance of it, and its instances are this process's own.
//!
//! Failure modes:
//! - An instance is ended and made again: NVML uses handles' values again, so those of instances are checked by their UUIDs
//!   whenever the list is used, and looked up again. One that is gone is left out.
//! - A program keeps a handle of an instance that was ended: NVML's error is its answer.

use crate::codes::{NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, NVML_SUCCESS};
use crate::hooks::nvml::list::{fill, keep};
use crate::names::slot;
use crate::out::put;
use crate::process::{NO_INSTANCE, NvmlDevice, Ready};
use crate::real::{self, real};
use core::ffi::{CStr, c_char, c_int, c_uint};
use std::ffi::CString;
use std::sync::atomic::Ordering;

pub(crate) fn init(ready: &'static Ready, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == NVML_SUCCESS {
        ready.nvml_users.fetch_add(1, Ordering::Relaxed);
        *ready.nvml.lock() = enumerate(ready);
    }
    result
}

pub(crate) fn shutdown(ready: &'static Ready, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == NVML_SUCCESS {
        let less = |users: u32| Some(users.saturating_sub(1));
        let _ = ready
            .nvml_users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    result
}

/// Initialises NVML for this library, once, because this takes milliseconds. The program does not see it.
pub(crate) fn keep_open(ready: &'static Ready) -> bool {
    let mut own = ready.nvml_own.lock();
    if !*own {
        let mut count = 0;
        // A fork child inherits what its parent has initialised.
        // SAFETY: to be written.
        if unsafe { real!(nvmlDeviceGetCount_v2)(&mut count) } == NVML_SUCCESS {
            ready.nvml_users.fetch_max(1, Ordering::Relaxed);
        }
        // SAFETY: takes nothing.
        *own = unsafe { real!(nvmlInit_v2)() } == NVML_SUCCESS;
    }
    *own
}

/// Returns the devices of this process.
pub(crate) fn list(ready: &'static Ready) -> Vec<NvmlDevice> {
    let mut all = known(ready);
    all.retain(|device| !device.is_parent);
    all
}

/// Returns the devices of this process, and the GPUs of those that are instances. A fork child looks for them again.
fn known(ready: &'static Ready) -> Vec<NvmlDevice> {
    let mut known = ready.nvml.lock();
    if known.is_empty() || known.iter().any(|device| is_stale(ready, device)) {
        *known = enumerate(ready);
    }
    known.clone()
}

/// Returns what is known of a handle.
pub(crate) fn find(ready: &'static Ready, handle: usize) -> Option<NvmlDevice> {
    known(ready).into_iter().find(|device| device.handle == handle)
}

/// Returns true if the handle of an instance is another one's by now, or no one's.
fn is_stale(ready: &'static Ready, device: &NvmlDevice) -> bool {
    let own = ready.gpus.get(device.gpu).map(|gpu| gpu.uuid.as_str());
    !device.is_parent && device.ids != NO_INSTANCE && uuid(device.handle).as_deref() != own
}

fn enumerate(ready: &'static Ready) -> Vec<NvmlDevice> {
    let mut count = 0;
    // SAFETY: `count` is to be written.
    if unsafe { real!(nvmlDeviceGetCount_v2)(&mut count) } != NVML_SUCCESS {
        return Vec::new();
    }
    let gpus = (0..count).filter_map(|index| of(ready, index));
    let instances = ready.gpus.iter().enumerate();
    let instances = instances.filter_map(|(gpu, known)| {
        let handle = instance(&known.uuid)?;
        let (ids, is_parent) = (ids(handle), false);
        Some(NvmlDevice {
            handle,
            gpu,
            ids,
            is_parent,
        })
    });
    let mut all: Vec<NvmlDevice> = gpus.chain(instances).collect();
    for device in all.clone() {
        let parent = if device.ids == NO_INSTANCE {
            None
        } else {
            parent(device.handle)
        };
        if let Some(handle) = parent.filter(|handle| all.iter().all(|known| known.handle != *handle)) {
            let is_parent = true;
            all.push(NvmlDevice {
                handle,
                is_parent,
                ..device
            });
        }
    }
    all
}

/// The ids of an instance; zeros from a driver that has no such functions, which knows no instances either.
fn ids(handle: usize) -> [c_uint; 2] {
    let mut ids = [0; 2];
    if real::has(slot::nvmlDeviceGetGpuInstanceId) && real::has(slot::nvmlDeviceGetComputeInstanceId) {
        // SAFETY: a handle of NVML's, and numbers to be written.
        unsafe {
            real!(nvmlDeviceGetGpuInstanceId(usize, *mut c_uint))(handle, &mut ids[0]);
            real!(nvmlDeviceGetComputeInstanceId(usize, *mut c_uint))(handle, &mut ids[1]);
        }
    }
    ids
}

/// The GPU of an instance.
fn parent(instance: usize) -> Option<usize> {
    let mut gpu = 0;
    real::has(slot::nvmlDeviceGetDeviceHandleFromMigDeviceHandle).then_some(())?;
    let ask = real!(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(usize, *mut usize));
    // SAFETY: a handle of NVML's, and one to be written.
    (unsafe { ask(instance, &mut gpu) } == NVML_SUCCESS).then_some(gpu)
}

fn uuid(handle: usize) -> Option<String> {
    let mut text = [0 as c_char; 96];
    // SAFETY: the text is to be written within its length.
    let result = unsafe { real!(nvmlDeviceGetUUID(usize, *mut c_char, c_uint))(handle, text.as_mut_ptr(), 95) };
    // SAFETY: the last byte is zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_str();
    (result == NVML_SUCCESS).then_some(text.ok()?.to_owned())
}

/// The handle of an instance; None if the UUID is a GPU's, or the instance is gone.
fn instance(uuid: &str) -> Option<usize> {
    let (text, mut handle) = (CString::new(uuid).ok()?, 0_usize);
    // SAFETY: a C string, and a handle to be written.
    let result = uuid
        .starts_with("MIG-")
        .then(|| unsafe { real!(nvmlDeviceGetHandleByUUID(*const c_char, *mut usize))(text.as_ptr(), &mut handle) });
    (result == Some(NVML_SUCCESS)).then_some(handle)
}

fn of(ready: &'static Ready, index: c_uint) -> Option<NvmlDevice> {
    let mut handle = 0_usize;
    // SAFETY: to be written.
    let result = unsafe { real!(nvmlDeviceGetHandleByIndex_v2)(index, &mut handle) };
    let uuid = (result == NVML_SUCCESS).then(|| uuid(handle)).flatten()?;
    let gpu = ready.gpus.iter().position(|gpu| gpu.uuid.eq_ignore_ascii_case(&uuid))?;
    let (ids, is_parent) = (NO_INSTANCE, false);
    Some(NvmlDevice {
        handle,
        gpu,
        ids,
        is_parent,
    })
}

pub(crate) unsafe fn count(ready: &'static Ready, count: *mut c_uint, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == NVML_SUCCESS {
        // SAFETY: the driver has written there.
        unsafe { put(count, list(ready).len() as c_uint) };
    }
    result
}

pub(crate) unsafe fn by_index(
    ready: &'static Ready,
    index: c_uint,
    device: *mut usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let mut count = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(nvmlDeviceGetCount_v2)(&mut count) };
    if result != NVML_SUCCESS {
        // Our list stays valid after nvmlShutdown, but a handle does not: NVML returns the right error.
        return next();
    }
    let devices = list(ready);
    match (devices.get(index as usize), device.is_null()) {
        (Some(found), false) => {
            // SAFETY: not null, the caller's to be written.
            unsafe { put(device, found.handle) };
            NVML_SUCCESS
        }
        _ => NVML_INVALID_ARGUMENT,
    }
}

/// Finds a device by a text or by a UUID in any form.
pub(crate) unsafe fn by_text(
    ready: &'static Ready,
    device: *mut usize,
    next: impl FnOnce(*mut usize) -> c_int,
) -> c_int {
    let mut found = 0;
    if device.is_null() {
        return NVML_INVALID_ARGUMENT;
    }
    match next(&mut found) {
        NVML_SUCCESS if list(ready).iter().any(|known| known.handle == found) => {
            // SAFETY: not null, the caller's to be written.
            unsafe { put(device, found) };
            NVML_SUCCESS
        }
        NVML_SUCCESS => NVML_NOT_FOUND,
        error => error,
    }
}

/// The GPUs of an S-class unit.
pub(crate) unsafe fn of_unit(
    ready: &'static Ready,
    count: *mut c_uint,
    devices: *mut usize,
    next: impl FnOnce(*mut c_uint, *mut usize) -> c_int,
) -> c_int {
    // Written into our own buffer: NVML would report the real number of GPUs if the caller's buffer were too small.
    let mut all = [0_usize; 256];
    let mut found = all.len() as c_uint;
    let (place, list) = (&raw mut found, all.as_mut_ptr());
    // SAFETY: a list of our own, and its length.
    let result = unsafe { only_own(ready, place, list, || next(place, list)) };
    if result != NVML_SUCCESS {
        return result;
    }
    let own = all.get(..found as usize).unwrap_or_default();
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(own, count, devices) }
}

/// Removes the GPUs without a share from the list that NVML writes.
pub(crate) unsafe fn only_own(
    ready: &'static Ready,
    count: *mut c_uint,
    devices: *mut usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if result == NVML_SUCCESS {
        let own = list(ready);
        // SAFETY: NVML has written both.
        unsafe { keep(count, devices, |device| own.iter().any(|known| known.handle == *device)) };
    }
    result
}

pub(crate) unsafe fn index(
    ready: &'static Ready,
    device: usize,
    index: *mut c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    let place = list(ready).iter().position(|known| known.handle == device);
    if let (NVML_SUCCESS, Some(place)) = (result, place) {
        // SAFETY: the driver has written there.
        unsafe { put(index, place as c_uint) };
    }
    result
}

/// An instance of a GPU by its MIG index, if it is this process's own.
pub(crate) unsafe fn instance_by_index(
    ready: &'static Ready,
    gpu: usize,
    device: *mut usize,
    next: impl FnOnce(*mut usize) -> c_int,
) -> c_int {
    match find(ready, gpu) {
        // SAFETY: the caller's promises to NVML.
        Some(NvmlDevice { is_parent: true, .. }) => unsafe { by_text(ready, device, next) },
        _ => next(device),
    }
}

/// Counters of an instance by its id: of this process's own alone.
pub(crate) fn counters(ready: &'static Ready, gpu: usize, id: c_uint, next: impl FnOnce() -> c_int) -> c_int {
    let all = known(ready);
    let is_own = |device: &NvmlDevice| !device.is_parent && device.ids[0] == id && parent(device.handle) == Some(gpu);
    let is_parent = all.iter().any(|device| device.is_parent && device.handle == gpu);
    match is_parent && !all.iter().any(is_own) {
        true => NVML_NOT_FOUND,
        false => next(),
    }
}
