//! The total: charged bytes and the stamp of their last writer, 16 bytes that change together.
//!
//! A reader loads stamp, bytes, and the stamp again. If both stamps are equal, bytes and stamp belong together: no
//! stamp is ever used twice, so the total has not changed in between.
#![allow(unsafe_code)] // One instruction that Rust's stable atomics do not offer.

use std::sync::atomic::{AtomicU64, Ordering};

/// The total in the ledger: charged bytes and the stamp of the last writer.
#[repr(C, align(16))]
pub struct Total {
    charged: AtomicU64,
    writer: AtomicU64,
}

/// One value of a [`Total`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub charged: u64,
    pub writer: u64,
}

/// Returns true if this processor has the instructions. Every arm64 has them, and every x86-64 since 2006.
#[must_use]
pub fn supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    return cfg!(miri) || std::arch::is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

impl Total {
    /// Returns the bytes charged at this moment.
    #[inline]
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    /// Returns the stamp of the last writer at this moment.
    #[inline]
    #[must_use]
    pub fn writer(&self) -> u64 {
        self.writer.load(Ordering::Acquire)
    }

    /// Returns both as they were at the same moment.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Pair {
        loop {
            let writer = self.writer();
            let charged = self.charged();
            if self.writer() == writer {
                return Pair { charged, writer };
            }
        }
    }

    /// Replaces `old` by `new`, if the value is `old`.
    ///
    /// # Errors
    /// The value found, if it is not `old`.
    #[inline]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub fn exchange(&self, old: Pair, new: Pair) -> Result<(), Pair> {
        let (low, high): (u64, u64);
        let done: u8;
        // cmpxchg16b.
        // SAFETY: `self` is 16 bytes long and aligned to 16 (repr), and only this instruction changes shared memory.
        // rbx, which LLVM reserves, is restored. Every operand has a register of its own, because `reg` could be rbx,
        // which the first instruction overwrites. Without `nomem` the compiler moves no access across it; the lock
        // prefix makes it a full barrier.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b [rdi]",
                "sete r8b",
                "mov rbx, rsi",
                in("rdi") std::ptr::from_ref(self),
                inout("rsi") new.charged => _,
                out("r8b") done,
                inout("rax") old.charged => low,
                inout("rdx") old.writer => high,
                in("rcx") new.writer,
                options(nostack),
            );
        }
        if done == 1 {
            Ok(())
        } else {
            Err(Pair {
                charged: low,
                writer: high,
            })
        }
    }

    /// Does the same on arm64.
    #[inline]
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    pub fn exchange(&self, old: Pair, new: Pair) -> Result<(), Pair> {
        let (low, high): (u64, u64);
        // Exclusive load and store, which every arm64 has, rather than CASP of ARMv8.1: that would need a look at the
        // processor's features at each call. They cost a repetition if another core writes in between.
        // The two halves of an exclusive load may be of different moments, and belong together only if the exclusive store
        // succeeds: so a pair that differs from `old` is stored back. Without `nomem` the compiler moves no access across
        // it; acquire, release and the barrier make it a full barrier.
        // SAFETY: `self` is 16 bytes long and aligned to 16 (repr), and only these instructions change shared memory. Each
        // operand has a register of its own, as the exclusive store demands.
        unsafe {
            std::arch::asm!(
                "2:",
                "ldaxp {low}, {high}, [{at}]",
                "cmp {low}, {old_low}",
                "ccmp {high}, {old_high}, #0, eq",
                "b.ne 3f",
                "stlxp {lost:w}, {new_low}, {new_high}, [{at}]",
                "cbnz {lost:w}, 2b",
                "b 4f",
                "3:",
                "stlxp {lost:w}, {low}, {high}, [{at}]",
                "cbnz {lost:w}, 2b",
                "4:",
                "dmb ish",
                at = in(reg) std::ptr::from_ref(self),
                low = out(reg) low,
                high = out(reg) high,
                old_low = in(reg) old.charged,
                old_high = in(reg) old.writer,
                new_low = in(reg) new.charged,
                new_high = in(reg) new.writer,
                lost = out(reg) _,
                options(nostack),
            );
        }
        let found = Pair {
            charged: low,
            writer: high,
        };
        if found == old { Ok(()) } else { Err(found) }
    }

    /// Does the same for Miri, which cannot run assembly: one lock for all totals.
    #[cfg(miri)]
    pub fn exchange(&self, old: Pair, new: Pair) -> Result<(), Pair> {
        static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _held = LOCK.lock();
        let found = Pair {
            charged: self.charged(),
            writer: self.writer(),
        };
        if found == old {
            self.writer.store(u64::MAX, Ordering::Release);
            self.charged.store(new.charged, Ordering::Release);
            self.writer.store(new.writer, Ordering::Release);
            return Ok(());
        }
        Err(found)
    }

    /// Sets the value. Only for tests and for a new region that no other process maps yet.
    pub fn set(&self, pair: Pair) {
        self.charged.store(pair.charged, Ordering::Release);
        self.writer.store(pair.writer, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_takes_place_wholly_or_not_at_all() {
        let total = Total {
            charged: AtomicU64::new(1),
            writer: AtomicU64::new(2),
        };
        let pair = |charged, writer| Pair { charged, writer };
        assert!(supported());
        assert_eq!(total.exchange(pair(1, 2), pair(u64::MAX, 4)), Ok(()));
        assert_eq!(total.load(), pair(u64::MAX, 4));
        assert_eq!(total.exchange(pair(u64::MAX, 5), pair(0, 0)), Err(pair(u64::MAX, 4)));
        assert_eq!(total.exchange(pair(0, 4), pair(0, 0)), Err(pair(u64::MAX, 4)));
        assert_eq!(total.load(), pair(u64::MAX, 4));
    }
}
