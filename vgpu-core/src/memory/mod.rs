//! The memory of a GPU: how much an allocation counts toward the limit, and for how long. It calls the driver
//! through [`driver::Driver`], and knows neither the process nor the hooks.
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
//!  exported: what only a descriptor keeps. captures: their end waits for calls about pools and graphs
//! ```

pub mod allocations;
pub mod arrays;
pub mod backing;
pub mod beacon;
pub mod captures;
pub mod charge;
pub mod code_file;
pub mod context_life;
#[cfg(test)]
mod context_property;
pub mod contexts;
pub mod deferred;
pub mod deferred_free;
pub mod driver;
pub mod expected;
pub mod export_identity;
pub mod exported;
#[cfg(test)]
mod fake;
pub mod free;
pub mod gpu;
pub mod granule;
pub mod graphs;
pub mod growth;
pub mod imports;
pub mod libraries;
pub mod live;
pub mod measure;
pub mod newcomers;
pub mod overhead;
pub mod pools;
pub mod refcounts;
pub mod room;
pub mod settled_bytes;
pub mod tables;
pub mod told;
pub mod tracked_charge;
pub mod unowned;
