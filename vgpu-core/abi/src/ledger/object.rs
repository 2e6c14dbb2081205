//! Exported objects: memory that several processes of one share hold. Each object has a line after the lanes. Its
//! charge is in that line and in no lane.
//!
//! ```text
//!    0  generation   even: free, odd: claimed
//!    8  bytes        the charge, if `from` took place
//!   16  from         Stamp of the operation that moves the charge here from the maker's lane; 0: it is done
//!   24  place        PID namespace and kind of the key; 0: imports do not find it
//!   32  key          the handle that the driver returned: 64 bytes
//!   96  holders      Stamps of processes (their first claims) that hold it, for process lists only
//! ```
//!
//! Each process that holds an object has a read lock on its first byte, as a lane's owner has a write lock on the lane.
//! The kernel drops the locks with the address space. `holders` has only four places; no charge depends on it.

use super::layout::{LANES, LINE, Stamp};

/// Number of objects.
pub const OBJECTS: usize = 512;
/// Number of holders that an object names.
pub const HOLDERS: usize = 4;

pub const GENERATION: usize = 0;
pub const BYTES: usize = 8;
pub const FROM: usize = 16;
pub const PLACE: usize = 24;
pub const KEY: usize = 32;
pub const HOLDERS_AT: usize = 96;

const _: () = assert!(HOLDERS_AT + HOLDERS * 8 == LINE);
const _: () = assert!(LANES + OBJECTS <= 1 << Stamp::LANE_BITS);

/// Returns true if the operation `from`, which moves bytes out of its lane, took place. `sequence` and `applied` are
/// those of that lane. `writer` must have been read before `applied`.
#[must_use]
pub fn moved(from: u64, sequence: u64, applied: u64, writer: u64) -> bool {
    let number = Stamp::unpack(from).number;
    from == 0 || sequence > number || sequence == number && (applied >= number || writer == from)
}

/// Returns the process with which an object is listed: the first holder whose claim still exists.
#[must_use]
pub fn payer(holders: [u64; HOLDERS], is_claimed: impl Fn(Stamp) -> bool) -> Option<u64> {
    holders
        .into_iter()
        .find(|holder| *holder != 0 && is_claimed(Stamp::unpack(*holder)))
}
