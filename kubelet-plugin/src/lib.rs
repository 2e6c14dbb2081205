//! vgpu-kubelet-plugin: this node's GPUs into ResourceSlices, allocated claims into what a
//! container runtime understands, and what containers use into metrics.
//!
//! ```text
//!            NVML (driver root)                               API server
//!                 │ inventory                        ▲ publish      │ api: GET claim
//!                 ▼                                  │              ▼
//!               slice ── devices ────────────────────┘      claim ── shares
//!                                                                     │
//!  kubelet ──registration, server──► node: checkpoint, claimdir, arbitration, edits ──► CDI files
//!     ▲                               │                                  library ──► /var/lib/vgpu
//!     └──health──                     └── usage (ledgers) ──► metrics, http; events on pods
//! ```
//!
//! Pure: `slice`, `claim`, `edits`, `publish::plan`, `stale`. Synchronous: `node` and what it uses.
//! Asynchronous: `api`, `publish`, `server`, `registration`, `run`.
#![forbid(unsafe_code)]

pub mod api;
pub mod arbitration;
pub mod checkpoint;
pub mod chores;
pub mod claim;
pub mod claimdir;
pub mod config;
pub mod driver;
pub mod edits;
pub mod files;
pub mod gpus;
pub mod health;
pub mod http;
pub mod inventory;
pub mod library;
pub mod metrics;
pub mod node;
pub mod publish;
pub mod ready;
pub mod registration;
pub mod run;
pub mod server;
pub mod share;
pub mod slice;
pub mod stale;
pub mod steps;
pub mod tmpfs;
pub mod usage;
