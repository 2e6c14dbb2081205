//! Cells of the share's page as leases: a process has one while it has work in flight, so any number of processes can
//! share them.
//!
//! How it fails: if two processes take one cell at once, one gets it. A process whose cell was taken while it had
//! nothing in flight takes another cell the next time that one of its launches asks; anything it publishes in between
//! is overwritten. The work in flight of a killed process is charged by the next process of its share that asks.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use vgpu_abi::arbitration::{Cell, SlotPage};

use super::Limiter;
use super::call::Call;
use super::config::BURIAL;
use crate::compute::{MS, Ns, account};

/// How long a death affects the charge for later deaths.
const REMEMBERED: Ns = 600_000 * MS;
/// Work that began more recently than this is not charged as a dead process's: a living process's cell may just have
/// been taken.
const NO_DEATH: Ns = MS;
/// The largest charge for one death. This is enough, because a program in a crash loop restarts later each time and the
/// GPU is idle in between.
const MOST: Ns = 10_000 * MS;

impl Limiter {
    /// Returns true if this process has a cell, or can take one from a process that has nothing in flight.
    pub(super) fn has_cell(&mut self, call: &mut Call<'_>) -> bool {
        if self.owns_cell(call.page) {
            return true;
        }
        // Cells without an owner first: an owner with nothing in flight may be about to launch.
        let all = call.page.cells.iter().enumerate();
        let mut cells: Vec<(usize, &Cell, u64)> = all
            .map(|(index, cell)| (index, cell, cell.owner.load(Acquire)))
            .collect();
        cells.sort_by_key(|(_, _, owner)| *owner != 0);
        for (index, cell, owner) in cells {
            let is_free = owner == 0 || cell.busy_since.load(Relaxed) == 0;
            if !is_free && owner != self.owner && !call.process.is_dead(owner, cell) {
                continue;
            }
            if cell.owner.compare_exchange(owner, self.owner, AcqRel, Relaxed).is_ok() {
                bury(call.page, cell, self.entry.weight, call.now);
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

    /// Charges the work in flight of dead processes of the share.
    pub(super) fn bury_the_dead(&self, call: &mut Call<'_>) {
        for (index, cell) in call.page.cells.iter().enumerate() {
            let owner = cell.owner.load(Acquire);
            let is_busy = owner != 0 && cell.busy_since.load(Relaxed) != 0;
            // A former process with the identity of this process is dead.
            let is_predecessor = owner == self.owner && index != self.cell;
            let is_dead = is_busy && (is_predecessor || owner != self.owner && call.process.is_dead(owner, cell));
            // The cell is taken first: otherwise another process could take it, and that process's work would be
            // charged.
            if is_dead && cell.owner.compare_exchange(owner, self.owner, AcqRel, Relaxed).is_ok() {
                bury(call.page, cell, self.entry.weight, call.now);
                cell.owner.store(0, Release);
            }
        }
    }
}

/// Charges the work in flight of a dead process, from its begin until now. When it died is unknown, so the charge is bounded by
/// [`BURIAL`], which doubles with each such death: otherwise a share could use the GPU for free by killing its processes.
pub fn bury(page: &SlotPage, cell: &Cell, weight: u32, now: Ns) {
    let since = cell.busy_since.swap(0, AcqRel);
    cell.estimated.store(0, Relaxed);
    if since == 0 || since >= now {
        return;
    }
    let ends = &page.ends;
    if now - since < NO_DEATH {
        account::charge_work(page, weight, since, now, None);
        return;
    }
    if now.saturating_sub(ends.buried_at.load(Relaxed)) > REMEMBERED {
        ends.burials.store(0, Relaxed);
    }
    let before = ends.burials.fetch_add(1, Relaxed);
    ends.buried_at.store(now, Relaxed);
    let bound = (BURIAL << before.min(16)).min(MOST);
    account::charge_work(page, weight, since, now.min(since.saturating_add(bound)), None);
}
