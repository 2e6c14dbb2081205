//! The GPU time that a share has used. Each moment is charged once, for all streams and processes of the share
//! together.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vgpu_abi::arbitration::{Cell, SlotPage};

use super::turn::{DRAIN, scaled};
use super::{MS, Ns, bucket};

/// Charges the part of a measured time that was not charged yet. `at_most` bounds the charge where the measurement may contain
/// the work of other shares.
pub(super) fn charge_work(page: &SlotPage, weight: u32, from: Ns, to: Ns, at_most: Option<Ns>) {
    let before = page.covered.fetch_max(to, Relaxed);
    let measured = to.saturating_sub(from.max(before));
    let of_siblings = from.min(to).saturating_sub(with_siblings(page, from).max(before));
    let charge = of_siblings + at_most.map_or(measured, |most| measured.min(most));
    if at_most.is_some() {
        page.counters.overlapped.fetch_add(charge, Relaxed);
    }
    charge_time(page, weight, charge);
}

/// Charges time without a measurement: a turn that was kept while idle, or an estimate.
pub(super) fn charge_time(page: &SlotPage, weight: u32, charge: Ns) {
    page.counters.charged.fetch_add(charge, Relaxed);
    page.finish_tag.fetch_add(scaled(charge, weight), Relaxed);
    bucket::take(&page.bucket, charge);
}

/// Returns since when another process of the share has had work on the GPU, if that began before `from`. The time since
/// then is charged now, because that process can no longer charge time that is already covered.
fn with_siblings(page: &SlotPage, from: Ns) -> Ns {
    at_work(page, from)
        .map(|work| work.since)
        .filter(|since| *since < from)
        .min()
        .unwrap_or(from)
}

/// A limit for the work that a process has in flight: no process really has more. Limits the values of a damaged page.
const MOST: Ns = 10_000 * MS;

/// A bit of a cell's estimate: the length of some work in flight is unknown.
const UNKNOWN: u64 = 1 << 63;

/// The work in flight of one process of the share.
pub(super) struct Work {
    pub cell: usize,
    pub since: Ns,
    pub estimated: Ns,
    pub is_unknown: bool,
}

/// Publishes the work in flight of a process. It is valid until it is published again, should have ended, or the process is
/// found dead. Work of unknown length is valid for [`MOST`].
pub fn publish(cell: &Cell, now: Ns, since: Ns, estimated: Ns, is_unknown: bool) {
    let (word, lasts) = if is_unknown {
        (estimated | UNKNOWN, MOST)
    } else {
        (estimated, estimated + DRAIN)
    };
    cell.estimated.store(word, Relaxed);
    cell.valid_until.store(now + lasts, Relaxed);
    cell.busy_since.store(since, Release);
}

/// The processes of the share that have published work.
pub(super) fn at_work(page: &SlotPage, now: Ns) -> impl Iterator<Item = Work> {
    page.cells.iter().enumerate().filter_map(move |(cell, words)| {
        let (since, estimated) = (words.busy_since.load(Acquire), words.estimated.load(Relaxed));
        let is_valid = words.owner.load(Relaxed) != 0 && since != 0 && words.valid_until.load(Relaxed) >= now;
        is_valid.then(|| Work {
            cell,
            since,
            estimated: (estimated & !UNKNOWN).min(MOST),
            is_unknown: estimated & UNKNOWN != 0,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much of a measured time is charged.
    fn charged(page: &SlotPage, weight: u32, from: Ns, to: Ns, at_most: Option<Ns>) -> Ns {
        let before = page.counters.charged.load(Relaxed);
        charge_work(page, weight, from, to, at_most);
        page.counters.charged.load(Relaxed) - before
    }

    #[test]
    fn what_ran_at_once_is_charged_once() {
        let page = SlotPage::default();
        assert_eq!(charged(&page, 100_000, 10, 30, None), 20);
        assert_eq!(charged(&page, 100_000, 20, 40, None), 10);
        assert_eq!(charged(&page, 100_000, 12, 38, None), 0);
        assert_eq!(page.counters.charged.load(Relaxed), 30);
    }

    #[test]
    fn a_long_kernel_beside_short_ones_of_another_process_is_charged_whole() {
        let page = SlotPage::default();
        page.cells[0].owner.store(1, Relaxed);
        page.cells[0].busy_since.store(100, Relaxed);
        page.cells[0].valid_until.store(5000, Relaxed);
        let mut sum = 0;
        for at in [1000, 2000, 3000] {
            sum += charged(&page, 100_000, at, at + 50, None);
        }
        sum += charged(&page, 100_000, 100, 5000, None);
        assert_eq!(sum, 4900);
    }

    #[test]
    fn others_work_in_a_measurement_is_charged_up_to_the_limit() {
        let page = SlotPage::default();
        assert_eq!(charged(&page, 50_000, 0, 1000, Some(110)), 110);
        assert_eq!(page.finish_tag.load(Relaxed), 220, "half the weight, twice the tag");
        assert_eq!(page.bucket.tokens.load(Relaxed), -110);
    }
}
