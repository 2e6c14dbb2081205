//! GPU time of shares: what they were charged, and whether that is what NVML sees.
//!
//! ```text
//!  slot pages ─► charged: accepted or damaged ─┬─► metrics, at each scrape
//!                                              ├─► compare, every 2 s ─► judge ─► ignored shares ─► node page
//!  NVML's use of each process ─► processes ────┘                          └─► gauge, event on the pods
//! ```
//!
//! Everything here watches; the library limits. A tenant may write anything into its page, so its counters are checked
//! against time, and a share that breaks its limit is found by NVML, which asks the driver. Without NVML's answer nothing
//! is said.
#![forbid(unsafe_code)]

pub mod busy;
mod charged;
pub mod compare;
mod judge;
pub mod metrics;
mod processes;
mod utilisation;

pub use compare::Comparison;
pub use judge::Verdict;
pub use utilisation::{GpuRates, NvmlUtilisation, Rates, Used, Utilisation};
