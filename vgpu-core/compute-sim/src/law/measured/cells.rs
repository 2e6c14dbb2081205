//! Cells of the share's page as leases: a process has one while it has work in flight, so any number of processes can
//! share them.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use vgpu_abi::arbitration::SlotPage;
use vgpu_core::compute::account;

use super::{Config, Measured};
use crate::law::io::{Io, Words};
use crate::{MS, Ns, S};

/// Deaths before this are forgotten, and no burial charges more.
const REMEMBERED: Ns = 600 * S;
/// What a burial charges at most without the bound that doubles.
const MOST: Ns = 10_000 * MS;

impl Measured {
    /// Returns true if this process has a cell, if need be that of another one which has nothing in flight.
    pub(super) fn has_cell(&mut self, io: &mut Io<'_>) -> bool {
        let page = io.page;
        if self.owns_cell(page) {
            return true;
        }
        for (index, cell) in page.cells.iter().enumerate() {
            let owner = cell.owner.load(Relaxed);
            if owner == 0 || cell.busy_since.load(Relaxed) == 0 || io.living.is_dead(owner) {
                bury(&self.config, page, io.words, self.entry.weight, index, io.now);
                cell.owner.store(self.owner, Relaxed);
                self.cell = index;
                return true;
            }
        }
        false
    }

    pub(super) fn owns_cell(&self, page: &SlotPage) -> bool {
        let cell = page.cells.get(self.cell);
        cell.is_some_and(|cell| cell.owner.load(Relaxed) == self.owner)
    }

    /// Charges what processes of the share had in flight that are dead.
    pub(super) fn bury_the_dead(&mut self, io: &mut Io<'_>) {
        for (index, cell) in io.page.cells.iter().enumerate() {
            let owner = cell.owner.load(Relaxed);
            if owner != 0 && cell.busy_since.load(Relaxed) != 0 && io.living.is_dead(owner) {
                bury(&self.config, io.page, io.words, self.entry.weight, index, io.now);
                cell.owner.store(0, Relaxed);
            }
        }
    }
}

/// Charges what a cell's process had in flight, by the clock until it was found dead. Nobody knows when it died, so the
/// charge has a bound, which doubles with each such death: otherwise a share could have work for nothing.
pub(crate) fn bury(config: &Config, page: &SlotPage, words: &mut Words, weight: u32, cell: usize, now: Ns) {
    let cell = &page.cells[cell];
    let since = cell.busy_since.swap(0, AcqRel);
    cell.estimated.store(0, Relaxed);
    if since == 0 || since >= now {
        return;
    }
    if now.saturating_sub(words.buried_at) > REMEMBERED {
        words.burials = 0;
    }
    let bound = match config.burial {
        None => MOST,
        Some(first) => (first << words.burials.min(16)).min(REMEMBERED),
    };
    words.burials += 1;
    words.buried_at = now;
    account::charge_work(page, weight, since, now.min(since + bound), None);
}
