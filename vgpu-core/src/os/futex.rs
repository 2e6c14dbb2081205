//! Sleeps on a word of shared memory.
//!
//! How it fails: a signal, a word that has already changed, or a page whose file was truncated ends the sleep at once,
//! and so does a seccomp filter that denies the call. So callers check their condition again after [`wait`].
#![allow(unsafe_code)] // One system call.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The sleep ended by a wake-up, a change, a signal, or the time limit.
    Looked,
    /// The caller cannot sleep on this word and must sleep in another way.
    Impossible,
}

/// If the word is `expected`, sleeps until [`wake`] is called for it, for at most `limit`. The page may be mapped
/// read-only.
#[must_use]
#[allow(clippy::not_unsafe_ptr_arg_deref)] // It is not dereferenced here, and the kernel verifies it.
pub fn wait(word: *const AtomicU32, expected: u32, limit: Duration) -> Woken {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: the kernel reads the word and answers EFAULT where there is none; the time is read.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, &limit) };
    if result == 0 {
        return Woken::Looked;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Woken::Looked,
        _ => Woken::Impossible,
    }
}

/// Wakes all threads that sleep on the word.
pub fn wake(word: &AtomicU32) {
    let word: *const AtomicU32 = word;
    // SAFETY: the word is not even read.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, libc::c_int::MAX) };
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Instant;

    #[test]
    fn a_changed_word_is_not_slept_on() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, Duration::from_secs(60)), Woken::Looked);
    }

    #[test]
    fn a_sleep_ends_by_a_wake_up() {
        let word = AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while word.load(Relaxed) == 0 {
                    assert_eq!(wait(&word, 0, Duration::from_secs(60)), Woken::Looked);
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(1, Relaxed);
            wake(&word);
        });
        assert!(start.elapsed() < Duration::from_secs(60), "it slept to its end");
    }

    #[test]
    fn a_word_that_is_not_there_is_said() {
        let nowhere = std::ptr::without_provenance(8);
        assert_eq!(wait(nowhere, 0, Duration::from_secs(60)), Woken::Impossible);
    }
}
