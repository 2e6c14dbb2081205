//! Faults of GPUs that the driver lists: XIDs, memory errors, rows to be remapped, and what the driver asks for.
//!
//! ```text
//!  nvml::sampler: a Reading of each GPU, every 2 s ──► open_faults: begin and end (pure) ──► Faults ──► gpus: taints, health
//!                                                                 ▲
//!                                                            fault_store: one file, which outlives the plugin
//! ```
//!
//! How it fails:
//! - A question fails, or the driver does not know the answer: no fault ends by that, and none begins.
//! - The plugin or the child is restarted: faults are in the file. XIDs that the driver reported while no child waited, or
//!   that a child had not passed on when it died, are lost. What they broke is still seen by counters, flags and what the
//!   driver asks for.
//! - Several XIDs at once: NVML may name the last one for all. The rest is seen as above.
//! - A reboot: faults of another boot are forgotten, and what lasts is read again.
//! - A tenant's programs cause XIDs as often as they like: ignored XIDs are shown for five minutes, so that a slice is not
//!   written more often than that.

mod fault_store;
pub mod open_faults;
#[cfg(test)]
mod tests;
mod watch;

pub use fault_store::FaultStore;
pub use open_faults::OpenFaults;
pub use watch::{Watcher, run};

/// The XIDs that keep no claim away unless the configuration says otherwise: mistakes in programs cause them, or the
/// end of a program after such a mistake. NVIDIA's own device plugin ignores the same XIDs.
pub const IGNORED_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];
