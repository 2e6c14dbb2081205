//! Charges that several processes share because one exported the memory and others imported it:
//! [`crate::ledger::objects`], for all shares of this process on one GPU.
//!
//! A charge may be split over several shares. It then becomes an object in the ledger of each share, all with the same
//! key. An importer finds the objects of its own shares; their sum shows whether they are the whole memory.

use super::{Account, Charge, Kind, Part};
use crate::ledger::Key;
use crate::ledger::share::Share;

impl Account {
    /// Moves a charge to objects with `key`, so that memory is charged once when another process of the same shares
    /// imports it. If no object is free, a part stays in its lane, and is charged to each process; a later export moves
    /// it if an object is free then.
    pub fn export(&self, charge: &mut Charge, key: Key) {
        let is_known = |part: &Part| self.share(*part)?.exports(part.reservation, key);
        // If `key` already finds a part of this charge, it still means the same memory, and its objects must stay
        // visible.
        if !charge.parts().any(|part| is_known(part) == Some(true)) {
            self.hide(key);
        }
        for part in charge.parts_mut() {
            // A part that is already an object does not move.
            let share = self.share(*part);
            if let Some(moved) = share.and_then(|share| share.export(part.reservation, part.bytes, key)) {
                part.reservation = moved;
            }
        }
        self.notify();
    }

    /// Hides all earlier exports by `key` from later imports.
    pub fn hide(&self, key: Key) {
        self.all().for_each(|share| share.hide(key));
    }

    /// Holds the memory that was exported by `key`. From now on this process is one of the holders that share the
    /// charge; the last holder releases it. Returns None if no process of these shares has exported it.
    #[must_use]
    pub fn import(&self, key: Key) -> Option<Charge> {
        let mut parts = self.of(Kind::Device).flat_map(|(place, share)| {
            let part = move |(reservation, bytes)| Part {
                bytes,
                place,
                reservation,
            };
            share.import(key).into_iter().map(part)
        });
        let first = parts.next()?;
        let rest: Vec<Part> = parts.collect();
        let rest = (!rest.is_empty()).then(|| Box::new(rest));
        self.notify();
        Some(Charge { first, rest })
    }

    /// Returns the ledger of a part, or None for host memory, which other processes never map.
    fn share(&self, part: Part) -> Option<&Share> {
        let ledger = self.ledgers.get(part.place.index());
        ledger
            .filter(|ledger| ledger.kind == Kind::Device)
            .map(|ledger| &ledger.share)
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::*;
    use crate::ledger::{Kind, fresh};

    const SIZE: u64 = 32 << 20;

    #[test]
    fn another_export_of_a_split_charge_moves_what_the_first_could_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let share = |name| fresh::share(folder.path(), name, SIZE);
        let account = Account::new(vec![share("a"), share("b")]);
        let key = Key::new(Kind::Ipc, 1, [1; 8]);
        let mut charge = account.reserve(2 * SIZE).expect("room");
        let imported = || {
            let found = account.import(key);
            let bytes = found.as_ref().map(Charge::bytes);
            found.into_iter().for_each(|charge| account.release(charge));
            bytes
        };
        // The second ledger cannot be opened while it is moved away, so none of its objects can be held.
        let (ledger, away) = (fresh::ledger(folder.path(), "b"), folder.path().join("away"));
        std::fs::rename(&ledger, &away).expect("a rename");
        for _ in 0..2 {
            account.export(&mut charge, key);
            assert_eq!(imported(), Some(SIZE), "the first part, however often it is exported");
        }
        std::fs::rename(&away, &ledger).expect("a rename");
        account.export(&mut charge, key);
        assert_eq!(imported(), Some(2 * SIZE));
        assert_eq!(account.charged(), 2 * SIZE);
        account.release(charge);
        assert_eq!((account.charged(), imported()), (0, None));
    }
}
