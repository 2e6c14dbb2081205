//! Graphs that allocate.

pub(crate) mod calls;
pub(crate) mod launch;
