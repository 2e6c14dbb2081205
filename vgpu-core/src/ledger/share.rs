//! One open share: reserves and releases bytes in the ledger, in lanes of this process.
//!
//! A process has up to [`OWN_LANES`] lanes: the first from the start, more when its threads contend. A charge is
//! released in the lane that made it, so no lane's charge falls below zero.
//!
//! How it fails:
//! - No lane is free for a new process (1,014 live processes, or 507 that each use a second lane): the process is
//!   refused, with one line on stderr, until another one ends.
//! - No lane is free for another thread: the threads of the process take turns.
//! - A thread leaves an operation by a longjmp: its lane stays busy, other threads use other lanes, and the charge of
//!   that lane stays until the process ends.
//! - The ledger is damaged while running: charges are refused and releases succeed, with one line on stderr.
#![allow(unsafe_code)] // The mapped file is seen as a Region.

use super::holds::Holds;
use super::open::{OpenError, Problem, check};
use super::operation::{Change, Operation, Outcome};
use super::reap::{Scope, held, reap};
use super::region::{Lane, Region, lane_offset};
use super::wide;
use crate::os::pinned::{Mapping, PinnedLock};
use crate::os::spin::{Patience, Spin, Word};
use crate::os::{coarse_millis, errno, file, fork, sleep, stderr};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;
use vgpu_abi::ledger::{self as format, LANES, REAPER, Stamp};

/// Maximum number of lanes of one process.
pub const OWN_LANES: usize = 4;
/// How long an allocation that would fail waits for the reap of another process.
const REAP_PATIENCE: Duration = Duration::from_secs(1);
/// After a wait has timed out, the process does not wait again for this time, in ms: the other process is stopped, or
/// its container frozen.
const IN_VAIN: u64 = 10_000;
/// How long a starting process, and a list of processes, wait for the reap of another process.
const START_PATIENCE: Duration = Duration::from_millis(100);
/// How long a release waits for its lane.
const LANE_PATIENCE: Duration = Duration::from_secs(2);

/// The byte that [`Share::turn`] locks. No lane and no object begins there.
const TURN_AT: usize = lane_offset(REAPER) + 1;
/// About the length of a turn, so that many waiting processes do not try all the time.
const BETWEEN_TURNS: Duration = Duration::from_millis(2);

/// An open share.
#[derive(Debug)]
pub struct Share {
    pub(super) file: file::Known,
    /// Offset of the ledger in its file.
    pub(super) at: usize,
    mapping: Mapping,
    limit: u64,
    pub(super) process: AtomicU64,
    pub(super) own: [OwnLane; OWN_LANES],
    pub(super) holds: Holds,
    locks: Spin<Vec<PinnedLock>>,
    /// When this process last reaped.
    looked: AtomicU64,
    /// When its last wait for another process's reap timed out; 0: never.
    in_vain: AtomicU64,
    damaged: AtomicBool,
}

/// A lane of this process, or none yet (index 0).
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct OwnLane {
    pub(super) busy: Word,
    pub(super) index: AtomicUsize,
}

/// The charge of one lane, and the number of its changes, including an unfinished one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCharge {
    changes: u64,
    pub bytes: u64,
}

/// Where a charge is recorded, which its release needs: a slot of [`Share::own`] or, numbered after them, an exported
/// object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation(pub(super) u32);

/// Why a charge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Limit,
    Damaged,
}

impl Share {
    /// Opens the ledger at `path`, releases the charges of dead processes, and claims a lane.
    ///
    /// # Errors
    /// The file is not an intact ledger of this share, or no lane is free.
    pub fn open(path: &Path, share_checksum: u32, limit: u64) -> Result<Self, OpenError> {
        Self::open_at(path, 0, None, share_checksum, limit)
    }

    /// Opens the ledger that begins `at` bytes into its file. `device`: the file system that it must be on.
    ///
    /// # Errors
    /// As for [`Share::open`].
    pub fn open_at(
        path: &Path,
        at: usize,
        device: Option<u64>,
        share_checksum: u32,
        limit: u64,
    ) -> Result<Self, OpenError> {
        if !wide::supported() {
            return Err(OpenError::Processor);
        }
        let failed = |error| OpenError::File(path.to_owned(), error);
        let (known, mapping) = {
            let no_fork = fork::guard();
            let (known, file) = file::Known::new(path, &no_fork).map_err(failed)?;
            if device.is_some_and(|device| device != known.device()) {
                return Err(OpenError::Elsewhere(path.to_owned()));
            }
            check(&file, at, share_checksum).map_err(|error| match error {
                Problem::Io(error) => failed(error),
                Problem::Damage(damage) => OpenError::Damage(path.to_owned(), damage),
            })?;
            let mapping = Mapping::new(&file, at, format::SIZE).map_err(failed)?;
            file.close().map_err(failed)?;
            (known, mapping)
        };
        let share = Self {
            file: known,
            at,
            mapping,
            limit,
            process: AtomicU64::new(0),
            own: Default::default(),
            holds: Holds::default(),
            locks: Spin::default(),
            looked: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            damaged: AtomicBool::new(false),
        };
        if share.charged() > 0 {
            share.reap(Scope::Charged, START_PATIENCE);
        }
        match share.claim(0, REAPER + 1..LANES) {
            Ok(true) => Ok(share),
            Ok(false) => {
                share.reap(Scope::All, REAP_PATIENCE);
                match share.claim(0, REAPER + 1..LANES) {
                    Ok(true) => Ok(share),
                    Ok(false) => Err(OpenError::Lane(path.to_owned())),
                    Err(error) => Err(failed(error)),
                }
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the limit in bytes.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes charged to the share by all its processes at this moment.
    #[inline]
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.region().total.charged()
    }

    /// Returns the charge of each lane of this process, and the bytes that it has exported and still holds: the driver
    /// reports exported memory as used by the exporter, imported memory as used by others.
    pub fn own(&self) -> impl Iterator<Item = OwnCharge> {
        let (changes, bytes) = self.made();
        let indices = self.own.iter().map(|own| own.index.load(Acquire));
        let lanes = indices.filter_map(|index| Some((index, self.region().lanes.get(index)?)));
        lanes
            .filter(|(index, _)| *index != REAPER)
            .map(|(index, lane)| OwnCharge {
                // The counter is read before the charge, so that a change between the two reads shows in the next call.
                changes: lane.sequence.load(Acquire),
                bytes: held(self.region(), index, lane),
            })
            .chain(std::iter::once(OwnCharge { changes, bytes }))
    }

    /// Charges `bytes`, or nothing. If they do not fit, first releases the charges of dead processes.
    ///
    /// # Errors
    /// The limit is reached, or the ledger is damaged.
    #[inline(always)]
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, Refusal> {
        match self.attempt(bytes) {
            Ok(reservation) => Ok(reservation),
            Err(refusal) => self.retry(bytes, refusal),
        }
    }

    #[cold]
    fn retry(&self, bytes: u64, refusal: Refusal) -> Result<Reservation, Refusal> {
        if refusal == Refusal::Limit && self.reap(Scope::Charged, REAP_PATIENCE) > 0 {
            return self.attempt(bytes);
        }
        Err(refusal)
    }

    /// Releases `bytes` of what `reservation` charged.
    #[inline(always)]
    pub fn release(&self, reservation: Reservation, bytes: u64) {
        let Some(own) = self.own.get(reservation.0 as usize) else {
            return self.let_go(reservation);
        };
        if !own.busy.lock_within(LANE_PATIENCE) {
            stderr::say("a lane of this process stays busy; its charge is given back when the process ends");
            return;
        }
        let outcome = Operation::new(own.index.load(Relaxed), Change::Release { bytes }).run(self.region());
        own.busy.unlock();
        if outcome != Outcome::Applied {
            self.warn_of_damage();
        }
    }

    /// Releases the charges of dead processes, unless this process did so within `age`.
    pub fn reap_if_older(&self, age: Duration) {
        let now = coarse_millis();
        let last = self.looked.load(Relaxed);
        if now >= last && u128::from(now - last) < age.as_millis() {
            return;
        }
        self.looked.store(now, Relaxed);
        self.reap(Scope::Charged, Duration::ZERO);
    }

    /// Records that this process has a context: it uses the GPU even while nothing is charged to it.
    pub fn note_context(&self) {
        let lane = self.region().lanes.get(self.own[0].index.load(Acquire));
        if let Some(lane) = lane {
            lane.context.store(1, Relaxed);
        }
    }

    /// Returns true if another process of the share has a charge but no context yet. It may be creating one, with more
    /// charged than the context will take, because its size is not known yet.
    #[must_use]
    pub fn is_another_starting(&self) -> bool {
        let own = self.process.load(Acquire);
        let lanes = self.region().lanes.iter().enumerate().skip(REAPER + 1);
        let of_others = lanes
            .filter(|(_, lane)| !lane.generation.load(Acquire).is_multiple_of(2) && lane.process.load(Relaxed) != own);
        let (mut charged, mut with_context) = (BTreeSet::new(), BTreeSet::new());
        for (index, lane) in of_others {
            let process = lane.process.load(Relaxed);
            if lane.context.load(Relaxed) != 0 {
                with_context.insert(process);
            } else if held(self.region(), index, lane) > 0 {
                charged.insert(process);
            }
        }
        !charged.is_subset(&with_context)
    }

    /// Returns the size of the largest context of the share that was measured.
    #[must_use]
    pub fn context_took(&self) -> Option<u64> {
        self.region().context_took.load(Relaxed).checked_sub(1)
    }

    /// Records the size of a context of this process.
    pub fn note_context_took(&self, bytes: u64) {
        self.region().context_took.fetch_max(bytes.saturating_add(1), Relaxed);
    }

    /// Returns the processes of this PID namespace that hold memory or have a context, with their bytes. A process that
    /// only has the share open does not use the GPU.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        self.reap(Scope::All, START_PATIENCE);
        let here = pid_namespace();
        let ours = self.holders().filter(|(namespace, _, _)| *namespace == here);
        ours.map(|(_, pid, held)| (pid, held)).collect()
    }

    /// Returns namespace, PID and bytes of all holders, without a reap. Includes processes that have just died.
    pub fn holders(&self) -> impl Iterator<Item = (u64, u32, u64)> {
        let lanes = self.region().lanes.iter().enumerate().skip(REAPER + 1);
        lanes
            .filter(|(_, lane)| !lane.generation.load(Acquire).is_multiple_of(2))
            .map(|(index, lane)| (lane, held(self.region(), index, lane)))
            .filter(|(lane, held)| *held > 0 || lane.context.load(Relaxed) != 0)
            .chain(
                self.objects()
                    .filter_map(|(payer, held)| Some((self.region().lanes.get(payer?.lane)?, held))),
            )
            .map(|(lane, held)| (lane.pid_namespace.load(Relaxed), lane.pid.load(Relaxed), held))
    }

    #[inline(always)]
    fn attempt(&self, bytes: u64) -> Result<Reservation, Refusal> {
        let Some(slot) = self.lock_lane() else {
            return Err(Refusal::Damaged);
        };
        let own = &self.own[slot];
        let change = Change::Charge {
            bytes,
            limit: self.limit,
        };
        let outcome = Operation::new(own.index.load(Relaxed), change).run(self.region());
        own.busy.unlock();
        match outcome {
            Outcome::Applied => Ok(Reservation(slot as u32)),
            Outcome::Refused => Err(Refusal::Limit),
            Outcome::Damaged => {
                self.warn_of_damage();
                Err(Refusal::Damaged)
            }
        }
    }

    /// Locks a lane of this process and returns its slot. Takes an idle lane, else claims a new one, else waits for the
    /// first one.
    #[inline(always)]
    fn lock_lane(&self) -> Option<usize> {
        if self.own[0].busy.try_lock() {
            return Some(0);
        }
        self.lock_other_lane()
    }

    #[cold]
    fn lock_other_lane(&self) -> Option<usize> {
        for slot in 0..OWN_LANES {
            let own = &self.own[slot];
            if !own.busy.try_lock() {
                continue;
            }
            // Further lanes come from the upper half, so that they never block a new process.
            if own.index.load(Acquire) != 0 || matches!(self.claim(slot, LANES / 2..LANES), Ok(true)) {
                return Some(slot);
            }
            own.busy.unlock();
            break;
        }
        self.own[0].busy.lock_within(LANE_PATIENCE).then_some(0)
    }

    /// Claims a free lane of `range` for slot `slot`. Returns false if none is free.
    fn claim(&self, slot: usize, range: std::ops::Range<usize>) -> io::Result<bool> {
        let _kept = errno::keep();
        let region = self.region();
        let start = std::process::id() as usize % range.len();
        let order = range.clone().skip(start).chain(range.take(start));
        for index in order {
            let lane = &region.lanes[index];
            if !lane.generation.load(Acquire).is_multiple_of(2) {
                continue;
            }
            let Some(lock) = PinnedLock::take(&self.file, self.at + lane_offset(index))? else {
                continue;
            };
            let generation = lane.generation.load(Acquire);
            if !generation.is_multiple_of(2) || generation >= Stamp::LAST - 1 {
                continue;
            }
            self.take_lane(lane, index, generation + 1);
            self.own[slot].index.store(index, Release);
            self.locks.lock().push(lock);
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes this process into a lane that is free and locked. The generation is last: once it is odd, the lane is
    /// considered dead if no process holds its lock.
    fn take_lane(&self, lane: &Lane, index: usize, generation: u64) {
        let claim = Stamp {
            lane: index,
            number: generation,
        };
        let first = self.process.compare_exchange(0, claim.pack(), AcqRel, Acquire);
        lane.process.store(first.err().unwrap_or(claim.pack()), Relaxed);
        lane.pid.store(std::process::id(), Relaxed);
        lane.pid_namespace.store(pid_namespace(), Relaxed);
        lane.context.store(0, Relaxed);
        lane.charged[0].store(0, Relaxed);
        lane.charged[1].store(0, Relaxed);
        lane.applied.fetch_max(lane.sequence.load(Relaxed), AcqRel);
        lane.generation.store(generation, Release);
    }

    /// Reaps, after waiting for another reaper for at most `patience`. Returns the number of released lanes, plus 1 if
    /// it waited for another reaper, which may have released some.
    fn reap(&self, scope: Scope, patience: Duration) -> usize {
        let _kept = errno::keep();
        let (lock, waited) = self.reaper(patience);
        if lock.is_none() {
            return waited;
        }
        let region = self.region();
        let count = {
            let no_fork = fork::guard();
            let Ok(file) = self.file.open(&no_fork) else {
                return waited;
            };
            reap(region, scope, |index| {
                matches!(file::is_locked(&file, self.at + lane_offset(index)), Ok(false)) && file.check().is_ok()
            })
        };
        drop(lock);
        match count {
            Ok(count) => count + waited,
            Err(_) => {
                self.warn_of_damage();
                waited
            }
        }
    }

    /// Takes the reaper's lock, waiting for at most `patience`. Also returns 1 if another process had it, else 0.
    pub(super) fn reaper(&self, patience: Duration) -> (Option<PinnedLock>, usize) {
        let vain = self.in_vain.load(Relaxed);
        let is_vain = vain != 0 && coarse_millis().saturating_sub(vain) < IN_VAIN;
        let mut patience = Patience::new(if is_vain { Duration::ZERO } else { patience });
        let mut waited = 0;
        loop {
            match PinnedLock::take(&self.file, self.at + lane_offset(REAPER)) {
                Ok(Some(lock)) => {
                    self.in_vain.store(0, Relaxed);
                    return (Some(lock), waited);
                }
                Ok(None) if patience.nap() => waited = 1,
                Ok(None) => {
                    if waited > 0 {
                        self.in_vain.store(coarse_millis(), Relaxed);
                    }
                    return (None, waited);
                }
                Err(_) => return (None, waited),
            }
        }
    }

    /// Waits for a lock that only one process of the share can hold. Returns None after `patience`, or without a free
    /// descriptor.
    pub fn turn(&self, patience: Duration) -> Option<PinnedLock> {
        let mut patience = Patience::new(patience);
        loop {
            match PinnedLock::take(&self.file, self.at + TURN_AT) {
                Ok(None) if patience.nap() => sleep(BETWEEN_TURNS),
                taken => return taken.ok().flatten(),
            }
        }
    }

    #[inline(always)]
    pub(super) fn region(&self) -> &Region {
        // SAFETY: the mapping has the size of a Region and a page's alignment, and lives as long as self. Every byte
        // pattern is a value of a Region, and other processes change it by atomic operations only.
        unsafe { self.mapping.start().cast::<Region>().as_ref() }
    }

    #[cold]
    pub(super) fn warn_of_damage(&self) {
        if !self.damaged.swap(true, Relaxed) {
            stderr::say(&format!(
                "{}: the ledger was damaged while in use: allocations fail from now on, frees pass; restart the pod or the command",
                self.file.path().display()
            ));
        }
    }
}

/// Returns the inode of this process's PID namespace, or 0 if /proc cannot be read.
#[must_use]
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}
