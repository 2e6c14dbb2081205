//! The controller's state in both modes, and its decisions in controller mode. Pure: no kube, no I/O, no clock.
//!
//! ```text
//!  watches, lists ─► Change ─► State ───────────────────► Planner ──────► Plan
//!   pods, nodes        cluster: pods by node ─► filter ──┐                  ├─ writes ─► check (lease, age)
//!   slices, classes    ownership: devices' allocators ───┼─► place          │              ─► API server, with version
//!   claims             claims: versions, writes in flight┤     │            ├─ reads: consistent lists and gets
//!                      index: free capacity ─────────────┘     │            ├─ verdicts: what to report
//!   lease ───────────► term: fences off the predecessor ───────┘            └─ wake: when to plan again
//!        ▲                                                                          │
//!        └─────────────────────────── outcome of each write ◄───────────────────────┘
//! ```
//!
//! In scheduler mode the state has no planner: it only answers why pods are Pending. `vgpu explain` makes a state of files
//! ([`explain`]).
//!
//! In controller mode a claim is marked (finalizer, epoch), then allocated and held for a pod. kube-scheduler reserves
//! the claim and binds the pod, then the hold is released. kube-controller-manager clears the allocation when the last
//! pod is gone. The pod and the node of a hold are read back from the claim, so any replica can continue what another
//! began. `docs/controller.md` says how each failure ends. The rules that keep a device from being allocated twice are
//! at the head of [`claims`], [`device_taints`] and [`term`]:
//!
//! - **Two leaders**: the second gives each claim a new version, so a write that the first decided before fails.
//! - **A write without an answer**: its devices stay in use until a newer version of the claim is seen.
//! - **A watch that lags**: older versions never replace newer ones. A device that changes its allocator is used only
//!   after a list of all claims that was begun later. A slice was read from the API server, not from a watch, a moment
//!   before a decision on its devices.
//! - **Invalid objects**: an error names them, and only their own pods wait.
#![forbid(unsafe_code)]

mod allocation;
mod change;
mod claims;
mod cluster;
mod device_overhead;
mod device_ownership;
mod device_taints;
pub mod explain;
mod filter;
mod gang;
mod hold_expiry;
mod mistakes;
pub mod model;
pub mod names;
mod node_penalty;
mod obstacle;
mod open_reads;
mod place;
mod planner;
mod policy;
mod problems;
mod queue;
mod search_budget;
mod state;
mod suspects;
mod term;
mod time;
mod verdict;
mod write;

pub use change::{Change, Last, Read, Seen};
pub use device_ownership::{Published, Unallocatable};
pub use filter::Refusal;
pub use mistakes::{Mistake, SubRequest, sub_requests};
pub use obstacle::{Namesake, Obstacle};
pub use planner::{Plan, Planner, Settings};
pub use queue::Queue;
pub use state::{Mode, News, State};
pub use term::Term;
pub use time::Time;
pub use verdict::{About, Object, Verdict};
pub use write::{Intent, Outcome, Stale, Write, WriteId};
