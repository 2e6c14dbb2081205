//! What the library needs of the operating system, each in a file.

pub mod errno;
pub mod file;
pub mod fork;
pub mod pinned;
pub mod spin;
pub mod stderr;

use std::time::Duration;

/// Milliseconds of the monotonic clock, a few late: 5 ns instead of 25.
#[must_use]
#[allow(unsafe_code)] // One call of libc.
pub fn coarse_millis() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    let duration = Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    );
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Sleeps for about `duration`, or not at all where a filter denies it: std's sleep would panic.
#[allow(unsafe_code)] // One call of libc.
pub fn sleep(duration: Duration) {
    if cfg!(miri) {
        return std::thread::yield_now();
    }
    let wanted = libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos()),
    };
    // SAFETY: a timespec in; what is left of it is not asked for.
    unsafe { libc::nanosleep(&wanted, std::ptr::null_mut()) };
}
