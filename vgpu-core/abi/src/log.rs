//! A process's records for debugging: counters, and a ring of its last calls. Layout 1.
//!
//! ```text
//!  FILE.<pid>.ring   counters (one page) │ names of functions, each with a zero │ CALLS entries of 64 bytes
//!  report file       counters (one page), of all processes of one `vgpu run --report`
//! ```
//!
//! All words are little-endian and change one at a time. A reader may see an entry that is being written: its call then
//! shows without a result. Times are CLOCK_MONOTONIC in ns; the page has the time of day of one moment, to convert them.
//!
//! Hostile input: the file may contain anything. [`Ring::parse`] and [`Counts::parse`] read no byte beyond its end,
//! trust no number in it, and replace control characters in names.

use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Variable that names the log: `FILE`, or `FILE:level`.
pub const LOG_VARIABLE: &str = "VGPU_LOG";
/// Variable that names the report file, which `vgpu run --report` creates and sets.
pub const REPORT_VARIABLE: &str = "VGPU_REPORT";

/// The bytes of a page of counters, and of a report file.
pub const PAGE: usize = 4096;
/// The number of calls that a ring keeps.
pub const CALLS: usize = 4096;
/// Offset of a ring's entries. The names lie between the page of counters and this.
pub const CALLS_AT: usize = 1 << 16;
/// The bytes of a ring file.
pub const RING_SIZE: usize = CALLS_AT + CALLS * size_of::<Call>();
/// The first word of a ring, written last.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"vgpuring");
/// The first word of a report file.
pub const REPORT_MAGIC: u64 = u64::from_le_bytes(*b"vgpurept");
pub const VERSION: u64 = 1;
/// [`Call::ns`] of a call that has not returned.
pub const RUNNING: u64 = u64::MAX;

/// Why a thread of the program waited in this library. The names say what it waited for and not by which rule, so that
/// they also fit other scheduling rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The share has used its part of the GPU's time.
    Budget,
    /// Another share uses the GPU.
    Turn,
    /// Enough work of this process or its share is queued.
    Queue,
    /// Another process of the share has made its first launch, whose length is unknown.
    Unknown,
    /// Another process of the share is creating its first context.
    FirstContext,
    /// Another thread measures the memory of this process.
    Measurement,
}

/// Everything that is counted apart from waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Processes that have written to this page.
    Processes,
    /// Requests for memory that were refused, and their bytes.
    Refusals,
    RefusedBytes,
    /// Measurements of memory: their number, their duration, how often they read NVML's list, and how many had no
    /// result.
    Measurements,
    MeasuringNs,
    Lists,
    Unmeasured,
    /// Pieces of GPU work that events could not measure.
    FailedEvents,
    /// Log lines that could not be written.
    LostLines,
    /// Launches that waited for more than [`LONG_WAIT`].
    LongWaits,
}

impl Wait {
    /// All reasons, with their names in log lines and reports.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Budget, "budget"),
        (Self::Turn, "turn"),
        (Self::Queue, "queue"),
        (Self::Unknown, "unknown-length"),
        (Self::FirstContext, "first-context"),
        (Self::Measurement, "measurement"),
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The index of the counter of these waits. The next counter is their sum in ns.
    #[must_use]
    pub const fn index(self) -> usize {
        WAITS_AT + 2 * self as usize
    }
}

/// A launch that waits longer is logged. In ns.
pub const LONG_WAIT: u64 = 5_000_000_000;

/// The number of counters before those of waits. Some are unused.
const WAITS_AT: usize = 32;
const COUNTERS: usize = 96;

/// The first page of a ring, and a report file.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// The process, in its own PID namespace. 0 in a report file.
    pub pid: AtomicU64,
    /// The same moment on two clocks: CLOCK_MONOTONIC, and ns since 1970.
    pub monotonic: AtomicU64,
    pub unix: AtomicU64,
    /// The number of calls that have begun, which is the number of the newest entry.
    pub begun: AtomicU64,
    /// The length of the names in bytes.
    pub names: AtomicU64,
    _reserved: AtomicU64,
    pub counters: [AtomicU64; COUNTERS],
}

/// A call in the ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Call {
    /// The number of the call in this process, starting at 1. 0: no call, or an entry that is being written.
    pub number: AtomicU64,
    /// When it began.
    pub began: AtomicU64,
    /// How long it took; [`RUNNING`] until it returns.
    pub ns: AtomicU64,
    /// The charge of the process's shares when the call returned, over all GPUs and processes.
    pub charged: AtomicU64,
    /// The thread, as returned by gettid(2).
    pub thread: AtomicU32,
    /// The function, as the offset of its name in the names.
    pub function: AtomicU32,
    /// The result: a CUresult or nvmlReturn.
    pub result: AtomicI32,
    _reserved: AtomicU32,
}

const _: () = {
    assert!(size_of::<Page>() <= PAGE && offset_of!(Page, counters) == 64);
    assert!(size_of::<Call>() == 64 && offset_of!(Call, thread) == 32 && offset_of!(Call, result) == 40);
    assert!((Counter::LongWaits as usize) < WAITS_AT && Wait::Measurement.index() + 1 < COUNTERS);
    assert!(CALLS.is_power_of_two());
};

/// Counters that were read from a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts([u64; COUNTERS]);

impl Counts {
    /// Reads the page of a report file or a ring. Returns None if it is neither.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let magic = word(bytes, offset_of!(Page, magic))?;
        let is_known = magic == REPORT_MAGIC || magic == RING_MAGIC;
        (is_known && word(bytes, offset_of!(Page, version))? == VERSION).then_some(())?;
        let mut counts = [0; COUNTERS];
        for (index, count) in counts.iter_mut().enumerate() {
            *count = word(bytes, offset_of!(Page, counters) + 8 * index)?;
        }
        Some(Self(counts))
    }

    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns the number of waits for this reason, and their sum in ns.
    #[must_use]
    pub fn waits(&self, reason: Wait) -> (u64, u64) {
        (self.0[reason.index()], self.0[reason.index() + 1])
    }
}

/// A ring that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    pub pid: u64,
    pub counts: Counts,
    /// The number of calls that have begun. The ring keeps the last of them.
    pub begun: u64,
    /// The calls in the order of their numbers.
    pub calls: Vec<Entry>,
}

/// A call in a ring that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub number: u64,
    /// Time of day in ns since 1970.
    pub unix: u64,
    pub thread: u32,
    pub function: String,
    pub end: Option<End>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub ns: u64,
    pub result: i32,
    pub charged: u64,
}

impl Ring {
    /// Reads a ring file.
    ///
    /// # Errors
    /// Why the bytes are not a ring.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "it is shorter than a ring: it was cut off, or is something else";
        let at = |offset| word(bytes, offset).ok_or(SHORT);
        if at(offset_of!(Page, magic))? != RING_MAGIC {
            return Err("it does not begin with `vgpuring`: it is no ring, or its process was ended while it made it");
        }
        if at(offset_of!(Page, version))? != VERSION {
            return Err("another version of vgpu wrote it: read it with that one's `vgpu log`");
        }
        let entries = bytes.get(CALLS_AT..RING_SIZE).ok_or(SHORT)?;
        let counts = Counts::parse(bytes).ok_or(SHORT)?;
        let names = usize::try_from(at(offset_of!(Page, names))?).unwrap_or(usize::MAX);
        let names = bytes.get(PAGE..CALLS_AT.min(PAGE.saturating_add(names))).ok_or(SHORT)?;
        let names: Vec<&[u8]> = names.split(|byte| *byte == 0).collect();
        let shift = at(offset_of!(Page, unix))?.wrapping_sub(at(offset_of!(Page, monotonic))?);
        let read = |entry: &[u8]| Entry::parse(entry, &names, shift);
        let mut calls: Vec<Entry> = entries.chunks_exact(size_of::<Call>()).filter_map(read).collect();
        calls.sort_by_key(|call| call.number);
        Ok(Self {
            pid: at(offset_of!(Page, pid))?,
            begun: at(offset_of!(Page, begun))?,
            counts,
            calls,
        })
    }
}

impl Entry {
    fn parse(entry: &[u8], names: &[&[u8]], shift: u64) -> Option<Self> {
        let number = word(entry, offset_of!(Call, number)).filter(|number| *number != 0)?;
        let pair = word(entry, offset_of!(Call, thread))?;
        let (thread, function) = (pair as u32, (pair >> 32) as u32);
        let ns = word(entry, offset_of!(Call, ns))?;
        let end = End {
            ns,
            result: word(entry, offset_of!(Call, result))? as u32 as i32,
            charged: word(entry, offset_of!(Call, charged))?,
        };
        let name = usize::try_from(function).ok().and_then(|place| names.get(place));
        let printable = |byte: &u8| {
            if byte.is_ascii_graphic() {
                char::from(*byte)
            } else {
                '?'
            }
        };
        Some(Self {
            number,
            unix: word(entry, offset_of!(Call, began))?.wrapping_add(shift),
            thread,
            function: name.map_or_else(
                || format!("function-{function}"),
                |name| name.iter().map(printable).collect(),
            ),
            end: (ns != RUNNING).then_some(end),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// Returns the bytes of an empty report file.
#[must_use]
pub fn report_image() -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(&REPORT_MAGIC.to_le_bytes());
    page[8..16].copy_from_slice(&VERSION.to_le_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn ring() -> Vec<u8> {
        let mut bytes = vec![0; RING_SIZE];
        bytes[..PAGE].copy_from_slice(&report_image());
        put(&mut bytes, 0, RING_MAGIC);
        put(&mut bytes, offset_of!(Page, monotonic), 1000);
        put(&mut bytes, offset_of!(Page, unix), 5_000_000);
        put(&mut bytes, offset_of!(Page, begun), 2);
        put(&mut bytes, offset_of!(Page, names), 11);
        bytes[PAGE..PAGE + 11].copy_from_slice(b"cuInit\0cuA\x1b");
        for (place, (number, ns)) in [(2, RUNNING), (1, 70)].into_iter().enumerate() {
            let at = CALLS_AT + 64 * place;
            put(&mut bytes, at, number);
            put(&mut bytes, at + 8, 1000 + number);
            put(&mut bytes, at + 16, ns);
            put(&mut bytes, at + 24, 4 << 20);
            put(&mut bytes, at + 32, 77 | (number - 1) << 32);
            put(&mut bytes, at + 40, u64::from(u32::MAX));
        }
        bytes
    }

    #[test]
    fn a_ring_is_read_in_the_order_of_its_calls() {
        let ring = Ring::parse(&ring()).expect("a ring");
        let [first, second] = ring.calls.as_slice() else {
            panic!("{ring:?}")
        };
        assert_eq!((first.number, first.unix, first.thread), (1, 5_000_001, 77));
        assert_eq!(first.function, "cuInit");
        let end = End {
            ns: 70,
            result: -1,
            charged: 4 << 20,
        };
        assert_eq!(first.end, Some(end));
        assert_eq!((second.function.as_str(), second.end), ("cuA?", None));
    }

    #[test]
    fn what_is_no_ring_is_refused_or_read_without_harm() {
        assert!(Ring::parse(b"").is_err());
        assert!(Ring::parse(&ring()[..RING_SIZE - 1]).is_err());
        assert!(Ring::parse(&vec![0; RING_SIZE]).is_err());
        let mut torn = ring();
        put(&mut torn, offset_of!(Page, names), u64::MAX);
        torn[CALLS_AT..].fill(0xff);
        let read = Ring::parse(&torn).expect("numbers that are nonsense");
        assert_eq!(read.calls.len(), CALLS);
        assert_eq!(read.calls[0].function, format!("function-{}", u32::MAX));
        put(&mut torn, 8, VERSION + 1);
        assert!(Ring::parse(&torn).is_err());
    }

    #[test]
    fn counters_lie_apart_and_are_read_where_they_are_written() {
        let mut page = report_image();
        for (reason, _) in Wait::ALL {
            put(&mut page, 64 + 8 * reason.index(), reason as u64 + 1);
            put(&mut page, 64 + 8 * (reason.index() + 1), 100);
        }
        put(&mut page, 64 + 8 * Counter::LostLines as usize, 9);
        let counts = Counts::parse(&page).expect("a report");
        assert_eq!(counts.get(Counter::LostLines), 9);
        for (reason, _) in Wait::ALL {
            assert_eq!(counts.waits(reason), (reason as u64 + 1, 100));
        }
        assert_eq!(Counts::parse(&page[..100]), None);
        assert_eq!(Counts::parse(&[0; PAGE]), None);
    }
}
