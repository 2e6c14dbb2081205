//! Handlers of the hooked functions, by subject. Each gets the state of the process, its real function, and the caller's
//! arguments. It translates the arguments and the results; `vgpu_core::memory` decides how much is charged.

pub(crate) mod compute;
pub(crate) mod contexts;
pub(crate) mod devices;
pub(crate) mod entry;
pub(crate) mod graphs;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod physical;
pub(crate) mod sharing;
