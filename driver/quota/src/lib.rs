//! Namespace quotas and GPU-hour budgets: who may start, and what is charged. Pure: it gets changes and the time, and
//! returns intended writes.
//!
//! ```text
//!  VgpuQuotas, pods, claims ──────────┐
//!  slices: sizes of GPUs              │
//!  slices, classes, claims ─► Index ──┼─► QuotaController ─► Plan: reserve in status, take gates off, evict;
//!  ResourceQuotas: further ceilings ──┤     ▲      │         label namespaces and stamp quotas (labels); notices
//!  namespaces, VgpuQuotaDefaults ─────┘     └──────┘ Outcome
//! ```
//!
//! A pod waits behind a scheduling gate. The leader reserves what its claims may take in the quota's `status`, by claim
//! UID, in a write that lands only on the version it was decided on, and then takes the gate off. So everybody reserves
//! one after the other, and `status` is all that the next leader needs: whatever is reserved there is ungated again.
//!
//! `status` has the epoch of the term in which it was written. A leader that finds another's there writes its own before it
//! opens a gate on a reservation that exists already. For 30 s after that it releases only reservations of deleted claims.
//!
//! A reservation goes when its claim is deleted or freed, never because it is allocated: the next leader may see the
//! claims a moment later than `status`. What holds shares without one (pods that were there, a gate that somebody else
//! took off, a claim that is gone while its node still holds the share) counts as soon as it is seen, above the ceiling too, so
//! that others wait for it; it is no reservation.
//!
//! Failure modes:
//! - **A crash before the reservation is written:** nothing happened. **Between reservation and gate:** the next leader
//!   finds it and takes the gate off.
//! - **Two leaders:** one of two writes on the same version fails, and what the API server has is read before anything
//!   else is decided. Taking a gate off twice changes nothing. A gate is taken off without a version, so a leader whose
//!   watch lags may open one after another leader took over. The other keeps the reservation for 30 s after that, and
//!   longer if it sees the pod by then. So the first one's watch of quotas, its request that opens the gate, and the second
//!   one's watch of pods may together lag by less than 30 s.
//! - **An answer that is lost:** the quota is read. What is in `status` counts, whoever wrote it.
//! - **A new leader with an old view:** a controller begins with lists that were made after the lease was won. A reservation
//!   of a claim that it does not know stays for 30 s. So a watch may lag by less than that; one that lags by more could
//!   let a reservation go that a leader before wrote in its last seconds.
//! - **A claim deleted between reservation and gate:** its reservation goes; the pod waits for another, and gets an event. One
//!   by the same name has another UID, which is compared with the API server's before the gate goes. A named claim that
//!   its owner replaces by a larger one after that counts as soon as it is seen.
//! - **The quota deleted, or its CRD:** gates open: there is no ceiling. **Its namespace deleted:** pods, claims and quota
//!   go, and nothing is written any more.
//! - **A quota that is refused** (written while the policy was off): no gate opens, and its events name the field.
//! - **`hard` below what is used:** pods wait until enough has ended; nobody is stopped.
//! - **Somebody writes `status`** (while the policy was off): unreadable entries are left out, missing ones are found
//!   again from pods and claims, and those of nobody go after 30 s.
//! - **A node holds a share whose claim is gone:** it counts, and costs hours, from when the node says so to when it says
//!   that it let go, or is gone itself. If nodes report nothing, no gate waits for that.
//! - **A clock that jumps, an outage:** see [`Account`].

#![forbid(unsafe_code)]

mod amount;
mod budget;
mod budget_state;
mod ceilings;
mod change;
mod claim;
mod class;
mod controller;
mod decision;
mod default;
mod describe;
mod eviction;
mod evictions;
mod free_capacity;
mod gpus;
pub mod names;
mod namespace;
mod namespace_labels;
mod notice;
mod plan;
mod pod;
mod spec;
mod status;
mod view;
mod waits;

pub use amount::{Amount, Ceilings, PerDimension};
pub use budget::{Account, GpuTime, Steady, Sum};
pub use budget_state::BudgetState;
pub use ceilings::ResourceQuota;
pub use change::{Change, Unclaimed};
pub use claim::NotKnown;
pub use controller::QuotaController;
pub use default::{DefaultSpec, QuotaDefault, Stamped};
pub use namespace::{HOLD, RESERVATIONS_MAX};
pub use namespace_labels::NamespaceLabels;
pub use notice::Notice;
pub use plan::{Numbers, Outcome, Plan, SUM_EVERY, Task, Write};
pub use spec::{Budget, Spec, SpecError};
pub use status::{Quota, Status};
pub use waits::waits;

/// Time since the start of the process.
pub type Now = std::time::Duration;
