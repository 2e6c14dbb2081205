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
    /// The primary context still exists after its last release, because something else in the process keeps it. It is
    /// charged.
    pub is_kept: bool,
}

/// Memory that contexts take and that is not in NVML's figure for this process ([`unowned`](super::unowned)).
#[derive(Debug, Default)]
pub struct Unowned {
    /// Bytes for each context.
    pub each: u64,
    pub(super) charge: Spin<TrackedCharge>,
}

impl Contexts {
    /// Returns the number of contexts.
    pub fn number(&self) -> u32 {
        self.created + u32::from(self.retains > 0 || self.is_kept)
    }

    pub fn any(&self) -> bool {
        self.retains > 0 || self.created > 0
    }

    /// Returns true if a retain may create the primary context. `is_active` asks the driver if the context exists.
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
    /// Number of calls of cuCtxAttach for this context, minus those of cuCtxDetach.
    pub attached: u32,
    pub is_green: bool,
}
