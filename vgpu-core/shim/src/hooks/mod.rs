//! Handlers of the hooked names, by subject. Each gets the state, its real function, and the caller's arguments: it
//! translates those, and leaves to `vgpu_core::memory` what is charged.

pub(crate) mod contexts;
pub(crate) mod devices;
pub(crate) mod entry;
pub(crate) mod graphs;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod physical;
pub(crate) mod sharing;
