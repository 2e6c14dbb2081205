//! In the place of HAMi-core: its variables, and the file that its monitor reads.
//!
//! ```text
//!  CUDA_DEVICE_MEMORY_LIMIT_0=3000m ... ─► variables ─► Settings ─┐
//!  NVML: the GPUs of this container ──────────────────────────────┴► assign ─► limits of each GPU
//!  CUDA_DEVICE_MEMORY_SHARED_CACHE ─► place: a folder of ledgers that all processes find
//!                                 └─► region: what the monitor reads, written by mirror
//! ```
//!
//! Read only where neither /run/vgpu nor VGPU_RUN_DIR gives limits: whoever can set a program's
//! variables can lift limits that come from there, and with mounted limits that is the tenant alone.
//!
//! What differs from HAMi-core, on purpose: a limit that cannot be read refuses instead of being no
//! limit; one that is larger than the GPU is the GPU; limits follow the order of
//! NVIDIA_VISIBLE_DEVICES where that names GPUs, which is what the scheduler meant by it; the region
//! file is written and never read, so nothing in it can lift a limit or hold a process up.

pub mod assign;
pub mod mirror;
pub mod place;
pub mod region;
pub mod variables;
