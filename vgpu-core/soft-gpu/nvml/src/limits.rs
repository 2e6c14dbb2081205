//! Limits of GPU memory for cgroups: the functions that NVML has since r615. The structures are those of its header; its
//! web page shows others.

#![allow(unsafe_code)] // geteuid has no safe wrapper in std.

use std::path::PathBuf;

use soft_gpu::c::Code;
use soft_gpu::memory_limits::{Limits, Refused};

use crate::codes::{INVALID_ARGUMENT, In, NO_PERMISSION, NOT_SUPPORTED, OPERATING_SYSTEM, Out, Text};
use crate::library::device;

/// nvmlSetMemoryLimits_v1_t. It has no version. `name_space` is the path of the cgroup's folder.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SetLimits {
    name_space: Text,
    soft: u64,
    hard: u64,
}

/// nvmlGetMemoryLimits_v1_t: the caller sets `name_space`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GetLimits {
    set: SetLimits,
    used: u64,
}

const _: () = {
    assert!(size_of::<SetLimits>() == 24);
    assert!(size_of::<GetLimits>() == 32);
};

fn code(refused: Refused) -> Code {
    match refused {
        Refused::NotSupported => NOT_SUPPORTED,
        Refused::Invalid => INVALID_ARGUMENT,
        Refused::NoPermission => NO_PERMISSION,
        Refused::System => OPERATING_SYSTEM,
    }
}

soft_gpu::api! {
    fn nvmlDeviceSetMemoryLimits_v1(gpu: u64, limits: In<SetLimits>) {
        let (state, gpu) = device(gpu)?;
        let SetLimits { name_space, soft, hard } = limits.get()?;
        let folder = PathBuf::from(name_space.get()?);
        // SAFETY: geteuid always succeeds and touches no memory.
        let is_root = unsafe { libc::geteuid() } == 0;
        state.set_memory_limits(gpu, &folder, Limits { soft, hard }, is_root).map_err(code)
    }

    fn nvmlDeviceGetMemoryLimits_v1(gpu: u64, limits: Out<GetLimits>) {
        let (state, gpu) = device(gpu)?;
        let name_space = limits.get()?.set.name_space;
        let folder = PathBuf::from(name_space.get()?);
        let (Limits { soft, hard }, used) = state.memory_limits(gpu, &folder).map_err(code)?;
        limits.set(GetLimits { set: SetLimits { name_space, soft, hard }, used })
    }
}
