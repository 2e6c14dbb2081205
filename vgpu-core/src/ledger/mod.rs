//! The ledger: how the processes of a share keep one exact account without trusting each other to live.
//!
//! ```text
//!  reserve, release ──► Share (own lanes) ──► Operation ──► Region (mapped file)
//!  would fail, look ──► reap ─ reaper's lock ─► lane 0 ─────►   │
//!                        └ whose lane's lock is free?           └► vgpu_abi::ledger::read (node)
//! ```
//!
//! - A file that is no sound ledger of this share is refused: `open`.
//! - The total is one 16-byte word that names its last writer: [`wide`].
//! - It is changed in steps, and the owner may be killed after any of them: [`operation`].
//! - Memory that processes share by export and import is charged once: [`objects`].
//! - A lane's owner holds a lock that the kernel drops with its address space: [`crate::os::pinned`]. The charges of
//!   the dead are taken out by the process that needs the room: [`reap`].
//!
//! There is no helper thread, no signal, no PID that could be reused, no robust futex.
//!
//! Deviation from the first design: a reaper does not work in a lane of its own process but in lane 0, whose lock is
//! the reaper's lock. So the one pending reap is always found there, and a process can reap before it has a lane.

mod exports;
mod holds;
pub mod objects;
mod open;
pub mod operation;
pub mod reap;
pub mod region;
pub mod share;
pub mod wide;

#[cfg(test)]
mod explore;
#[cfg(test)]
mod explore_objects;
#[cfg(test)]
pub(crate) mod fresh;
#[cfg(test)]
mod threads;

pub use objects::{Key, Kind};
pub use open::OpenError;
pub use share::{Refusal, Reservation, Share};
