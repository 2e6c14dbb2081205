//! Memory that is exported to or imported from other processes and other interfaces.

pub(crate) mod exports;
pub(crate) mod externals;
pub(crate) mod imports;
pub(crate) mod interop;
