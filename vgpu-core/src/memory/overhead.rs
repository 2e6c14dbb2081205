//! The charge for the memory that contexts, code and the limits of contexts take on one GPU;
//! [`measure`](super::measure) sets it.

use super::tracked_charge::TrackedCharge;
use crate::account::Account;
use crate::calls::UnderWay;

#[derive(Debug, Default)]
pub struct Overhead {
    pub charge: TrackedCharge,
    pub measured: u64,
    /// It may be less than what is charged: something was given back unseen, or a call did not end.
    pub may_fall: bool,
    /// Calls of others that were waited for in vain.
    pub in_vain: UnderWay,
}

impl Overhead {
    /// After the last context went; nothing is left of it.
    pub fn clear(&mut self, account: &Account) {
        *self = Self {
            charge: core::mem::take(&mut self.charge),
            ..Self::default()
        };
        self.charge.set(account, 0);
    }
}
