//! The GPUs' time, across all processes that use a state folder: what hardware does without MPS.
//!
//! ```text
//!  work.rs: a context's launches ──► words::Queue     in shared memory, written by their process alone
//!                                        │
//!       now ──► schedule::Schedule ──────┤ advances from the last moment to now: slices, switches, stamps (pure);
//!                                        │ schedule::run: what of a context's work runs at once
//!                                        ▼
//!                                    journal          makes the changed words visible as one change
//!                                        ▼
//!                usage: GPU time of each process in NVML's window
//! ```
//!
//! No process drives the time: each process that reads it advances it from the last read to now. So the work of a
//! stopped process continues, as on hardware. Times are CLOCK_MONOTONIC in ns, which all containers of a machine share.

pub mod journal;
pub mod schedule;
pub mod usage;
pub mod words;

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use journal::Change;
use schedule::{Pace, Schedule};
use words::{Name, Owner, WHOLE, Words, owner, stage};

/// Claims a queue. None: all are in use. No work of its last owner is left in it.
pub fn open(words: Words<'_>, owner: Owner) -> Option<usize> {
    let claimed = |word: &std::sync::atomic::AtomicU64| {
        let free = word.load(Acquire);
        let next = owner::next(free, Some(owner));
        owner::of(free).is_none() && word.compare_exchange(free, next, SeqCst, SeqCst).is_ok()
    };
    let queue = words.owners.iter().position(claimed)?;
    words.high_water.fetch_max(queue as u64 + 1, SeqCst);
    Some(queue)
}

/// Releases a queue. Its remaining work counts as done immediately. Call `advance` first, so that work up to now runs.
pub fn close(words: Words<'_>, journal: usize, queue: usize) {
    loop {
        let quiet = words.quiet();
        let (word, place) = (words.owners[queue].load(Acquire), &words.queues[queue]);
        let [pushed, done, executed] = [&place.pushed, &place.done, &place.executed].map(|word| word.load(Acquire));
        // The queue's clock moves past the ends of all work that has begun, so that no such end recurs.
        let begun = (done..pushed).map(|number| (number, place.entry(number)));
        let begun = begun.filter(|(number, entry)| entry.stage.load(Acquire) == stage::begun(*number));
        let end = begun
            .map(|(_, entry)| entry.ends.load(Acquire))
            .fold(executed, u64::max);
        let list = [
            (Name::Executed { queue }, executed, end),
            (Name::Done { queue }, done, pushed),
            // Last, because from then on the queue can have another owner.
            (Name::Owner { queue }, word, owner::next(word, None)),
        ];
        let changes = list.map(|(name, old, new)| Change { name, old, new });
        if owner::of(word).is_none() || words.commit(quiet, journal, &changes) {
            return;
        }
    }
}

/// Advances the schedule to `now` and returns it. `journal` is the caller's; no other thread may use it meanwhile.
pub fn advance<'a>(words: Words<'a>, pace: Pace, journal: usize, now: u64) -> Schedule<'a> {
    loop {
        let quiet = words.quiet();
        let mut schedule = Schedule::read(words, pace);
        if !words.is_still(quiet) {
            continue;
        }
        schedule.advance(now);
        let changes = schedule.changes();
        let made = changes.is_empty() || words.commit(quiet, journal, &changes);
        if made && schedule.at >= now {
            return schedule;
        }
    }
}

/// Returns the GPU time of `users`, each a slot and a GPU, in NVML's window that ends at `now`. Changes nothing, so it
/// needs no journal.
pub fn busy_in_window(words: Words<'_>, pace: Pace, users: &[(usize, usize)], now: u64) -> Vec<u64> {
    loop {
        let quiet = words.quiet();
        let mut schedule = Schedule::read(words, pace);
        let from = schedule.at;
        let then = |(place, gpu): &(usize, usize)| {
            let then = usage::window(words, *place, *gpu, now.max(from));
            (then, usage::served_then(words, *place, *gpu, then.min(from), from))
        };
        let mut begun: Vec<(u64, u64)> = users.iter().map(then).collect();
        if !words.is_still(quiet) {
            continue;
        }
        // Windows that begin after the last advance: the schedule stops at each begin on its way to `now`.
        let mut order: Vec<usize> = (0..users.len()).filter(|user| begun[*user].0 > from).collect();
        order.sort_by_key(|user| begun[*user].0);
        for user in order {
            schedule.foresee(begun[user].0);
            begun[user].1 = schedule.served(users[user].0, users[user].1);
        }
        schedule.foresee(now);
        let busy = |((place, gpu), (_, begun)): (&(usize, usize), (u64, u64))| {
            schedule
                .served(*place, *gpu)
                .saturating_sub(begun)
                .min(usage::WINDOW_NS)
        };
        let list = users.iter().zip(begun).map(busy).collect();
        if words.is_still(quiet) {
            return list;
        }
    }
}

/// Returns how long a kernel runs alone: its blocks run in waves on the multiprocessors, each of which has room for
/// 2048 threads and at most 32 blocks.
pub fn kernel_ns(blocks: u64, threads_per_block: u64, sms: u32, wave_ns: u64) -> u64 {
    let resident = (2048 / threads_per_block.clamp(1, 1024)).clamp(1, 32) * u64::from(sms.max(1));
    blocks.max(1).div_ceil(resident).saturating_mul(wave_ns)
}

/// The longest duration that a kernel's name can give: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// The time and the part of a GPU that a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    pub ns: u64,
    /// The part of the GPU that it fills, in percent.
    pub width: u32,
}

impl Cost {
    /// The cost of work that takes no time.
    pub const NONE: Self = Self { ns: 0, width: WHOLE };

    /// The cost of a kernel that fills the GPU.
    pub fn whole(ns: u64) -> Self {
        Self { ns, width: WHOLE }
    }

    /// Returns None if the time exceeds an hour, or if the width is 0 or wider than the GPU.
    pub fn checked(ns: u64, width: u32) -> Option<Self> {
        let is_good = ns <= LONGEST_US * 1_000 && (1..=WHOLE).contains(&width);
        is_good.then_some(Self { ns, width })
    }
}

/// The cost given by a kernel's name. None: the arguments of each launch give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub ns: Option<u64>,
    pub width: Option<u32>,
}

impl Named {
    /// `time_500us`, `time_500us_width_25`; `time_by_argument`, `time_by_argument_width_25`;
    /// `time_and_width_by_arguments`.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "time_and_width_by_arguments" {
            return Some(Self { ns: None, width: None });
        }
        let rest = name.strip_prefix("time_")?;
        let (time, width) = match rest.split_once("_width_") {
            None => (rest, WHOLE),
            Some((time, width)) => (time, number(width)?.try_into().ok()?),
        };
        let ns = match time {
            "by_argument" => None,
            _ => Some(number(time.strip_suffix("us")?)?.checked_mul(1_000)?),
        };
        let Cost { width, .. } = Cost::checked(ns.unwrap_or(0), width)?;
        Some(Self { ns, width: Some(width) })
    }
}

fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_go_in_waves() {
        assert_eq!(kernel_ns(1, 32, 132, 5_000), 5_000);
        assert_eq!(kernel_ns(132 * 8, 256, 132, 5_000), 5_000);
        assert_eq!(kernel_ns(132 * 8 + 1, 256, 132, 5_000), 10_000);
        assert_eq!(kernel_ns(0, 0, 1, 5_000), 5_000);
    }

    #[test]
    fn names_say_how_long_a_kernel_takes_and_how_wide_it_is() {
        let named = |ns, width| Some(Named { ns, width });
        for (name, expected) in [
            ("time_500us", named(Some(500_000), Some(100))),
            ("time_0us", named(Some(0), Some(100))),
            ("time_3600000000us_width_1", named(Some(3_600_000_000_000), Some(1))),
            ("time_by_argument", named(None, Some(100))),
            ("time_by_argument_width_25", named(None, Some(25))),
            ("time_and_width_by_arguments", named(None, None)),
        ] {
            assert_eq!(Named::parse(name), expected, "{name}");
        }
        for name in [
            "time_us",
            "time_5ms",
            "time_+5us",
            "time_3600000001us",
            "time_5us_width_0",
            "time_5us_width_101",
            "time_5us_width_",
            "time_5us_width_+5",
            "time_by_arguments",
            "xtime_5us",
            "time_5us_",
        ] {
            assert_eq!(Named::parse(name), None, "{name}");
        }
    }
}
