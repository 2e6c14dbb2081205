//! Services of the operating system that the library needs, one per file.

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

const NS_PER_S: u64 = 1_000_000_000;

/// Returns milliseconds of the monotonic clock, up to a few ms late. The call takes 5 ns instead of 25.
#[must_use]
pub fn coarse_millis() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    read_clock(libc::CLOCK_MONOTONIC_COARSE, 1000)
}

/// Returns CLOCK_MONOTONIC in ns. The call takes 25 to 60 ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC, NS_PER_S)
}

/// Returns the time of day in ns since 1970.
#[must_use]
pub fn unix_ns() -> u64 {
    read_clock(libc::CLOCK_REALTIME, NS_PER_S)
}

#[inline(always)]
#[allow(unsafe_code)] // One call of libc.
fn read_clock(clock: libc::clockid_t, ticks_per_s: u64) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to be written.
    unsafe { libc::clock_gettime(clock, &mut now) };
    // Never negative, and nothing overflows for centuries.
    (now.tv_sec as u64)
        .wrapping_mul(ticks_per_s)
        .wrapping_add(now.tv_nsec as u64 / (NS_PER_S / ticks_per_s))
}

/// Returns the size of a page: on arm64 the kernel's builder chooses it.
#[must_use]
#[allow(unsafe_code)] // One call of libc.
pub fn page_size() -> usize {
    // SAFETY: takes a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Returns the calling thread's ID, as gettid(2) does.
#[must_use]
#[allow(unsafe_code)] // One system call.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing, and cannot fail. glibc has a function for it since 2.30 only.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns the name of the calling thread: that of the program, unless the program has changed it. Zeros if a seccomp
/// filter denies the call.
#[must_use]
#[allow(unsafe_code)] // One call of libc.
pub fn process_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    if !cfg!(miri) {
        let _kept = errno::keep();
        // SAFETY: the kernel writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    }
    name
}

/// Sleeps for about `duration`. If a seccomp filter denies that, does not sleep (std's sleep would panic). The thread
/// is not cancelled meanwhile, because it may hold locks.
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

/// Registers `end` to be called when this process or a fork child exits, before all functions that were registered
/// earlier.
#[allow(unsafe_code)] // One call of libc.
pub fn at_exit(end: extern "C" fn()) {
    // SAFETY: a function that takes nothing. Without memory for it, it is not called.
    unsafe { libc::atexit(end) };
}

/// Returns the address of the calling thread's control block: unique among living threads, even, and never 0.
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
