//! What one GPU's shares allow together, as this process sees it: one GPU with their sum.
//!
//! ```text
//!  reserve(bytes) ─► share 0: what fits ─► share 1: the rest ─► ... ─► Charge, or all undone
//! ```
//!
//! A charge remembers its parts. Killed between two parts, a process leaves what each ledger
//! already knows, and that is given back there.
//!
//! Where shares have host memory too, or somebody is told of each change, the device shares lie in
//! `special` instead: the usual way stays what it is, and all that is unusual is behind its cold ends.

mod exports;

use crate::ledger::OpenError;
use crate::ledger::share::{OwnCharge, Refusal, Reservation, Share};
use std::time::Duration;

/// How old a look for dead processes may be when someone asks what is free.
const LOOK_AGE: Duration = Duration::from_millis(200);

/// The shares of one GPU, in order.
#[derive(Debug)]
pub struct Account {
    shares: Vec<Share>,
    /// In the place of `shares` in an account with host memory or a watch.
    special: Vec<Share>,
    /// The ledgers of host memory.
    host: Vec<Share>,
    watch: Option<Watch>,
}

/// Is told that what is charged has changed.
pub struct Watch(pub Box<dyn Fn(&Account) + Send + Sync>);

/// Parts beyond these numbers are of `special` and of `host`; a GPU has at most 64 shares.
const SPECIAL: usize = 64;
const HOST: usize = 128;

/// What an allocation was charged, to be released once.
#[derive(Debug)]
#[must_use = "bytes stay charged until this is released"]
pub struct Charge {
    first: Part,
    /// Boxed twice: a charge is moved often, and has one part nearly always.
    #[allow(clippy::box_collection)]
    rest: Option<Box<Vec<Part>>>,
}

/// Without padding: what is moved often stays in registers.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    share: u32,
    reservation: Reservation,
}
const _: () = assert!(size_of::<Part>() == 16);

/// What this process has charged, lane by lane; two that are equal have no change between them.
#[derive(Debug, PartialEq, Eq)]
pub struct Own(Vec<OwnCharge>);

impl Account {
    /// An account over `shares`, at least one.
    #[must_use]
    pub fn new(shares: Vec<Share>) -> Self {
        Self::with(shares, Vec::new(), None)
    }

    fn with(shares: Vec<Share>, host: Vec<Share>, watch: Option<Watch>) -> Self {
        let (shares, special) = if host.is_empty() && watch.is_none() {
            (shares, Vec::new())
        } else {
            (Vec::new(), shares)
        };
        Self {
            shares,
            special,
            host,
            watch,
        }
    }

    /// The same account, whose changes `watch` is told of.
    #[must_use]
    pub fn watched(self, watch: Watch) -> Self {
        let shares = if self.shares.is_empty() {
            self.special
        } else {
            self.shares
        };
        Self::with(shares, self.host, Some(watch))
    }

    /// Opens the shares of one GPU.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub fn open(grants: &crate::grants::GpuGrants) -> Result<Self, OpenError> {
        let open = |grant: &crate::grants::Grant, at, limit| {
            let mark = vgpu_abi::ledger::share_mark(&grant.limits.share, &grant.limits.gpu);
            Share::open_at(&grant.directory.join(vgpu_abi::paths::LEDGER), at, mark, limit)
        };
        let device = grants.shares.iter().map(|grant| open(grant, 0, grant.limits.memory));
        let extended = grants.shares.iter().filter(|grant| grant.limits.host_memory > 0);
        let host = extended.map(|grant| open(grant, vgpu_abi::ledger::HOST_AT, grant.limits.host_memory));
        Ok(Self::with(
            device.collect::<Result<_, _>>()?,
            host.collect::<Result<_, _>>()?,
            None,
        ))
    }

    /// Every ledger: of device memory, then of host memory.
    fn all(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().chain(&self.special).chain(&self.host)
    }

    fn device(&self) -> &[Share] {
        if self.shares.is_empty() {
            &self.special
        } else {
            &self.shares
        }
    }

    /// The sum of the limits, of host memory too: what a program can have altogether.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self.shares.as_slice() {
            [one] => one.limit(),
            _ => self.all().fold(0, |sum, share| sum.saturating_add(share.limit())),
        }
    }

    /// The sum of the charges of all processes, of host memory too; never more than the limit.
    #[inline]
    #[must_use]
    pub fn charged(&self) -> u64 {
        let charged = |share: &Share| share.charged().min(share.limit());
        match self.shares.as_slice() {
            [one] => charged(one),
            _ => self.all().fold(0, |sum, share| sum.saturating_add(charged(share))),
        }
    }

    /// What this process itself has charged of device memory.
    #[must_use]
    pub fn own(&self) -> Own {
        Own(self.device().iter().flat_map(Share::own).collect())
    }

    /// What a program can still have, where the GPU itself has `physical` free: that bounds device
    /// memory alone.
    #[inline]
    #[must_use]
    pub fn free(&self, physical: u64) -> u64 {
        match self.shares.as_slice() {
            [one] => one.limit().saturating_sub(one.charged()).min(physical),
            _ => free(self.device()).min(physical).saturating_add(free(&self.host)),
        }
    }

    /// Whether allocations may go on in host memory.
    #[must_use]
    pub fn has_host(&self) -> bool {
        !self.host.is_empty()
    }

    /// What host memory is not charged, to any process.
    #[must_use]
    pub fn host_room(&self) -> u64 {
        free(&self.host)
    }

    /// Charges `bytes` of host memory, or nothing.
    ///
    /// # Errors
    /// Why not.
    #[cold]
    pub fn reserve_host(&self, bytes: u64) -> Result<Charge, Refusal> {
        self.split(&self.host, HOST, bytes)
    }

    /// Gives back what dead processes hold, unless that was done a moment ago.
    #[inline]
    pub fn look(&self) {
        match self.shares.as_slice() {
            [one] => one.look(LOOK_AGE),
            _ => {
                self.all().for_each(|share| share.look(LOOK_AGE));
                self.tell();
            }
        }
    }

    /// Charges `bytes`, or nothing.
    ///
    /// # Errors
    /// Why not.
    #[inline(always)]
    pub fn reserve(&self, bytes: u64) -> Result<Charge, Refusal> {
        let [one] = self.shares.as_slice() else {
            // Taken apart, so that the usual way's charge is never in memory for this one's sake.
            let Charge { first, rest } = self.reserve_special(bytes)?;
            return Ok(Charge { first, rest });
        };
        let first = Part {
            bytes,
            share: 0,
            reservation: one.reserve(bytes)?,
        };
        Ok(Charge { first, rest: None })
    }

    #[cold]
    fn reserve_special(&self, bytes: u64) -> Result<Charge, Refusal> {
        if self.shares.is_empty() {
            self.split(&self.special, SPECIAL, bytes)
        } else {
            self.split(&self.shares, 0, bytes)
        }
    }

    /// Gives a charge back.
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

    /// Gives back all of a charge but its first `keep` bytes.
    pub fn shrink(&self, charge: &mut Charge, keep: u64) {
        let mut left = keep;
        let rest = charge.rest.iter_mut().flat_map(|rest| rest.iter_mut());
        for part in std::iter::once(&mut charge.first).chain(rest) {
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

    /// What every process holds, as [`Share::holders`] has it, over all shares.
    pub fn holders(&self) -> impl Iterator<Item = (u64, u32, u64)> {
        self.all().flat_map(Share::holders)
    }

    #[inline(always)]
    fn give_back(&self, part: Part) {
        match self.shares.get(part.share as usize) {
            Some(share) => share.release(part.reservation, part.bytes),
            None => self.give_back_special(part),
        }
    }

    #[cold]
    fn give_back_special(&self, part: Part) {
        let place = part.share as usize;
        let (shares, first) = if place >= HOST {
            (&self.host, HOST)
        } else {
            (&self.special, SPECIAL)
        };
        if let Some(share) = place.checked_sub(first).and_then(|at| shares.get(at)) {
            share.release(part.reservation, part.bytes);
        }
        self.tell();
    }

    fn tell(&self) {
        if let Some(Watch(watch)) = &self.watch {
            watch(self);
        }
    }

    /// Charges `shares`, whose parts are numbered from `first` on.
    #[cold]
    fn split(&self, shares: &[Share], first: usize, bytes: u64) -> Result<Charge, Refusal> {
        if let [one] = shares {
            let reservation = one.reserve(bytes)?;
            self.tell();
            let first = Part {
                bytes,
                share: u32::try_from(first).unwrap_or(u32::MAX),
                reservation,
            };
            return Ok(Charge { first, rest: None });
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut left = bytes;
        let mut refusal = Refusal::Limit;
        for pass in 0..2 {
            for (index, share) in shares.iter().enumerate() {
                // Another process may take what we saw free: ask again for what is left.
                while left > 0 || parts.is_empty() {
                    let take = left.min(share.limit().saturating_sub(share.charged()));
                    if take == 0 && left > 0 {
                        break;
                    }
                    match share.reserve(take) {
                        Ok(reservation) => {
                            parts.push(Part {
                                bytes: take,
                                share: u32::try_from(first + index).unwrap_or(u32::MAX),
                                reservation,
                            });
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
                shares.iter().for_each(|share| share.look(Duration::ZERO));
            }
        }
        let mut parts = parts.into_iter();
        match parts.next() {
            Some(first) if left == 0 => {
                self.tell();
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

fn free(shares: &[Share]) -> u64 {
    let free = |share: &Share| share.limit().saturating_sub(share.charged());
    shares.iter().fold(0, |sum, share| sum.saturating_add(free(share)))
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Own {
    /// The sum; of one moment if another look is equal.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, lane| sum.saturating_add(lane.bytes))
    }
}

impl Charge {
    /// Takes `other`, of the same account, in.
    pub fn join(&mut self, other: Self) {
        let rest = self.rest.get_or_insert_default();
        rest.push(other.first);
        rest.extend(other.rest.into_iter().flat_map(|more| *more));
    }

    /// Whether it is host memory that is charged.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.first.share as usize >= HOST
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rest
            .iter()
            .flat_map(|rest| rest.iter())
            .fold(self.first.bytes, |sum, part| sum.saturating_add(part.bytes))
    }
}

/// `bytes` rounded up to whole granules of `granule` (a power of two); None: too many.
#[inline]
#[must_use]
pub fn rounded(bytes: u64, granule: u64) -> Option<u64> {
    let mask = granule.checked_sub(1)?;
    Some(bytes.checked_add(mask)? & !mask)
}

#[cfg(test)]
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
