//! Truth: what shares really use, by the driver, compared with what they may, and told.
//!
//! ```text
//!  NVML ─► gpu_processes ─┐
//!  /proc ─► processes ────┼─► observe, every 4 s: memory, injected ─► settle ─► kill
//!    cgroup               │        │                                    │
//!  limits, ledgers ───────┘        ▼                                    ▼
//!  compute's verdicts ──────► metrics                        Truth ─► tell: conditions ─► status.devices (api), events
//! ```
//!
//! `compare_share` compares one share, once, for `vgpu-kubelet-plugin check`.
//!
//! Pure: `cgroup`, `memory`, `injected`, `settle`, `finding`, `conditions`. A share is told apart by mount namespaces, a pod by
//! cgroups; neither can be changed by a tenant so that something else is said of its neighbour.

mod api;
mod cgroup;
mod compare_share;
mod conditions;
mod finding;
mod gpu_processes;
mod injected;
mod kill;
mod memory;
pub mod metrics;
mod observe;
mod processes;
mod settle;
mod tell;
#[cfg(test)]
mod tests;

pub use api::Pods;
pub use compare_share::{Listed, ShareComparison, ShareFiles, Verdict, compare_share};
pub use gpu_processes::{GpuProcesses, Memory, NvmlProcesses};
pub use injected::Pod;
pub use observe::{Observer, Truth, run as observe};
pub use processes::Proc;
#[cfg(test)]
pub(crate) use processes::tests as proc_tests;
pub use tell::run as tell;
