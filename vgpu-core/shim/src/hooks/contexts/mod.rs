//! Contexts and code, whose memory is measured.

pub(crate) mod calls;
pub(crate) mod code;
pub(crate) mod measure;
pub(crate) mod modules;
