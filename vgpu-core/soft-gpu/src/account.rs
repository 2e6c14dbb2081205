//! Counts exactly how much of a GPU each process holds, even if processes are killed at any instruction.
//!
//! Each GPU has one word: its total, and the (process, sequence) of the operation that wrote it last. Each process has
//! three words for each GPU. Only the process itself, or the process that cleans up after its death ("buries" it),
//! writes them, except `done`:
//!
//! ```text
//! intent  the planned operation and its sequence            1. written before the total
//! word    total, process, sequence  <- compare-and-swap     2. the operation takes place here
//! held    the units held after which sequence               3. written after the total
//! done    written by the NEXT writer of the total, before it overwrites the word: this operation took place
//! ```
//!
//! A process that is killed between 1 and 3 leaves an intent that is newer than `held`. The operation took place if and
//! only if the word still has its sequence, or `done` has it. So `settle` can always decide, and the sum of what
//! processes hold differs from the total by no more than the operations in flight. There are no locks, so nothing waits
//! for a killed or stopped process. All amounts are in units of the profile's granularity.

use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of units of a GPU.
pub const MAX_UNITS: u64 = (1 << 24) - 1;
/// The largest number of processes; their numbers fill the word's field.
pub const MAX_PROCS: usize = 1 << 10;
const SEQ_MASK: u64 = (1 << 30) - 1;

/// The total of one GPU: 24 bits of units, 10 of process, 30 of sequence.
#[derive(Default)]
#[repr(C)]
pub struct Total(AtomicU64);

/// The units that one process holds of one GPU.
#[derive(Default)]
#[repr(C)]
pub struct Held {
    held: AtomicU64,
    intent: AtomicU64,
    done: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    units: u64,
    proc: usize,
    seq: u64,
}

impl Word {
    fn unpack(raw: u64) -> Self {
        Self {
            units: raw & MAX_UNITS,
            proc: (raw >> 24) as usize & (MAX_PROCS - 1),
            seq: raw >> 34,
        }
    }

    fn pack(self) -> u64 {
        self.units | (self.proc as u64) << 24 | self.seq << 34
    }
}

/// Layout of `held` and `intent`, from the lowest bit: 32 bits of units, one that marks the word as used, the sign, and
/// 30 bits of sequence.
const USED: u64 = 1 << 32;
const MINUS: u64 = 1 << 33;

fn note(seq: u64, delta: i64) -> u64 {
    seq << 34 | if delta < 0 { MINUS } else { 0 } | USED | delta.unsigned_abs()
}

fn delta(raw: u64) -> i64 {
    let units = (raw & (USED - 1)) as i64;
    if raw & MINUS == 0 { units } else { -units }
}

/// The GPU does not have as many units left.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Total {
    pub fn units(&self) -> u64 {
        Word::unpack(self.0.load(Ordering::Acquire)).units
    }

    /// Changes the units of process `me` by `delta`, unless the total would exceed `capacity`.
    ///
    /// `all` returns the words of any process for this GPU. Only one thread at a time may act for a process.
    pub fn change<'a>(
        &self,
        me: usize,
        delta: i64,
        capacity: u64,
        all: impl Fn(usize) -> &'a Held,
    ) -> Result<(), Full> {
        let mine = all(me);
        loop {
            let raw = self.0.load(Ordering::Acquire);
            let last = Word::unpack(raw);
            let units = last
                .units
                .checked_add_signed(delta)
                .filter(|units| delta < 0 || *units <= capacity);
            let Some(units) = units else { return Err(Full) };
            if last.proc != me {
                self.record(raw, all(last.proc));
            }
            let seq = (last.seq + 1) & SEQ_MASK;
            mine.intent.store(note(seq, delta), Ordering::SeqCst);
            let next = Word { units, proc: me, seq }.pack();
            if self
                .0
                .compare_exchange(raw, next, Ordering::SeqCst, Ordering::Acquire)
                .is_ok()
            {
                let held = mine.units() as i64 + delta;
                mine.held.store(note(seq, held.max(0)), Ordering::Release);
                return Ok(());
            }
        }
    }

    /// Records for the process that wrote `raw` that its operation took place, if `raw` is still the newest.
    fn record(&self, raw: u64, writer: &Held) {
        let mark = Word::unpack(raw).seq << 34 | USED;
        let before = writer.done.load(Ordering::SeqCst);
        // If the word is unchanged, no newer operation can have been recorded yet, so `before` is not newer. If one is
        // recorded later, the exchange fails. So a slow recorder never undoes a newer record.
        if before != mark && self.0.load(Ordering::SeqCst) == raw {
            let _ = writer
                .done
                .compare_exchange(before, mark, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Returns the units of processes 0 to `count` - 1 at one instant, including operations in flight, even if a
    /// process is stopped in the middle of one. None if the total changed meanwhile, or another process holds units.
    pub fn snapshot<'a>(&self, count: usize, all: impl Fn(usize) -> &'a Held) -> Option<Vec<u64>> {
        let raw = self.0.load(Ordering::SeqCst);
        let word = Word::unpack(raw);
        let mut list = Vec::with_capacity(count);
        for proc in 0..count {
            let place = all(proc);
            let held = place.held.load(Ordering::SeqCst);
            let intent = place.intent.load(Ordering::SeqCst);
            let done = place.done.load(Ordering::SeqCst);
            // If `held` changed between the reads, `intent` may belong to the next operation, which `held` does not
            // contain.
            if place.held.load(Ordering::SeqCst) != held {
                return None;
            }
            let seq = intent >> 34;
            let applied = intent & USED == 0 || held & USED != 0 && held >> 34 == seq;
            let happened = word.proc == proc && word.seq == seq || done == (seq << 34 | USED);
            let change = if !applied && happened { delta(intent) } else { 0 };
            list.push((held & (USED - 1)).checked_add_signed(change)?);
        }
        (self.0.load(Ordering::SeqCst) == raw && list.iter().sum::<u64>() == word.units).then_some(list)
    }

    /// Updates `held` of a dead process to the last operation that took place. Returns its units.
    pub fn settle(&self, proc: usize, dead: &Held) -> u64 {
        let intent = dead.intent.load(Ordering::SeqCst);
        let held = dead.held.load(Ordering::SeqCst);
        if intent & USED == 0 || intent >> 34 == held >> 34 && held & USED != 0 {
            return dead.units();
        }
        let seq = intent >> 34;
        // The word is read first: a writer that overwrites it between the two reads has recorded this operation in
        // `done` before.
        let word = Word::unpack(self.0.load(Ordering::SeqCst));
        let newest = word.proc == proc && word.seq == seq;
        if newest || dead.done.load(Ordering::SeqCst) == (seq << 34 | USED) {
            let units = dead.units() as i64 + delta(intent);
            dead.held.store(note(seq, units.max(0)), Ordering::SeqCst);
        } else {
            dead.intent.store(0, Ordering::SeqCst);
        }
        dead.units()
    }
}

impl Held {
    pub fn units(&self) -> u64 {
        let raw = self.held.load(Ordering::Acquire);
        raw & (USED - 1)
    }

    /// Resets the words for a new process in this place. Only while the place has no units.
    pub fn clear(&self) {
        self.intent.store(0, Ordering::SeqCst);
        self.held.store(0, Ordering::SeqCst);
        self.done.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Vec<Held> {
        // Miri keeps the history of every word, so there are few processes under Miri.
        let count = if cfg!(miri) { 5 } else { MAX_PROCS };
        (0..count).map(|_| Held::default()).collect()
    }

    #[test]
    fn the_last_unit_is_given_once() {
        let (total, places) = (Total::default(), places());
        assert_eq!(total.change(1, 10, 10, |i| &places[i]), Ok(()));
        assert_eq!(total.change(2, 1, 10, |i| &places[i]), Err(Full));
        total.change(1, -1, 10, |i| &places[i]).unwrap();
        assert_eq!(total.change(2, 1, 10, |i| &places[i]), Ok(()));
        assert_eq!((places[1].units(), places[2].units(), total.units()), (9, 1, 10));
    }

    /// Every step at which process 1 can die, with and without a later writer: the total is the sum of all units.
    #[test]
    fn a_death_between_any_two_steps_is_settled() {
        for first in [5, -3] {
            for step in 0..3 {
                for later in [false, true] {
                    let (total, places) = (Total::default(), places());
                    total.change(1, 4, 100, |i| &places[i]).unwrap();
                    total.change(2, 7, 100, |i| &places[i]).unwrap();
                    let all = |i: usize| &places[i];
                    // The operation of process 1, step by step up to `step`.
                    let raw = total.0.load(Ordering::SeqCst);
                    let last = Word::unpack(raw);
                    total.record(raw, &places[last.proc]);
                    let seq = last.seq + 1;
                    if step >= 1 {
                        places[1].intent.store(note(seq, first), Ordering::SeqCst);
                    }
                    if step >= 2 {
                        let units = last.units.checked_add_signed(first).unwrap();
                        total.0.store(Word { units, proc: 1, seq }.pack(), Ordering::SeqCst);
                    }
                    if later {
                        total.change(3, 2, 100, |i| &places[i]).unwrap();
                    }
                    let seen = total.snapshot(places.len(), all).expect("nobody moves");
                    let held = total.settle(1, &places[1]);
                    assert_eq!(seen[1], held, "a picture knows before the funeral");
                    assert_eq!(
                        held,
                        if step == 2 { (4 + first) as u64 } else { 4 },
                        "{first} {step} {later}"
                    );
                    let sum: u64 = places.iter().map(Held::units).sum();
                    assert_eq!(sum, total.units(), "{first} {step} {later}");
                    assert_eq!(total.settle(1, &places[1]), held, "settling twice changes nothing");
                }
            }
        }
    }

    #[test]
    fn threads_never_pass_the_capacity_and_end_at_their_sum() {
        let (total, places) = (Total::default(), places());
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for me in 1..=4 {
                let (total, places) = (&total, &places);
                scope.spawn(move || {
                    for round in 0..rounds {
                        if let Some(list) = total.snapshot(5, |i| &places[i]) {
                            assert!(list.iter().sum::<u64>() <= 64);
                        }
                        let units = 1 + (round * me as i64) % 40;
                        if total.change(me, units, 64, |i| &places[i]).is_ok() {
                            assert!(total.units() <= 64);
                            total.change(me, -units, 64, |i| &places[i]).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(total.units(), 0);
        assert_eq!(places.iter().map(Held::units).sum::<u64>(), 0);
    }
}
