//! The overhead of this process on one GPU: the charge for the memory of contexts, code and limits of contexts, and
//! what the last measurement found. [`measure`](super::measure) sets it.

use super::tracked_charge::TrackedCharge;
use crate::account::Account;
use crate::calls::UnderWay;

#[derive(Debug, Default)]
pub struct Overhead {
    pub charge: TrackedCharge,
    /// Bytes after the last measurement, even if they could not be charged.
    pub measured: u64,
    /// The next measurement may find less: memory may have been freed unmeasured, or a call did not end.
    pub may_fall: bool,
    /// Calls of other threads that did not end while a measurement waited for them.
    pub in_vain: UnderWay,
}

impl Overhead {
    /// Releases the whole charge, after the last context was destroyed.
    pub fn clear(&mut self, account: &Account) {
        *self = Self {
            charge: core::mem::take(&mut self.charge),
            ..Self::default()
        };
        self.charge.set(account, 0);
    }
}
