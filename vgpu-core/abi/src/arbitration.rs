//! The pages in which the shares of one GPU arbitrate its time: layout 1.
//!
//! ```text
//!  slot page, one a share   written by the processes of that share, read by those of all others
//!  node page                written by the plugin or `vgpu run` alone: what each slot is entitled to
//! ```
//!
//! They are files in `<directory of shares>/.arbitration/<GPU>/`: `00` to `63` and `node`. A share may write the file of
//! its own slot and read the others.
//!
//! A page of zeros is a valid empty one: the node creates files of zeros and nothing else. All words are little-endian
//! and change one at a time, so a reader may see a page between two of its changes; `vgpu_core::compute` says why that
//! costs milliseconds at most. Times are CLOCK_MONOTONIC in ns.
//!
//! Hostile input: a tenant writes what it likes to its own page. So every value of another slot is clamped where it is
//! read (`vgpu_core::compute::turn`), and weights come from the node page alone.

use std::mem::offset_of;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The largest number of shares of one GPU.
pub const SLOTS: usize = 64;
/// Processes of a share whose work is known one by one. What further ones have in flight counts when it is measured.
pub const CELLS: usize = 32;
pub const PAGE: usize = 4096;
/// The weight of a share whose `cores` is 1: weights are thousandths of a percent.
pub const WEIGHT_OF_ONE_CORE: u32 = 1000;
/// The least weight.
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
    /// Changes whenever `until` is brought forward: others sleep on it.
    pub wake: AtomicU32,
    _reserved: u32,
    pub turn: Turn,
    pub want: Want,
    /// The start tag of the turn that began last.
    pub start_tag: AtomicU64,
    /// The tag at which the share has used what it was charged so far.
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
    /// When its quantum ends. 0: it is over.
    pub ends: AtomicU64,
    /// Until when others leave the GPU to this share: what is in flight, and a while more.
    pub until: AtomicU64,
    /// Since when nothing was in flight in this turn. 0: something is.
    pub idle_since: AtomicU64,
    /// Bits of `turn_flags`.
    pub flags: AtomicU64,
}

/// Bits of [`Turn::flags`].
pub mod turn_flags {
    /// A share of low priority that had waited for long: those of high priority do not cut this turn.
    pub const PROMOTED: u64 = 1;
}

/// A share's wish for a turn.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Want {
    /// 0: it wants none.
    pub since: AtomicU64,
    /// A wish that nobody renews is none: its process may be dead.
    pub valid_until: AtomicU64,
    /// The start tag, fixed when the wish begins.
    pub tag: AtomicU64,
    /// Bits of `want_flags`.
    pub flags: AtomicU64,
}

/// Bits of [`Want::flags`].
pub mod want_flags {
    /// The share has had less than others: it may cut a turn.
    pub const BEHIND: u64 = 1;
    /// The share's claim holds a turn on another GPU.
    pub const SIBLING: u64 = 2;
}

/// What a share may use of its guaranteed time: `tokens` ns at `at`. Below 0 is debt.
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
    /// GPU time: work, and turns that were kept while others waited.
    pub charged: AtomicU64,
    /// Time in which launches waited because the share had used its `cores`.
    pub throttled: AtomicU64,
    /// Time in which launches waited for a turn.
    pub waited: AtomicU64,
    /// The part of `charged` in which another share had a turn too.
    pub overlapped: AtomicU64,
}

/// What one process has in flight.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Cell {
    /// The process's PID in its namespace, and 32 bits of that namespace's number. 0: free.
    pub owner: AtomicU64,
    /// Since when it has had work in flight. 0: it has none.
    pub busy_since: AtomicU64,
    /// What the launches of it that are not known to have ended take by estimate.
    pub estimated: AtomicU64,
    /// After this moment the cell says nothing any more: its process may be dead.
    pub valid_until: AtomicU64,
}

/// When launches of the share ended, and how many did not. Older libraries leave these words at 0.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Ends {
    /// When a launch was last seen to have ended.
    pub seen_at: AtomicU64,
    /// Launches that went behind a kernel that does not end, since nothing was in flight.
    pub stuck: AtomicU64,
    /// Processes whose work was charged by the clock because they were dead, and when the last one was.
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
    /// Changes with each share that gets the slot.
    generation: AtomicU64,
}

/// What a slot is entitled to.
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
    /// Never more than `cores`.
    pub const GUARANTEED: u32 = 1;
    /// Never held back.
    pub const UNLIMITED: u32 = 2;
    /// Before the shares of low priority.
    pub const HIGH: u32 = 4;
    /// The weight is a part of the idle time and guarantees nothing: `cores` is 0.
    pub const BEST_EFFORT: u32 = 8;
    /// The share was seen to break its limit: others ignore what its page says.
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

/// Returns the counters in the bytes of a slot page; None if it was cut or has grown.
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

/// Returns the writes that replace the entries of a node page that begins with `sequence`: places in the file, and the
/// bytes there, each to be written before the next. For a writer with a file and no mapping of it.
///
/// A reader finds the old entries, the new ones, or an odd sequence: also one that reads while a write is half done,
/// because the sequence is odd before the first entry changes and stays odd until the last one has. A writer that was
/// killed leaves it odd, which the next one ends.
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

/// Returns an entry from the bytes of a node page, as [`NodePage::entry`] does from a mapped one.
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
    /// Writes all entries. One writer at a time.
    pub fn write(&self, entries: &[Entry; SLOTS]) {
        self.sequence.fetch_or(1, Release);
        for (words, entry) in self.entries.iter().zip(entries) {
            words.weight.store(entry.weight, Release);
            words.flags.store(entry.flags, Release);
            words.generation.store(entry.generation, Release);
        }
        self.sequence.fetch_add(1, Release);
    }

    /// Returns the entry of a slot, or None while the page is being written, which takes microseconds unless the writer
    /// was killed; the next write ends that too.
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
        // Returns true if the writer was killed after `until` bytes.
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
        // A writer that was killed after any byte, then one that was not.
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
