//! What each share has used since the node prepared it, with peaks and means. Pure: readings and times in, figures out.
//!
//! The ledger keeps the peak of memory, and the share's page all GPU time that it was charged. The mean of memory and the
//! busiest minute are kept here, and over a restart of the plugin in the node's VgpuNode.
//!
//! How it fails:
//! - A ledger or a page is damaged, or has another release's format: its figures are absent, and that time is in no mean.
//! - A tenant writes more than its limit into its ledger: the value is ignored. A smaller value is believed, but it
//!   only changes the figures of the tenant's own share.
//! - The plugin restarts: what was used meanwhile is not in the mean of memory. The mean of GPU time has it.
//! - There is no VgpuNode, because it was deleted or the former release had none: shares that a former instance
//!   prepared have no means.

use crate::dra::share::ShareKey;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use vgpu_abi::ledger;

/// The time over which the use of a GPU is measured.
const WINDOW: Duration = Duration::from_secs(60);
/// The use is taken to stay the same from one reading to the next, but not for longer than this.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// The largest number that all readers of JSON represent exactly. Larger values in a ledger are ignored.
const MOST_REFUSALS: u64 = 1 << 53;

/// One reading of a share; None: that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Bytes by the ledger.
    pub memory: Option<u64>,
    pub memory_peak: Option<u64>,
    pub processes: Option<u32>,
    pub refusals: Option<u64>,
    /// Nanoseconds of GPU time, all that it was ever charged.
    pub charged: Option<u64>,
    /// When this instance prepared it; None if a former one did.
    pub prepared: Option<Instant>,
}

/// The usage of one share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShareUsage {
    pub last: Reading,
    pub since: Option<SystemTime>,
    read: Instant,
    memory: Mean,
    /// Beginning of the current minute, and what was charged then.
    minute: Option<(Instant, u64)>,
    /// GPU time of the last whole minute.
    pub gpu_percent: Option<u32>,
    pub gpu_peak_percent: Option<u32>,
}

/// The figures of a share that a former instance wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Former {
    pub since: SystemTime,
    /// When it wrote this.
    pub as_of: SystemTime,
    pub memory_mean: Option<u64>,
    pub gpu_peak_percent: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    sum: f64,
    seconds: f64,
}

/// The usage of all shares.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    shares: BTreeMap<ShareKey, ShareUsage>,
    /// Restored figures, until the next reading takes them over.
    former: Option<BTreeMap<ShareKey, Former>>,
    has_read: bool,
}

// === impl Reading ===

impl Reading {
    /// Takes over what a ledger says of a share with this limit; `living`: how many of its processes live.
    pub(crate) fn read(&mut self, ledger: &ledger::Usage, limit: u64, living: Option<usize>) {
        self.memory = Some(ledger.charged).filter(|bytes| *bytes <= limit);
        self.memory_peak = Some(ledger.peak).filter(|bytes| *bytes <= limit);
        self.processes = living.and_then(|living| u32::try_from(living).ok());
        self.refusals = Some(ledger.refusals.by_limit).filter(|refusals| *refusals <= MOST_REFUSALS);
    }
}

// === impl Usage ===

impl Usage {
    pub(crate) fn get(&self, key: &ShareKey) -> Option<&ShareUsage> {
        self.shares.get(key)
    }

    /// Takes over what a former instance knew of shares that it prepared.
    pub(crate) fn restore(&mut self, former: BTreeMap<ShareKey, Former>) {
        (self.former, self.has_read) = (Some(former), false);
    }

    /// Returns true if the shares were read since the start and the last [`restore`](Self::restore).
    pub(crate) fn has_read(&self) -> bool {
        self.has_read
    }

    /// Applies a reading of all shares.
    pub(crate) fn apply(&mut self, readings: &BTreeMap<ShareKey, Reading>, now: Instant, today: SystemTime) {
        let former = self.former.take().unwrap_or_default();
        self.shares.retain(|key, of| {
            // A later share may have the same name.
            let reading = readings.get(key);
            reading.is_some_and(|reading| reading.prepared == of.last.prepared)
        });
        for (key, reading) in readings {
            let of = self.shares.entry(key.clone());
            let of = of.or_insert_with(|| ShareUsage::new(reading, now, today));
            if let Some(former) = former.get(key).filter(|_| reading.prepared.is_none()) {
                of.restore(former);
            }
            of.apply(reading, now);
        }
        self.has_read = true;
    }
}

// === impl ShareUsage ===

impl ShareUsage {
    fn new(reading: &Reading, now: Instant, today: SystemTime) -> Self {
        let age = reading.prepared.map(|at| now.saturating_duration_since(at));
        Self {
            last: *reading,
            since: age.and_then(|age| today.checked_sub(age)),
            read: now,
            memory: Mean::default(),
            minute: None,
            gpu_percent: None,
            gpu_peak_percent: None,
        }
    }

    fn apply(&mut self, reading: &Reading, now: Instant) {
        let step = now.saturating_duration_since(self.read).min(LONGEST_STEP);
        if let Some(memory) = self.last.memory {
            self.memory.add(memory, step.as_secs_f64());
        }
        (self.last, self.read) = (*reading, now);
        let Some(charged) = reading.charged else {
            (self.minute, self.gpu_percent) = (None, None);
            return;
        };
        let Some((start, before)) = self.minute else {
            self.minute = Some((now, charged));
            return;
        };
        let window = now.saturating_duration_since(start);
        if window >= WINDOW {
            let percent = percent(charged.saturating_sub(before), window);
            self.gpu_percent = Some(percent);
            self.gpu_peak_percent = self.gpu_peak_percent.max(Some(percent));
            self.minute = Some((now, charged));
        }
    }

    fn restore(&mut self, former: &Former) {
        self.since = Some(former.since);
        self.gpu_peak_percent = self.gpu_peak_percent.max(former.gpu_peak_percent);
        if let (Some(mean), Ok(known)) = (former.memory_mean, former.as_of.duration_since(former.since)) {
            // Replace the mean instead of adding to it: if this instance worked before the other one, the other mean
            // includes it.
            self.memory = Mean::default();
            self.memory.add(mean, known.as_secs_f64());
        }
    }

    /// Returns the mean of the memory in bytes.
    pub(crate) fn memory_mean(&self) -> Option<u64> {
        self.since?;
        (self.memory.seconds > 0.0).then(|| (self.memory.sum / self.memory.seconds) as u64)
    }

    /// Returns the mean of the GPU time, in percent of the GPU.
    pub(crate) fn gpu_mean_percent(&self, today: SystemTime) -> Option<u32> {
        let lifetime = today.duration_since(self.since?).ok()?;
        (lifetime >= WINDOW).then(|| Some(percent(self.last.charged?, lifetime)))?
    }
}

// === impl Mean ===

impl Mean {
    fn add(&mut self, bytes: u64, seconds: f64) {
        self.sum += bytes as f64 * seconds;
        self.seconds += seconds;
    }
}

fn percent(charged: u64, time: Duration) -> u32 {
    (charged as f64 / time.as_nanos().max(1) as f64 * 100.0)
        .round()
        .min(100.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const SECOND: u64 = 1_000_000_000;

    /// A share that is read at chosen times.
    struct Clock {
        usage: Usage,
        start: Instant,
        today: SystemTime,
    }

    fn key() -> ShareKey {
        ("u1".into(), "s1".into())
    }

    impl Clock {
        fn new() -> Self {
            Self {
                usage: Usage::default(),
                start: Instant::now(),
                today: UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            }
        }

        fn at(&self, seconds: u64) -> SystemTime {
            self.today + Duration::from_secs(seconds)
        }

        fn read(&mut self, seconds: u64, reading: Reading) {
            let (now, today) = (self.start + Duration::from_secs(seconds), self.at(seconds));
            self.usage.apply(&[(key(), reading)].into(), now, today);
        }

        fn share(&self) -> ShareUsage {
            self.usage.get(&key()).cloned().expect("the share")
        }
    }

    fn reading(memory: u64, charged_seconds: u64, prepared: Option<Instant>) -> Reading {
        Reading {
            memory: Some(memory),
            charged: Some(charged_seconds * SECOND),
            prepared,
            ..Reading::default()
        }
    }

    #[test]
    fn means_are_over_the_time_since_it_was_prepared_and_the_peak_is_of_one_minute() {
        let mut clock = Clock::new();
        let prepared = Some(clock.start);
        clock.read(0, reading(100, 0, prepared));
        assert_eq!(clock.share().memory_mean(), None, "no time has passed");
        for (seconds, memory, charged) in [(10, 400, 1), (20, 400, 2), (30, 100, 3), (60, 100, 30), (90, 0, 31)] {
            clock.read(seconds, reading(memory, charged, prepared));
        }
        // 100 for 10 s, 400 for 20 s, 100 for 60 s.
        assert_eq!(clock.share().memory_mean(), Some(15_000 / 90));
        assert_eq!(clock.share().since, Some(clock.today));
        assert_eq!(
            (clock.share().gpu_percent, clock.share().gpu_peak_percent),
            (Some(50), Some(50))
        );
        clock.read(120, reading(0, 36, prepared));
        assert_eq!(
            (clock.share().gpu_percent, clock.share().gpu_peak_percent),
            (Some(10), Some(50))
        );
        assert_eq!(clock.share().gpu_mean_percent(clock.at(120)), Some(30));
        assert_eq!(
            clock.share().gpu_mean_percent(clock.at(10)),
            None,
            "too short to mean anything"
        );
        assert_eq!(
            clock.share().gpu_mean_percent(UNIX_EPOCH),
            None,
            "a clock that was set back"
        );
    }

    #[test]
    fn what_is_not_known_is_in_no_mean() {
        let mut clock = Clock::new();
        let prepared = Some(clock.start);
        clock.read(0, reading(100, 0, prepared));
        let nothing = Reading {
            prepared,
            ..Reading::default()
        };
        clock.read(10, nothing);
        clock.read(20, nothing);
        clock.read(30, reading(100, 0, prepared));
        // This instance hung for an hour.
        clock.read(3630, reading(400, 0, prepared));
        clock.read(3640, reading(400, 60, prepared));
        assert_eq!(clock.share().memory_mean(), Some((100 * 10 + 100 * 30 + 400 * 10) / 50));
        clock.read(3641, nothing);
        assert_eq!(clock.share().gpu_percent, None, "its page is damaged");
        assert!(clock.share().gpu_peak_percent.is_some());
        assert_eq!(clock.share().gpu_mean_percent(clock.at(3641)), None);
        clock.usage.apply(&BTreeMap::new(), clock.start, clock.today);
        assert_eq!(clock.usage.get(&key()), None, "unprepared");
    }

    #[test]
    fn a_restart_keeps_what_the_object_says_and_a_share_that_was_prepared_again_begins_anew() {
        let former = |clock: &Clock| Former {
            since: clock.today,
            as_of: clock.at(90),
            memory_mean: Some(200),
            gpu_peak_percent: Some(80),
        };
        let mut clock = Clock::new();
        clock.read(100, reading(100, 40, None));
        assert_eq!(
            (clock.share().memory_mean(), clock.share().since),
            (None, None),
            "unknown since when"
        );
        let all = [(key(), former(&clock)), (("gone".into(), "s".into()), former(&clock))];
        clock.usage.restore(all.clone().into());
        assert!(!clock.usage.has_read());
        clock.read(110, reading(100, 50, None));
        assert!(clock.usage.has_read());
        let expected = (200 * 90 + 100 * 10) / 100;
        assert_eq!(clock.share().memory_mean(), Some(expected));
        assert_eq!(clock.share().gpu_peak_percent, Some(80));
        assert_eq!(clock.share().gpu_mean_percent(clock.at(125)), Some(40));
        clock.read(110, reading(100, 50, None));
        assert_eq!(clock.share().memory_mean(), Some(expected), "restored once");
        let again = Some(clock.start + Duration::from_secs(120));
        clock.usage.restore(all.into());
        clock.read(120, reading(100, 0, again));
        assert_eq!(
            (clock.share().since, clock.share().gpu_peak_percent),
            (Some(clock.at(120)), None)
        );
    }

    #[test]
    fn a_forged_ledger_has_no_figures_beyond_its_limit() {
        let mut reading = Reading::default();
        let forged = ledger::Usage {
            charged: 11,
            peak: u64::MAX,
            refusals: ledger::refusal::Refusals {
                by_limit: u64::MAX,
                ..Default::default()
            },
            ..ledger::Usage::default()
        };
        reading.read(&forged, 10, None);
        assert_eq!(reading, Reading::default());
        let full = ledger::Usage {
            charged: 10,
            peak: 10,
            ..ledger::Usage::default()
        };
        reading.read(&full, 10, Some(2));
        assert_eq!((reading.memory, reading.memory_peak), (Some(10), Some(10)));
        assert_eq!((reading.processes, reading.refusals), (Some(2), Some(0)));
    }
}
