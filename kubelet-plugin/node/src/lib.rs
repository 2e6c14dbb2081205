//! What the shares of a machine have in common, for the plugin and for `vgpu run`: their arbitration folders, the files and
//! mounts below them, which processes use a share, which pod a cgroup belongs to, and the list of GPUs.
//!
//! ```text
//!  vgpu-kubelet-plugin ─┬─► lock_file
//!                       ├─► arbitration ─► files, tmpfs ─► selinux
//!  vgpu run ────────────┴─► mounts, locks, gpus
//!  vgpu-driver-limit ─────► cgroup, files, lock_file, driver_limit ◄── vgpu-kubelet-plugin
//! ```
#![deny(unsafe_code)] // allowed in gpus/raw.rs, read_nvlink.rs and mig.rs alone: nvml-wrapper lacks some calls

pub mod arbitration;
pub mod cgroup;
pub mod driver_limit;
pub mod files;
pub mod gpus;
pub mod lock_file;
pub mod locks;
pub mod mounts;
pub mod sealed;
pub mod selinux;
pub mod tmpfs;
