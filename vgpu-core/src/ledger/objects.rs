//! Exported memory: charged once, for as long as anybody has it.
//!
//! Memory that a process exports by a name (cuIpcGetMemHandle, a descriptor) and that another process of the same
//! share imports has an entry of its own in the ledger, an object. Its charge is in the object and in nobody's lane,
//! and every process that has the memory holds a read lock on the object's first byte:
//!
//! ```text
//!  maker:     handle ─► claim, move the charge here ─► return the handle       free  ─► let go ─┐
//!  importer:  find ─► hold ─► the driver's import   ...   the driver's close ─► let go ─────────┤
//!  anybody:   dead ─► the kernel lets go ───────────────────────────────────────────────────────┤
//!                                        nobody holds it: taken out like a dead process's lane ◄┘
//! ```
//!
//! So no charge is passed on when the maker frees the memory or dies: it stays in the object, and ends with the last
//! lock. There is no list of holders that could be wrong, and no PID.
//!
//! Why it is exact at every instant:
//! - The move is one operation of the maker's lane that leaves the total as it is ([`Change::Move`]). The object
//!   names it in `from` and is claimed before it: until the exchange the lane holds the bytes, from then on the
//!   object does, by the rule that also says what a dead owner's lane holds.
//! - Moves, searches and reaps take place under the reaper's lock. A process that has that lock and sees a `from`
//!   knows that its mover died on the way, and settles it ([`settle`]) before any lane is freed: later the lane may
//!   have another owner, whose operations say nothing about this one.
//! - A maker's charge is moved before the handle is returned, an importer holds before the driver is asked, and both
//!   let go after the driver has.
//!
//! How it fails, each time by charging too much:
//! - If no object is free, a process has as many as it may hold ([`MOST_SHARED`](crate::os::pinned::MOST_SHARED)),
//!   the reaper's lock is not to be had in time (its holder is frozen), or a process has no descriptors or mappings
//!   left, then the exporter keeps the charge in its lane, and the importer is charged as well.
//! - The same happens to an importer of another share, of another PID namespace (a handle names its maker by PID),
//!   or of memory that its maker exported by two names.
//! - Garbage in the table: the importer refuses a wrong size; an object that looks claimed but is held by nobody is
//!   taken out; an object that claims more than the total counts as damage, like a lane's.
//! - Handles are assumed to differ for as long as the memory of either lives, because the driver has nothing else to
//!   go by. A new export by a name that is still here hides the older object ([`hide`]), even if the new one finds
//!   no room. An object is hidden when its maker frees it.

use super::operation::{Change, Operation, Outcome, Step};
use super::region::{Object, Region};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::object::{self, HOLDERS, OBJECTS};
use vgpu_abi::ledger::{LANES, Stamp};

/// What an object is found by: what the driver handed out, in whose PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    place: u64,
    words: [u64; 8],
}

/// How memory is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// By the 64 bytes of cuIpcGetMemHandle.
    Ipc = 1,
    /// By a descriptor with an inode of its own.
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

/// The objects that were ever used, with their indices; `objects_used` may be garbage.
pub fn used(region: &Region) -> impl Iterator<Item = (usize, &Object)> {
    let count = usize::try_from(region.objects_used.load(Acquire)).unwrap_or(usize::MAX);
    region.objects.iter().enumerate().take(count)
}

pub fn is_claimed(object: &Object) -> bool {
    !object.generation.load(Acquire).is_multiple_of(2)
}

/// Those of `key`, and what each is charged.
pub fn find(region: &Region, key: Key) -> impl Iterator<Item = (usize, u64)> {
    used(region)
        .filter(move |(_, object)| is_claimed(object) && key.is_of(object))
        .map(|(index, object)| (index, held(region, object)))
}

/// Has nobody find the objects of `key` any more: it names other memory from now on.
pub fn hide(region: &Region, key: Key) {
    for (_, object) in used(region).filter(|(_, object)| key.is_of(object)) {
        object.place.store(0, Release);
    }
}

/// What an object is charged.
pub fn held(region: &Region, object: &Object) -> u64 {
    // The writer before `applied`: who overwrites the total records first.
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

/// Ends what movers left that died on the way; the caller holds the reaper's lock.
pub fn settle(region: &Region) {
    // Who scribbles here meanwhile keeps nobody for long.
    for _ in 0..2 * OBJECTS {
        if !settle_step(region) {
            return;
        }
    }
}

/// Makes one store of that. Returns false if nothing was left to do.
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

/// Names a holder, as far as there is room.
pub fn enter(object: &Object, process: u64) {
    let free = |place: &&std::sync::atomic::AtomicU64| place.compare_exchange(0, process, AcqRel, Relaxed).is_ok();
    let _ = object.holders.iter().find(free);
}

/// Takes it out again.
pub fn leave(object: &Object, process: u64) {
    let own = |place: &&std::sync::atomic::AtomicU64| place.compare_exchange(process, 0, AcqRel, Relaxed).is_ok();
    let _ = object.holders.iter().find(own);
}

pub fn holders(object: &Object) -> [u64; HOLDERS] {
    std::array::from_fn(|place| object.holders[place].load(Acquire))
}

/// Moves a charge out of a lane into a free object, step by step. Who calls holds the reaper's lock and a
/// lock on the object, and nobody else uses the lane meanwhile.
///
/// ```text
///  Writing ─► Claiming ─► Moving (operation of the lane) ─► Settling ─► Listing ─► Done
///                              └ damaged: Emptying ─► Freeing ─► Done
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    object: usize,
    lane: usize,
    bytes: u64,
    key: Key,
    process: u64,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Writing,
    Claiming,
    Moving(Operation),
    Settling,
    Listing,
    Emptying,
    Freeing,
    Done(Outcome),
}

impl Move {
    /// Moves `bytes` of `lane` into the free object `object` (counted from 0), for `process`.
    #[must_use]
    pub fn new(object: usize, lane: usize, bytes: u64, key: Key, process: u64) -> Self {
        Self {
            object,
            lane,
            bytes,
            key,
            process,
            at: At::Writing,
        }
    }

    /// One step, of at most one store that counts; Some: how it ended.
    pub fn advance(&mut self, region: &Region) -> Option<Outcome> {
        let (Some(object), Some(lane)) = (region.objects.get(self.object), region.lanes.get(self.lane)) else {
            return Some(Outcome::Damaged);
        };
        self.at = match self.at {
            At::Writing => {
                let number = lane.sequence.load(Relaxed).saturating_add(1);
                let from = Stamp {
                    lane: self.lane,
                    number,
                };
                self.write(region, object, from);
                At::Claiming
            }
            At::Claiming => {
                object.generation.fetch_add(1, AcqRel);
                At::Moving(Operation::new(self.lane, Change::Move { bytes: self.bytes }))
            }
            At::Moving(mut operation) => {
                operation.advance(region);
                match operation.step() {
                    Step::Done(Outcome::Applied) => At::Settling,
                    Step::Done(_) => At::Emptying,
                    _ => At::Moving(operation),
                }
            }
            At::Settling => {
                object.from.store(0, Release);
                At::Listing
            }
            At::Listing => {
                object.place.store(self.key.place, Release);
                At::Done(Outcome::Applied)
            }
            At::Emptying => {
                object.bytes.store(0, Release);
                At::Freeing
            }
            At::Freeing => {
                object.generation.fetch_add(1, AcqRel);
                At::Done(Outcome::Damaged)
            }
            At::Done(outcome) => At::Done(outcome),
        };
        match self.at {
            At::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Runs to the end.
    pub fn run(mut self, region: &Region) -> Outcome {
        loop {
            if let Some(outcome) = self.advance(region) {
                return outcome;
            }
        }
    }

    /// Into an object that nobody has: unseen before it is claimed.
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

/// The object that a reap's target names, if it is one.
pub(super) fn target(region: &Region, index: usize) -> Option<&Object> {
    region.objects.get(index.checked_sub(LANES)?)
}
