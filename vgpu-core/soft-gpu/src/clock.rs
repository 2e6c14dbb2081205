//! CLOCK_MONOTONIC in nanoseconds: the one clock that all processes and containers of a machine share. And sleeping.

#![allow(unsafe_code)] // std's Instant hides its value, which must mean the same in every process. The futex call.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until the clock shows `until`.
pub fn sleep_until(until: u64) {
    loop {
        let left = until.saturating_sub(monotonic_ns());
        match left {
            0 => return,
            // Sleeping costs more than what is left.
            1..60_000 => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_nanos(left - 50_000)),
        }
    }
}

/// Sleeps while `word` has the value `seen` and nobody calls `wake`, but not longer than `longest`.
pub fn sleep_while(word: &AtomicU32, seen: u32, longest: Duration) {
    let longest = libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: a word and a timespec that live longer than the call. Not private: other processes map the word too.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &longest) };
}

/// Wakes all that sleep on `word`, in all processes.
pub fn wake(word: &AtomicU32) {
    // SAFETY: a word that lives longer than the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
