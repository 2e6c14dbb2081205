//! Charges that processes have together: [`crate::ledger::objects`], over all shares of a GPU.
//!
//! A charge that is split over shares becomes an object in each, all found by the one key; who imports finds
//! those of its own shares, and the sum tells it whether that is all.

use super::{Account, Charge, HOST, Part, SPECIAL};
use crate::ledger::Key;
use crate::ledger::share::Share;

impl Account {
    /// Moves a charge to objects that are found by `key`, as far as there is room for it: so memory that
    /// another process of the same shares imports is charged once. What is not moved is charged to each.
    pub fn export(&self, charge: &mut Charge, key: Key) {
        let rest = charge.rest.iter().flat_map(|rest| rest.iter());
        let mut parts = std::iter::once(&charge.first).chain(rest);
        if parts.all(|part| self.share(*part).and_then(|share| share.exports(part.reservation, key)) == Some(true)) {
            return;
        }
        self.hide(key);
        let rest = charge.rest.iter_mut().flat_map(|rest| rest.iter_mut());
        for part in std::iter::once(&mut charge.first).chain(rest) {
            // Host memory is never mapped by another process.
            let share = self.share(*part).filter(|_| (part.share as usize) < HOST);
            if let Some(moved) = share.and_then(|share| share.export(part.reservation, part.bytes, key)) {
                part.reservation = moved;
            }
        }
        self.tell();
    }

    /// Has `key` name nothing that was exported before.
    pub fn hide(&self, key: Key) {
        self.all().for_each(|share| share.hide(key));
    }

    /// Holds what was exported by `key`: its charge is this process's too from now on, and goes with the last
    /// of those who have it. None: nobody of these shares has exported it.
    #[must_use]
    pub fn import(&self, key: Key) -> Option<Charge> {
        let first = if self.shares.is_empty() { SPECIAL } else { 0 };
        let shares = self.device().iter().enumerate();
        let mut parts = shares.flat_map(|(index, share)| {
            let share_number = u32::try_from(first + index).unwrap_or(u32::MAX);
            let part = move |(reservation, bytes)| Part {
                bytes,
                share: share_number,
                reservation,
            };
            share.import(key).into_iter().map(part)
        });
        let first = parts.next()?;
        let rest: Vec<Part> = parts.collect();
        let rest = (!rest.is_empty()).then(|| Box::new(rest));
        self.tell();
        Some(Charge { first, rest })
    }

    fn share(&self, part: Part) -> Option<&Share> {
        let place = part.share as usize;
        match place.checked_sub(SPECIAL) {
            None => self.shares.get(place),
            Some(at) => self.special.get(at),
        }
    }
}
