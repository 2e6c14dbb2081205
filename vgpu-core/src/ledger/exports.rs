//! Makes, finds, holds and releases the exported objects of a share for one process: the protocol of
//! [`objects`](super::objects), under locks.
//!
//! Each hold is a lock of its own, so a process may hold an object twice: as the exporter and as an importer. The
//! [`Reservation`] of an object is used and released like that of a lane.
//!
//! How it fails: if a lock is not free in time, an export leaves the charge in its lane and an import finds nothing. If
//! the last holder of an object cannot get the reaper's lock, the next reap releases the object.

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

/// How long an export or an import waits for the reap of another process, and an export for its lane. It is short
/// because an export may block other threads of its process meanwhile. A timeout charges too much, never too little.
const SESSION_WAIT: Duration = Duration::from_millis(200);
/// How long the last holder waits before it leaves the object to the next reap.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

impl Share {
    /// Moves `bytes`, which `reservation` charged in a lane, to a new object with `key`. Returns None if no object is
    /// free or a lock cannot be had in time; the charge then stays in the lane.
    #[must_use]
    pub fn export(&self, reservation: Reservation, bytes: u64, key: Key) -> Option<Reservation> {
        let own = self.own.get(reservation.0 as usize)?;
        if self.holds.is_full() {
            return None;
        }
        self.session(SESSION_WAIT, |region| {
            let (index, object, lock) = vacant(region, |index| self.lock(index))?;
            if !own.busy.lock_within(SESSION_WAIT) {
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

    /// Holds every object with `key`. Returns the reservation and the charge of each. Returns nothing if there is no
    /// such object or the reaper's lock is not free in time.
    #[must_use]
    pub fn import(&self, key: Key) -> Vec<(Reservation, u64)> {
        if objects::find(self.region(), key).next().is_none() || self.holds.is_full() {
            return Vec::new();
        }
        let found = self.session(SESSION_WAIT, |region| {
            let mut found = Vec::new();
            for (index, bytes) in objects::find(region, key) {
                let (lock, object) = match (self.lock(index), region.objects.get(index)) {
                    (Ok(Some(lock)), Some(object)) => (lock, object),
                    // Stop, because the wait would be as long for each further object.
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

    /// Hides the objects with `key` from later imports, because `key` is about to name other memory.
    pub fn hide(&self, key: Key) {
        objects::hide(self.region(), key);
    }

    /// Returns true if `key` still finds the object of a reservation, and None if the reservation is of a lane.
    #[must_use]
    pub fn exports(&self, reservation: Reservation, key: Key) -> Option<bool> {
        let (index, _) = object_of(reservation)?;
        Some(objects::find(self.region(), key).any(|(found, _)| found == index))
    }

    /// Returns a counter of changes, and the bytes that this process has exported and still holds.
    pub(super) fn made(&self) -> (u64, u64) {
        // The counter is read first, so that a change between the two reads shows in the next call.
        let changes = self.holds.changes.load(Acquire);
        let list = self.holds.list.lock();
        let made = list.iter().filter(|hold| hold.made);
        let bytes = made.fold(0_u64, |sum, hold| sum.saturating_add(hold.bytes));
        (changes, bytes)
    }

    /// Returns the exported objects: the claim of the process to which each is attributed, and its bytes.
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

    /// Drops the hold of `reservation` on an object. The last holder releases the object's charge.
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
            // The exporter frees the memory: no later import may find it, even if others still hold it.
            object.place.store(0, Release);
            self.holds.changes.fetch_add(1, Release);
        }
        objects::leave(object, self.process.load(Acquire));
        let generation = hold.generation;
        drop(hold);
        self.session(LAST_PATIENCE, |region| self.bury(region, index, object, generation));
    }

    /// Releases the charge of an object, if no process holds it.
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

    /// Locks object `index` for reading. Returns None if another process holds an exclusive lock.
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

    /// Runs `act` under the reaper's lock, after finishing what dead processes left unfinished.
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

/// Returns a free object and the lock on it. The search ends at the first error of `lock`: without a free descriptor, a
/// free place or the fork guard, other objects fail as well, after a wait each.
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

/// Returns the object of a reservation, and true if this process exported it.
fn object_of(reservation: Reservation) -> Option<(usize, bool)> {
    let number = (reservation.0 as usize).checked_sub(OWN_LANES)?;
    Some((number / 2, number % 2 == 1))
}

#[cfg(all(test, not(miri)))] // The tests map files.
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
    fn an_export_does_not_wait_for_a_lane_that_stays_busy() {
        const BYTES: u64 = 2 << 20;
        let folder = tempfile::tempdir().expect("a folder");
        let share = fresh::share(folder.path(), "share", 1 << 30);
        let reservation = share.reserve(BYTES).expect("room");
        let (lane, is_done) = (&share.own[0].busy, AtomicBool::new(false));
        assert!(lane.try_lock());
        let moved = std::thread::scope(|threads| {
            // This thread waits much longer than an export does. Both use the same clock, which leaves out time without
            // a CPU.
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
