//! A lock for a few instructions. It is not a std lock, because a fork child may find std locks locked; these locks are
//! part of state that a fork child creates again.
//!
//! How it fails: its holder does not run, because the process was stopped, its container frozen or its CPU quota used
//! up. So a wait includes only time in which the waiter could run, at most [`SLICE`] between two attempts; the holder
//! could run then too. A waiter sleeps between attempts: a real-time thread that only yields would keep an ordinary
//! holder off its CPU.
#![allow(unsafe_code)] // A value that is reached only through a lock.

use std::cell::{Ref, RefCell, RefMut, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The largest time between two attempts that is subtracted from a wait.
const SLICE: Duration = Duration::from_millis(5);
/// How long a waiter sleeps between two attempts, after a few attempts without sleep.
const NAP: Duration = Duration::from_micros(50);

/// The remaining time of a wait. It shrinks only by time in which the waiter could run.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            left: limit,
            looked: Instant::now(),
        }
    }

    /// Sleeps until the next attempt. Returns false if no time is left.
    pub fn nap(&mut self) -> bool {
        if self.left.is_zero() {
            return false;
        }
        super::sleep(NAP);
        self.passed(Instant::now());
        true
    }

    fn passed(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.looked).min(SLICE);
        self.looked = now;
        self.left = self.left.saturating_sub(since);
    }
}

/// A lock that only one thread can hold.
#[derive(Debug, Default)]
pub struct Word(AtomicU32);

impl Word {
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline(always)]
    pub fn try_lock(&self) -> bool {
        self.0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Waits for at most `limit`: the holder may have left by a longjmp.
    #[inline(always)]
    pub fn lock_within(&self, limit: Duration) -> bool {
        self.try_lock() || self.wait(limit)
    }

    /// Waits while `patience` lasts. Earlier waits may have used it up.
    pub fn lock_with(&self, patience: &mut Patience) -> bool {
        loop {
            if self.try_lock() {
                return true;
            }
            if !patience.nap() {
                return false;
            }
        }
    }

    #[cold]
    fn wait(&self, limit: Duration) -> bool {
        let _kept = super::errno::keep();
        for _ in 0..64 {
            std::hint::spin_loop();
            if self.try_lock() {
                return true;
            }
        }
        for _ in 0..16 {
            // Yields first, because the holder may be waiting for this CPU.
            std::thread::yield_now();
            if self.try_lock() {
                return true;
            }
        }
        self.lock_with(&mut Patience::new(limit))
    }

    #[inline(always)]
    pub fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A value behind a [`Word`].
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Spin<T> {
    word: Word,
    value: UnsafeCell<T>,
}

/// The right to use a [`Spin`]'s value.
pub struct Held<'a, T>(&'a Spin<T>);

// SAFETY: the value is reached only through `Held`, and the word admits only one at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub const fn new(value: T) -> Self {
        Self {
            word: Word::new(),
            value: UnsafeCell::new(value),
        }
    }

    #[inline(always)]
    pub fn lock(&self) -> Held<'_, T> {
        while !self.word.lock_within(Duration::from_secs(60)) {}
        Held(self)
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the word, so no other reference to the value exists.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the word, so no other reference to the value exists.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.word.unlock();
    }
}

/// A value behind a [`Word`] that stays locked during a call of the driver. The driver may call the program back in
/// such a call (a profiler's callback, an injected library), and the program may call the driver: then the thread that
/// holds the lock enters it again instead of waiting for itself.
///
/// Only callers of [`Reentrant::lock_unless_within`] may keep a borrow of the value during a call of the driver.
///
/// How it fails: if a signal handler jumps out of a thread that holds the lock, the lock stays held. Other threads wait
/// forever, and this one enters as if it were inside a call of the driver.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Reentrant<T> {
    word: Word,
    /// The thread that holds the word; 0: none.
    holder: AtomicUsize,
    value: RefCell<T>,
}

/// The right to borrow a [`Reentrant`]'s value, for one thread.
#[must_use]
pub struct Entered<'a, T> {
    lock: &'a Reentrant<T>,
    is_nested: bool,
    of_this_thread: PhantomData<*const ()>,
}

// SAFETY: the value is reached only through `Entered`, which stays in its thread, and only one thread at a time has some.
unsafe impl<T: Send> Sync for Reentrant<T> {}

impl<T> Reentrant<T> {
    pub fn new(value: T) -> Self {
        Self {
            word: Word::new(),
            holder: AtomicUsize::new(0),
            value: RefCell::new(value),
        }
    }

    pub fn lock(&self) -> Entered<'_, T> {
        loop {
            if let Some(entered) = self.lock_within(Duration::from_secs(60)) {
                return entered;
            }
        }
    }

    /// Returns None if this thread already holds the lock.
    pub fn lock_unless_within(&self) -> Option<Entered<'_, T>> {
        let entered = self.lock();
        (!entered.is_nested).then_some(entered)
    }

    /// Returns None if this thread already holds the lock, or `patience` ran out.
    pub fn lock_with(&self, patience: &mut Patience) -> Option<Entered<'_, T>> {
        self.enter(|word| word.lock_with(patience))
            .filter(|entered| !entered.is_nested)
    }

    /// Returns None if another thread held the lock for all of `limit`.
    pub fn lock_within(&self, limit: Duration) -> Option<Entered<'_, T>> {
        self.enter(|word| word.lock_within(limit))
    }

    /// Returns None if any thread holds the lock, even this one.
    pub fn try_lock(&self) -> Option<Entered<'_, T>> {
        self.enter(Word::try_lock).filter(|entered| !entered.is_nested)
    }

    fn enter(&self, lock: impl FnOnce(&Word) -> bool) -> Option<Entered<'_, T>> {
        let thread = super::thread();
        let is_nested = self.holder.load(Ordering::Relaxed) == thread;
        if !is_nested {
            if !lock(&self.word) {
                return None;
            }
            self.holder.store(thread, Ordering::Relaxed);
        }
        Some(Entered {
            lock: self,
            is_nested,
            of_this_thread: PhantomData,
        })
    }
}

impl<T> Entered<'_, T> {
    /// Returns true if this thread had the lock already, and so is inside a call of the driver.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.is_nested
    }

    pub fn borrow(&self) -> Ref<'_, T> {
        self.lock.value.borrow()
    }

    pub fn borrow_mut(&self) -> RefMut<'_, T> {
        self.lock.value.borrow_mut()
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_nested {
            self.lock.holder.store(0, Ordering::Relaxed);
            self.lock.word.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let sum = Spin::new(0_u64);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..rounds {
                        *sum.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), 4 * rounds);
    }

    #[test]
    fn a_thread_enters_again_what_it_holds_and_others_wait() {
        let lock = Reentrant::<u32>::default();
        let outer = lock.lock();
        {
            let inner = lock.lock();
            assert!(inner.is_nested() && !outer.is_nested());
            *inner.borrow_mut() += 1;
        }
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(lock.lock_within(Duration::from_millis(5)).is_none()));
        });
        assert_eq!(*outer.borrow(), 1, "the inner one has not unlocked it");
        drop(outer);
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(!lock.try_lock().expect("free").is_nested()));
        });
        assert!(!lock.lock().is_nested());
    }

    #[test]
    fn a_stop_of_the_waiter_does_not_end_its_wait() {
        let mut patience = Patience::new(3 * SLICE);
        let start = patience.looked;
        // A minute in which this process was stopped counts as one attempt.
        for minute in 1..=3 {
            assert!(!patience.left.is_zero(), "at minute {minute}");
            patience.passed(start + minute * Duration::from_secs(60));
        }
        assert!(patience.left.is_zero());
        assert!(!patience.nap());
    }

    #[test]
    fn a_wait_ends() {
        let word = Word::new();
        assert!(word.try_lock());
        assert!(!word.lock_within(Duration::from_millis(5)));
        word.unlock();
        assert!(word.lock_within(Duration::ZERO));
    }

    #[test]
    fn one_patience_is_for_several_locks() {
        let (held, free) = (Reentrant::new(()), Reentrant::new(()));
        assert!(held.word.try_lock(), "as if by another thread");
        assert!(held.try_lock().is_none() && free.try_lock().is_some());
        let mut patience = Patience::new(Duration::from_millis(5));
        assert!(free.lock_with(&mut patience).is_some());
        assert!(held.lock_with(&mut patience).is_none());
        assert!(patience.left.is_zero());
        assert!(free.lock_with(&mut patience).is_some(), "what is free needs none");
    }
}
