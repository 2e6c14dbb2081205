//! Decides from samples whether a share's limit of GPU time holds. Pure: samples and times in, verdicts out.
//!
//! ```text
//!             over for 10 s                      no sample over for 10 s
//!  enforced ────────────────► broken (ignored) ──────────────────────────► enforced
//! ```
//!
//! A share is over if NVML saw it use 10 points more than its due plus an error of 5. The due of a Guaranteed share is
//! its `cores`. A Balanced share may use the idle time of others: it is over only beside another share that had work
//! all the time and is not of lower priority. Its due is then its part by weight among itself and those shares, but at
//! least its `cores`. A share that is not limited has no due.
//!
//! How it fails: a silent NVML restarts the 10 s, in both directions. Nothing is then known, and a share that is ignored
//! stays ignored. A Guaranteed share whose single kernel runs for 10 s is over, because no kernel can be stopped. What a
//! share says of its own work decides whether another share had the GPU to itself: a share that lies can accuse a Balanced
//! neighbour only while NVML sees that neighbour use more than its part.

use crate::dra::share::ShareKey;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use vgpu_abi::arbitration::{Entry, entry_flags};

/// A share is over when it uses more than its due by both of these, in percent of the GPU: the error of limiter and NVML,
/// and a margin.
const ERROR: f64 = 5.0;
const BREACH: f64 = 10.0;
/// How long a share must be over until its limit counts as broken, and how long it must not be over until its limit
/// counts as enforced again.
const LASTS: Duration = Duration::from_secs(10);
/// A share had work all the time if it was charged or waited for this percentage of the time.
const AT_WORK: f64 = 75.0;
/// The error is the mean of the samples of 10 s.
const SAMPLES: usize = 5;

/// One share in one interval.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub key: ShareKey,
    pub gpu: String,
    pub cores: u32,
    /// Its entry in the node page.
    pub entry: Entry,
    /// None: NVML did not measure its GPU.
    pub seen: Option<Use>,
}

/// One share's use of the GPU, in percent of the interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    /// The utilisation of all its processes, by NVML.
    pub used: f64,
    /// What the share's own page says. None: the page is damaged.
    pub paged: Option<Paged>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paged {
    pub charged: f64,
    pub waited: f64,
}

/// The result for a share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// None: nothing is known.
    pub enforced: Option<bool>,
    /// Its use by NVML less what it was charged, in percent of the GPU, over the last 10 s.
    pub error_points: Option<f64>,
    /// Its use by NVML in the last interval, in percent of the GPU.
    pub used: Option<f64>,
}

/// The shares that were observed.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(BTreeMap<ShareKey, State>);

#[derive(Debug, Default)]
struct State {
    is_broken: bool,
    /// If something was seen in the last interval.
    is_known: bool,
    over_since: Option<Instant>,
    fine_since: Option<Instant>,
    errors: VecDeque<f64>,
    used: Option<f64>,
}

// === impl Verdicts ===

impl Verdicts {
    /// Applies one interval. `observed` are all limited shares of the node; others are forgotten.
    pub(crate) fn apply(&mut self, observed: &[Share], now: Instant) {
        self.0.retain(|key, _| observed.iter().any(|share| share.key == *key));
        for share in observed {
            let over = share.seen.map(|seen| is_over(share, seen, observed));
            self.0
                .entry(share.key.clone())
                .or_default()
                .apply(share.seen, over, now);
        }
    }

    #[must_use]
    pub(crate) fn by_share(&self) -> BTreeMap<ShareKey, Verdict> {
        self.0
            .iter()
            .map(|(key, state)| (key.clone(), state.verdict()))
            .collect()
    }

    /// The shares that others are to ignore.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &ShareKey> {
        self.0.iter().filter(|(_, state)| state.is_broken).map(|(key, _)| key)
    }
}

fn is_over(share: &Share, seen: Use, all: &[Share]) -> bool {
    due(share, all).is_some_and(|due| seen.used > due + ERROR + BREACH)
}

/// Returns what a share may use now. None: all.
fn due(share: &Share, all: &[Share]) -> Option<f64> {
    let own = share.entry;
    let cores = f64::from(share.cores);
    if own.flags & entry_flags::UNLIMITED != 0 {
        return None;
    }
    if own.flags & entry_flags::GUARANTEED != 0 {
        return Some(cores);
    }
    let competes = |other: &&Share| {
        let goes_behind = own.flags & entry_flags::HIGH != 0 && other.entry.flags & entry_flags::HIGH == 0;
        other.key != share.key && other.gpu == share.gpu && other.is_at_work() && !goes_behind
    };
    let others: u32 = all.iter().filter(competes).map(|other| other.entry.weight).sum();
    let part = f64::from(own.weight) / f64::from(own.weight + others) * 100.0;
    (others > 0).then_some(part.max(cores))
}

// === impl Share ===

impl Share {
    fn is_at_work(&self) -> bool {
        let limited = self.entry.flags & entry_flags::UNLIMITED == 0;
        let busy = |seen: Use| {
            let paged = seen.paged.is_some_and(|paged| paged.charged + paged.waited >= AT_WORK);
            seen.used > 0.0 && paged
        };
        limited && self.seen.is_some_and(busy)
    }
}

// === impl State ===

impl State {
    /// `over`: None if nothing was seen.
    fn apply(&mut self, seen: Option<Use>, over: Option<bool>, now: Instant) {
        self.is_known = over.is_some();
        self.used = seen.map(|seen| seen.used);
        let lasts = |since: &mut Option<Instant>, holds: bool| {
            *since = since.or(Some(now)).filter(|_| holds);
            since.is_some_and(|since| now.duration_since(since) >= LASTS)
        };
        let is_over = lasts(&mut self.over_since, over == Some(true));
        let is_fine = lasts(&mut self.fine_since, over == Some(false));
        self.is_broken = is_over || self.is_broken && !is_fine;
        match seen.and_then(|seen| Some(seen.used - seen.paged?.charged)) {
            Some(error) => self.errors.push_back(error),
            None => self.errors.clear(),
        }
        if self.errors.len() > SAMPLES {
            self.errors.pop_front();
        }
    }

    fn verdict(&self) -> Verdict {
        let mean = self.errors.iter().sum::<f64>() / self.errors.len() as f64;
        Verdict {
            enforced: self.is_known.then_some(!self.is_broken),
            error_points: (!self.errors.is_empty()).then_some(mean),
            used: self.used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use entry_flags::{BEST_EFFORT, GUARANTEED, HIGH, UNLIMITED};

    fn share(name: &str, cores: u32, flags: u32, seen: Option<Use>) -> Share {
        Share {
            key: ("u".to_owned(), name.to_owned()),
            gpu: "GPU-1".to_owned(),
            cores,
            entry: Entry {
                weight: if cores == 0 { 50_000 } else { cores * 1000 },
                flags,
                generation: 1,
            },
            seen,
        }
    }

    /// Used by NVML; charged and waited by the page.
    fn seen(used: f64, charged: f64, waited: f64) -> Option<Use> {
        let paged = Some(Paged { charged, waited });
        Some(Use { used, paged })
    }

    #[test]
    fn who_is_over_depends_on_who_else_had_work() {
        let busy = |used| seen(used, used, 100.0 - used);
        let idle = seen(8.0, 8.0, 10.0);
        let unpaged = |used| Some(Use { used, paged: None });
        let beside = |cores, flags, seen| vec![share("b", cores, flags, seen)];
        let beside_two = |used| vec![share("b", 30, 0, busy(used)), share("c", 40, 0, idle)];
        // Cores, flags and use of a share, the others, and whether it is over.
        for (cores, flags, used, others, expected) in [
            // A Guaranteed share has its cores, whoever else is there.
            (30, GUARANTEED, busy(44.0), vec![], false),
            (30, GUARANTEED, busy(46.0), vec![], true),
            (30, GUARANTEED, unpaged(46.0), vec![], true),
            // A Balanced share may use idle time.
            (30, 0, busy(100.0), vec![], false),
            (30, 0, busy(90.0), beside(70, 0, idle), false),
            (30, 0, busy(46.0), beside(70, 0, busy(50.0)), true),
            (30, 0, busy(44.0), beside(70, 0, busy(50.0)), false),
            // Of 40 idle cores it has its part: 30 and 30 have half each.
            (30, 0, busy(60.0), beside_two(40.0), false),
            (30, 0, busy(66.0), beside_two(30.0), true),
            // Nothing is known of the other share's work.
            (30, 0, busy(60.0), beside(70, 0, unpaged(40.0)), false),
            (30, 0, busy(60.0), beside(70, 0, seen(0.0, 0.0, 100.0)), false),
            // High goes first.
            (30, HIGH, busy(95.0), beside(70, 0, busy(5.0)), false),
            (30, HIGH, busy(95.0), beside(70, HIGH, busy(5.0)), true),
            // Without cores: its weight is its part.
            (0, BEST_EFFORT, busy(66.0), beside(50, 0, busy(30.0)), true),
            (30, UNLIMITED, busy(100.0), beside(70, 0, busy(10.0)), false),
        ] {
            let own = share("a", cores, flags, used);
            let all: Vec<_> = [own.clone()].into_iter().chain(others).collect();
            assert_eq!(is_over(&own, used.expect("a sample"), &all), expected, "{all:?}");
        }
        let own = share("a", 30, 0, busy(90.0));
        let elsewhere = Share {
            gpu: "GPU-2".to_owned(),
            ..share("b", 70, 0, busy(5.0))
        };
        assert!(!is_over(&own, busy(90.0).expect("a sample"), &[own.clone(), elsewhere]));
    }

    /// The verdict after each sample of 2 s on a Guaranteed share of 30 cores: holds, broken, or unknown (` `). NVML saw it
    /// within its limit (`w`), over it (`o`), or not at all (` `).
    fn verdicts(samples: &str) -> String {
        let (mut verdicts, start) = (Verdicts::default(), Instant::now());
        let each = (0_u32..).zip(samples.chars()).map(|(tick, sample)| {
            let used = [('w', 30.0), ('o', 80.0)].into_iter().find(|(name, _)| *name == sample);
            let seen = used.map(|(_, used)| Use { used, paged: None });
            let now = start + Duration::from_secs(2) * tick;
            verdicts.apply(&[share("a", 30, GUARANTEED, seen)], now);
            let enforced = verdicts.by_share().into_values().next().expect("one share").enforced;
            // A share that was broken stays ignored while nothing is known.
            assert!(enforced.is_none_or(|enforced| enforced == (verdicts.broken().count() == 0)));
            enforced.map_or(' ', |enforced| if enforced { 'h' } else { 'b' })
        });
        each.collect()
    }

    #[test]
    fn a_breach_is_accepted_after_ten_seconds_and_ends_after_ten_without() {
        for (samples, expected) in [
            ("www", "hhh"),
            ("oooooo", "hhhhhb"),
            ("oooowoo", "hhhhhhh"),
            ("oooooowowwwwww", "hhhhhbbbbbbbbh"),
            // Samples without an answer of NVML change no verdict.
            ("        ", "        "),
            ("ooo ooo", "hhh hhh"),
            ("oooooo www wwwwww", "hhhhhb bbb bbbbbh"),
        ] {
            assert_eq!(verdicts(samples), expected, "{samples}");
        }
    }

    #[test]
    fn a_share_that_is_gone_is_forgotten() {
        let (mut verdicts, start) = (Verdicts::default(), Instant::now());
        let observed = [share("a", 10, GUARANTEED, seen(90.0, 10.0, 0.0))];
        for tick in 0..6 {
            verdicts.apply(&observed, start + Duration::from_secs(2) * tick);
        }
        assert_eq!(verdicts.broken().collect::<Vec<_>>(), [&observed[0].key]);
        verdicts.apply(&[], start + Duration::from_secs(12));
        assert_eq!((verdicts.broken().count(), verdicts.by_share().len()), (0, 0));
    }

    #[test]
    fn the_error_is_the_mean_of_what_was_not_charged() {
        let (mut verdicts, start) = (Verdicts::default(), Instant::now());
        let mut error = |sample: Option<Use>| {
            verdicts.apply(&[share("a", 30, 0, sample)], start);
            verdicts
                .by_share()
                .into_values()
                .next()
                .expect("one share")
                .error_points
        };
        assert_eq!(error(seen(30.0, 30.0, 0.0)), Some(0.0));
        assert_eq!(error(seen(40.0, 30.0, 0.0)), Some(5.0));
        for _ in 0..4 {
            error(seen(20.0, 30.0, 0.0));
        }
        assert_eq!(
            error(seen(20.0, 30.0, 0.0)),
            Some(-10.0),
            "the first ones are more than 10 s old"
        );
        assert_eq!(error(None), None);
        assert_eq!(error(seen(35.0, 30.0, 0.0)), Some(5.0), "counted again");
        let damaged = Some(Use {
            used: 30.0,
            paged: None,
        });
        assert_eq!(error(damaged), None);
    }
}
