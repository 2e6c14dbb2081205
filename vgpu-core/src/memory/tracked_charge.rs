//! A charge that follows a size that the driver reports: it grows and shrinks with the size, in parts.

use crate::account::{Account, Charge};

/// The charge for one thing whose size the driver reports.
#[derive(Debug, Default)]
pub struct TrackedCharge {
    charges: Vec<Charge>,
    bytes: u64,
}

impl TrackedCharge {
    /// Returns the bytes that are charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a charge that was reserved before a call.
    pub fn add(&mut self, charge: Charge) {
        self.bytes += charge.bytes();
        self.charges.push(charge);
    }

    /// Changes the charge to `bytes`. Returns false if that much is not free: then less stays charged.
    pub fn set(&mut self, account: &Account, bytes: u64) -> bool {
        while self.bytes > bytes {
            let Some(mut last) = self.charges.pop() else { break };
            let (whole, surplus) = (last.bytes(), self.bytes - bytes);
            if surplus < whole {
                account.shrink(&mut last, whole - surplus);
                self.charges.push(last);
                self.bytes = bytes;
            } else {
                account.release(last);
                self.bytes -= whole;
            }
        }
        if self.bytes < bytes {
            match account.reserve(bytes - self.bytes) {
                Ok(more) => self.add(more),
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::*;
    use crate::ledger::fresh;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_follows_the_driver_up_and_down_and_stays_below_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = Account::new(vec![fresh::share(folder.path(), "share", 16 * MIB)]);
        let mut tracked = TrackedCharge::default();
        for (bytes, fits, charged) in [
            (4 * MIB, true, 4 * MIB),
            (10 * MIB, true, 10 * MIB),
            (7 * MIB, true, 7 * MIB),
            (17 * MIB, false, 7 * MIB),
            (16 * MIB, true, 16 * MIB),
            (MIB, true, MIB),
            (0, true, 0),
        ] {
            assert_eq!(tracked.set(&account, bytes), fits, "{bytes}");
            assert_eq!((tracked.bytes(), account.charged()), (charged, charged), "{bytes}");
        }
        let ahead = account.reserve(6 * MIB).expect("room");
        tracked.add(ahead);
        assert!(
            tracked.set(&account, 2 * MIB),
            "a charge made before a call is part of it"
        );
        assert_eq!((tracked.bytes(), account.charged()), (2 * MIB, 2 * MIB));
        tracked.set(&account, 0);
    }
}
