//! Detects fork children.
//!
//! A child inherits our memory but neither our mappings of ledgers nor our claims of lanes, so it creates new state.
//! The pointer to the state, and the lock that delays forks, are in a page that the kernel zeroes in a child
//! (MADV_WIPEONFORK), after fork, vfork or a raw clone. On kernels older than 4.14, the child handler of pthread_atfork
//! zeroes it.
//!
//! The parent's state is leaked in the child: threads that do not exist there may hold its locks. A list in the
//! library's data has the address of each state of this process and its ancestors: LeakSanitizer does not scan
//! mappings, and would report them.
#![allow(unsafe_code)] // A page from mmap, and pthread_atfork.

use super::spin::Word;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The newest state. The list exists only for leak checkers.
static STATES: AtomicPtr<Link> = AtomicPtr::new(std::ptr::null_mut());

/// Never freed, and never read.
#[allow(dead_code)]
struct Link {
    state: *mut (),
    older: *mut Link,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());
/// The size of the mapping: the kernel rounds it up to whole pages.
const PAGE_SIZE: usize = size_of::<Page>();
const FORK_WAIT: Duration = Duration::from_millis(200);

/// The page that is zeroed in a fork child.
#[repr(C)]
struct Page {
    state: AtomicPtr<()>,
    log: AtomicPtr<()>,
    starting: Word,
    descriptors: Descriptors,
}

/// Delays fork() while one of our descriptors is open.
#[derive(Debug)]
struct Descriptors {
    word: Word,
    /// The thread that holds the lock for a fork; 0: none.
    forking: AtomicUsize,
}

/// Used if the page cannot be mapped.
static DESCRIPTORS: Descriptors = Descriptors {
    word: Word::new(),
    forking: AtomicUsize::new(0),
};

/// No thread of this process forks while this exists.
pub struct Guard {
    on: &'static Descriptors,
    held: bool,
}

/// Delays forks. Waits at most [`FORK_WAIT`]: after a timeout a fork continues, and a guard is returned without the
/// lock.
#[must_use]
pub fn guard() -> Guard {
    let on = descriptors();
    Guard {
        on,
        held: on.word.lock_within(FORK_WAIT),
    }
}

impl Guard {
    /// Returns false if the lock was not free in time.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.held {
            self.on.word.unlock();
        }
    }
}

fn descriptors() -> &'static Descriptors {
    page().map_or(&DESCRIPTORS, |page| &page.descriptors)
}

/// Returns the pointer to this process's log (`crate::log`). It is null in a fork child, where the log's pages are not
/// mapped. Returns None if the page cannot be mapped or was not needed yet.
pub fn log_pointer() -> Option<&'static AtomicPtr<()>> {
    let page = NonNull::new(PAGE.load(Ordering::Acquire))?;
    // SAFETY: as in `current`.
    Some(unsafe { &page.as_ref().log })
}

/// Returns the state of this process; None before [`start`] and in a new fork child.
#[inline(always)]
pub fn current<T: Sync + 'static>() -> Option<&'static T> {
    let page = NonNull::new(PAGE.load(Ordering::Acquire))?;
    // SAFETY: PAGE holds null or a page that is never unmapped, zeroed or set by `start`.
    let state = unsafe { page.as_ref() }.state.load(Ordering::Acquire);
    // SAFETY: `start` stored a leaked box of T; the library has one T (see `start`).
    NonNull::new(state.cast::<T>()).map(|state| unsafe { state.as_ref() })
}

/// Creates the state of this process, once. Other threads wait for it.
///
/// # Safety
/// Every call of `start` and [`current`] in the process is for the same `T`.
pub unsafe fn start<T: Sync + 'static>(make: impl FnOnce() -> T) -> Option<&'static T> {
    let _kept = super::errno::keep();
    let page = page()?;
    while !page.starting.lock_within(Duration::from_secs(60)) {}
    let _starting = Starting(page);
    let state = match current::<T>() {
        Some(state) => state,
        None => {
            let state = Box::leak(Box::new(make()));
            // Only one thread is here, because `starting` is held.
            let link = Link {
                state: std::ptr::from_mut(state).cast(),
                older: STATES.load(Ordering::Relaxed),
            };
            STATES.store(Box::into_raw(Box::new(link)), Ordering::Relaxed);
            page.state.store(std::ptr::from_mut(state).cast(), Ordering::Release);
            state
        }
    };
    Some(state)
}

/// Unlocks `starting`, also if `make` panicked.
struct Starting(&'static Page);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.starting.unlock();
    }
}

fn page() -> Option<&'static Page> {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let new = map()?;
        match PAGE.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the handlers are functions of a library that is never unloaded.
                unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
                page = new;
            }
            Err(other) => {
                // SAFETY: the page just mapped, that nobody has seen.
                unsafe { libc::munmap(new.cast(), PAGE_SIZE) };
                page = other;
            }
        }
    }
    // SAFETY: mapped, zeroed (a valid Page), and never unmapped once in PAGE.
    Some(unsafe { &*page })
}

fn map() -> Option<*mut Page> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping replaces nothing.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_SIZE, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the mapping just made. Refused by an old kernel: see `in_child`.
    unsafe { libc::madvise(page, PAGE_SIZE, libc::MADV_WIPEONFORK) };
    Some(page.cast())
}

extern "C" fn before() {
    // The lock times out if its holder jumped away or is very slow. The child may then inherit a descriptor, which does
    // not break a limit.
    let on = descriptors();
    if on.word.lock_within(FORK_WAIT) {
        on.forking.store(super::thread(), Ordering::Relaxed);
    }
}

extern "C" fn in_parent() {
    // If the lock timed out, this thread has nothing to unlock: another thread's guard holds the lock.
    let on = descriptors();
    let own = on
        .forking
        .compare_exchange(super::thread(), 0, Ordering::Relaxed, Ordering::Relaxed);
    if own.is_ok() {
        on.word.unlock();
    }
}

extern "C" fn in_child() {
    // The child has no other threads, so locks of the parent's other threads are released.
    let on = descriptors();
    on.forking.store(0, Ordering::Relaxed);
    on.word.unlock();
    if let Some(page) = NonNull::new(PAGE.load(Ordering::Relaxed)) {
        // SAFETY: as in `current`.
        let page = unsafe { page.as_ref() };
        page.state.store(std::ptr::null_mut(), Ordering::Release);
        page.log.store(std::ptr::null_mut(), Ordering::Release);
        page.starting.unlock();
    }
}
