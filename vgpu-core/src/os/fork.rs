//! Notices that this process is a fork child.
//!
//! A child inherits our memory but neither our mappings of ledgers nor our claims of lanes, so all state that
//! depends on them is made anew. The pointer to that state, and the lock that holds forks back, lie in a page that
//! the kernel zeroes in a child (MADV_WIPEONFORK). That holds for fork, vfork's relatives and a raw clone alike. On
//! kernels older than 4.14, the child handler of pthread_atfork zeroes it.
//!
//! The parent's copy of the state is leaked in the child's memory: its locks may be held by threads that the child
//! does not have. A list in the library's own data has the address of each state of this process and its ancestors:
//! LeakSanitizer does not look into mappings, and would report all of it.
#![allow(unsafe_code)] // A page from mmap, and pthread_atfork.

use super::spin::Word;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The newest state, for leak checkers alone.
static STATES: AtomicPtr<Link> = AtomicPtr::new(std::ptr::null_mut());

/// Never freed, and never read.
#[allow(dead_code)]
struct Link {
    state: *mut (),
    older: *mut Link,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());
const PAGE_SIZE: usize = 4096;
const PATIENCE: Duration = Duration::from_millis(200);

/// What a fork child finds zeroed.
#[repr(C)]
struct Page {
    state: AtomicPtr<()>,
    log: AtomicPtr<()>,
    starting: Word,
    descriptors: Descriptors,
}

/// Holds back fork() while a descriptor of ours is open.
#[derive(Debug)]
struct Descriptors {
    word: Word,
    /// The thread that holds it for a fork; 0: none does.
    forking: AtomicUsize,
}

/// Where no page can be had.
static DESCRIPTORS: Descriptors = Descriptors {
    word: Word::new(),
    forking: AtomicUsize::new(0),
};

/// While it lives, no thread of this process forks.
pub struct Guard {
    on: &'static Descriptors,
    held: bool,
}

/// Holds back forks. A fork that waited too long goes on, as does a guard that did.
#[must_use]
pub fn guard() -> Guard {
    let on = descriptors();
    Guard {
        on,
        held: on.word.lock_within(PATIENCE),
    }
}

impl Guard {
    /// Waits until no other thread has one. Returns false if that was in vain.
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

/// The pointer to this process's log (`crate::log`), null in a fork child: its pages are not mapped there. None: no page
/// can be had, or none was needed yet.
pub fn log_pointer() -> Option<&'static AtomicPtr<()>> {
    let page = NonNull::new(PAGE.load(Ordering::Acquire))?;
    // SAFETY: as in `current`.
    Some(unsafe { &page.as_ref().log })
}

/// The state of this very process; None before [`start`], and in a fork child.
#[inline(always)]
pub fn current<T: Sync + 'static>() -> Option<&'static T> {
    let page = NonNull::new(PAGE.load(Ordering::Acquire))?;
    // SAFETY: PAGE holds null or a page that is never unmapped, zeroed or set by `start`.
    let state = unsafe { page.as_ref() }.state.load(Ordering::Acquire);
    // SAFETY: `start` stored a leaked box of T; the library has one T (see `start`).
    NonNull::new(state.cast::<T>()).map(|state| unsafe { state.as_ref() })
}

/// Makes the state of this process, once; others wait for it.
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
            // One at a time: `starting` is held.
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

/// Lets others start, also when `make` panicked.
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
    // In vain where its holder was swept away or is very slow; an inherited descriptor breaks no limit.
    let on = descriptors();
    if on.word.lock_within(PATIENCE) {
        on.forking.store(super::thread(), Ordering::Relaxed);
    }
}

extern "C" fn in_parent() {
    // Another's guard stays locked: who waited in vain has nothing to unlock.
    let on = descriptors();
    let own = on
        .forking
        .compare_exchange(super::thread(), 0, Ordering::Relaxed, Ordering::Relaxed);
    if own.is_ok() {
        on.word.unlock();
    }
}

extern "C" fn in_child() {
    // Whoever holds it, if not this thread, is not in the child.
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
