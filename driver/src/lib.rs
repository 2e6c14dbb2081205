//! vgpu-controller: explains why a pod that asks for a GPU fraction is Pending; in controller mode it allocates, too.
//!
//! ```text
//!  pods ─┐                                      vgpu_planner: pure, no kube
//!  claims├─ watch ─► decode ─► Change ─► State ─► vgpu_allocator::Index
//!  slices│  (async)                        │           │ the answer for a node
//!  classes                                 │           ▼
//!  nodes │            pod ─► Question, Shape ─► Answers (one for all pods that ask alike)
//!  rules ┘                      │                 │
//!                             check             Summary
//!                               └───► pending ◄───┘
//!                                        ▼
//!  events.k8s.io ◄── publish (async) ◄── Notices: when, how often
//! ```
//!
//! kube-scheduler says `cannot allocate all claims` and no more. This controller reads what the scheduler read, asks
//! the allocator (`driver/allocator`, whose answers are Kubernetes' own), and puts an event on the pod: the claim and
//! request, what it asked for, how many devices are blocked by what, who holds the rest, and the largest fraction that
//! would fit. `vgpu explain` lists every device. With `--allocator=scheduler` it writes nothing but events, so the worst
//! that it can do is a wrong text; it holds no lock and stores nothing. With `--allocator=controller` the same state
//! belongs to a planner, whose decisions are written: see [`control`].
//!
//! How it fails, and what follows:
//! - **Killed, restarted, run twice:** an event's name is a digest of pod, reason and text, so the same text is the
//!   same event and is counted, never repeated as another object.
//! - **A watch breaks:** objects of the new list are applied one by one, and those that it does not have are removed at
//!   its end; until then the last known state is used. No event is written before all kinds were listed once. An API
//!   server that does not serve DeviceTaintRules has none.
//! - **One kind runs ahead of another** (a claim was freed, the pod not yet bound): that devices have room is reported
//!   only when it has been true for a while, and a shortage only after the scheduler has said Unschedulable.
//! - **The API server refuses an event:** transient failures are tried again later, refusals are logged and dropped.
//! - **Hostile objects:** a mistake in a claim, a class or a slice affects only the pods that use it; a claim that is
//!   hard to answer waits its turn behind all others; every text is cut to what an event may hold.
//! - **A large cluster:** see [`answers`]; an event may be older than the cluster's state, never newer.

#![forbid(unsafe_code)]

pub mod answers;
pub mod control;
pub mod decode;
pub mod flags;
pub mod notices;
pub mod pending;
pub mod question;
pub mod summary;

mod check;
mod class;
mod explain;
mod http;
mod metrics;
mod publish;
mod run;
mod text;
mod watch;

pub use flags::{Config, Flags};
pub use run::run;
