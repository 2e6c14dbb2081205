//! vgpu-controller: says why a pod that asks for a GPU fraction is Pending; in controller mode it allocates, too.
//!
//! ```text
//!  pods ─┐                                              pure, no kube
//!  claims├─ watch ─► wire, convert ─► Change ─► Cluster ─► vgpu_allocator::Index
//!  slices│  (async)  (types of the API)           │             │ a node's answer
//!  classes                                        ▼             ▼
//!  nodes │                        pod ─► Question, Shape ─► Answers (one for all that ask alike)
//!  rules ┘                                  │                   │
//!                                        check               Summary
//!                                           └───► pending ◄─────┘
//!                                                    ▼
//!  events.k8s.io ◄── publish (async) ◄── Notices: when, how often
//! ```
//!
//! kube-scheduler says `cannot allocate all claims` and no more. This controller reads what the scheduler read, asks
//! the allocator (`driver/allocator`, whose answers are Kubernetes' own), and puts an event on the pod: which claim and
//! request, what it asked for, what stands in the way on how many devices, who holds the rest, and the largest fraction
//! that would fit. `vgpu explain` says the same of every device. With `--allocator=scheduler` it writes nothing but
//! events, so at worst it is wrong in words; it holds no lock and keeps no state of its own. With
//! `--allocator=controller` the same watches feed a planner besides, whose decisions are written, and whose index is the
//! one that is asked: see [`control`].
//!
//! How it fails, and what follows:
//! - **Killed, restarted, run twice:** an event's name is a digest of pod, reason and text, so the same text is the
//!   same event and is counted, never repeated as another object.
//! - **A watch breaks:** what the relist brings stands at once, what it does not bring is gone at its end; until then
//!   the last known state stands. Nothing is said before all kinds were listed once. An API server that does not serve
//!   DeviceTaintRules has none.
//! - **One kind runs ahead of another** (a claim was freed, the pod not yet bound): a verdict that devices have room is
//!   said only when it has stood for a while; a shortage is said once the scheduler has said Unschedulable.
//! - **The API server refuses an event:** transient failures are tried again later, refusals are logged and dropped.
//! - **Hostile objects:** a mistake in a claim, a class or a slice is the answer of the pods that meet it and of no
//!   other; a claim that is hard to answer waits its turn behind all others; every text is cut to what an event may
//!   hold.
//! - **A large cluster:** see [`answers`]; what is said may be older than the cluster, never newer.

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
mod watch;
mod words;

pub use flags::{Config, Flags};
pub use run::run;
