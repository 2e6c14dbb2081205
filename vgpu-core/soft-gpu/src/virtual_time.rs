//! Virtual time (profile: `clock = virtual`): it stands still while any thread computes. When all threads wait, it
//! jumps to the next moment for which one of them waits. So the speed of the machine does not change a program's
//! figures.
//!
//! A thread takes part from its first launch, wait or sleep until its end. It waits in a synchronisation, in a launch
//! into a full queue, and in `softGpuSleepUntil`. Everything else counts as computing, even reading a pipe or waiting
//! for another thread.
//!
//! How it fails:
//! - A thread that has launched work and then waits for something else stops the time for all.
//! - A process dies: its threads are removed when it is buried. Waiters check for dead processes while the time stands
//!   still.
//! - One of two processes starts before the other: time already passes for it. To get the same figures each time, let
//!   both synchronise first.
//! - More than WAITS threads of a process wait: the others are treated as computing until a place is free.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::account::MAX_PROCS;

/// How many threads of a process can wait at once.
const WAITS: usize = 63;
/// The first moment of virtual time. It is not 0, because 0 means unset.
const EPOCH: u64 = 1_000_000_000;

/// The waits of one process's threads.
#[repr(C, align(64))]
pub struct Threads {
    count: AtomicU64,
    /// Until when each thread waits; 0: free.
    waits: [AtomicU64; WAITS],
}

#[repr(C, align(64))]
pub struct VirtualTime<const PLACES: usize = MAX_PROCS> {
    /// Since EPOCH.
    passed: AtomicU64,
    /// Changes with each jump: waiters sleep on it.
    pub jumps: AtomicU32,
    places: [Threads; PLACES],
}

/// A thread's wait. It begins when the thread stops computing.
pub struct Wait<'a>(&'a AtomicU64);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

impl<const PLACES: usize> VirtualTime<PLACES> {
    pub fn now(&self) -> u64 {
        EPOCH.saturating_add(self.passed.load(SeqCst))
    }

    pub fn thread_begins(&self, place: usize) {
        self.places[place].count.fetch_add(1, SeqCst);
    }

    pub fn thread_ends(&self, place: usize) {
        let _ = self.places[place]
            .count
            .fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
    }

    /// Removes the threads of a process that has died.
    pub fn clear(&self, place: usize) {
        self.places[place].count.store(0, SeqCst);
        self.places[place].waits.iter().for_each(|wait| wait.store(0, SeqCst));
    }

    /// Registers that the calling thread waits until `until`, as long as the result exists. None: no entry is free.
    pub fn wait(&self, place: usize, until: u64) -> Option<Wait<'_>> {
        let free = |wait: &&AtomicU64| wait.compare_exchange(0, until.max(1), SeqCst, SeqCst).is_ok();
        self.places[place].waits.iter().find(free).map(Wait)
    }

    /// Jumps if all threads of the processes in the first `places` slots wait, and no thread's moment has come yet.
    /// Returns true if it jumped.
    pub fn jump(&self, places: usize) -> bool {
        let passed = self.passed.load(SeqCst);
        let (mut threads, mut waiting, mut first) = (0, 0, u64::MAX);
        for place in &self.places[..places.min(PLACES)] {
            let count = place.count.load(SeqCst);
            if count == 0 {
                continue;
            }
            threads += count;
            for until in place
                .waits
                .iter()
                .map(|wait| wait.load(SeqCst))
                .filter(|until| *until != 0)
            {
                waiting += 1;
                first = first.min(until);
            }
        }
        // A thread whose moment has come is about to compute.
        let is_next = threads == waiting && first > EPOCH.saturating_add(passed) && first != u64::MAX;
        // It fails if another thread has jumped: then what was read above may be old.
        let jumped = is_next
            && self
                .passed
                .compare_exchange(passed, first - EPOCH, SeqCst, SeqCst)
                .is_ok();
        if jumped {
            self.jumps.fetch_add(1, SeqCst);
        }
        jumped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> VirtualTime<2> {
        VirtualTime {
            passed: AtomicU64::new(0),
            jumps: AtomicU32::new(0),
            places: std::array::from_fn(|_| Threads {
                count: AtomicU64::new(0),
                waits: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }

    #[test]
    fn time_jumps_when_all_wait_to_the_first_moment_and_no_further_until_its_thread_computed() {
        let time = time();
        let start = time.now();
        time.thread_begins(0);
        time.thread_begins(1);
        let one = time.wait(0, start + 20).expect("a place");
        assert!(!time.jump(2), "the other one computes");
        let other = time.wait(1, start + 10).expect("a place");
        assert!(time.jump(2));
        assert_eq!((time.now(), time.jumps.load(SeqCst)), (start + 10, 1));
        assert!(!time.jump(2), "the other one's moment has come");
        drop(other);
        assert!(!time.jump(2), "it computes");
        time.thread_ends(1);
        assert!(time.jump(2));
        assert_eq!(time.now(), start + 20);
        drop(one);
    }

    #[test]
    fn the_dead_hold_nobody_up_and_who_waits_for_ever_moves_nothing() {
        let time = time();
        time.thread_begins(0);
        time.thread_begins(1);
        let _endless = time.wait(0, u64::MAX);
        assert!(!time.jump(2));
        time.clear(1);
        assert!(!time.jump(2), "there is nothing to come");
        let again = time.wait(0, time.now() + 5);
        time.thread_begins(0);
        assert!(time.jump(2));
        drop(again);
    }

    #[test]
    fn a_thread_without_a_place_counts_as_computing() {
        let time = time();
        let until = time.now() + 1;
        let waits: Vec<_> = (0..WAITS).map_while(|_| time.wait(0, until)).collect();
        assert_eq!(waits.len(), WAITS);
        assert!(time.wait(0, until).is_none());
    }
}
