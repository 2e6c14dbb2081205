//! Replaces HAMi-core in a container that HAMi's device plugin has set up: reads HAMi's variables as limits, and writes
//! the file that HAMi's monitor reads.
//!
//! ```text
//!  CUDA_DEVICE_MEMORY_LIMIT_0=3000m ... ─► variables ─► Settings ─┐
//!  NVML: the GPUs of this container ──────────────────────────────┴► assign ─► limits of each GPU
//!  CUDA_DEVICE_MEMORY_SHARED_CACHE ─► place: a folder of ledgers that all processes of the container find
//!                                 └─► region: layout of the monitor's file, written by mirror
//! ```
//!
//! The variables are read only if neither /run/vgpu nor VGPU_RUN_DIR gives limits. Anybody who sets a program's
//! variables can change limits that come from variables; limits that are mounted can be changed by the tenant alone.
//!
//! Deliberate differences from HAMi-core:
//! - A limit that cannot be parsed refuses the process; HAMi-core ignores it. A limit above the GPU's memory is the
//!   GPU's memory.
//! - Limits follow the order of NVIDIA_VISIBLE_DEVICES if it names GPUs, which is what HAMi's scheduler means by it.
//! - The region file is written and never read, so its contents cannot lift a limit or block a process.

pub mod assign;
pub mod mirror;
pub mod place;
pub mod region;
pub mod variables;
