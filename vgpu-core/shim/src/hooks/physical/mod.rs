//! Physical memory by handle, and the objects to which it is bound.

pub(crate) mod bindings;
pub(crate) mod endpoints;
pub(crate) mod multicast;
pub(crate) mod properties;
pub(crate) mod vmm;
