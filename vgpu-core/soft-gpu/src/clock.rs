//! CLOCK_MONOTONIC in nanoseconds: the one clock that all processes and containers of a machine share. And sleeping.
//!
//! How it fails: a process in a time namespace (Linux 5.6) has another clock, whose offset is in /proc. If its clock
//! were ahead of the others, they would see the GPU's time stand still, so the offset is subtracted. It is not
//! subtracted without /proc, or if the process entered the namespace after it first read the clock.

#![allow(unsafe_code)] // std's Instant hides its value, which must mean the same in every process. The futex call.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub fn monotonic_ns() -> u64 {
    static OFFSET: OnceLock<i64> = OnceLock::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let own = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    own.wrapping_add_signed(OFFSET.get_or_init(offset).wrapping_neg())
}

/// How far this process's clock is ahead of the machine's.
fn offset() -> i64 {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    // The file describes the time namespace of the children. It is also this process's namespace, unless the process
    // has called unshare.
    let link = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    if link("time") == link("time_for_children") {
        offset_in(&text).unwrap_or(0)
    } else {
        0
    }
}

/// A line reads `monotonic      100000         0`: seconds and nanoseconds.
fn offset_in(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// Sleeps until the clock shows `until`.
pub fn sleep_until(until: u64) {
    loop {
        let left = until.saturating_sub(monotonic_ns());
        match left {
            0 => return,
            // A sleep would take longer than the remaining time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_offsets() {
        let text = "monotonic     -100000  500000000\nboottime           7         0\n";
        assert_eq!(offset_in(text), Some(-99_999_500_000_000));
        assert_eq!(offset_in("monotonic           0         0\n"), Some(0));
        for other in [
            "",
            "boottime 7 0",
            "monotonic",
            "monotonic 1",
            "monotonic x 0",
            "monotonic 9223372036854775807 0",
        ] {
            assert_eq!(offset_in(other), None, "{other}");
        }
    }
}
