//! The memory of a GPU: how much an allocation counts toward the limit, and for how long.
//!
//! ```text
//!  granule: sizes ─► tracked_charge: a charge that follows what the driver reserves
//!  refcounts: handles that the driver counts
//! ```

pub mod granule;
pub mod refcounts;
pub mod tracked_charge;
