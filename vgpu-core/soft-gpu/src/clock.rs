//! CLOCK_MONOTONIC in nanoseconds: the one clock that all processes and containers of a machine share.

#![allow(unsafe_code)] // std's Instant hides its value, which must mean the same in every process.

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
