//! This process's cell of its share's page: where it publishes what it has in flight.
//!
//! How it fails: a process that is killed leaves its cell. The next one that finds its PID dead charges what it had in
//! flight and frees the cell, or whichever comes a minute after its last launch, where it cannot be seen (another PID namespace). A process whose cell
//! was taken while it paused claims another one. Without a free cell, what it has in flight counts when it is measured.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use vgpu_abi::arbitration::{Cell, SlotPage};

use crate::compute::{MS, Ns, account};

/// A cell that says nothing for this long may be taken.
const STALE: Ns = 60_000 * MS;

/// The name of this process in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    pub(super) fn of_this_process() -> Self {
        Self(u64::from(std::process::id()) | namespace() << 32)
    }

    fn is_in_namespace_of(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    fn pid(self) -> libc::pid_t {
        libc::pid_t::try_from(self.0 & 0xffff_ffff).unwrap_or(0)
    }
}

/// Returns 32 bits of the PID namespace's number, 0 if it cannot be read.
fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = link.to_string_lossy();
    let number = digits.trim_start_matches("pid:[").trim_end_matches(']').parse::<u64>();
    number.unwrap_or(0) & 0xffff_ffff
}

/// Returns true if the cell is this process's.
pub(super) fn is_own(page: &SlotPage, cell: usize, owner: Owner) -> bool {
    page.cells
        .get(cell)
        .is_some_and(|cell| cell.owner.load(Relaxed) == owner.0)
}

/// Returns a cell for this process, or None if all are taken.
/// `weight` is the share's.
pub(super) fn claim(
    page: &SlotPage,
    weight: u32,
    owner: Owner,
    now: Ns,
    is_dead: impl Fn(libc::pid_t) -> bool,
) -> Option<usize> {
    page.cells.iter().position(|cell| {
        let known = Owner(cell.owner.load(Relaxed));
        let is_free = known.0 == 0 || known == owner || is_abandoned(cell, known, owner, now, &is_dead);
        let is_taken = || cell.owner.compare_exchange(known.0, owner.0, AcqRel, Relaxed).is_ok();
        if is_free && is_taken() {
            account::bury(page, weight, cell, now);
            cell.valid_until.store(now, Relaxed);
            return true;
        }
        false
    })
}

/// Frees the cells of processes that have ended, and charges what they had in flight.
pub(super) fn bury_the_dead(
    page: &SlotPage,
    weight: u32,
    owner: Owner,
    now: Ns,
    is_dead: impl Fn(libc::pid_t) -> bool,
) {
    for cell in &page.cells {
        let known = Owner(cell.owner.load(Relaxed));
        let is_at_work = known.0 != 0 && known != owner && cell.busy_since.load(Relaxed) != 0;
        if is_at_work
            && is_abandoned(cell, known, owner, now, &is_dead)
            && cell.owner.compare_exchange(known.0, owner.0, AcqRel, Relaxed).is_ok()
        {
            account::bury(page, weight, cell, now);
            cell.owner.store(0, Release);
        }
    }
}

fn is_abandoned(cell: &Cell, known: Owner, own: Owner, now: Ns, is_dead: impl Fn(libc::pid_t) -> bool) -> bool {
    if known.is_in_namespace_of(own) && known.pid() > 0 {
        return is_dead(known.pid());
    }
    cell.valid_until.load(Relaxed).saturating_add(STALE) < now
}

/// Returns true if no process has this PID.
#[allow(unsafe_code)] // One call of libc.
pub(super) fn is_dead(pid: libc::pid_t) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { libc::kill(pid, 0) };
    result != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_abi::arbitration::CELLS;

    const WEIGHT: u32 = 10_000;
    const ME: Owner = Owner(7 | 1 << 32);

    #[test]
    fn each_process_has_a_cell_until_all_are_taken() {
        let page = SlotPage::default();
        for pid in 1..=CELLS as u64 {
            assert_eq!(
                claim(&page, WEIGHT, Owner(pid | 1 << 32), 5, |_| false),
                Some(pid as usize - 1)
            );
        }
        assert_eq!(claim(&page, WEIGHT, Owner(100 | 1 << 32), 5, |_| false), None);
        assert_eq!(claim(&page, WEIGHT, ME, 5, |_| false), Some(6), "its own");
        assert_eq!(
            claim(&page, WEIGHT, Owner(100 | 1 << 32), 5, |pid| pid == 3),
            Some(2),
            "of a dead process"
        );
        assert!(is_own(&page, 2, Owner(100 | 1 << 32)) && !is_own(&page, CELLS, ME));
    }

    #[test]
    fn what_a_dead_process_had_in_flight_is_charged() {
        let charged = |is_unknown, now| {
            let page = SlotPage::default();
            let cell = &page.cells[0];
            cell.owner.store(3 | 1 << 32, Relaxed);
            account::publish(cell, MS, MS, 20 * MS, is_unknown);
            bury_the_dead(&page, WEIGHT, ME, now, |pid| pid == 3);
            assert_eq!(cell.owner.load(Relaxed), 0);
            page.counters.charged.load(Relaxed)
        };
        assert_eq!(charged(true, 500 * MS), 499 * MS, "all that it may have been");
        assert_eq!(charged(false, 500 * MS), 20 * MS, "its estimate");
        assert_eq!(charged(true, 60_000 * MS), 10_000 * MS, "and no more than this");
    }

    #[test]
    fn a_cell_of_another_namespace_is_taken_when_it_says_nothing_any_more() {
        let page = SlotPage::default();
        for cell in &page.cells {
            cell.owner.store(9 | 2 << 32, Relaxed);
            cell.valid_until.store(1000, Relaxed);
        }
        assert_eq!(
            claim(&page, WEIGHT, ME, 1000 + STALE, |_| true),
            None,
            "its PID says nothing here"
        );
        assert_eq!(claim(&page, WEIGHT, ME, 1001 + STALE, |_| false), Some(0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "processes")]
    fn this_process_lives() {
        let own = Owner::of_this_process();
        assert!(!is_dead(own.pid()) && own.0 >> 32 != 0);
    }
}
