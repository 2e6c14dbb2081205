//! vgpu-controller explains why a pod that asks for a GPU fraction is Pending. In controller mode it also allocates.
//!
//! ```text
//!  one watch for each kind ─► decode ─► Changes ─┬─► State ─► vgpu_allocator::Index
//!         (async)                                │     │           │ the answer for a node
//!                                                │     │           ▼
//!                                                │     │   Answers: one for all pods with equal claims (Question, Shape)
//!                                                │     │           │
//!                                                │     │   vgpu_planner::explain: the text
//!                                                │     │                        │
//!  Lease ─► Term ─► leader: Placer, Quotas, ◄────┘     │                        ▼
//!                   Translator, Usages ────────────────┴───────────► Notices: when, how often
//!                     │                                                         │
//!                     └─► writes, checked against the lease                     └─► publish: events.k8s.io
//! ```
//!
//! kube-scheduler only says `cannot allocate all claims`. This controller reads the same objects as the scheduler, asks
//! the allocator (`driver/allocator`, whose answers are the same as Kubernetes' own), and creates an event on the pod:
//! the claim and request, the requested amounts, how many devices are blocked by what, who holds the rest, and the
//! largest fraction that would fit. `vgpu explain` lists every device. With `--allocator=scheduler` the controller
//! writes nothing but events, so a wrong text is the worst that can happen; it holds no lock and stores nothing. With
//! `--allocator=controller` a planner owns the same state, and its decisions are written: `placing.rs`. With
//! `--translate-dialects` it also serves a mutating webhook, which gives claims to pods of other systems: see
//! [`webhook`]. The leader then makes the templates of these claims, and writes the annotations that these pods expect:
//! `translation.rs`. With `--quota` the leader removes scheduling gates according to namespace quotas and budgets:
//! `quota.rs`. With `--usage` it writes one VgpuUsage per namespace: `usage.rs`. The loop of all four is `leader.rs`.
//! `vgpu-controller check-uninstall` runs none of this: `uninstall.rs`.
//!
//! Failure modes:
//! - **Killed, restarted, run twice:** an event's name is a digest of pod, reason and text, so the same text finds the
//!   same event and increases its count.
//! - **A watch breaks:** objects of the new list are applied one by one, and objects that it does not have are removed
//!   at its end; until then the last known state is used. No event is written before every kind was listed once. If the
//!   API server does not serve DeviceTaintRules, there are none.
//! - **One kind is ahead of another** (a claim was freed, the pod is not bound yet): that devices have room is reported
//!   only after it has been true for a while, and a shortage only after the scheduler has said Unschedulable.
//! - **The API server refuses an event:** transient failures are retried, refusals are logged and dropped.
//! - **Hostile objects:** a mistake in a claim, a class or a slice affects only the pods that use it. An expensive
//!   claim waits its turn behind all others. Every text is cut to the length of an event's note.
//! - **A large cluster:** see [`vgpu_planner::explain::Answers`]; an event may be older than the cluster's state, never newer.

#![forbid(unsafe_code)]

pub mod decode;
pub mod flags;
pub mod notices;
pub mod webhook;

mod explain;
#[cfg(test)]
#[path = "fake_api_test.rs"]
mod fake_api;
mod http;
mod leader;
mod main_loop;
mod metrics;
mod placing;
mod publish;
mod quota;
mod run;
mod translation;
mod uninstall;
mod usage;
mod watch;

pub use flags::{Command, Config, Flags};
pub use run::run;
pub use uninstall::check_uninstall;
