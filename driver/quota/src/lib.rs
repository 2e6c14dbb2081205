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
//! A pod waits behind a scheduling gate. The leader reserves the most that its claims may use in the quota's `status`,
//! by claim UID, in a write that only succeeds on the version it was decided on, and then removes the gate. So all
//! reservations are made one after the other, and `status` is all that the next leader needs: pods whose reservations
//! are there are ungated again.
//!
//! `status` contains the epoch of the term in which it was written. A leader that finds another epoch there writes its
//! own before it opens a gate on an existing reservation. For the next 30 s it only releases reservations of deleted
//! claims.
//!
//! A reservation is released when its claim is deleted or freed, never because the claim is allocated: the next leader
//! may see the claims a moment later than `status`. Shares without a reservation (pods that existed before, a gate that
//! somebody else removed, a claim that is gone while its node still holds the share) count as soon as they are seen,
//! even above the ceiling, so that others wait for them; they get no reservation.
//!
//! Failure modes:
//! - **A crash before the reservation is written:** nothing happened. **Between reservation and gate:** the next leader
//!   finds the reservation and removes the gate.
//! - **Two leaders:** one of two writes on the same version fails, and the API server's version is read before anything
//!   else is decided. Removing a gate twice changes nothing. A gate is removed without a version check, so a leader
//!   whose watch lags may open one after another leader took over. The other leader keeps the reservation for 30 s
//!   after that, and longer if it sees the pod by then. So the first leader's watch of quotas, its request that opens
//!   the gate, and the second leader's watch of pods may together lag by less than 30 s.
//! - **An answer that is lost:** the quota is read. The content of `status` is valid, whoever wrote it.
//! - **A new leader with an old view:** a controller begins with lists that were made after the lease was acquired. A
//!   reservation of a claim that it does not know stays for 30 s. So a watch may lag by less than that; with a longer
//!   lag, a reservation that the previous leader wrote in its last seconds could be released.
//! - **A claim deleted between reservation and gate:** its reservation is released; the pod waits for another claim,
//!   and gets an event. A new claim with the same name has another UID, which is compared with the API server's before
//!   the gate is removed. If its owner later replaces a named claim by a larger one, that counts as soon as it is seen.
//! - **The quota deleted, or its CRD:** gates open, because there is no ceiling. **Its namespace deleted:** pods,
//!   claims and quota are deleted, and nothing more is written.
//! - **A quota that is invalid** (written while the policy was off): no gate opens, and its events name the field.
//! - **`hard` below the current use:** pods wait until enough has ended; nobody is stopped.
//! - **Somebody writes `status`** (while the policy was off): unreadable entries are ignored, missing ones are
//!   reconstructed from pods and claims, and those that belong to no claim are removed after 30 s.
//! - **A node holds a share whose claim is gone:** it counts, and costs hours, from when the node reports it until the
//!   node reports its release, or is gone itself. If nodes report nothing, no gate waits for that.
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
mod instance;
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
