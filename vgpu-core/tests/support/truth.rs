//! The software GPU's own account, with which the ledger is compared.

use super::Bench;
use super::serve::Serving;
use super::text::number;

/// The software GPU's own account of the bench's first GPU.
pub(crate) struct Truth {
    client: Serving,
    idle: u64,
}

impl Truth {
    /// Must be created while no process uses the GPU.
    pub(crate) fn new(bench: &Bench) -> Self {
        let client = Serving::new(bench.bare(&["serve"]));
        let mut truth = Self { client, idle: 0 };
        truth.idle = truth.used();
        truth
    }

    /// Returns the bytes in use.
    pub(crate) fn used(&mut self) -> u64 {
        // result, count, then UUID, total and used of each GPU
        number(&self.client.ask("memory"), 4) - self.idle
    }
}
