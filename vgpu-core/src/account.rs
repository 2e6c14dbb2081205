//! What one GPU's shares allow together, as this process sees it: one GPU with their sum.
//!
//! ```text
//!  reserve(bytes) ─► share 0: what fits ─► share 1: the rest ─► ... ─► Charge, or all undone
//! ```
//!
//! A charge remembers its parts. Killed between two parts, a process leaves what each ledger
//! already knows, and that is given back there.

use crate::ledger::share::{OpenError, Refusal, Reservation, Share};
use std::time::Duration;

/// How old a look for dead processes may be when someone asks what is free.
const LOOK_AGE: Duration = Duration::from_millis(200);

/// The shares of one GPU, in order.
#[derive(Debug)]
pub struct Account {
    shares: Vec<Share>,
}

/// What an allocation was charged, to be released once.
#[derive(Debug)]
#[must_use = "bytes stay charged until this is released"]
pub struct Charge {
    first: Part,
    rest: Option<Box<[Part]>>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    share: u8,
    reservation: Reservation,
}

impl Account {
    /// An account over `shares`, at least one.
    #[must_use]
    pub fn new(shares: Vec<Share>) -> Self {
        Self { shares }
    }

    /// Opens the shares of one GPU.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub fn open(grants: &crate::grants::GpuGrants) -> Result<Self, OpenError> {
        let open = |grant: &crate::grants::Grant| {
            let mark = vgpu_abi::ledger::share_mark(&grant.limits.share, &grant.limits.gpu);
            Share::open(
                &grant.directory.join(vgpu_abi::paths::LEDGER),
                mark,
                grant.limits.memory,
            )
        };
        Ok(Self::new(grants.shares.iter().map(open).collect::<Result<_, _>>()?))
    }

    /// The sum of the limits.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self.shares.as_slice() {
            [one] => one.limit(),
            many => many.iter().fold(0, |sum, share| sum.saturating_add(share.limit())),
        }
    }

    /// The sum of the charges of all processes; never more than the limit.
    #[inline]
    #[must_use]
    pub fn charged(&self) -> u64 {
        let charged = |share: &Share| share.charged().min(share.limit());
        match self.shares.as_slice() {
            [one] => charged(one),
            many => many.iter().fold(0, |sum, share| sum.saturating_add(charged(share))),
        }
    }

    /// Gives back what dead processes hold, unless that was done a moment ago.
    #[inline]
    pub fn look(&self) {
        for share in &self.shares {
            share.look(LOOK_AGE);
        }
    }

    /// Charges `bytes`, or nothing.
    ///
    /// # Errors
    /// Why not.
    #[inline(always)]
    pub fn reserve(&self, bytes: u64) -> Result<Charge, Refusal> {
        let [one] = self.shares.as_slice() else {
            return self.split(bytes);
        };
        let reservation = one.reserve(bytes)?;
        Ok(Charge {
            first: Part {
                bytes,
                share: 0,
                reservation,
            },
            rest: None,
        })
    }

    /// Gives a charge back.
    #[inline(always)]
    pub fn release(&self, charge: Charge) {
        self.give_back(&charge.first);
        if let Some(rest) = charge.rest {
            self.give_back_all(&rest);
        }
    }

    #[cold]
    fn give_back_all(&self, parts: &[Part]) {
        parts.iter().for_each(|part| self.give_back(part));
    }

    /// Gives back all of a charge but its first `keep` bytes.
    pub fn shrink(&self, charge: &mut Charge, keep: u64) {
        let mut left = keep;
        let rest = charge.rest.iter_mut().flat_map(|rest| rest.iter_mut());
        for part in std::iter::once(&mut charge.first).chain(rest) {
            let kept = part.bytes.min(left);
            left -= kept;
            if kept < part.bytes {
                self.give_back(&Part {
                    bytes: part.bytes - kept,
                    ..*part
                });
                part.bytes = kept;
            }
        }
    }

    /// Notes that this process has a context on the GPU.
    pub fn note_context(&self) {
        self.shares.iter().for_each(Share::note_context);
    }

    /// The processes of this PID namespace and what they hold, over all shares, by PID.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for (pid, charged) in self.shares.iter().flat_map(Share::processes) {
            let sum = sums.entry(pid).or_insert(0_u64);
            *sum = charged.saturating_add(*sum);
        }
        sums.into_iter().collect()
    }

    #[inline(always)]
    fn give_back(&self, part: &Part) {
        if let Some(share) = self.shares.get(usize::from(part.share)) {
            share.release(part.reservation, part.bytes);
        }
    }

    #[cold]
    fn split(&self, bytes: u64) -> Result<Charge, Refusal> {
        let mut parts: Vec<Part> = Vec::new();
        let mut left = bytes;
        let mut refusal = Refusal::Limit;
        for pass in 0..2 {
            for (index, share) in self.shares.iter().enumerate() {
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
                                share: u8::try_from(index).unwrap_or(u8::MAX),
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
                self.shares.iter().for_each(|share| share.look(Duration::ZERO));
            }
        }
        let mut parts = parts.into_iter();
        match parts.next() {
            Some(first) if left == 0 => Ok(Charge {
                first,
                rest: Some(parts.collect::<Box<[Part]>>()).filter(|rest| !rest.is_empty()),
            }),
            first => {
                first
                    .iter()
                    .chain(parts.as_slice())
                    .for_each(|part| self.give_back(part));
                Err(refusal)
            }
        }
    }
}

impl Charge {
    /// Takes `other`, of the same account, in.
    pub fn join(&mut self, other: Self) {
        let rest = self.rest.take().unwrap_or_default().into_vec();
        let more = other.rest.unwrap_or_default().into_vec();
        self.rest = Some(rest.into_iter().chain([other.first]).chain(more).collect());
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rest
            .iter()
            .flatten()
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
