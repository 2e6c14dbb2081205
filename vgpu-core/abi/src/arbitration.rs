//! The pages in which the shares of one GPU arbitrate its time: layout 1.
//!
//! ```text
//!  slot page of each share  written by the processes of that share, read by those of all others
//!  node page                written by the plugin or `vgpu run` alone: what each slot is entitled to
//! ```
//!
//! They are files in `<directory of shares>/.arbitration/<GPU>/`: `00` to `63` and `node`. A share may write the file of
//! its own slot and read the others.
//!
//! A page of zeros is a valid empty one: the node only creates files of zeros. All words are little-endian and change
//! one at a time, so a reader may see a page between two changes. `vgpu_core::compute` says why that costs milliseconds
//! at most. Times are CLOCK_MONOTONIC in ns.
//!
//! Hostile input: a tenant may write anything to its own page. So every value of another slot is clamped where it is
//! read (`vgpu_core::compute::turn`), and weights come from the node page only.

use std::mem::offset_of;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The largest number of shares of one GPU.
pub const SLOTS: usize = 64;
/// The number of processes of a share that report their work in flight. The work of further processes is known once it
/// is measured.
pub const CELLS: usize = 32;
pub const PAGE: usize = 4096;
/// The weight of a share whose `cores` is 1: weights are thousandths of a percent.
pub const WEIGHT_OF_ONE_CORE: u32 = 1000;
/// The smallest weight.
pub const LEAST_WEIGHT: u32 = WEIGHT_OF_ONE_CORE / 10;

/// The name of a slot's file: two digits.
#[must_use]
pub fn slot_file_name(slot: u8) -> String {
    format!("{slot:02}")
}

/// One share's page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SlotPage {
    /// A futex on which others sleep. Changes whenever `until` moves to an earlier time.
    pub wake: AtomicU32,
    _reserved: u32,
    pub turn: Turn,
    pub want: Want,
    /// The start tag of the turn that began last.
    pub start_tag: AtomicU64,
    /// The tag up to which the share has been charged.
    pub finish_tag: AtomicU64,
    pub bucket: Bucket,
    /// Work up to this moment is charged.
    pub covered: AtomicU64,
    pub counters: Counters,
    pub cells: [Cell; CELLS],
    pub ends: Ends,
}

/// The turn of a share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Turn {
    /// When the last turn began. 0: there was none.
    pub began: AtomicU64,
    /// When the turn's quantum ends. 0: the turn is over.
    pub ends: AtomicU64,
    /// Other shares leave the GPU to this share until this time: while its work is in flight, and a short while after.
    pub until: AtomicU64,
    /// Since when nothing has been in flight in this turn. 0: something is in flight.
    pub idle_since: AtomicU64,
    /// Bits of `turn_flags`.
    pub flags: AtomicU64,
}

/// Bits of [`Turn::flags`].
pub mod turn_flags {
    /// The share has low priority and had waited for long. Shares of high priority do not cut this turn.
    pub const PROMOTED: u64 = 1;
}

/// A share's request for a turn.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Want {
    /// 0: no request.
    pub since: AtomicU64,
    /// When the request expires unless it is renewed: its process may be dead.
    pub valid_until: AtomicU64,
    /// The start tag, fixed when the request begins.
    pub tag: AtomicU64,
    /// Bits of `want_flags`.
    pub flags: AtomicU64,
}

/// Bits of [`Want::flags`].
pub mod want_flags {
    /// The share has had less than others, and may cut a turn.
    pub const BEHIND: u64 = 1;
    /// Another share of the same claim holds a turn on another GPU.
    pub const SIBLING: u64 = 2;
}

/// How much of its guaranteed time a share may use: `tokens` ns at `at`. Negative: debt.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bucket {
    pub tokens: AtomicI64,
    pub at: AtomicU64,
}

/// Sums in ns, for the plugin.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Charged GPU time: work, and turns that were kept while others waited.
    pub charged: AtomicU64,
    /// Time for which launches waited because the share had used its `cores`.
    pub throttled: AtomicU64,
    /// Time for which launches waited for a turn.
    pub waited: AtomicU64,
    /// The part of `charged` in which another share had a turn too.
    pub overlapped: AtomicU64,
}

/// The work in flight of one process.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Cell {
    /// The process's PID in its namespace, and 32 bits of that namespace's number. 0: free.
    pub owner: AtomicU64,
    /// Since when the process has had work in flight. 0: it has none.
    pub busy_since: AtomicU64,
    /// The estimated duration of its launches that are not known to have ended.
    pub estimated: AtomicU64,
    /// The cell is ignored after this time, because its process may be dead.
    pub valid_until: AtomicU64,
}

/// Observations of the ends of the share's launches. Older libraries leave these words at 0.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Ends {
    /// When a launch was last seen to have ended.
    pub seen_at: AtomicU64,
    /// Launches that were let through behind a kernel that does not end. Reset when nothing is in flight.
    pub stuck: AtomicU64,
    /// Number of dead processes whose unfinished work was charged by elapsed time, and when the last was charged.
    pub burials: AtomicU64,
    pub buried_at: AtomicU64,
}

/// The node's page.
#[derive(Debug)]
#[repr(C)]
pub struct NodePage {
    /// Odd while the page is being written.
    pub sequence: AtomicU32,
    _reserved: u32,
    pub entries: [EntryWords; SLOTS],
}

/// The words of one entry of the node page. [`NodePage::entry`] reads them together.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EntryWords {
    weight: AtomicU32,
    flags: AtomicU32,
    /// Different for each share that gets the slot.
    generation: AtomicU64,
}

/// The part of the GPU's time that a slot may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Thousandths of a percent. 0: the slot is free.
    pub weight: u32,
    /// Bits of `entry_flags`.
    pub flags: u32,
    pub generation: u64,
}

/// Bits of [`Entry::flags`].
pub mod entry_flags {
    /// The share never gets more than `cores`.
    pub const GUARANTEED: u32 = 1;
    /// The share is never held back.
    pub const UNLIMITED: u32 = 2;
    /// The share is served before those of low priority.
    pub const HIGH: u32 = 4;
    /// `cores` is 0: the weight is a part of the idle time and guarantees nothing.
    pub const BEST_EFFORT: u32 = 8;
    /// The share was seen to break its limit. Others ignore its page.
    pub const IGNORED: u32 = 16;
}

/// The counters of a slot page, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub charged: u64,
    pub throttled: u64,
    pub waited: u64,
    pub overlapped: u64,
}

const _: () = assert!(size_of::<SlotPage>() <= PAGE && size_of::<NodePage>() <= PAGE);
const _: () = assert!(size_of::<SlotPage>() == 152 + CELLS * 32 + 32 && size_of::<NodePage>() == 8 + SLOTS * 16);

/// Returns the counters in the bytes of a slot page, or None if the size is wrong.
#[must_use]
pub fn counters(page: &[u8]) -> Option<Counted> {
    let word = |field: usize| {
        let at = offset_of!(SlotPage, counters) + field;
        Some(u64::from_le_bytes(page.get(at..at + 8)?.try_into().ok()?))
    };
    if page.len() != PAGE {
        return None;
    }
    Some(Counted {
        charged: word(offset_of!(Counters, charged))?,
        throttled: word(offset_of!(Counters, throttled))?,
        waited: word(offset_of!(Counters, waited))?,
        overlapped: word(offset_of!(Counters, overlapped))?,
    })
}

/// Returns the writes (offset in the file, bytes) that replace the entries of a node page with this `sequence`. They
/// have to be made in this order. For a writer that does not map the file.
///
/// A reader finds the old entries, the new ones, or an odd sequence, even in the middle of a write: the sequence is odd
/// from before the first entry changes until after the last one has. A killed writer leaves it odd; the next writer
/// corrects that.
#[must_use]
pub fn node_page_writes(sequence: [u8; 4], entries: &[Entry; SLOTS]) -> [(u64, Vec<u8>); 3] {
    let odd = u32::from_le_bytes(sequence) | 1;
    let mut words = vec![0; SLOTS * size_of::<EntryWords>()];
    for (bytes, entry) in words.chunks_exact_mut(size_of::<EntryWords>()).zip(entries) {
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(EntryWords, weight), &entry.weight.to_le_bytes());
        put(offset_of!(EntryWords, flags), &entry.flags.to_le_bytes());
        put(offset_of!(EntryWords, generation), &entry.generation.to_le_bytes());
    }
    let at_sequence = offset_of!(NodePage, sequence) as u64;
    [
        (at_sequence, odd.to_le_bytes().to_vec()),
        (offset_of!(NodePage, entries) as u64, words),
        (at_sequence, odd.wrapping_add(1).to_le_bytes().to_vec()),
    ]
}

/// Returns an entry from the bytes of a node page, as [`NodePage::entry`] does from a mapped page.
#[must_use]
pub fn entry(page: &[u8], slot: usize) -> Option<Entry> {
    let bytes = |at: usize, length: usize| page.get(at..at + length);
    let number = |at: usize| Some(u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?));
    let at = offset_of!(NodePage, entries) + slot * size_of::<EntryWords>();
    let is_settled = number(offset_of!(NodePage, sequence))?.is_multiple_of(2);
    let generation = bytes(at + offset_of!(EntryWords, generation), 8)?;
    let entry = Entry {
        weight: number(at + offset_of!(EntryWords, weight))?,
        flags: number(at + offset_of!(EntryWords, flags))?,
        generation: u64::from_le_bytes(generation.try_into().ok()?),
    };
    (is_settled && slot < SLOTS).then_some(entry)
}

// === impl NodePage ===

impl Default for NodePage {
    fn default() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            _reserved: 0,
            entries: std::array::from_fn(|_| EntryWords::default()),
        }
    }
}

impl NodePage {
    /// Writes all entries. There must be only one writer at any moment.
    pub fn write(&self, entries: &[Entry; SLOTS]) {
        self.sequence.fetch_or(1, Release);
        for (words, entry) in self.entries.iter().zip(entries) {
            words.weight.store(entry.weight, Release);
            words.flags.store(entry.flags, Release);
            words.generation.store(entry.generation, Release);
        }
        self.sequence.fetch_add(1, Release);
    }

    /// Returns the entry of a slot, or None while the page is being written. A write takes microseconds. If the writer
    /// was killed, the answer is None until the next write.
    #[must_use]
    pub fn entry(&self, slot: usize) -> Option<Entry> {
        let words = self.entries.get(slot)?;
        let before = self.sequence.load(Acquire);
        let entry = Entry {
            weight: words.weight.load(Acquire),
            flags: words.flags.load(Acquire),
            generation: words.generation.load(Acquire),
        };
        (before.is_multiple_of(2) && self.sequence.load(Relaxed) == before).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_whole_or_not_at_all() {
        let page = NodePage::default();
        let mut entries = [Entry::default(); SLOTS];
        entries[3] = Entry {
            weight: 30_000,
            flags: entry_flags::HIGH,
            generation: 7,
        };
        page.write(&entries);
        assert_eq!(page.entry(3), Some(entries[3]));
        assert_eq!(page.entry(SLOTS), None);
        page.sequence.fetch_or(1, Relaxed);
        assert_eq!(page.entry(3), None, "a writer is at work");
        page.write(&entries);
        assert_eq!(page.entry(3), Some(entries[3]), "also after a writer that was killed");
    }

    fn entries_of(weight: u32) -> [Entry; SLOTS] {
        std::array::from_fn(|slot| Entry {
            weight: weight + slot as u32,
            flags: weight << 8,
            generation: u64::from(weight) << 40 | slot as u64,
        })
    }

    #[test]
    fn a_page_that_is_written_in_steps_is_read_whole_or_not_at_all() {
        let (old, new) = (entries_of(1), entries_of(1000));
        // Writes at most `until` bytes, as if the writer were killed then. Returns true if bytes were left.
        let write = |page: &mut [u8], entries, until: usize| {
            let writes = node_page_writes([page[0], page[1], page[2], page[3]], entries);
            let bytes = writes
                .into_iter()
                .flat_map(|(at, bytes)| (at as usize..).zip(bytes).collect::<Vec<_>>());
            let bytes: Vec<_> = bytes.collect();
            bytes.iter().take(until).for_each(|(at, byte)| page[*at] = *byte);
            until < bytes.len()
        };
        let mut page = vec![0; PAGE];
        assert!(!write(&mut page, &old, usize::MAX));
        // A writer that is killed after each possible byte, then a complete one.
        for until in (0..).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let mut cut = page.clone();
            let killed = write(&mut cut, &new, until);
            for slot in [0, 1, 63] {
                let found = entry(&cut, slot);
                let whole = [Some(old[slot]), Some(new[slot]), None].contains(&found);
                assert!(whole, "killed after {until} bytes: {found:?}");
            }
            write(&mut cut, &new, usize::MAX);
            assert_eq!(entry(&cut, 5), Some(new[5]), "after {until} bytes and once more");
            if !killed {
                break;
            }
        }
        assert_eq!(entry(&page, SLOTS), None);
        assert_eq!(entry(&page[..100], 63), None, "a page that was cut");
    }

    #[test]
    fn counters_are_where_the_library_counts() {
        let mut page = vec![0; PAGE];
        let at = offset_of!(SlotPage, counters);
        for (word, value) in (1_u64..=4).enumerate() {
            page[at + 8 * word..at + 8 * word + 8].copy_from_slice(&(value << 33).to_le_bytes());
        }
        let expected = Counted {
            charged: 1 << 33,
            throttled: 2 << 33,
            waited: 3 << 33,
            overlapped: 4 << 33,
        };
        assert_eq!(counters(&page), Some(expected));
        assert_eq!(counters(&page[..PAGE - 1]), None, "cut by its tenant");
        page.push(0);
        assert_eq!(counters(&page), None, "grown");
    }
}
