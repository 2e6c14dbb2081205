//! Charges that processes have together: [`crate::ledger::objects`], over all shares of a GPU.
//!
//! A charge that is split over shares becomes an object in each, all found by the one key; who imports finds
//! those of its own shares, and the sum tells it whether that is all.

use super::{Account, Charge, Kind, Part};
use crate::ledger::Key;
use crate::ledger::share::Share;

impl Account {
    /// Moves a charge to objects that are found by `key`, as far as there is room for it: so memory that
    /// another process of the same shares imports is charged once. What is not moved is charged to each, and
    /// moved by a later export if there is room then.
    pub fn export(&self, charge: &mut Charge, key: Key) {
        let is_known = |part: &Part| self.share(*part)?.exports(part.reservation, key);
        // A part that is found by it already says that it is the same memory as before, and names the rest.
        if !charge.parts().any(|part| is_known(part) == Some(true)) {
            self.hide(key);
        }
        for part in charge.parts_mut() {
            // What is an object's already stays it.
            let share = self.share(*part);
            if let Some(moved) = share.and_then(|share| share.export(part.reservation, part.bytes, key)) {
                part.reservation = moved;
            }
        }
        self.notify();
    }

    /// Has `key` name nothing that was exported before.
    pub fn hide(&self, key: Key) {
        self.all().for_each(|share| share.hide(key));
    }

    /// Holds what was exported by `key`: its charge is this process's too from now on, and goes with the last
    /// of those who have it. None: nobody of these shares has exported it.
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

    /// The ledger of a part; None: of host memory, which is never mapped by another process.
    fn share(&self, part: Part) -> Option<&Share> {
        let ledger = self.ledgers.get(part.place.index());
        ledger
            .filter(|ledger| ledger.kind == Kind::Device)
            .map(|ledger| &ledger.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Kind, fresh};

    const SIZE: u64 = 32 << 20;

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
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
        // The second ledger cannot be opened for a while, so nothing of it can be held.
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
