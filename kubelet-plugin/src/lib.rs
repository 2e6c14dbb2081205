//! vgpu-kubelet-plugin publishes this node's GPUs as ResourceSlices, prepares allocated claims for the
//! container runtime, and serves what containers use as metrics.
//!
//! ```text
//!  nvml: a child process with NVML (driver root)                     API server
//!       │ inventory: list the GPUs                    ▲ api: create, replace   │ api: GET claim
//!       ▼                                             │                        ▼
//!     gpus (contexts, faults): every 10 s ─► slice: devices ─► publish: taints, plan     claim ── shares
//!       │                                                                │
//!       └──► health, node (which GPUs there are)                         │
//!                       ▼                                                ▼
//!  kubelet ──registration, server──► node: records, claimdir, arbitration, edits ──► CDI files
//!     ▲                               │                                  library ──► /var/lib/vgpu
//!     └──health──                     └── usage (ledgers), compute (pages, NVML) ──► metrics, http
//!                                          ├──────────► background: events on pods (told); clean_up (stale, mount_users)
//!                                          └──────────► truth: conditions of claims, events, kills
//! ```
//!
//! `server` passes the calls that wait for the node's lock to `queue`, and those without room to `waiting`; `clean_up` reports
//! shares without a claim by `unclaimed`; `connection` is
//! what `api` talks over. `check` prints what `nvml`, `truth` and `driver` find, for `make gpu-check`.
//!
//! Pure (no I/O): `slice`, `claim`, `edits`, `gpus::published`, `faults::conditions`, `publish::plan`, `stale`, `compute::judge`. Synchronous: `node`
//! and the modules it calls, on threads of their own (`node::shared`).
//! Asynchronous: `api`, `background`, `claim_access`, `clean_up`, `compute::compare`, `gpus`, `publish`, `server`, `registration`, `run`.

pub mod api;
pub mod arbitration;
pub mod background;
pub mod check;
pub mod checkpoint;
pub mod claim;
pub mod claim_access;
pub mod claimdir;
pub mod clean_up;
pub mod compute;
pub mod config;
pub mod connection;
pub mod containers;
pub mod contexts;
pub mod crash_points;
pub mod driver;
pub mod driver_pause;
pub mod edits;
pub mod faults;
pub mod files;
#[cfg(test)]
mod fuzz_tests;
pub mod gpus;
pub mod health;
mod heap;
pub mod http;
pub mod instance;
pub mod inventory;
pub mod keep;
mod library;
pub mod metrics;
pub mod mount_users;
pub mod node;
pub mod nvml;
pub mod publish;
mod queue;
pub mod ready;
mod records;
pub mod registration;
pub mod release;
pub mod report;
pub mod run;
pub mod server;
pub mod share;
pub mod slice;
pub mod stale;
pub mod tmpfs;
pub mod told;
pub mod truth;
mod unclaimed;
pub mod usage;
pub mod waiting;
