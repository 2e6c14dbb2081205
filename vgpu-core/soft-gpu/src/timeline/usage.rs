//! How much GPU time a process had in the window over which NVML measures.
//!
//! Each transaction of the schedule adds to `served`, and keeps the figures before and after it as samples if the last
//! one is old enough. Figures between two samples are interpolated, with an error below the distance of the samples,
//! which is 4 % of a window.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::words::{Name, SAMPLES, Usage, Words};

/// The least time between samples. All samples together cover more than WINDOW_NS.
pub(super) const SAMPLE_NS: u64 = 20_000_000;
/// The window over which utilisation is measured. NVML says "between 1/6 and 1 second".
pub const WINDOW_NS: u64 = 500_000_000;

fn of<'a>(words: Words<'a>, place: usize, gpu: usize) -> Option<&'a Usage> {
    words.usage.get(place)?.get(gpu)
}

/// Adds `ran` ns that a process had on the GPU between two moments.
pub(super) fn add(
    words: Words<'_>,
    (place, gpu): (usize, usize),
    [from, to]: [u64; 2],
    ran: u64,
    change: &mut impl FnMut(Name, u64, u64),
) {
    let Some(usage) = of(words, place, gpu) else { return };
    let (served, sampled) = (usage.served.load(Acquire), usage.sampled.load(Acquire));
    let last = &usage.samples[(sampled.wrapping_sub(1) % SAMPLES as u64) as usize];
    let (mut last, mut sample) = (last.at.load(Acquire), sampled);
    for (at, figure) in [(from, served), (to, served.saturating_add(ran))] {
        if sample > 0 && at.saturating_sub(last) < SAMPLE_NS {
            continue;
        }
        let place_of = &usage.samples[(sample % SAMPLES as u64) as usize];
        let old = [&place_of.at, &place_of.served].map(|word| word.load(Acquire));
        change(Name::SampleAt { place, gpu, sample }, old[0], at);
        change(Name::SampleServed { place, gpu, sample }, old[1], figure);
        (last, sample) = (at, sample + 1);
    }
    change(Name::Sampled { place, gpu }, sampled, sample);
    change(Name::Served { place, gpu }, served, served.saturating_add(ran));
}

pub(super) fn served(words: Words<'_>, place: usize, gpu: usize) -> u64 {
    of(words, place, gpu).map_or(0, |usage| usage.served.load(Acquire))
}

/// Records when a process joins, so that it is not charged for what earlier processes in its slot used.
pub fn join(words: Words<'_>, place: usize, now: u64) {
    for usage in words.usage.get(place).into_iter().flatten() {
        usage.since.store(now, Relaxed);
    }
}

/// Returns the start of a process's window that ends at `now`.
pub fn window(words: Words<'_>, place: usize, gpu: usize, now: u64) -> u64 {
    let since = of(words, place, gpu).map_or(0, |usage| usage.since.load(Relaxed));
    now.saturating_sub(WINDOW_NS).max(since.min(now))
}

/// Returns the GPU time that a slot had used at `then`, which must be before `at`, the time of the current figure.
pub fn served_then(words: Words<'_>, place: usize, gpu: usize, then: u64, at: u64) -> u64 {
    let Some(usage) = of(words, place, gpu) else { return 0 };
    let served = usage.served.load(Acquire);
    let mut before = None;
    let mut after = (at, served);
    for sample in &usage.samples {
        let point = (sample.at.load(Acquire), sample.served.load(Acquire));
        if point.0 == 0 {
            continue;
        }
        if point.0 <= then && before.is_none_or(|before| point > before) {
            before = Some(point);
        } else if point.0 > then && point < after {
            after = point;
        }
    }
    // Nothing was served before the first sample.
    let Some(before) = before else { return after.1 };
    let part = u128::from(after.1.saturating_sub(before.1)) * u128::from(then - before.0);
    before.1 + (part / u128::from(after.0.saturating_sub(before.0).max(1))) as u64
}

// Safe code and many steps: too slow under Miri, and nothing for it to find.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::schedule::Pace;
    use super::super::words::tests::Memory;
    use super::super::words::{Owner, owner};
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    const MS: u64 = 1_000_000;
    const PACE: Pace = Pace {
        slice: 2 * MS,
        switch: MS / 10,
        late_events: false,
    };

    fn advance(words: Words<'_>, now: u64) {
        super::super::advance(words, PACE, 0, now);
    }

    fn memory() -> Memory {
        let memory = Memory::new(1, 2);
        memory.owners[0].store(owner::next(0, Some(Owner { place: 0, gpu: 0 })), SeqCst);
        memory.clock[2].store(1, SeqCst);
        memory
    }

    fn push(words: Words<'_>, now: u64, work: u64) {
        let queue = &words.queues[0];
        let number = queue.pushed.load(SeqCst);
        queue.entry(number).work.store(work, SeqCst);
        queue.entry(number).when.store(now, SeqCst);
        queue.pushed.store(number + 1, SeqCst);
    }

    /// Returns the utilisation that a reader sees. Reading changes nothing.
    fn percent(words: Words<'_>, now: u64) -> u64 {
        super::super::busy_in_window(words, PACE, &[(0, 0)], now)[0] * 100 / WINDOW_NS
    }

    #[test]
    fn utilisation_follows_the_duty_cycle() {
        for (work, expected) in [(1, 10), (3, 30), (10, 100)] {
            let memory = memory();
            let words = memory.words();
            let mut now = 50 * MS;
            for _ in 0..200 {
                advance(words, now);
                push(words, now, work * MS);
                now += 10 * MS;
            }
            let got = percent(words, now);
            assert!(got.abs_diff(expected) <= 4, "{work} ms in 10: {got} %");
        }
    }

    #[test]
    fn one_long_kernel_is_busy_until_it_ends_and_idle_a_window_later_whoever_looks() {
        for look in [false, true] {
            let memory = memory();
            let words = memory.words();
            advance(words, 100 * MS);
            push(words, 100 * MS, 2_000 * MS);
            for (now, expected) in [(1_100, 100), (2_350, 50), (2_700, 0)] {
                if look {
                    advance(words, now * MS);
                }
                let got = percent(words, now * MS);
                assert!(got.abs_diff(expected) <= 4, "{now} ms: {got} %, looked at: {look}");
            }
        }
    }

    #[test]
    fn a_process_that_joins_has_used_nothing() {
        let memory = memory();
        let words = memory.words();
        advance(words, MS);
        push(words, MS, 1_000 * MS);
        advance(words, 601 * MS);
        assert_eq!(percent(words, 601 * MS), 100);
        join(words, 0, 601 * MS);
        assert_eq!(percent(words, 601 * MS), 0);
    }
}
