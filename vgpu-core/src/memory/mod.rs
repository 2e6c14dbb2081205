//! The memory of a GPU: how much of the limit an allocation uses, and for how long. It calls the driver through
//! [`driver::Driver`], and knows neither the process nor the hooks.
//!
//! ```text
//!  context_life ─┬─► measure ─► expected; settled_bytes ─► tables ─┐
//!                └─► deferred_free ─► free ──────────────┤
//!                          imports ─► arrays, backing ───┤
//!                                  allocations ◄─────────┘
//!                                        └─► charge ─► room ─► gpu ─┬─► pools, graphs ─► tracked_charge ─► account
//!                                                          └─► driver ├─► overhead, contexts, deferred
//!                                                                     └─► live: one allocation
//!  refcounts: handles that the driver counts. export_identity: how an import is matched to its export.
//!  refusal: why a call fails with out of memory. exported: what only a descriptor keeps. captures: their end waits for calls about pools and graphs
//! ```

pub mod allocations;
pub mod arrays;
pub mod backing;
pub mod beacon;
pub mod captures;
pub mod charge;
pub mod code_file;
pub mod context_life;
#[cfg(all(test, not(miri)))]
mod context_property;
pub mod contexts;
pub mod deferred;
pub mod deferred_free;
pub mod driver;
pub mod expected;
pub mod export_identity;
pub mod exported;
#[cfg(all(test, not(miri)))]
mod fake;
pub mod first_contexts;
pub mod free;
pub mod gpu;
pub mod granule;
pub mod graphs;
pub mod growth;
pub mod imports;
pub mod known_code;
pub mod libraries;
pub mod live;
pub mod measure;
pub mod overhead;
pub mod pools;
pub mod refcounts;
pub mod refusal;
pub mod room;
pub mod settled_bytes;
pub mod tables;
pub mod tracked_charge;
pub mod unowned;
