//! vgpu-controller: says why a pod that asks for a GPU fraction is Pending.
//!
//! ```text
//!  pods ─┐                                                        pure, no kube
//!  claims├─ watch ─► convert ─► Change ─► Cluster ─► Supply (free per GPU)
//!  slices│  (async)  (the only            (a plain       │
//!  classes┘           file with            struct)       ▼
//!                     resource types)       pod ─► pending::explain ─► Verdict
//!                                                                        │
//!  events.k8s.io ◄── publish (async) ◄── Notices: when, how often ◄──────┘
//! ```
//!
//! kube-scheduler says `cannot allocate all claims` and no more. This controller reads what the scheduler read, and
//! puts an event on the pod: which claim and request, what it asked for, what is free, what there is at all. It
//! writes nothing but events, so at worst it is wrong in words; it holds no lock and keeps no state of its own.
//!
//! How it fails, and what follows:
//! - **Killed, restarted, run twice:** an event's name is a digest of pod, reason and text, so the same text is the
//!   same event and is counted, never repeated as another object.
//! - **A watch breaks:** the relist replaces what is known of that kind at its end, in one step; until then the
//!   last known state stands. Nothing is said before all four kinds were listed once.
//! - **One kind runs ahead of another** (a claim was freed, the pod not yet bound): a verdict that GPUs have room is
//!   said only when it has stood for a while; a shortage is said once the scheduler has said Unschedulable.
//! - **The API server refuses an event:** transient failures are tried again later, refusals are logged and dropped.
//! - **Hostile objects:** every quantity is read with saturation, every text is cut to what an event may hold.
//!
//! The allocator (`driver/allocator`, a pure crate beside `driver/api`) takes the place of [`supply`] and of
//! [`pending`]'s arithmetic when it comes; [`cluster`], [`notices`] and the edges stay.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod convert;
pub mod flags;
pub mod model;
pub mod notices;
pub mod pending;
pub mod supply;

mod ask;
mod http;
mod metrics;
mod publish;
mod run;
mod watch;

pub use flags::{Config, Flags};
pub use run::run;
