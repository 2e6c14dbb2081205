//! A discrete-event simulation that measures the accuracy of the GPU time limiter: it runs the modules that decide,
//! `vgpu_core::compute`, and compares them with the hardware alone. The speed of the machine does not matter: each run
//! gives the same figures.
//!
//! ```text
//!  scenarios ─► world: threads launch, wait, sleep and exit ─► law: asked before each launch ─► limiter
//!                 │                                               │ records events, reads and writes pages
//!                 └─► gpu: contexts in slices ─► context: streams, copies, events ◄────┘
//!                       └─► figures: use and error by share ─► the tables of docs/compute-accuracy.md, and tests
//! ```
//!
//! Not modelled: a shortage of CPUs, memory bandwidth, blocking launches, multiprocessors beyond the width of a
//! kernel, graphs (a graph is one long kernel), captures, failing events, streams on a second GPU.

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
