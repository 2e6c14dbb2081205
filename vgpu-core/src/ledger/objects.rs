//! Exported memory is charged once, as long as any process holds it.
//!
//! A process exports memory by a name (cuIpcGetMemHandle, a file descriptor), and another process of the same share
//! imports it. Such memory has an entry of its own in the ledger: an object. The charge is in the object and in no
//! lane. Every process that has the memory holds a read lock on the object's first byte:
//!
//! ```text
//!  exporter: create handle ─► claim object, move the charge ─► return handle   ...   free ─► unlock ─┐
//!  importer: find object ─► lock ─► the driver's import   ...   the driver's close ─► unlock ─────────┤
//!  either:   dies ─► the kernel unlocks ──────────────────────────────────────────────────────────────┤
//!                                           no lock is left: reaped like the lane of a dead process ◄─┘
//! ```
//!
//! So the charge is not handed over when the exporter frees the memory or dies. It stays in the object until the last
//! lock is gone. There is no list of holders that could be wrong, and no PID.
//!
//! Why it is exact at every instant:
//! - The move is one operation of the exporter's lane that does not change the total ([`Change::Move`]). Before it, the
//!   object names the operation in `from` and is claimed. Until the operation's exchange the lane holds the bytes,
//!   after it the object does. The rule is the same as for the charge of a dead process's lane.
//! - Moves, searches and reaps run under the reaper's lock. A process that has this lock and finds a `from` knows that
//!   the mover died before it finished. It settles the object ([`settle`]) before any lane is freed: later the lane may
//!   have another owner, and its operations say nothing about this one.
//! - The charge is moved before the handle is returned, and an importer locks the object before it calls the driver.
//!   Both unlock after the driver has freed or closed the memory.
//!
//! How it fails, each time by charging too much:
//! - The exporter keeps the charge in its lane, and the importer is charged as well, if no object is free, a process
//!   holds as many as it may ([`MOST_SHARED`](crate::os::pinned::MOST_SHARED)), the reaper's lock cannot be had in time
//!   (its holder is frozen), or a process has no descriptors or mappings left.
//! - The same happens to an importer of another share, of another PID namespace (a handle names its exporter by PID),
//!   or of memory that was exported by two names.
//! - Garbage in the table: the importer refuses a wrong size. An object that looks claimed but is held by no process is
//!   released. An object that claims more than the total is treated as damage, as for a lane.
//! - Handles are assumed to be unique for as long as the memory of either lives, because the driver has nothing else to
//!   distinguish them. A new export by a name that is still in use hides the older object ([`hide`]), even if no object
//!   is free for the new one. An object is also hidden when its exporter frees the memory.

use super::operation::{Change, Operation, Outcome, Step};
use super::region::{Object, Region};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::object::{self, HOLDERS, OBJECTS};
use vgpu_abi::ledger::{LANES, Stamp};

/// Identifies an export: the handle that the driver returned, and the PID namespace of the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    place: u64,
    words: [u64; 8],
}

/// How memory is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Exported by the 64-byte handle of cuIpcGetMemHandle.
    Ipc = 1,
    /// Exported by a file descriptor with its own inode.
    Descriptor = 2,
}

impl Key {
    #[must_use]
    pub fn new(kind: Kind, pid_namespace: u64, words: [u64; 8]) -> Self {
        // Inodes of namespaces have 32 bits.
        let place = (kind as u64) << 32 | pid_namespace & u64::from(u32::MAX);
        Self { place, words }
    }

    fn is_of(&self, object: &Object) -> bool {
        object.place.load(Acquire) == self.place
            && object
                .key
                .iter()
                .zip(self.words)
                .all(|(word, own)| word.load(Relaxed) == own)
    }
}

/// Returns the objects that were ever used, with their indices. `objects_used` may be garbage.
pub fn used(region: &Region) -> impl Iterator<Item = (usize, &Object)> {
    let count = usize::try_from(region.objects_used.load(Acquire)).unwrap_or(usize::MAX);
    region.objects.iter().enumerate().take(count)
}

pub fn is_claimed(object: &Object) -> bool {
    !object.generation.load(Acquire).is_multiple_of(2)
}

/// Returns the indices of the claimed objects with `key`, and the charge of each.
pub fn find(region: &Region, key: Key) -> impl Iterator<Item = (usize, u64)> {
    used(region)
        .filter(move |(_, object)| is_claimed(object) && key.is_of(object))
        .map(|(index, object)| (index, held(region, object)))
}

/// Hides the objects with `key` from imports, because `key` names other memory from now on.
pub fn hide(region: &Region, key: Key) {
    for (_, object) in used(region).filter(|(_, object)| key.is_of(object)) {
        object.place.store(0, Release);
    }
}

/// Returns the charge of an object.
pub fn held(region: &Region, object: &Object) -> u64 {
    // The writer is read before `applied`: a process records the last writer in `applied` before it overwrites the
    // total.
    let writer = region.total.writer();
    let bytes = object.bytes.load(Acquire);
    if moved(region, object.from.load(Acquire), writer) {
        bytes
    } else {
        0
    }
}

fn moved(region: &Region, from: u64, writer: u64) -> bool {
    let lane = region.lanes.get(Stamp::unpack(from).lane);
    let applied = lane.map_or(0, |lane| lane.applied.load(Acquire));
    object::moved(
        from,
        lane.map_or(0, |lane| lane.sequence.load(Acquire)),
        applied,
        writer,
    )
}

/// Settles the objects of movers that died before they finished. The caller holds the reaper's lock.
pub fn settle(region: &Region) {
    // Bounded, so that a process that writes garbage here meanwhile cannot block this one.
    for _ in 0..2 * OBJECTS {
        if !settle_step(region) {
            return;
        }
    }
}

/// Makes one store of [`settle`]. Returns false if there was nothing left to do.
pub(super) fn settle_step(region: &Region) -> bool {
    let is_open = |(_, object): &(usize, &Object)| is_claimed(object) && object.from.load(Acquire) != 0;
    let Some((_, object)) = used(region).find(is_open) else {
        return false;
    };
    let writer = region.total.writer();
    if object.bytes.load(Acquire) != 0 && !moved(region, object.from.load(Acquire), writer) {
        object.bytes.store(0, Release);
    } else {
        object.from.store(0, Release);
    }
    true
}

/// Records a holder, if a place is free. The record only serves lists of processes: the lock is what holds an object.
pub fn enter(object: &Object, process: u64) {
    let free = |place: &&std::sync::atomic::AtomicU64| place.compare_exchange(0, process, AcqRel, Relaxed).is_ok();
    let _ = object.holders.iter().find(free);
}

/// Removes the record of a holder.
pub fn leave(object: &Object, process: u64) {
    let own = |place: &&std::sync::atomic::AtomicU64| place.compare_exchange(process, 0, AcqRel, Relaxed).is_ok();
    let _ = object.holders.iter().find(own);
}

pub fn holders(object: &Object) -> [u64; HOLDERS] {
    std::array::from_fn(|place| object.holders[place].load(Acquire))
}

/// Moves a charge out of a lane into a free object, step by step. The caller holds the reaper's lock and a lock on the
/// object, and no other thread uses the lane meanwhile.
///
/// ```text
///  Write ─► Claim ─► Transfer (operation of the lane) ─► Settle ─► Publish ─► Done
///                     └ damaged: Clear ─► Free ─► Done
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    object: usize,
    lane: usize,
    bytes: u64,
    key: Key,
    process: u64,
    step: MoveStep,
}

/// The next step of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MoveStep {
    Write,
    Claim,
    Transfer(Operation),
    Settle,
    Publish,
    Clear,
    Free,
    Done(Outcome),
}

impl Move {
    /// Returns a move of `bytes` from `lane` into the free object `object` (counted from 0), by `process`.
    #[must_use]
    pub fn new(object: usize, lane: usize, bytes: u64, key: Key, process: u64) -> Self {
        Self {
            object,
            lane,
            bytes,
            key,
            process,
            step: MoveStep::Write,
        }
    }

    /// Makes one step, with at most one store that matters to others. Returns the outcome after the last step.
    pub fn advance(&mut self, region: &Region) -> Option<Outcome> {
        let (Some(object), Some(lane)) = (region.objects.get(self.object), region.lanes.get(self.lane)) else {
            return Some(Outcome::Damaged);
        };
        self.step = match self.step {
            MoveStep::Write => {
                let number = lane.sequence.load(Relaxed).saturating_add(1);
                let from = Stamp {
                    lane: self.lane,
                    number,
                };
                self.write(region, object, from);
                MoveStep::Claim
            }
            MoveStep::Claim => {
                object.generation.fetch_add(1, AcqRel);
                MoveStep::Transfer(Operation::new(self.lane, Change::Move { bytes: self.bytes }))
            }
            MoveStep::Transfer(mut operation) => {
                operation.advance(region);
                match operation.step() {
                    Step::Done(Outcome::Applied) => MoveStep::Settle,
                    Step::Done(_) => MoveStep::Clear,
                    _ => MoveStep::Transfer(operation),
                }
            }
            MoveStep::Settle => {
                object.from.store(0, Release);
                MoveStep::Publish
            }
            MoveStep::Publish => {
                object.place.store(self.key.place, Release);
                MoveStep::Done(Outcome::Applied)
            }
            MoveStep::Clear => {
                object.bytes.store(0, Release);
                MoveStep::Free
            }
            MoveStep::Free => {
                object.generation.fetch_add(1, AcqRel);
                MoveStep::Done(Outcome::Damaged)
            }
            MoveStep::Done(outcome) => MoveStep::Done(outcome),
        };
        match self.step {
            MoveStep::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Makes all steps.
    pub fn run(mut self, region: &Region) -> Outcome {
        loop {
            if let Some(outcome) = self.advance(region) {
                return outcome;
            }
        }
    }

    /// Writes the fields of an object that no process uses. Nothing reads them before the object is claimed.
    fn write(&self, region: &Region, object: &Object, from: Stamp) {
        object.place.store(0, Relaxed);
        object.bytes.store(self.bytes, Relaxed);
        object.from.store(from.pack(), Relaxed);
        for (word, own) in object.key.iter().zip(self.key.words) {
            word.store(own, Relaxed);
        }
        for (place, holder) in object.holders.iter().enumerate() {
            holder.store(if place == 0 { self.process } else { 0 }, Relaxed);
        }
        region.objects_used.fetch_max(self.object as u64 + 1, AcqRel);
    }
}

/// Returns the object with this index, or None if the index is a lane's.
pub(super) fn target(region: &Region, index: usize) -> Option<&Object> {
    region.objects.get(index.checked_sub(LANES)?)
}
