//! The controller's state in both modes, and its decisions in controller mode. Pure: no kube, no I/O, no clock.
//!
//! ```text
//!  watches, lists ─► Change ─► State ──────────────────────► Planner ──────► Plan
//!   pods, nodes        cluster: who sits where ─► filter ──┐                  ├─ writes ─► check (lease, age) ─► API server
//!   slices, classes    ownership: each device's allocator ─┼─► place          │              each with its version
//!   claims             claims: versions, writes under way ─┤     │            ├─ asks: lists and reads that must not lag
//!                      index: what is free ────────────────┘     │            ├─ verdicts: what to report
//!   lease ───────────► term: fencing the predecessor off ────────┘            └─ wake: when to plan again
//!        ▲                                                                            │
//!        └──────────────────────────── outcome of each write ◄────────────────────────┘
//! ```
//!
//! In scheduler mode the state is used without a planner: explanations are asked of it, and nothing is decided.
//!
//! A claim that waits for devices of the controller's goes through: marked (finalizer, epoch) ─► allocated and held for
//! a pod ─► reserved by kube-scheduler, which binds the pod ─► released ─► cleared by kube-controller-manager when the
//! last pod is gone. Where a hold is for which pod and on which node is read back from the claim: any process continues
//! what another began. How each failure ends is in `docs/controller.md`; the rules that keep a device from being given
//! twice are at the head of [`claims`], [`devices`] and [`term`]:
//!
//! - **Two leaders**: what the first decided before it was paused fails, for the second gave the claim a new version.
//! - **A write without an answer**: its devices stay in use until a newer version of the claim is seen.
//! - **A watch that lags**: older versions never replace newer ones; a device that changes hands is used only after a
//!   list of all claims that is younger than the change; a slice that is decided on was read a moment ago.
//! - **Objects that make no sense**: an error names them, for the one pod that they are of.
#![forbid(unsafe_code)]

mod allocation;
mod allocator_view;
mod change;
mod claims;
mod cluster;
mod device_ownership;
mod device_taints;
mod filter;
mod gang;
mod hold_expiry;
pub mod model;
pub mod names;
mod node_penalty;
mod open_reads;
mod place;
mod planner;
mod policy;
mod problems;
mod queue;
mod search_budget;
mod state;
mod term;
mod time;
mod verdict;
mod write;

pub use allocator_view::explain;
pub use change::{Change, Last, Read, Seen};
pub use device_ownership::{Published, Unallocatable};
pub use filter::Refusal;
pub use planner::{Plan, Planner, Settings};
pub use queue::Queue;
pub use state::{Mode, News, State};
pub use term::Term;
pub use time::Time;
pub use verdict::{About, Object, Verdict};
pub use write::{Intent, Outcome, Stale, Write, WriteId};
