//! Refusals: how often programs of a share ran out of memory, and the last few times in detail. Lines 3 to 7 of a ledger:
//!
//! ```text
//!    384  by the share's limit; by the driver     two counters
//!    400  the largest size that was refused
//!    512  slot 0 ... slot 3                       a line each: refusal `number` is in slot `number % 4`
//!
//!  slot:   0 number   8 seconds since 1970   16 cause, PID   24 PID namespace   32 asked   40 charged
//!         48 contexts and code of the process   56 free on the GPU   64 name (16 bytes)
//!         80 users (4 of PID, MiB)   112 unused   120 CRC-32 of all before
//! ```
//!
//! A size that may be unknown is stored plus 1; 0: it is not known. Only a refused call writes here, without a lock: first the
//! slot, then the counter.
//!
//! How it fails:
//! - A process is killed while it writes a slot, or two processes write one slot, or the node reads meanwhile: the checksum does
//!   not match, and the slot is ignored. The refusal before it is then the last one that is known.
//! - A process is killed between the slot and the counter: that refusal is not counted, and the next one has its number.
//! - A tenant can write anything: it can invent refusals of its own share. Sizes are only shown, the reader checks
//!   times and totals, and [`Refusal::name`] is printable and short.
//! - An older library wrote the ledger: it has another version, so nothing is read.

use super::layout::LINE;
use super::words::{half, word};
use crate::checksum::crc32;

/// The number of slots.
pub const SLOTS: usize = 4;
/// The number of users that a refusal names.
pub const USERS: usize = 4;
/// The number of words of a slot.
pub const WORDS: usize = LINE / 8;

/// Offsets in a ledger.
pub const BY_LIMIT_AT: usize = 3 * LINE;
pub const BY_DRIVER_AT: usize = BY_LIMIT_AT + 8;
pub const LARGEST_AT: usize = BY_LIMIT_AT + 16;
pub const SLOTS_AT: usize = 4 * LINE;

const CHECKSUM: usize = WORDS - 1;
const NAME: usize = 8;
const FIRST_USER: usize = 10;
const MIB: u64 = 1 << 20;

/// Who refused the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The library, because the share's limit was reached.
    Limit,
    /// The driver, although the share had room.
    Driver,
}

/// A call that failed with out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of a share's first refusal is 1.
    pub number: u64,
    /// Seconds since 1970.
    pub unix: u64,
    pub cause: Cause,
    /// The process, in its own PID namespace.
    pub pid: u32,
    pub pid_namespace: u64,
    /// Bytes; None: the call does not say how many.
    pub asked: Option<u64>,
    /// The charge of all processes of the share.
    pub charged: u64,
    /// The charge for contexts and code of the process.
    pub overhead: Option<u64>,
    /// The free bytes of the GPU itself.
    pub gpu_free: Option<u64>,
    /// The thread's name, which the program may set.
    pub raw_name: [u8; 16],
    /// The processes with most memory; unused places are zero.
    pub users: [User; USERS],
}

/// A process of the share with its charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// 0: the process is in another PID namespace.
    pub pid: u32,
    pub mib: u32,
}

/// The content of a ledger about refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    pub by_limit: u64,
    pub by_driver: u64,
    /// The largest size that was refused.
    pub largest: u64,
    pub last: Option<Refusal>,
}

/// Reads the refusals of a ledger.
pub(super) fn read(bytes: &[u8]) -> Refusals {
    let slots = bytes.get(SLOTS_AT..SLOTS_AT + SLOTS * LINE).unwrap_or_default();
    Refusals {
        by_limit: word(bytes, BY_LIMIT_AT),
        by_driver: word(bytes, BY_DRIVER_AT),
        largest: word(bytes, LARGEST_AT),
        last: slots
            .chunks_exact(LINE)
            .filter_map(Refusal::parse)
            .max_by_key(|refusal| refusal.number),
    }
}

// === impl Refusals ===

impl Refusals {
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_limit.saturating_add(self.by_driver)
    }
}

// === impl Refusal ===

impl Refusal {
    /// Returns the words of the refusal's slot.
    #[must_use]
    pub fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let known = |size: Option<u64>| size.map_or(0, |size| size.saturating_add(1));
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        words[..NAME].copy_from_slice(&[
            self.number,
            self.unix,
            pair(self.cause as u32, self.pid),
            self.pid_namespace,
            known(self.asked),
            self.charged,
            known(self.overhead),
            known(self.gpu_free),
        ]);
        let (first, second) = self.raw_name.split_at(8);
        for (at, part) in [(NAME, first), (NAME + 1, second)] {
            words[at] = part.try_into().map_or(0, u64::from_le_bytes);
        }
        for (word, user) in words[FIRST_USER..].iter_mut().zip(self.users) {
            *word = pair(user.pid, user.mib);
        }
        words[CHECKSUM] = checksum(&words);
        words
    }

    fn parse(slot: &[u8]) -> Option<Self> {
        let words: [u64; WORDS] = std::array::from_fn(|index| word(slot, 8 * index));
        let is_whole = words[0] != 0 && words[CHECKSUM] == checksum(&words);
        let cause = match words[2] as u32 {
            0 => Cause::Limit,
            1 => Cause::Driver,
            _ => return None,
        };
        let user = |index: usize| User {
            pid: half(slot, 8 * (FIRST_USER + index)),
            mib: half(slot, 8 * (FIRST_USER + index) + 4),
        };
        is_whole.then(|| Self {
            number: words[0],
            unix: words[1],
            cause,
            pid: (words[2] >> 32) as u32,
            pid_namespace: words[3],
            asked: words[4].checked_sub(1),
            charged: words[5],
            overhead: words[6].checked_sub(1),
            gpu_free: words[7].checked_sub(1),
            raw_name: std::array::from_fn(|index| slot[8 * NAME + index]),
            users: std::array::from_fn(user),
        })
    }

    /// Returns the printable name, for events.
    #[must_use]
    pub fn name(&self) -> String {
        let bytes = self.raw_name.iter().take_while(|byte| **byte != 0);
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        };
        bytes.map(printable).collect()
    }
}

// === impl User ===

impl User {
    /// `pid`: 0 for a process of another PID namespace.
    #[must_use]
    pub fn new(pid: u32, bytes: u64) -> Self {
        Self {
            pid,
            mib: u32::try_from(bytes / MIB).unwrap_or(u32::MAX),
        }
    }
}

fn checksum(words: &[u64; WORDS]) -> u64 {
    // On the stack: the program may also be out of host memory.
    let mut bytes = [0; 8 * CHECKSUM];
    for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    crc32(&bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(number: u64) -> Refusal {
        Refusal {
            number,
            unix: 1_800_000_000,
            cause: Cause::Driver,
            pid: 42,
            pid_namespace: 4_026_531_836,
            asked: Some(5 << 30),
            charged: 3 << 30,
            overhead: Some(0),
            gpu_free: None,
            raw_name: *b"pt_main_thread\0\0",
            users: [
                User::new(42, 2 << 30),
                User::new(0, 1 << 30),
                User::default(),
                User::default(),
            ],
        }
    }

    /// Returns the lines of a ledger before its lanes, with these refusals.
    fn ledger(refusals: &[Refusal]) -> Vec<u8> {
        let mut bytes = vec![0; SLOTS_AT + SLOTS * LINE];
        for one in refusals {
            let at = SLOTS_AT + (one.number as usize % SLOTS) * LINE;
            let words = one.words().into_iter().flat_map(u64::to_le_bytes);
            bytes.splice(at..at + LINE, words);
        }
        bytes
    }

    #[test]
    fn the_last_of_several_is_read_as_it_was_written() {
        assert_eq!(read(&ledger(&[])), Refusals::default());
        let refusals = [refusal(7), refusal(8), refusal(6)];
        assert_eq!(read(&ledger(&refusals)).last, Some(refusal(8)));
        let mut bytes = ledger(&refusals);
        for (at, value) in [(BY_LIMIT_AT, 5_u64), (BY_DRIVER_AT, 3), (LARGEST_AT, 9)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let found = read(&bytes);
        assert_eq!(
            (found.by_limit, found.by_driver, found.largest, found.count()),
            (5, 3, 9, 8)
        );
    }

    /// A killed writer, two writers, or a read during a write leave such a slot.
    #[test]
    fn a_slot_that_is_half_written_is_ignored() {
        let (old, new) = (refusal(4).words(), refusal(8).words());
        for written in 0..=WORDS {
            let mut words = old;
            words[..written].copy_from_slice(&new[..written]);
            let slot: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let mut bytes = ledger(&[refusal(7)]);
            bytes[SLOTS_AT..SLOTS_AT + LINE].copy_from_slice(&slot);
            let expected = if written == WORDS { 8 } else { 7 };
            assert_eq!(
                read(&bytes).last.map(|last| last.number),
                Some(expected),
                "{written} words"
            );
        }
    }

    #[test]
    fn a_hostile_slot_is_shown_without_harm() {
        let hostile = Refusal {
            raw_name: *b"\x1b[31m\nx\xff\"%s\0abcd",
            asked: Some(u64::MAX),
            charged: u64::MAX,
            number: u64::MAX,
            ..refusal(1)
        };
        let last = read(&ledger(&[hostile])).last.expect("whole");
        assert_eq!(last.name(), "?[31m?x?\"%s");
        assert_eq!(last.asked, Some(u64::MAX - 1), "saturated");
        let mut other_cause = refusal(1).words();
        other_cause[2] = 9;
        other_cause[CHECKSUM] = checksum(&other_cause);
        let slot: Vec<u8> = other_cause.into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(Refusal::parse(&slot), None);
        assert_eq!(read(&[]), Refusals::default());
    }
}
