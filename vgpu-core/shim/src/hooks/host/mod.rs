//! Memory of the host that stands in when the share of the GPU is used up.

pub(crate) mod managed;
pub(crate) mod physical;
