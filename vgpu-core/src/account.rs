//! The shares of this process on one GPU, charged together: a program sees one GPU with the sum of their memory.
//!
//! ```text
//!  reserve(bytes) ─► share 0: what fits ─► share 1: the rest ─► ... ─► Charge, or all undone
//! ```
//!
//! A charge remembers its parts. If a process is killed between two parts, each ledger releases the part that it
//! already has.
//!
//! All ledgers are in one list, each with its kind of memory. The common case, one ledger of device memory and no
//! watch, has a fast path; cold functions handle all others.

mod exports;

use crate::ledger::share::{OwnCharge, Refusal, Reservation, Share};
use crate::ledger::{OpenError, Refused};
use crate::os::pinned::PinnedLock;
use std::time::Duration;

/// [`Account::reap`] does nothing if this process reaped less than this ago: a reap costs some microseconds.
const REAP_AGE: Duration = Duration::from_millis(10);

/// The ledgers of one GPU's shares: first those of device memory, in the order of the shares, then those of host
/// memory.
#[derive(Debug)]
pub struct Account {
    ledgers: Vec<Ledger>,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Ledger {
    kind: Kind,
    share: Share,
}

/// The kind of memory that a ledger is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Device,
    Host,
}

/// The kind of a ledger and its index in the account's list, in one word. Not an enum: an enum would have unused
/// values, which the compiler would use for `None` and would have to check for. That would cost twenty instructions for
/// an allocation and its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32);

/// Called after each change of the charges.
pub struct Watch(pub Box<dyn Fn(&Account) + Send + Sync>);

/// The charge of one allocation. It must be released exactly once.
#[derive(Debug)]
#[must_use = "bytes stay charged until this is released"]
pub struct Charge {
    first: Part,
    /// Boxed twice to keep `Charge` small: it is moved often and nearly always has one part.
    #[allow(clippy::box_collection)]
    rest: Option<Box<Vec<Part>>>,
}

/// The part of a charge in one ledger. It has no padding, so that moves stay in registers.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    place: Place,
    reservation: Reservation,
}
const _: () = assert!(size_of::<Part>() == 16);

/// The charges of this process, lane by lane. Two equal values mean that nothing changed between the two reads.
#[derive(Debug, PartialEq, Eq)]
pub struct Own(Vec<OwnCharge>);

impl Account {
    /// Returns an account for `shares`; there must be at least one.
    #[must_use]
    pub fn new(shares: Vec<Share>) -> Self {
        Self::with(shares, Vec::new())
    }

    pub(crate) fn with(device: Vec<Share>, host: Vec<Share>) -> Self {
        let device = device.into_iter().map(|share| (Kind::Device, share));
        let host = host.into_iter().map(|share| (Kind::Host, share));
        Self {
            ledgers: device.chain(host).map(|(kind, share)| Ledger { kind, share }).collect(),
            watch: None,
        }
    }

    /// The same account, which calls `watch` after each change.
    #[must_use]
    pub fn watched(self, watch: Watch) -> Self {
        Self {
            watch: Some(watch),
            ..self
        }
    }

    /// Opens the shares of one GPU.
    ///
    /// # Errors
    /// The first share that cannot be opened.
    pub fn open(grants: &crate::grants::GpuGrants) -> Result<Self, OpenError> {
        let open = |grant: &crate::grants::Grant, at, limit| {
            let checksum = vgpu_abi::ledger::share_checksum(&grant.limits.share, &grant.limits.gpu);
            let path = grant.directory.join(vgpu_abi::paths::LEDGER);
            Share::open_at(&path, at, grant.device, checksum, limit)
        };
        let device = grants.shares.iter().map(|grant| open(grant, 0, grant.limits.memory));
        let extended = grants.shares.iter().filter(|grant| grant.limits.host_memory > 0);
        let host = extended.map(|grant| open(grant, vgpu_abi::ledger::HOST_AT, grant.limits.host_memory));
        Ok(Self::with(
            device.collect::<Result<_, _>>()?,
            host.collect::<Result<_, _>>()?,
        ))
    }

    /// Waits for a lock that only one process of the share can hold. Returns None after `patience`, or without a free
    /// descriptor.
    #[must_use]
    pub fn turn(&self, patience: Duration) -> Option<PinnedLock> {
        self.of(Kind::Device).next()?.1.turn(patience)
    }

    /// Returns the only ledger if there is no host memory and no watch.
    #[inline(always)]
    fn only(&self) -> Option<&Share> {
        match (self.ledgers.as_slice(), &self.watch) {
            ([one], None) => Some(&one.share),
            _ => None,
        }
    }

    /// Returns every ledger: device memory first, then host memory.
    fn all(&self) -> impl Iterator<Item = &Share> {
        self.ledgers.iter().map(|ledger| &ledger.share)
    }

    /// Returns the ledgers of one kind, with their places.
    fn of(&self, kind: Kind) -> impl Iterator<Item = (Place, &Share)> {
        let numbered = (0..).zip(&self.ledgers);
        numbered.filter_map(move |(at, ledger)| (ledger.kind == kind).then_some((Place::new(kind, at), &ledger.share)))
    }

    /// Returns the sum of the limits of device and host memory: the most that a program can allocate.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self.only() {
            Some(one) => one.limit(),
            None => self.all().fold(0, |sum, share| sum.saturating_add(share.limit())),
        }
    }

    /// Returns the sum of the charges of all processes, including host memory; never more than the limit.
    #[inline]
    #[must_use]
    pub fn charged(&self) -> u64 {
        let charged = |share: &Share| share.charged().min(share.limit());
        match self.only() {
            Some(one) => charged(one),
            None => self.all().fold(0, |sum, share| sum.saturating_add(charged(share))),
        }
    }

    /// Returns the device memory that this process has charged.
    #[must_use]
    pub fn own(&self) -> Own {
        Own(self.of(Kind::Device).flat_map(|(_, share)| share.own()).collect())
    }

    /// Returns the bytes that a program can still allocate. `physical` bytes are free on the GPU; that bounds device
    /// memory only.
    #[inline]
    #[must_use]
    pub fn free(&self, physical: u64) -> u64 {
        match self.only() {
            Some(one) => one.limit().saturating_sub(one.charged()).min(physical),
            None => {
                let device = self.free_of(Kind::Device).min(physical);
                device.saturating_add(self.free_of(Kind::Host))
            }
        }
    }

    /// Returns true if allocations may use host memory once device memory is full.
    #[must_use]
    pub fn has_host(&self) -> bool {
        self.of(Kind::Host).next().is_some()
    }

    /// Returns the free bytes of host memory.
    #[must_use]
    pub fn host_room(&self) -> u64 {
        self.free_of(Kind::Host)
    }

    fn free_of(&self, kind: Kind) -> u64 {
        let free = |share: &Share| share.limit().saturating_sub(share.charged());
        self.of(kind).fold(0, |sum, (_, share)| sum.saturating_add(free(share)))
    }

    /// Charges `bytes` of host memory, or nothing.
    ///
    /// # Errors
    /// The limit is reached, or the ledger is damaged.
    #[cold]
    pub fn reserve_host(&self, bytes: u64) -> Result<Charge, Refusal> {
        self.split(Kind::Host, bytes)
    }

    /// Releases the charges of dead processes, unless this process did so a moment ago.
    #[inline]
    pub fn reap(&self) {
        match self.only() {
            Some(one) => one.reap_if_older(REAP_AGE),
            None => {
                self.all().for_each(|share| share.reap_if_older(REAP_AGE));
                self.notify();
            }
        }
    }

    /// Charges `bytes`, or nothing.
    ///
    /// # Errors
    /// The limit is reached, or the ledger is damaged.
    #[inline(always)]
    pub fn reserve(&self, bytes: u64) -> Result<Charge, Refusal> {
        let Some(one) = self.only() else {
            // Taken apart and rebuilt: otherwise the compiler would store the charge in memory even in the common case.
            let Charge { first, rest } = self.reserve_split(bytes)?;
            return Ok(Charge { first, rest });
        };
        let first = Part {
            bytes,
            place: Place::new(Kind::Device, 0),
            reservation: one.reserve(bytes)?,
        };
        Ok(Charge { first, rest: None })
    }

    #[cold]
    fn reserve_split(&self, bytes: u64) -> Result<Charge, Refusal> {
        self.split(Kind::Device, bytes)
    }

    /// Releases a charge.
    #[inline(always)]
    pub fn release(&self, charge: Charge) {
        self.give_back(charge.first);
        if let Some(rest) = charge.rest {
            self.give_back_all(&rest);
        }
    }

    #[cold]
    fn give_back_all(&self, parts: &[Part]) {
        parts.iter().for_each(|part| self.give_back(*part));
    }

    /// Releases all of a charge but its first `keep` bytes.
    pub fn shrink(&self, charge: &mut Charge, keep: u64) {
        let mut left = keep;
        for part in charge.parts_mut() {
            let kept = part.bytes.min(left);
            left -= kept;
            if kept < part.bytes {
                self.give_back(Part {
                    bytes: part.bytes - kept,
                    ..*part
                });
                part.bytes = kept;
            }
        }
    }

    /// Notes that this process has a context on the GPU.
    pub fn note_context(&self) {
        self.all().for_each(Share::note_context);
    }

    /// Returns true if another process of a share may be creating its first context: see
    /// [`Share::is_another_starting`].
    #[must_use]
    pub fn is_another_starting(&self) -> bool {
        self.of(Kind::Device).any(|(_, share)| share.is_another_starting())
    }

    /// Records in each share of the GPU that a call failed with out of memory.
    #[cold]
    pub fn note_refusal(&self, refused: Refused) {
        self.of(Kind::Device).for_each(|(_, share)| share.note_refusal(refused));
    }

    /// Returns true if one more byte of device memory could be charged.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.free_of(Kind::Device) > 0
    }

    /// The sum of the limits of device memory.
    #[must_use]
    pub fn device_limit(&self) -> u64 {
        let limits = self.of(Kind::Device).map(|(_, share)| share.limit());
        limits.fold(0, u64::saturating_add)
    }

    /// Returns the size of the largest context of a process of these shares, if any was measured.
    #[must_use]
    pub fn context_took(&self) -> Option<u64> {
        self.of(Kind::Device)
            .filter_map(|(_, share)| share.context_took())
            .max()
    }

    /// Records the size of a context of this process.
    pub fn note_context_took(&self, bytes: u64) {
        self.of(Kind::Device)
            .for_each(|(_, share)| share.note_context_took(bytes));
    }

    /// The processes of this PID namespace and what they hold, over all shares, by PID.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for (pid, charged) in self.all().flat_map(Share::processes) {
            let sum = sums.entry(pid).or_insert(0_u64);
            *sum = charged.saturating_add(*sum);
        }
        sums.into_iter().collect()
    }

    /// Returns what each process holds, as [`Share::holders`] does, over all shares.
    pub fn holders(&self) -> impl Iterator<Item = (u64, u32, u64)> {
        self.all().flat_map(Share::holders)
    }

    #[inline(always)]
    fn give_back(&self, part: Part) {
        match self.only() {
            Some(one) => one.release(part.reservation, part.bytes),
            None => self.give_back_split(part),
        }
    }

    #[cold]
    fn give_back_split(&self, part: Part) {
        if let Some(ledger) = self.ledgers.get(part.place.index()) {
            ledger.share.release(part.reservation, part.bytes);
        }
        self.notify();
    }

    fn notify(&self) {
        if let Some(Watch(watch)) = &self.watch {
            watch(self);
        }
    }

    /// Charges the ledgers of one kind, one after the other.
    #[cold]
    fn split(&self, kind: Kind, bytes: u64) -> Result<Charge, Refusal> {
        let part = |place, bytes, reservation| Part {
            bytes,
            place,
            reservation,
        };
        let mut ledgers = self.of(kind);
        if let (Some((place, one)), None) = (ledgers.next(), ledgers.next()) {
            let reservation = one.reserve(bytes)?;
            self.notify();
            return Ok(Charge {
                first: part(place, bytes, reservation),
                rest: None,
            });
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut left = bytes;
        let mut refusal = Refusal::Limit;
        for pass in 0..2 {
            for (place, share) in self.of(kind) {
                // Another process may have taken what we saw free: ask again for what is left.
                while left > 0 || parts.is_empty() {
                    let take = left.min(share.limit().saturating_sub(share.charged()));
                    if take == 0 && left > 0 {
                        break;
                    }
                    match share.reserve(take) {
                        Ok(reservation) => {
                            parts.push(part(place, take, reservation));
                            left -= take;
                        }
                        Err(Refusal::Limit) => {}
                        Err(Refusal::Damaged) => {
                            refusal = Refusal::Damaged;
                            break;
                        }
                    }
                }
            }
            if left > 0 && pass == 0 {
                self.of(kind).for_each(|(_, share)| share.reap_if_older(Duration::ZERO));
            }
        }
        let mut parts = parts.into_iter();
        match parts.next() {
            Some(first) if left == 0 => {
                self.notify();
                Ok(Charge {
                    first,
                    rest: Some(parts.collect::<Vec<Part>>())
                        .filter(|rest| !rest.is_empty())
                        .map(Box::new),
                })
            }
            first => {
                first
                    .iter()
                    .chain(parts.as_slice())
                    .for_each(|part| self.give_back(*part));
                Err(refusal)
            }
        }
    }
}

impl Place {
    const HOST: u32 = 1 << 31;

    #[inline(always)]
    fn new(kind: Kind, index: u32) -> Self {
        Self(match kind {
            Kind::Device => index,
            Kind::Host => index | Self::HOST,
        })
    }

    fn index(self) -> usize {
        (self.0 & !Self::HOST) as usize
    }

    fn is_host(self) -> bool {
        self.0 & Self::HOST != 0
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Own {
    /// Returns the sum. It is exact for one moment if a second read is equal.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, lane| sum.saturating_add(lane.bytes))
    }
}

impl Charge {
    /// Adds the parts of `other`, a charge of the same account.
    pub fn join(&mut self, other: Self) {
        let rest = self.rest.get_or_insert_default();
        rest.push(other.first);
        rest.extend(other.rest.into_iter().flat_map(|more| *more));
    }

    /// Returns true if the charge is of host memory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.first.place.is_host()
    }

    /// Returns the bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.first).chain(self.rest.iter_mut().flat_map(|rest| rest.iter_mut()))
    }
}

/// Rounds `bytes` up to whole granules of `granule` (a power of two). None: too many.
#[inline]
#[must_use]
pub fn rounded(bytes: u64, granule: u64) -> Option<u64> {
    let mask = granule.checked_sub(1)?;
    Some(bytes.checked_add(mask)? & !mask)
}

#[cfg(all(test, not(miri)))] // The tests use files.
mod tests {
    use super::*;
    use crate::ledger::fresh;

    #[test]
    fn two_looks_are_equal_only_if_nothing_changed_between() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = Account::new(vec![fresh::share(folder.path(), "share", 1 << 30)]);
        let kept = account.reserve(3 << 20).expect("room");
        let before = account.own();
        assert_eq!((before.bytes(), &before), (3 << 20, &account.own()));
        let passing = account.reserve(1 << 20).expect("room");
        account.release(passing);
        assert_eq!(account.own().bytes(), 3 << 20, "what came has gone");
        assert_ne!(account.own(), before, "and is noticed all the same");
        account.release(kept);
    }
}
