//! The layout of the shared file `gpus`, which every process that uses the same state folder maps.
//!
//! The file is complete before it gets its name (written to a temporary file, then linked), and never changes its size.
//! Every word that changes is an atomic, so a reader needs no lock. It is sparse: parts that no process has used take
//! no disk space.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use crate::account::{Held, MAX_PROCS, Total};
use crate::profile::{MAX_DEVICES, MAX_GPUS};
use crate::timeline::words::Timeline;
use crate::virtual_time::VirtualTime;

pub const MAGIC: u64 = u64::from_le_bytes(*b"SOFTGPU\x07");
/// Room for the profile's text.
pub const PROFILE_BYTES: usize = 8 << 10;
/// Number of counters of calls that are not modelled, by index in `names/`: libcuda's first, then libnvidia-ml's.
pub const CALLS: usize = 2048;
/// The first counter of libnvidia-ml.
pub const NVML_CALLS: usize = 1024;

/// The largest number of cgroups to which a process is charged on a GPU: those of a pod in a node in a pod.
pub const CGROUPS: usize = 14;

/// The phases of a process slot, in the low bits of `phase`; the other bits are its generation.
pub const FREE: u64 = 0;
pub const LIVE: u64 = 1;
pub const DEAD: u64 = 2;
pub const PHASE_MASK: u64 = 3;

#[repr(C)]
pub struct Shared {
    pub magic: AtomicU64,
    /// The largest number of places that were ever in use. Readers read no further.
    pub high_water: AtomicU32,
    pub profile_len: AtomicU32,
    pub profile: [u8; PROFILE_BYTES],
    pub calls: [AtomicU32; CALLS],
    /// GPUs, then instances.
    pub gpus: [Gpu; MAX_DEVICES],
    pub procs: [Proc; MAX_PROCS],
    /// When a process last checked whether other processes with work have died.
    pub watched_at: AtomicU64,
    pub timeline: Timeline,
    pub virtual_time: VirtualTime,
    pub mig: Mig,
}

/// MIG modes and instances (see `instances`).
#[repr(C)]
pub struct Mig {
    /// The largest number of places of GPUs and instances that were ever in use.
    pub devices: AtomicU32,
    /// Number of devices that were made.
    pub made: AtomicU32,
    /// For each GPU: its mode, and the pending one.
    pub modes: [AtomicU32; MAX_GPUS],
    /// The number of the last reload of the kernel module, and of each GPU's last reset.
    pub reload: AtomicU64,
    pub resets: [AtomicU64; MAX_GPUS],
    /// A word a GPU instance.
    pub gpu_instances: [AtomicU64; MAX_DEVICES],
    /// A word a place. Those of GPUs stay 0.
    pub devices_words: [AtomicU64; MAX_DEVICES],
}

#[repr(C, align(128))]
pub struct Gpu {
    pub total: Total,
    pub uuid: [u8; 16],
    /// Changes wait until this time, so that a picture can be taken (see `clock`); 0: no wait.
    pub still_until: AtomicU64,
}

#[repr(C, align(128))]
pub struct Proc {
    pub phase: AtomicU64,
    /// The PID in the process's own namespace. Readers prefer the kernel's list (see `liveness`).
    pub pid: AtomicU32,
    pub gpus: [ProcGpu; MAX_DEVICES],
}

#[repr(C, align(128))]
pub struct ProcGpu {
    pub held: Held,
    pub contexts: AtomicU32,
    /// The cgroups to which its memory of this GPU is charged, by inode number; 0: none. Only with `memory_limits`. For each GPU,
    /// because which cgroup is charged depends on the limits of the GPU.
    pub cgroups: [AtomicU64; CGROUPS],
    /// Units that are charged to `cgroups`.
    pub charged: AtomicU64,
    /// Units that NVML lists for the process in addition to those that it holds; negative: NVML lists fewer.
    pub listed_beside: AtomicI64,
}

const _: () = {
    assert!(offset_of!(Shared, profile) == 16);
    assert!(offset_of!(Shared, gpus).is_multiple_of(128));
    assert!(offset_of!(Shared, procs).is_multiple_of(128));
    assert!(size_of::<Gpu>() == 128);
    assert!(offset_of!(Shared, timeline).is_multiple_of(128));
    assert!(size_of::<ProcGpu>() == 256);
    assert!(size_of::<Proc>() == 128 + 256 * MAX_DEVICES);
};
