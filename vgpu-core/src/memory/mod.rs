//! The memory of a GPU: how much an allocation counts toward the limit, and for how long. It calls the driver
//! through [`driver::Driver`], and knows neither the process nor the hooks.
//!
//! ```text
//!  arrays ─► backing ─┐
//!  free ─► granules ──┼─► charge ─► room ─► gpu ─┬─► pools, graphs ─► tracked_charge ─► account
//!                     │                          ├─► overhead, contexts, deferred
//!                     └─► driver                 └─► live: one allocation
//!  refcounts: handles that the driver counts
//! ```

pub mod arrays;
pub mod backing;
pub mod charge;
pub mod contexts;
pub mod deferred;
pub mod driver;
#[cfg(test)]
mod fake;
pub mod free;
pub mod gpu;
pub mod granule;
pub mod granules;
pub mod graphs;
pub mod live;
pub mod overhead;
pub mod pools;
pub mod refcounts;
pub mod room;
pub mod tracked_charge;
