//! vgpu-kubelet-plugin publishes this node's GPUs as ResourceSlices, prepares allocated claims for the
//! container runtime, and serves what containers use as metrics.
//!
//! ```text
//!  nvml: a child process with NVML (driver root)                        API server
//!       │ nvml::sampler, every 2 s                     ▲ api: create, replace │ api: GET claim
//!       ▼                                              │                      ▼
//!  publish: gpus (contexts), faults ─► slice: devices ─► taints, plan       dra: claim ── shares
//!       │                                                                     │
//!       └──► dra: health, node (which GPUs there are)                         │
//!                       ▼                                                     ▼
//!  kubelet ──registration, server──► dra::node: claimdir, arbitration, edits ──► CDI files
//!     ▲                               │                                  library ──► /var/lib/vgpu
//!     └──health──                     ├──► enforcement: samples, ledgers, pages, /proc ─► claims, events, VgpuNode, kills
//!                                     ├──► metrics ─► http
//!                                     └──► dra::clean_up (stale, mount_users)
//! ```
//!
//! | folder | |
//! |---|---|
//! | `dra` | kubelet's calls: registration, Prepare and Unprepare of claims |
//! | `publish` | GPUs, their faults, and ResourceSlices |
//! | `enforcement` | what shares really use, compared with their limits, and reported |
//! | `metrics` | figures for Prometheus |
//!
//! Of two instances on a node, one works (`work`); both answer kubelet's calls (`run`). `driver` finds the files of the
//! driver, `nvml` asks it, `node_labels` says when not to, `driver_limit` has it limit cgroups, and `connection` is the transport of `api`. `check` prints what `nvml`, `enforcement` and `driver`
//! find, for `make gpu-check`. `soft_gpu` is the init container that puts the software GPU on a node.
//!
//! Pure (no I/O): `publish::slice`, `publish::plan`, `publish::gpus::published`, `publish::faults::open_faults`, `dra::claim`,
//! `dra::edits`, `dra::stale`, `enforcement::verdicts`. Synchronous: `dra::node` and the modules it calls, on threads of their
//! own (`dra::node::turn`). The others are asynchronous.

pub mod api;
pub mod check;
pub mod config;
pub mod connection;
pub mod containers;
pub mod dra;
pub mod driver;
pub mod driver_limit;
pub mod enforcement;
#[cfg(test)]
mod fuzz_tests;
mod heap;
pub mod http;
pub mod metrics;
mod node_labels;
pub mod nvml;
pub mod publish;
pub mod ready;
mod retry;
pub mod run;
pub mod soft_gpu;
mod text;
pub mod tmpfs;
mod work;

pub use vgpu_node::arbitration;
