//! The benchmarks that need a cluster, and what they share.

mod bound;
pub(crate) mod burst;
mod deployed;
mod fleet;
pub(crate) mod memory;
pub(crate) mod node;
