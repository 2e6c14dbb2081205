//! What the library needs of the operating system, each in a file.

pub mod errno;
pub mod file;
pub mod fork;
pub mod futex;
pub mod last_close;
pub mod line;
pub mod mount;
pub mod peek;
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
    // Never negative, and nothing overflows before the machine has run for millions of years.
    (now.tv_sec as u64)
        .wrapping_mul(1000)
        .wrapping_add(now.tv_nsec as u64 / 1_000_000)
}

/// CLOCK_MONOTONIC in ns, exactly: 25 to 60 ns.
#[must_use]
#[allow(unsafe_code)] // One call of libc.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// The time of day in ns since 1970.
#[must_use]
#[allow(unsafe_code)] // One call of libc.
pub fn unix_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// The calling thread's number, as the kernel and tools show it.
#[must_use]
#[allow(unsafe_code)] // One system call.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing, and cannot fail. glibc has a function for it since 2.30 only.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Sleeps for about `duration`, or not at all where a filter denies it: std's sleep would panic. Nobody is
/// cancelled in it: who sleeps here may hold locks.
#[allow(unsafe_code)] // One call of libc.
pub fn sleep(duration: Duration) {
    if cfg!(miri) {
        return std::thread::yield_now();
    }
    let wanted = libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos()),
    };
    let _kept = errno::keep();
    // SAFETY: a timespec in; what is left of it is not asked for.
    unsafe { libc::nanosleep(&wanted, std::ptr::null_mut()) };
}

/// Has `end` called when this process, or a fork child of it, ends by itself: before all that was registered earlier.
#[allow(unsafe_code)] // One call of libc.
pub fn at_exit(end: extern "C" fn()) {
    // SAFETY: a function that takes nothing. Without memory for it, it is not called.
    unsafe { libc::atexit(end) };
}

/// The address of the calling thread's own block, which no other living thread has; even, and never 0.
#[inline(always)]
#[must_use]
#[allow(unsafe_code)] // A word of the thread's block, or a call of libc.
pub fn thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let block: usize;
        // SAFETY: the ABI has each thread's block begin with its own address, at fs:0.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) block, options(nostack, preserves_flags, pure, readonly)) };
        block
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: takes nothing, and cannot fail.
    unsafe {
        libc::pthread_self() as usize
    }
}
