//! Structured allocation of devices to claims, with the semantics of Kubernetes' own allocator. Pure: no I/O, no kube.
//!
//! ```text
//!  ResourceSlice ─► Inventory ────────────┐
//!  DeviceTaintRule ───────────────────────┼─► NodeView (complete pools, devices in order)
//!  Node ──────────────────────────────────┘        │
//!  allocated claims ─► AllocatedDevices ───────────┤
//!  DeviceClass ─► Classes ─────────────────────────┤
//!  CEL, another crate ─► SelectorCache ────────────┤
//!  claims ─► plan (checked) ───────────────────────┴─► search ◄── Policy: the order of devices
//!                                                         │
//!                             Allocation of each claim ◄──┴──► Reasons, if nothing fits
//! ```
//!
//! There are three entry points, and all run the same search: [`Attempt`] for one node, [`offline`] for objects in
//! files, and [`Index`] for a cluster, which is updated with every event.
//!
//! Failure modes:
//! - **Objects that the API server would refuse** (an unknown mode, numbers beyond any device, two objects of one
//!   name): an error that names claim, request and field, or a device that is skipped; never a panic.
//! - **Slices that contradict each other** (incomplete, two generations, a name twice): no device of the pool is used,
//!   and [`Reason`]s name the pool.
//! - **Selectors that do not compile or use a missing key**: an error of that attempt on that node. Other claims are
//!   not affected, nor in [`offline`] and [`Index`] other nodes.
//! - **An endless search**: all nodes of one question share one [`Budget`], and the question ends with an error when it
//!   is spent. The search does not use the thread's stack.
//! - **A lost or repeated event**: an object that comes again replaces the known one; removing a claim twice changes
//!   nothing.
#![forbid(unsafe_code)]

mod allocate;
mod allocated;
mod budget;
mod capacity;
mod constraint;
mod counters;
mod error;
mod explain;
mod expression;
mod features;
mod headroom;
mod index;
mod inventory;
pub mod model;
pub mod node_selector;
pub mod offline;
mod outcome;
mod plan;
mod policy;
mod pools;
mod reason;
mod search;
mod selectors;
mod shared;
mod taint;

pub use allocate::Attempt;
pub use allocated::{AllocatedDevices, Usage};
pub use budget::Budget;
pub use capacity::{CapacityError, Shortage};
pub use error::{AllocateError, RequestError};
pub use explain::{Answer, Fitting, Largest, Room, Why};
pub use features::{FeatureError, Features};
pub use index::{Free, Index, Placement, Unmatched};
pub use inventory::{Inventory, Slice, SliceHandle};
pub use plan::Classes;
pub use pools::{NodeView, PoolError, ViewError};
pub use reason::{Instance, Reason, ReasonKind, few, held, together};
pub use selectors::{Cel, SelectorCache, Selectors};
pub use shared::Shared;
