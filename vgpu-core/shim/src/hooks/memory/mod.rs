//! Allocations of every family: charged before the driver is called, released after it has freed them.

pub(crate) mod alloc;
pub(crate) mod arrays;
pub(crate) mod free;
pub(crate) mod info;
pub(crate) mod pools;
pub(crate) mod shapes;
pub(crate) mod sparse;
