//! The charge for what contexts, code and the limits of contexts take on one GPU. How it is measured:
//! [`measure`](super::measure).

use vgpu_core::account::Account;
use vgpu_core::calls::UnderWay;
use vgpu_core::memory::tracked_charge::TrackedCharge;

#[derive(Debug, Default)]
pub(crate) struct Overhead {
    pub(crate) charge: TrackedCharge,
    pub(crate) measured: u64,
    /// It may be less than what is charged: something was given back unseen, or a call did not end.
    pub(crate) may_fall: bool,
    /// Calls of others that were waited for in vain.
    pub(crate) in_vain: UnderWay,
}

impl Overhead {
    /// After the last context went; nothing is left of it.
    pub(crate) fn clear(&mut self, account: &Account) {
        *self = Self {
            charge: core::mem::take(&mut self.charge),
            ..Self::default()
        };
        self.charge.set(account, 0);
    }
}
