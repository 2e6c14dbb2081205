//! A charge that follows what the driver says it keeps: it rises and falls with that, in parts.

use crate::hooks::{graphs, pools};
use crate::process::Gpu;
use vgpu_core::account::Charge;
use vgpu_core::os::spin::Patience;

/// What is charged for one thing of the driver's.
#[derive(Debug, Default)]
pub(crate) struct Level {
    charges: Vec<Charge>,
    bytes: u64,
}

impl Level {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in what was reserved ahead of a call.
    pub(crate) fn add(&mut self, charge: Charge) {
        self.bytes += charge.bytes();
        self.charges.push(charge);
    }

    /// Charges `bytes` in all; false: that much is not free, and it stays charged less.
    pub(crate) fn set(&mut self, gpu: &Gpu, bytes: u64) -> bool {
        while self.bytes > bytes {
            let Some(mut last) = self.charges.pop() else { break };
            let (whole, surplus) = (last.bytes(), self.bytes - bytes);
            if surplus < whole {
                gpu.account.shrink(&mut last, whole - surplus);
                self.charges.push(last);
                self.bytes = bytes;
            } else {
                gpu.account.release(last);
                self.bytes -= whole;
            }
        }
        if self.bytes < bytes {
            match gpu.account.reserve(bytes - self.bytes) {
                Ok(more) => self.add(more),
                Err(_) => return false,
            }
        }
        true
    }
}

/// Charges pools and graphs what they reserve now.
pub(crate) fn refresh(gpu: &Gpu) {
    pools::refresh(gpu);
    graphs::refresh(gpu);
}

/// The same, as long as `patience` lasts for the calls that others are in; false: it did not.
pub(crate) fn refresh_with(gpu: &Gpu, patience: &mut Patience) -> bool {
    pools::refresh_with(gpu, patience) && graphs::refresh_with(gpu, patience)
}
