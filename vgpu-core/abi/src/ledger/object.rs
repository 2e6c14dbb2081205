//! Exported objects: memory of which processes of one share hold a piece together. Each has a line of its
//! own behind the lanes, and its charge is there and in no lane.
//!
//! ```text
//!    0  generation   even: free, odd: claimed
//!    8  bytes        what it is charged, if `from` took place
//!   16  from         Stamp of the operation that moves the bytes here out of its maker's lane; 0: it did
//!   24  place        PID namespace and kind of the key; 0: not to be found
//!   32  key          what the driver handed out: 64 bytes
//!   96  holders      Stamps of the processes (their first claims) that hold it: for who is shown with it
//! ```
//!
//! Who holds an object has a read lock on its first byte, as a lane's owner has a write lock: the kernel
//! drops it with the address space. `holders` is for the eye alone: it has room for four, and nothing is
//! charged or given back by it.

use super::layout::{LANES, LINE, Stamp};

/// So many exported objects at once.
pub const OBJECTS: usize = 512;
/// Holders that are known by name.
pub const HOLDERS: usize = 4;

pub const GENERATION: usize = 0;
pub const BYTES: usize = 8;
pub const FROM: usize = 16;
pub const PLACE: usize = 24;
pub const KEY: usize = 32;
pub const HOLDERS_AT: usize = 96;

const _: () = assert!(HOLDERS_AT + HOLDERS * 8 == LINE);
const _: () = assert!(LANES + OBJECTS <= 1 << Stamp::LANE_BITS);

/// Returns true if the operation `from` took place, which moves bytes out of its lane: `sequence` and `applied` are
/// that lane's. `writer` must have been read before `applied`.
#[must_use]
pub fn moved(from: u64, sequence: u64, applied: u64, writer: u64) -> bool {
    let number = Stamp::unpack(from).number;
    from == 0 || sequence > number || sequence == number && (applied >= number || writer == from)
}

/// Who is shown with an object: the first holder whose claim is still there.
#[must_use]
pub fn payer(holders: [u64; HOLDERS], is_claimed: impl Fn(Stamp) -> bool) -> Option<u64> {
    holders
        .into_iter()
        .find(|holder| *holder != 0 && is_claimed(Stamp::unpack(*holder)))
}
