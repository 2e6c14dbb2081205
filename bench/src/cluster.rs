//! The benchmarks that need a cluster, and their shared code.

mod bound;
pub(crate) mod burst;
mod deployed;
mod fleet;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod usage;
