//! Replaces HAMi-core in a container that HAMi's device plugin has set up: reads HAMi's variables as limits, and writes
//! the file that HAMi's monitor reads.
//!
//! ```text
//!  CUDA_DEVICE_MEMORY_LIMIT_0=3000m ... ─► variables ─► Settings ─┐
//!  NVML: the GPUs of this container ──────────────────────────────┴► assign ─► limits of each GPU
//!  CUDA_DEVICE_MEMORY_SHARED_CACHE ─► place: a folder of ledgers for all processes of the container
//!                                 └─► region: layout of the monitor's file, written by mirror
//! ```
//!
//! The variables are read only if neither /run/vgpu nor VGPU_RUN_DIR gives limits. Limits in variables can be changed
//! by anybody who sets a program's environment, mounted limits only by the tenant.
//!
//! Deliberate differences from HAMi-core:
//! - A limit that cannot be parsed refuses the process; HAMi-core ignores it. A limit above the GPU's memory is cut to
//!   it.
//! - Limits follow the order of NVIDIA_VISIBLE_DEVICES if it names GPUs, as HAMi's scheduler intends.
//! - The region file is written and never read, so its contents cannot lift a limit or block a process.

pub mod assign;
pub mod mirror;
pub mod place;
pub mod region;
pub mod variables;
