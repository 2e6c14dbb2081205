//! Host memory that is used when the share's device memory is full.

pub(crate) mod managed;
pub(crate) mod physical;
