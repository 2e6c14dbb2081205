//! Compares what shares really use, according to the driver, with their limits, and reports the result.
//!
//! ```text
//!  nvml::sampler, every 2 s ────┬─► publish: gpus, faults
//!                               ▼
//!  /proc ─► processes ────► turn: verdicts ─► observations ─┬─► report: status.devices (conditions), events (event_log), VgpuNode
//!  limits, ledgers, pages ──┤      └─► kill, ignored shares └─► metrics
//!  driver's limits, 45 s ───┘ read_back
//! ```
//!
//! `compare_share` compares one share, once, for `vgpu-kubelet-plugin check`.
//!
//! The library limits; everything here watches. Pure: `verdicts`, `conditions`, `usage`. A share is recognised by mount
//! namespaces, a pod by cgroups. A tenant can change neither so that something else is said of its neighbour.

mod api;
mod compare_share;
mod compute;
mod conditions;
pub(crate) mod counters;
pub(crate) mod event_log;
mod kill;
pub(crate) mod notices;
mod observations;
mod processes;
mod read_back;
pub(crate) mod report;
#[cfg(test)]
pub(crate) mod tests;
mod turn;
pub(crate) mod usage;
mod verdicts;

pub use api::Pods;
pub use compare_share::{Listed, ShareComparison, ShareFiles, Verdict, compare_share};
pub use observations::{Observations, State};
#[cfg(test)]
pub(crate) use processes::tests as process_tests;
pub use processes::{Extent, Processes};
pub use read_back::{Question, question};
pub use report::run as report_all;
pub use turn::{Observer, run as observe};
pub(crate) use verdicts::compute::Verdict as ComputeVerdict;
pub use verdicts::mounts::Pod;
