//! Memory that leaves this process or comes from others, and from other interfaces.

pub(crate) mod exports;
pub(crate) mod externals;
pub(crate) mod imports;
pub(crate) mod interop;
