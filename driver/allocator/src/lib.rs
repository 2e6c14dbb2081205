//! Structured allocation of devices to claims, with the semantics of Kubernetes' own allocator. Pure: no I/O, no kube.
//!
//! ```text
//!  ResourceSlice ─► Inventory ─┐
//!  DeviceTaintRule ─────────────┼─► NodeView (pools that are whole, devices in order)
//!  Node ────────────────────────┘        │
//!  allocated claims ─► AllocatedDevices (in use) ──┤
//!  DeviceClass ─────────────► Classes ───┤
//!  CEL, another crate ─► SelectorCache ──┤
//!  claims ─► plan (checked) ─────────────┴─► search ◄── Policy: the order of devices
//!                                              │
//!                        Allocation a claim ◄──┴──► Reasons, when nothing fits
//! ```
//!
//! Three ways in: [`Attempt`] asks about one node, [`offline`] about objects in files, [`Index`] about a cluster whose
//! events it is told. All run the same search.
//!
//! How it fails, and what follows:
//! - **Objects that the API server would refuse** (no such mode, numbers beyond any device, two objects of one name):
//!   an error that names claim, request and field, or a device that is passed over; never a panic.
//! - **Slices that contradict each other** (incomplete, two generations, twice a name): the pool gives nothing, and
//!   [`Reason`]s name it.
//! - **Selectors that do not compile or meet a missing key**: an error of that attempt on that node; other claims and,
//!   in [`offline`] and [`Index`], other nodes are not touched by it.
//! - **A search without end**: all nodes of one question share one [`Budget`], and the question gives up with an error; its
//!   depth is not the thread's stack.
//! - **A lost or doubled event**: an object that comes again replaces what was known of it; a claim that is taken off
//!   twice is taken off once.
#![forbid(unsafe_code)]

mod allocate;
mod allocated;
mod budget;
mod capacity;
mod constraint;
mod counters;
mod error;
mod explain;
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
pub use index::{Free, Index, Placement};
pub use inventory::{Inventory, Slice, SliceHandle};
pub use plan::Classes;
pub use pools::{NodeView, PoolError, ViewError};
pub use reason::{Reason, ReasonKind, together};
pub use selectors::{Cel, SelectorCache, Selectors};
pub use shared::Shared;
