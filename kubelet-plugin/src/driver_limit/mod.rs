//! The driver's own limit of a container's cgroup, the second wall behind the library
//! (docs/adr/0013-the-drivers-limit-behind-the-librarys.md).
//!
//! ```text
//!  command   command lines of vgpu-driver-limit, and a run of it on the node ─┬─► dra::edits: the hook of a claim's CDI spec
//!                                                                             ▼
//!  check     what a run of `check` printed: the limits that were read back ─────► enforcement::read_back
//!  probe     which GPUs the driver limits cgroups on ──► Gpu::driver_limit: Prepare, slices, enforcement
//! ```

pub mod check;
pub mod command;
pub(crate) mod probe;
