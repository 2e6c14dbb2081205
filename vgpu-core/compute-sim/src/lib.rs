//! How exact the limiter of GPU time is, in a simulation of discrete events: the modules that decide, `vgpu_core::compute`,
//! beside the hardware alone. No machine's speed is in it: the same run gives the same figures everywhere.
//!
//! ```text
//!  scenarios ─► world: threads launch, wait, sleep and exit ─► law: asked before each launch ─► limiter
//!                 │                                               │ records events, reads and writes pages
//!                 └─► gpu: contexts in slices ─► context: streams, copies, events ◄────┘
//!                       └─► figures: use and error by share ─► the tables of docs/compute-accuracy.md, and tests
//! ```
//!
//! Not modelled: CPUs that are short, memory bandwidth, launches that block, multiprocessors beyond the width of a
//! kernel, graphs (one is a long kernel), captures, events that fail, streams on a second GPU.

mod context;
pub mod figures;
mod gpu;
pub mod hardware;
pub mod law;
mod programs;
mod random;
pub mod scenarios;
mod world;

/// A time or a duration in ns.
pub type Ns = u64;
pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;
pub const S: Ns = 1_000_000_000;
