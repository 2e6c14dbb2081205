//! Faults of GPUs that the driver lists: XIDs, memory errors, rows to be remapped, and what the driver asks for.
//!
//! ```text
//!  child: nvml: polls counters and flags, and waits for XIDs ──► Reading of each GPU, every 3 s
//!                                                                       │
//!  kept: two files, of which either may vanish ◄──► conditions: begin and end (pure) ──► Faults ──► gpus: taints, health
//! ```
//!
//! How it fails:
//! - A question fails, or the driver does not know the answer: no fault ends by that, and none begins.
//! - The plugin or the child is restarted: faults are in the files. XIDs that the driver reported while no child waited, or
//!   that a child had not passed on when it died, are lost; what they broke is still seen by counters, flags and what the
//!   driver asks for.
//! - Several XIDs at once: NVML may name the last one for all. The rest is seen as above.
//! - Two instances during a rolling update: each adds what the other wrote, so a fault that one saw is not lost, and ends
//!   what the other one ended, unless it saw it just now.
//! - A reboot: faults of another boot are forgotten, and what lasts is read again.
//! - Neither file can be written: it is logged, and a restart forgets the XIDs.
//! - A tenant's programs cause XIDs as often as they like: those that do not count last five minutes, so that a slice is
//!   not written more often than that.

pub mod conditions;
mod kept;
mod nvml;
#[cfg(test)]
mod tests;
mod watch;

pub use conditions::Conditions;
pub use kept::Files;
pub use nvml::NvmlReadings;
pub use watch::{Watcher, run};

use serde::{Deserialize, Serialize};

/// The XIDs that do not count unless the configuration says otherwise: those that mistakes in programs cause, and the ends
/// of programs after them. NVIDIA's own device plugin ignores the same ones.
pub const IGNORED_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// An answer to one question about a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked<T> {
    Is(T),
    /// The GPU or its driver does not know. Neither well nor a fault.
    NotSupported,
    Failed(String),
}

/// What the driver said of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    pub uuid: String,
    /// XIDs since the last reading.
    pub xids: Vec<u64>,
    /// Tells if XIDs are waited for.
    pub events: Asked<()>,
    /// Memory errors that ECC did not correct since the driver was loaded.
    pub uncorrected: Asked<u64>,
    pub remap_pending: Asked<bool>,
    pub remap_failed: Asked<bool>,
    /// `nvmlDeviceGpuRecoveryAction_t`; 0: the driver asks for nothing.
    pub action: Asked<u64>,
}

/// Reads the faults of the node's GPUs.
pub trait Readings: Send + Sync + 'static {
    /// A reading of each GPU. May block for seconds.
    ///
    /// # Errors
    /// The driver cannot be asked.
    fn readings(&self) -> Result<Vec<Reading>, String>;
}

// === impl Asked ===

impl<T> Asked<T> {
    fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

// === impl Reading ===

impl Reading {
    /// Returns the first question that failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        fn of<T>(asked: &Asked<T>) -> Option<&str> {
            match asked {
                Asked::Failed(why) => Some(why),
                _ => None,
            }
        }
        of(&self.uncorrected)
            .or_else(|| of(&self.remap_pending))
            .or_else(|| of(&self.remap_failed))
            .or_else(|| of(&self.action))
    }

    /// True if all of it was read, as far as GPU and driver know it, and XIDs are waited for.
    fn is_whole(&self) -> bool {
        self.failure().is_none() && !self.events.has_failed()
    }
}
