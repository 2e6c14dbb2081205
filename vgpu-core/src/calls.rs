//! Tracks threads that are inside calls that may change GPU memory. A measurement of the GPU must know when the
//! charges of this process equal what it holds.
//!
//! ```text
//!  a thread:  begin ─► charge ─► driver ─► kept          ─► end
//!             begin ─► taken out ─► driver ─► released   ─► end
//!  measuring: stop ─► read charges; nobody inside ─► ask NVML ─► nobody inside; charges as before
//! ```
//!
//! Memory is charged before the driver takes it and until the driver has released it. So inside a call, the charge may
//! exceed the memory that the process holds; outside of all calls the two are equal. A call that begins and ends
//! between two reads of [`Calls::under_way`] is detected by a changed charge; a call that changes no charge changes no
//! GPU memory.
//!
//! Each thread sets a flag in a word of its own. That costs a few instructions and no lock, unless another thread
//! already has that word (there are 64): then the thread looks up another word, under a lock. The flag is visible
//! before anything else that the call does: every call takes one of our locks before it asks the driver, and on x86-64
//! a locked instruction is a full barrier. Elsewhere there is a fence.
//!
//! While a [`Stopped`] exists, calls wait before they begin, without holding any of our locks. This only makes it
//! likely that no call is under way; a call that slips through is detected.
//!
//! How it fails: a thread that ends inside a call, jumps out of it, or never returns from the driver counts as inside
//! forever. A measurement does not wait long for it, and then returns only bounds. If a thread ends while it has
//! stopped the calls, they stay stopped until one of them has waited for [`LONGEST`] and lets all continue. Words are
//! never freed: a new thread reuses the word of an ended thread with the same address, as threads of a pool have. A
//! fork child does not use the words that it inherits.

use crate::log;
use crate::os::errno;
use crate::os::spin::{Patience, Spin};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicUsize, compiler_fence, fence};
use std::time::Duration;
use vgpu_abi::log::Wait;

/// Number of threads that have a word in the array. Others look theirs up.
const WORDS: usize = 64;
/// How long a call waits before it lets all calls continue: the thread that stopped them has ended or hangs.
const LONGEST: Duration = Duration::from_secs(1);
/// The flag for a call that is under way. It is the lowest bit of a thread's word, whose other bits are the thread's
/// even address.
const UNDER_WAY: usize = 1;

/// The calls of one process.
#[derive(Debug)]
pub struct Calls {
    words: [Words; WORDS],
    /// The words of threads whose entry in the array belongs to another thread.
    others: Spin<BTreeMap<usize, &'static Words>>,
    /// Number of threads that have stopped the calls.
    stopped: AtomicU32,
}

/// The state of one thread. Only this thread changes it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Words {
    outer: Line,
    /// Counts calls inside other calls: `word` is twice the number that began, `ended` the number that ended.
    inner: Line,
    /// How many times this thread has stopped all calls without letting them continue. While it is above 0, this
    /// thread's own calls do not wait.
    stops: AtomicUsize,
}

/// A separate type, so that the end of a call compiles to the same instructions whether the call is nested or not.
#[derive(Debug, Default)]
struct Line {
    /// The thread's address and the flag [`UNDER_WAY`]; 0: not used.
    word: AtomicUsize,
    /// Number of calls that have ended.
    ended: AtomicUsize,
}

/// A call that is under way until this is dropped.
#[must_use]
pub struct Call<'a>(&'a Line);

/// The thread's call is not considered under way until this is dropped.
#[must_use]
pub struct Outside<'a>(Option<&'a Line>);

/// Calls of other threads wait before they begin until this is dropped.
#[must_use]
pub struct Stopped<'a>(&'a Calls, &'a Words);

/// The calls that are under way. Two equal values mean that the same calls were under way at both reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    threads: usize,
    /// Sum of their addresses and numbers of calls, so that other calls give another sum.
    sum: usize,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| Words::default()),
            others: Spin::default(),
            stopped: AtomicU32::new(0),
        }
    }
}

impl Calls {
    /// Begins a call of `thread`, which must be the calling thread ([`crate::os::thread`]).
    #[inline(always)]
    pub fn begin(&self, thread: usize) -> Call<'_> {
        let line = &self.home(thread).outer;
        if line.word.load(Relaxed) != thread || self.stopped.load(Relaxed) != 0 {
            return self.begin_slowly(thread);
        }
        line.enter(thread);
        Call(line)
    }

    #[cold]
    #[inline(never)]
    fn begin_slowly(&self, thread: usize) -> Call<'_> {
        let words = self.words(thread);
        if words.outer.is_under_way() {
            words
                .inner
                .word
                .store(words.inner.word.load(Relaxed).wrapping_add(2), Relaxed);
            return Call(&words.inner);
        }
        if words.stops.load(Relaxed) == 0 {
            self.wait();
        }
        words.outer.enter(thread);
        Call(&words.outer)
    }

    /// Until the result is dropped, `thread` counts as outside of its call, because it is waiting. If its call is
    /// nested, it still counts as inside.
    pub fn outside(&self, thread: usize) -> Outside<'_> {
        let words = self.words(thread);
        let inside = words.outer.is_under_way() && !words.is_within_another();
        if inside {
            words.outer.leave();
        }
        Outside(inside.then_some(&words.outer))
    }

    /// Returns true if a call of `thread`, which is the caller, is under way.
    #[must_use]
    pub fn is_within(&self, thread: usize) -> bool {
        self.words(thread).outer.is_under_way()
    }

    /// Makes calls of other threads wait before they begin.
    pub fn stop(&self, thread: usize) -> Stopped<'_> {
        let words = self.words(thread);
        words.stops.store(words.stops.load(Relaxed) + 1, Relaxed);
        self.stopped.fetch_add(1, SeqCst);
        Stopped(self, words)
    }

    /// Returns the calls that are under way now.
    #[must_use]
    pub fn under_way(&self) -> UnderWay {
        fence(SeqCst);
        let others = self.others.lock();
        let lines = self.words.iter().chain(others.values().copied());
        lines
            .map(|words| &words.outer)
            .map(|line| (line.ended.load(Acquire), line.word.load(Acquire)))
            .filter(|(_, word)| word & UNDER_WAY != 0)
            .fold(UnderWay::default(), |all, (ended, word)| UnderWay {
                threads: all.threads + 1,
                sum: all.sum.wrapping_add(word).wrapping_add(ended),
            })
    }

    #[inline(always)]
    fn home(&self, thread: usize) -> &Words {
        // Addresses of threads differ by the size of a stack, often a power of two, so the hash must use their higher
        // bits.
        let mixed = (thread as u64 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.words[(mixed >> 58) as usize % WORDS]
    }

    fn words(&self, thread: usize) -> &Words {
        let home = self.home(thread);
        match home.outer.word.compare_exchange(0, thread, AcqRel, Acquire) {
            Ok(_) => home,
            Err(known) if known & !UNDER_WAY == thread => home,
            Err(_) => {
                let mut others = self.others.lock();
                let new = || -> &'static Words {
                    let words = Box::leak(Box::<Words>::default());
                    words.outer.word.store(thread, Relaxed);
                    words
                };
                others.entry(thread).or_insert_with(new)
            }
        }
    }

    fn wait(&self) {
        if self.stopped.load(Relaxed) == 0 {
            return;
        }
        let _kept = errno::keep();
        log::waits(Wait::Measurement, || {
            let mut patience = Patience::new(LONGEST);
            while self.stopped.load(Relaxed) != 0 {
                if !patience.nap() {
                    self.stopped.store(0, Relaxed);
                }
            }
        });
    }
}

impl Words {
    /// Returns true if the call that is under way is nested in another one of the thread.
    fn is_within_another(&self) -> bool {
        self.inner.word.load(Relaxed) / 2 != self.inner.ended.load(Relaxed)
    }
}

impl Line {
    #[inline(always)]
    fn enter(&self, thread: usize) {
        self.word.store(thread | UNDER_WAY, Relaxed);
        if cfg!(any(not(target_arch = "x86_64"), miri)) {
            fence(SeqCst);
        } else {
            compiler_fence(SeqCst);
        }
    }

    #[inline(always)]
    fn leave(&self) {
        self.ended.store(self.ended.load(Relaxed).wrapping_add(1), Release);
        self.word.store(self.word.load(Relaxed) & !UNDER_WAY, Release);
    }

    fn is_under_way(&self) -> bool {
        self.word.load(Relaxed) & UNDER_WAY != 0
    }
}

impl UnderWay {
    #[must_use]
    pub fn is_nobody(self) -> bool {
        self.threads == 0
    }
}

impl Drop for Call<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.0 {
            line.enter(line.word.load(Relaxed));
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let own = &self.1.stops;
        own.store(own.load(Relaxed).saturating_sub(1), Relaxed);
        let less = |count: u32| count.checked_sub(1);
        // It is 0 already if a call has waited for too long.
        let _ = self.0.stopped.fetch_update(Release, Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Never dropped, like the library's own: the words of threads without a place in the array are not freed.
    type Always = LazyLock<Calls>;

    /// Returns the `index`th address of a thread whose place in the array is `home`.
    fn thread(home: usize, index: usize) -> usize {
        let calls = Calls::default();
        let is_there = |thread: &usize| std::ptr::eq(calls.home(*thread), &raw const calls.words[home % WORDS]);
        let all = (0..).map(|page: usize| 0x7f00_0000_0000 + (page << 12));
        all.filter(is_there).nth(index).expect("a home has many")
    }

    /// The stacks of most C libraries are like these: exactly 8 MiB apart.
    #[test]
    fn threads_whose_stacks_lie_evenly_have_words_of_their_own() {
        let calls = Calls::default();
        let homes: std::collections::BTreeSet<usize> = (0..16)
            .map(|index| std::ptr::from_ref(calls.home(0x7f12_3456_7000 + (index << 23))) as usize)
            .collect();
        assert!(homes.len() > 12, "{}", homes.len());
    }

    #[test]
    fn who_is_in_a_call_is_under_way() {
        static CALLS: Always = LazyLock::new(Calls::default);
        let calls = &*CALLS;
        let quiet = calls.under_way();
        assert!(quiet.is_nobody());
        let one = calls.begin(thread(3, 0));
        let first = calls.under_way();
        assert!(!first.is_nobody());
        // A thread whose entry in the array belongs to the first thread.
        let other = calls.begin(thread(3, 1));
        assert_ne!(calls.under_way(), first);
        drop(one);
        let again = calls.begin(thread(3, 0));
        assert_ne!(calls.under_way(), first, "another call of the same thread");
        drop(again);
        let second = calls.under_way();
        assert!(!second.is_nobody() && second != first);
        drop(other);
        assert_eq!(calls.under_way(), quiet);
        for round in 0..2 {
            let all: Vec<_> = (0..200)
                .map(|index| calls.begin(thread(index, index / WORDS)))
                .collect();
            assert_eq!(calls.under_way().threads, 200, "round {round}");
            drop(all);
            assert!(calls.under_way().is_nobody());
        }
    }

    #[test]
    fn a_call_inside_another_ends_with_that() {
        let calls = Calls::default();
        for home in [0, 0, 1] {
            let outer = calls.begin(thread(home, home));
            let stopped = calls.stop(thread(7, 0));
            // An inner call does not wait for the stop: the outer call could not end before it.
            drop(calls.begin(thread(home, home)));
            assert!(!calls.under_way().is_nobody());
            drop((stopped, outer));
            assert!(calls.under_way().is_nobody());
        }
    }

    #[test]
    fn who_steps_outside_is_not_under_way() {
        let calls = Calls::default();
        let call = calls.begin(thread(0, 0));
        let outside = calls.outside(thread(0, 0));
        assert!(calls.under_way().is_nobody());
        drop(calls.outside(thread(0, 0)));
        assert!(calls.under_way().is_nobody(), "it was outside before");
        drop(outside);
        assert!(!calls.under_way().is_nobody());
        drop(call);
        assert!(calls.under_way().is_nobody());
        drop(calls.outside(thread(9, 9)));
        assert!(calls.under_way().is_nobody(), "and was in no call at all");
    }

    #[test]
    fn who_stopped_calls_and_never_ends_that_is_waited_for_once() {
        let calls = Calls::default();
        std::mem::forget(calls.stop(thread(7, 0)));
        let late = calls.stop(thread(7, 0));
        drop(calls.begin(thread(0, 0)));
        assert_eq!(calls.stopped.load(Relaxed), 0);
        drop(late);
        assert_eq!(calls.stopped.load(Relaxed), 0, "it was let go already");
        drop(calls.begin(thread(0, 0)));
    }

    /// Threads charge before they allocate, and free before they discharge. Whenever no call is under way and no charge
    /// changes, the charge equals the memory that is held.
    #[test]
    fn what_is_seen_between_calls_is_of_one_moment() {
        static CALLS: Always = LazyLock::new(Calls::default);
        let (calls, end) = (&*CALLS, AtomicBool::new(false));
        let (charged, changes, held) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let rounds = if cfg!(miri) { 8 } else { 2000 };
        std::thread::scope(|threads| {
            for index in 0..3 {
                let (calls, end, charged, changes, held) = (&calls, &end, &charged, &changes, &held);
                threads.spawn(move || {
                    while !end.load(Relaxed) {
                        let call = calls.begin(thread(index / 2, index));
                        changes.fetch_add(1, SeqCst);
                        charged.fetch_add(7, SeqCst);
                        held.fetch_add(7, SeqCst);
                        drop(call);
                        let call = calls.begin(thread(index / 2, index));
                        held.fetch_sub(7, SeqCst);
                        changes.fetch_add(1, SeqCst);
                        charged.fetch_sub(7, SeqCst);
                        drop(call);
                    }
                });
            }
            let mut seen = 0;
            while seen < rounds {
                // A call that waits for longer than a second lets all continue.
                let mut stopped = calls.stop(thread(7, 0));
                let (before, quiet) = loop {
                    let before = (changes.load(SeqCst), charged.load(SeqCst));
                    let quiet = calls.under_way();
                    if quiet.is_nobody() {
                        break (before, quiet);
                    }
                    std::thread::yield_now();
                    drop(stopped);
                    stopped = calls.stop(thread(7, 0));
                };
                let found = held.load(SeqCst);
                if calls.under_way() == quiet && (changes.load(SeqCst), charged.load(SeqCst)) == before {
                    assert_eq!(found, before.1);
                    seen += 1;
                }
                drop(stopped);
            }
            end.store(true, Relaxed);
        });
        assert!(calls.under_way().is_nobody());
    }
}
