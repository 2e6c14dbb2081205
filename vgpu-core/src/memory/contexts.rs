//! The contexts of this process.

use super::tracked_charge::TrackedCharge;
use crate::os::spin::Spin;
use core::ffi::c_int;

/// The contexts of one GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contexts {
    pub retains: u32,
    pub created: u32,
    /// Handle of the primary context; 0: not retained yet.
    pub primary: usize,
    /// The primary context outlived its last release, because something else in the process keeps it. It is charged.
    pub is_kept: bool,
}

/// Memory that contexts take beside NVML's figure of this process ([`unowned`](super::unowned)).
#[derive(Debug, Default)]
pub struct Unowned {
    /// Bytes for each context.
    pub each: u64,
    pub(super) charge: Spin<TrackedCharge>,
}

impl Contexts {
    /// How many exist.
    pub fn number(&self) -> u32 {
        self.created + u32::from(self.retains > 0 || self.is_kept)
    }

    pub fn any(&self) -> bool {
        self.retains > 0 || self.created > 0
    }

    /// Returns true if a retain creates the primary context, or may. `is_active`: the driver's answer if it exists.
    pub fn is_primary_new(&self, is_active: impl FnOnce() -> Option<bool>) -> bool {
        self.retains == 0 && !(self.is_kept && is_active() == Some(true))
    }
}

/// A context that is not the primary one.
#[derive(Debug)]
pub struct Made {
    pub gpu: usize,
    /// The driver's number of that GPU.
    pub device: c_int,
    /// How often cuCtxAttach was called for it, less cuCtxDetach.
    pub attached: u32,
    pub is_green: bool,
}
