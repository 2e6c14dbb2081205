//! Changes several shared words as one change, although any process may be killed or stopped at any instruction.
//!
//! ```text
//!  quiet    root = number                 1. read the words, write the changes into the own journal: (word, old, new)
//!  exchange root = number, journal        2. the change takes place here
//!  apply    each word: old -> new         3. by any process that finds the root so
//!  quiet    root = number + 1             4. by the first that has applied all
//! ```
//!
//! Nobody waits: a process that finds a change under way finishes it, from the journal of the process that began it.
//!
//! How it fails:
//! - Killed or stopped before 2: nothing has happened, and the next owner of the slot overwrites the journal.
//! - Killed or stopped after 2: the next process finishes the change.
//! - Stopped within 3, while others finish and continue: each remaining exchange fails, because no word ever has an old
//!   value again (see `words`). A record of a journal is used only if the root, read afterwards, still has the same
//!   change.
//! - Two at once: one exchange of the root fails, and that process starts over from the new state.
//! - A damaged journal: words that do not exist are skipped, and its length is bounded.

use std::sync::atomic::Ordering::*;

use super::words::{Name, RECORDS, Record, Words};

/// One word's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub name: Name,
    pub old: u64,
    pub new: u64,
}

/// The state of the words between two transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet(u64);

/// The root's low bits: the journal's number + 1 while a change is under way.
const BUSY: u64 = 0xffff;
const ONE: u64 = BUSY + 1;

impl<'a> Words<'a> {
    /// Finishes the change that is under way, if there is one.
    pub fn quiet(&self) -> Quiet {
        loop {
            let root = self.root.load(SeqCst);
            if root & BUSY == 0 {
                return Quiet(root);
            }
            self.finish(root);
        }
    }

    /// Returns true if nothing has changed since.
    pub fn is_still(&self, quiet: Quiet) -> bool {
        self.root.load(SeqCst) == quiet.0
    }

    /// Makes the changes if nothing has changed since `quiet`; otherwise returns false. Only one thread at a time may
    /// use a journal. At most [`RECORDS`] changes.
    pub fn commit(&self, quiet: Quiet, journal: usize, changes: &[Change]) -> bool {
        if !self.prepare(journal, changes) {
            return false;
        }
        let busy = quiet.0 | (journal as u64 + 1);
        if self.root.compare_exchange(quiet.0, busy, SeqCst, SeqCst).is_err() {
            return false;
        }
        self.finish(busy);
        true
    }

    /// Writes the changes into the journal. It is not in use between a call of `quiet` and the exchange of the root.
    fn prepare(&self, journal: usize, changes: &[Change]) -> bool {
        let Some(journal) = self.journals.get(journal).filter(|_| changes.len() <= RECORDS) else {
            return false;
        };
        // Release: a process that reads one of these also sees that the root has changed since the journal's last use.
        for (record, change) in journal.records.iter().zip(changes) {
            record.name.store(change.name.pack(), Release);
            record.old.store(change.old, Release);
            record.new.store(change.new, Release);
        }
        journal.count.store(changes.len() as u64, Release);
        true
    }

    fn finish(&self, root: u64) {
        if let Some(journal) = self.journals.get((root & BUSY) as usize - 1) {
            let count = journal.count.load(Acquire) as usize;
            for record in journal.records.iter().take(count) {
                if !self.apply(root, record) {
                    return;
                }
            }
        }
        let _ = self.root.compare_exchange(root, (root & !BUSY) + ONE, SeqCst, SeqCst);
    }

    /// Returns false if another process has finished the change already.
    fn apply(&self, root: u64, record: &Record) -> bool {
        let [name, old, new] = [&record.name, &record.old, &record.new].map(|word| word.load(Acquire));
        if self.root.load(SeqCst) != root {
            return false;
        }
        if let Some(word) = self.named(name) {
            // It fails if another process was faster.
            let _ = word.compare_exchange(old, new, SeqCst, SeqCst);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::tests::Memory;
    use super::*;

    fn executed(queue: usize, old: u64, new: u64) -> Change {
        let name = Name::Executed { queue };
        Change { name, old, new }
    }

    fn both(old: u64, new: u64) -> [Change; 2] {
        [executed(0, old, new), executed(1, old, new)]
    }

    fn values(words: Words<'_>) -> [u64; 2] {
        [0, 1].map(|queue| words.queues[queue].executed.load(SeqCst))
    }

    #[test]
    fn a_change_is_made_once_and_only_on_the_state_that_it_was_made_for() {
        let memory = Memory::new(1, 2);
        let words = memory.words();
        let quiet = words.quiet();
        assert!(words.commit(quiet, 0, &both(0, 5)));
        assert!(!words.commit(quiet, 1, &both(0, 7)), "another one was faster");
        assert_eq!(values(words), [5, 5]);
        assert!(!words.is_still(quiet));
    }

    /// The process of journal 0 dies, or is stopped until long after, at each step: before the exchange of the root
    /// nothing has happened, after it the whole change has.
    #[test]
    fn a_change_whose_process_dies_is_finished_by_the_next() {
        for applied in [None, Some(0), Some(1), Some(2)] {
            let memory = Memory::new(1, 2);
            let words = memory.words();
            let quiet = words.quiet();
            assert!(words.prepare(0, &both(0, 5)));
            let busy = quiet.0 | 1;
            if let Some(applied) = applied {
                words.root.compare_exchange(quiet.0, busy, SeqCst, SeqCst).unwrap();
                for record in &words.journals[0].records[..applied] {
                    assert!(words.apply(busy, record));
                }
            }
            let expected = if applied.is_some() { 5 } else { 0 };
            let next = words.quiet();
            assert_eq!(values(words), [expected; 2], "{applied:?}");
            assert!(words.commit(next, 1, &both(expected, 9)));
            // The stopped process goes on.
            for record in &words.journals[0].records[..2] {
                assert!(!words.apply(busy, record));
            }
            words.finish(busy);
            assert_eq!(values(words), [9, 9], "{applied:?}");
        }
    }

    /// A process that was stopped after it read the root and before it exchanged a word.
    #[test]
    fn a_late_exchange_fails() {
        let memory = Memory::new(1, 2);
        let words = memory.words();
        assert!(words.commit(words.quiet(), 0, &both(0, 5)));
        assert!(words.commit(words.quiet(), 0, &both(5, 6)));
        let late = words.named(Name::Executed { queue: 0 }.pack()).expect("a word");
        assert!(late.compare_exchange(0, 5, SeqCst, SeqCst).is_err());
    }

    #[test]
    fn too_many_changes_and_damaged_journals_are_harmless() {
        let memory = Memory::new(1, 2);
        let words = memory.words();
        assert!(!words.commit(words.quiet(), 0, &[executed(0, 0, 1); RECORDS + 1]));
        assert!(!words.commit(words.quiet(), 99, &both(0, 1)), "no such journal");
        assert_eq!(values(words), [0, 0]);
        words.journals[1].count.store(u64::MAX, SeqCst);
        words.journals[1].records[0].name.store(u64::MAX, SeqCst);
        words.root.store(2, SeqCst);
        words.quiet();
        words.root.store((ONE * 7) | 0xfff0, SeqCst);
        assert_eq!(words.quiet(), Quiet(ONE * 8));
    }

    #[test]
    fn threads_never_lose_a_change_nor_see_half_of_one() {
        let memory = Memory::new(1, 2);
        let words = memory.words();
        let (threads, rounds) = if cfg!(miri) { (2, 20) } else { (2, 20_000) };
        std::thread::scope(|scope| {
            for journal in 0..threads {
                scope.spawn(move || {
                    for _ in 0..rounds {
                        loop {
                            let quiet = words.quiet();
                            let [one, two] = values(words);
                            if !words.is_still(quiet) {
                                continue;
                            }
                            assert_eq!(one, two);
                            if words.commit(quiet, journal, &both(one, one + 1)) {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(values(words), [threads as u64 * rounds; 2]);
    }
}
