//! Physical memory by handle, and what it is bound to.

pub(crate) mod bindings;
pub(crate) mod endpoints;
pub(crate) mod multicast;
pub(crate) mod properties;
pub(crate) mod vmm;
