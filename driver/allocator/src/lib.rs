//! Structured allocation of devices to claims, with the semantics of Kubernetes' own allocator. Pure: no I/O, no kube.
//!
//! ```text
//!  ResourceSlice ─► Inventory ─┐
//!  DeviceTaintRule ─────────────┼─► NodeView (pools that are whole, devices in order)
//!  Node ────────────────────────┘        │
//!  allocated claims ─► Ledger (in use) ──┤
//!  DeviceClass ─────────────► Classes ───┤
//!  CEL, another crate ─► SelectorCache ──┤
//!  claims ─► plan (checked) ─────────────┴─► search ◄── Policy: the order of devices
//!                                              │
//!                        Allocation a claim ◄──┴──► Reasons, when nothing fits
//! ```
#![forbid(unsafe_code)]

mod allocate;
mod capacity;
mod constraint;
mod counters;
mod error;
mod explain;
mod features;
mod inventory;
mod ledger;
pub mod model;
pub mod node_selector;
pub mod offline;
mod outcome;
mod plan;
mod policy;
mod pools;
pub mod quantity;
mod reason;
mod search;
mod selectors;
mod taint;

pub use allocate::Attempt;
pub use capacity::CapacityError;
pub use error::{AllocateError, CelError};
pub use features::{FeatureError, Features};
pub use inventory::{Inventory, Slice, SliceHandle};
pub use ledger::{Ledger, Usage};
pub use plan::Classes;
pub use policy::{Policy, UnknownPolicy};
pub use pools::{NodeView, PoolError, ViewError};
pub use reason::{Reason, ReasonKind};
pub use selectors::{Cel, SelectorCache, Selectors};
