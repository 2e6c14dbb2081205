//! The ledger: a file in shared memory in which the processes of a share count their memory exactly, even if any of
//! them is killed at any instruction.
//!
//! ```text
//!  reserve, release ──► Share (own lanes) ──► Operation ──► Region (mapped file)
//!  limit reached ────► reap ─ reaper's lock ─► lane 0 ────►   │
//!                       └ which lanes have no locked owner?   └► vgpu_abi::ledger::read (on the node)
//! ```
//!
//! - `open` refuses a file that is not a sound ledger of this share.
//! - The total is one 16-byte word that names its last writer: [`wide`].
//! - A process changes the total in steps and may be killed after any of them: [`operation`].
//! - What was refused is recorded: [`refusals`].
//! - Memory that processes share by export and import is charged once: [`objects`].
//! - The owner of a lane holds a lock that the kernel releases with the owner's address space:
//!   [`crate::os::pinned`]. A process that needs memory releases the charges of dead processes: [`reap`].
//!
//! A reap is an operation of lane 0, whose lock is the reaper's lock (docs/adr/0004-a-ledger-for-each-share.md). There
//! is no helper thread, no signal, no PID that could be reused, no robust futex.

mod exports;
mod holds;
pub mod objects;
mod open;
pub mod operation;
pub mod reap;
mod refusals;
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
pub use refusals::Refused;
pub use share::{Refusal, Reservation, Share};
