//! A share's exported objects, as one process makes, finds and holds them: the rules of [`objects`](super::objects),
//! with locks.
//!
//! Each hold is a lock of its own, so a process may hold an object twice, as its maker and as an importer. A
//! [`Reservation`] of an object stands where one of a lane would, and is released like it.

use super::holds::Hold;
use super::objects::{self, Key, Move};
use super::operation::Outcome;
use super::reap::{self, Reap};
use super::region::{Object, Region, lane_offset};
use super::share::{OWN_LANES, Reservation, Share};
use crate::os::pinned::PinnedLock;
use crate::os::{errno, file, fork};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use vgpu_abi::ledger::{LANES, Stamp};

/// How long an export or an import waits for another's reap, and an export for its lane: who exports may hold
/// back the other threads of its process meanwhile. It is too much, not too little, if that is in vain.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long the last holder does, before it leaves the object to the next reap.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

impl Share {
    /// Moves `bytes`, which `reservation` charged in a lane, to an object that is found by `key`. None: there
    /// is no room or no time for it, and they stay where they are.
    #[must_use]
    pub fn export(&self, reservation: Reservation, bytes: u64, key: Key) -> Option<Reservation> {
        let own = self.own.get(reservation.0 as usize)?;
        if self.holds.is_full() {
            return None;
        }
        self.session(PATIENCE, |region| {
            let (index, object, lock) = vacant(region, |index| self.lock(index))?;
            if !own.busy.lock_within(PATIENCE) {
                return None;
            }
            let process = self.process.load(Acquire);
            let outcome = Move::new(index, own.index.load(Relaxed), bytes, key, process).run(region);
            own.busy.unlock();
            if outcome != Outcome::Applied {
                self.warn_of_damage();
                return None;
            }
            let hold = Hold {
                object: index,
                generation: object.generation.load(Acquire),
                bytes,
                made: true,
                _lock: lock,
            };
            Some(self.hold(hold))
        })
    }

    /// Holds every object of `key`: reservations, and what each is charged. Nothing: there is none, or no
    /// time for it.
    #[must_use]
    pub fn import(&self, key: Key) -> Vec<(Reservation, u64)> {
        if objects::find(self.region(), key).next().is_none() || self.holds.is_full() {
            return Vec::new();
        }
        let found = self.session(PATIENCE, |region| {
            let mut found = Vec::new();
            for (index, bytes) in objects::find(region, key) {
                let (lock, object) = match (self.lock(index), region.objects.get(index)) {
                    (Ok(Some(lock)), Some(object)) => (lock, object),
                    // Each further one would be waited for as long.
                    (Err(_), _) => break,
                    _ => continue,
                };
                objects::enter(object, self.process.load(Acquire));
                let hold = Hold {
                    object: index,
                    generation: object.generation.load(Acquire),
                    bytes,
                    made: false,
                    _lock: lock,
                };
                found.push((self.hold(hold), bytes));
            }
            Some(found)
        });
        found.unwrap_or_default()
    }

    /// Has `key` name nothing that was exported before: it is about to name other memory.
    pub fn hide(&self, key: Key) {
        objects::hide(self.region(), key);
    }

    /// Returns whether the object of a reservation is still found by `key`, or None if the reservation is of a lane.
    #[must_use]
    pub fn exports(&self, reservation: Reservation, key: Key) -> Option<bool> {
        let (index, _) = object_of(reservation)?;
        Some(objects::find(self.region(), key).any(|(found, _)| found == index))
    }

    /// What this process has made and still holds, and how often that has changed.
    pub(super) fn made(&self) -> (u64, u64) {
        // The changes first: one that comes between the two shows in the next look.
        let changes = self.holds.changes.load(Acquire);
        let list = self.holds.list.lock();
        let made = list.iter().filter(|hold| hold.made);
        let bytes = made.fold(0_u64, |sum, hold| sum.saturating_add(hold.bytes));
        (changes, bytes)
    }

    /// What the processes hold together: the payer's claim, and its bytes.
    pub(super) fn objects(&self) -> impl Iterator<Item = (Option<Stamp>, u64)> {
        let region = self.region();
        let claimed = objects::used(region).filter(|(_, object)| objects::is_claimed(object));
        claimed.map(move |(_, object)| {
            let is_claimed = |claim: Stamp| {
                let lane = region.lanes.get(claim.lane);
                lane.is_some_and(|lane| lane.generation.load(Acquire) == claim.number)
            };
            let payer = vgpu_abi::ledger::object::payer(objects::holders(object), is_claimed);
            (payer.map(Stamp::unpack), objects::held(region, object))
        })
    }

    /// Lets an object go that `reservation` holds; whoever is the last takes it out.
    #[cold]
    pub(super) fn let_go(&self, reservation: Reservation) {
        let Some((index, made)) = object_of(reservation) else {
            return;
        };
        let _kept = errno::keep();
        let hold = {
            let mut list = self.holds.list.lock();
            let place = list.iter().position(|hold| hold.object == index && hold.made == made);
            place.map(|place| list.swap_remove(place))
        };
        let (Some(hold), Some(object)) = (hold, self.region().objects.get(index)) else {
            return;
        };
        if made {
            // What is freed is no longer to be found, whoever else holds it.
            object.place.store(0, Release);
            self.holds.changes.fetch_add(1, Release);
        }
        objects::leave(object, self.process.load(Acquire));
        let generation = hold.generation;
        drop(hold);
        self.session(LAST_PATIENCE, |region| self.bury(region, index, object, generation));
    }

    /// Takes an object out that nobody holds.
    fn bury(&self, region: &Region, index: usize, object: &Object, generation: u64) -> Option<()> {
        let is_free = {
            let no_fork = fork::guard();
            let file = self.file.open(&no_fork).ok()?;
            let locked = file::is_locked(&file, self.at + lane_offset(LANES + index)).ok()?;
            file.check().ok()?;
            !locked
        };
        let is_same = object.generation.load(Acquire) == generation;
        if is_free && is_same && objects::is_claimed(object) {
            let target = Stamp {
                lane: LANES + index,
                number: generation,
            };
            if Reap::new(region, target).run(region) != Outcome::Applied {
                self.warn_of_damage();
            }
        }
        Some(())
    }

    /// A hold on the object `index`; None: somebody has it to himself.
    fn lock(&self, index: usize) -> io::Result<Option<PinnedLock>> {
        PinnedLock::share(&self.file, self.at + lane_offset(LANES + index))
    }

    fn hold(&self, hold: Hold) -> Reservation {
        let made = hold.made;
        let reservation = Reservation((OWN_LANES + 2 * hold.object + usize::from(made)) as u32);
        self.holds.list.lock().push(hold);
        if made {
            self.holds.changes.fetch_add(1, Release);
        }
        reservation
    }

    /// Does `act` under the reaper's lock, once what others left is ended.
    fn session<T>(&self, patience: Duration, act: impl FnOnce(&Region) -> Option<T>) -> Option<T> {
        let _kept = errno::keep();
        let (lock, _) = self.reaper(patience);
        let _lock = lock?;
        if reap::finish(self.region()).is_err() {
            self.warn_of_damage();
            return None;
        }
        act(self.region())
    }
}

/// A free object, with what `lock` answers for it. What fails for one (no descriptor, no place, no guard against
/// a fork) fails for the others too, and each would be waited for.
fn vacant<L>(region: &Region, mut lock: impl FnMut(usize) -> io::Result<Option<L>>) -> Option<(usize, &Object, L)> {
    for (index, object) in region.objects.iter().enumerate() {
        if objects::is_claimed(object) || object.generation.load(Acquire) >= Stamp::LAST - 1 {
            continue;
        }
        if let Some(lock) = lock(index).ok()? {
            return Some((index, object, lock));
        }
    }
    None
}

/// The object of a reservation, and whether it is its maker's.
fn object_of(reservation: Reservation) -> Option<(usize, bool)> {
    let number = (reservation.0 as usize).checked_sub(OWN_LANES)?;
    Some((number / 2, number % 2 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::objects::Kind;
    use crate::ledger::{explore, fresh};
    use crate::os::spin::Patience;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_lock_that_fails_ends_the_search_and_one_that_is_held_does_not() {
        let region = explore::region();
        let mut asked = Vec::new();
        let found = vacant(&region, |index| {
            asked.push(index);
            Err::<Option<()>, _>(io::ErrorKind::WouldBlock.into())
        });
        assert!(found.is_none());
        assert_eq!(asked, [0], "the wait for each further one would be as long");
        let second = vacant(&region, |index| Ok((index > 0).then_some(())));
        assert_eq!(second.map(|(index, ..)| index), Some(1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn an_export_does_not_wait_for_a_lane_that_stays_busy() {
        const BYTES: u64 = 2 << 20;
        let folder = tempfile::tempdir().expect("a folder");
        let share = fresh::share(folder.path(), "share", 1 << 30);
        let reservation = share.reserve(BYTES).expect("room");
        let (lane, is_done) = (&share.own[0].busy, AtomicBool::new(false));
        assert!(lane.try_lock());
        let moved = std::thread::scope(|threads| {
            // For much longer than an export waits, by the same clock, which stands still while nobody may run.
            threads.spawn(|| {
                let mut patience = Patience::new(Duration::from_millis(1500));
                loop {
                    if is_done.load(Acquire) || !patience.nap() {
                        break lane.unlock();
                    }
                }
            });
            let moved = share.export(reservation, BYTES, Key::new(Kind::Ipc, 1, [1; 8]));
            is_done.store(true, Release);
            moved
        });
        assert_eq!(moved, None, "it waited until the lane was free");
        let moved = share.export(reservation, BYTES, Key::new(Kind::Ipc, 1, [1; 8]));
        share.release(moved.expect("nobody is in its way any more"), BYTES);
        assert_eq!(share.charged(), 0);
    }
}
