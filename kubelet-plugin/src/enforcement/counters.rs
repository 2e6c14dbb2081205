//! Reads the counters of slot pages, which tenants can write, and checks them against time.
//!
//! A share was charged at most as long as it exists; each of its processes waited at most that long. Counters never go
//! backwards. Counters that do otherwise are damaged: none of them is used, until they are plausible again.
//!
//! How it fails: a tenant that raises its counters no faster than time passes is believed. The comparison with NVML finds
//! that. After a restart of the plugin the age of a share is not known, and the machine's uptime is taken for it.

use super::verdicts::compute::Paged;
use crate::dra::checkpoint::PreparedShare;
use crate::dra::node::Node;
use crate::dra::share::ShareKey;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vgpu_abi::arbitration::Counted;
use vgpu_abi::ledger::LANES;

/// Clocks and readings are not exact.
const SLACK: Duration = Duration::from_secs(1);

/// The counters that were accepted last, by share.
#[derive(Debug, Default)]
pub(crate) struct Counters(BTreeMap<ShareKey, Last>);

/// Computes how much each share was charged and waited between two readings of the counters.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    counters: Counters,
    last: Option<(Instant, BTreeMap<ShareKey, Option<Counted>>)>,
}

#[derive(Debug)]
struct Last {
    /// When this instance prepared the share. Distinguishes it from a later share of the same name.
    prepared: Option<Instant>,
    counted: Counted,
}

// === impl Counters ===

impl Counters {
    /// Reads the counters of every share with a slot; None for those that are damaged.
    pub(crate) fn read(&mut self, node: &Node, now: Instant) -> BTreeMap<ShareKey, Option<Counted>> {
        let uptime = uptime();
        let mut all = BTreeMap::new();
        for (uid, entry) in &node.claims().claims {
            let prepared = node.prepared_at(uid);
            let lifetime = prepared.map(|at| now.saturating_duration_since(at)).or(uptime);
            for PreparedShare { share, slot } in &entry.shares {
                let Some(slot) = *slot else { continue };
                let counted = node.arbitration().counted(&share.gpu, slot).ok().flatten();
                let key = (uid.clone(), share.name.clone());
                let accepted = counted.filter(|counted| self.accept(&key, *counted, prepared, lifetime));
                all.insert(key, accepted);
            }
        }
        self.0.retain(|key, _| all.contains_key(key));
        all
    }

    /// Returns true if the counters are plausible for the share, and then remembers them.
    fn accept(
        &mut self,
        key: &ShareKey,
        counted: Counted,
        prepared: Option<Instant>,
        lifetime: Option<Duration>,
    ) -> bool {
        let last = self.0.get(key).filter(|last| last.prepared == prepared);
        let before = last.map_or_else(Counted::default, |last| last.counted);
        let plausible = is_later(before, counted) && lifetime.is_none_or(|lifetime| is_within(counted, lifetime));
        if plausible {
            self.0.insert(key.clone(), Last { prepared, counted });
        }
        plausible
    }
}

// === impl Intervals ===

impl Intervals {
    /// Returns what each share was ever charged in nanoseconds, by the last call; None where that is damaged.
    pub(super) fn charged(&self) -> impl Iterator<Item = (&ShareKey, Option<u64>)> {
        let last = self.last.iter().flat_map(|(_, counted)| counted);
        last.map(|(key, counted)| (key, counted.map(|counted| counted.charged)))
    }

    /// Returns what each share was charged and waited since the last call, in percent of the time.
    pub(super) fn read(&mut self, node: &Node, now: Instant) -> BTreeMap<ShareKey, Paged> {
        let counted = self.counters.read(node, now);
        let Some((then, before)) = self.last.replace((now, counted.clone())) else {
            return BTreeMap::new();
        };
        let added = counted.into_iter().filter_map(|(key, counted)| {
            let before = before.get(&key).copied().flatten()?;
            Some((key, added(before, counted?, now.saturating_duration_since(then))?))
        });
        added.collect()
    }
}

/// Returns by how much the counters grew, in percent of the interval. None: they went backwards.
fn added(before: Counted, after: Counted, interval: Duration) -> Option<Paged> {
    let percent = |before: u64, after: u64| {
        let added = after.checked_sub(before)?;
        Some(added as f64 / interval.as_nanos().max(1) as f64 * 100.0)
    };
    Some(Paged {
        charged: percent(before.charged, after.charged)?,
        waited: percent(before.waited, after.waited)?,
    })
}

fn is_later(before: Counted, after: Counted) -> bool {
    after.charged >= before.charged
        && after.throttled >= before.throttled
        && after.waited >= before.waited
        && after.overlapped >= before.overlapped
}

fn is_within(counted: Counted, lifetime: Duration) -> bool {
    let longest = u64::try_from((lifetime + SLACK).as_nanos()).unwrap_or(u64::MAX);
    // Processes wait concurrently, and a share has at most `LANES` of them.
    let longest_waits = longest.saturating_mul(LANES as u64);
    counted.charged <= longest
        && counted.overlapped <= longest
        && counted.throttled <= longest_waits
        && counted.waited <= longest_waits
}

/// The machine's uptime; None if it cannot be read.
fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counted(charged: u64, throttled: u64, waited: u64, overlapped: u64) -> Counted {
        Counted {
            charged: charged * SECOND,
            throttled: throttled * SECOND,
            waited: waited * SECOND,
            overlapped: overlapped * SECOND,
        }
    }

    #[test]
    fn what_was_added_is_percent_of_the_interval() {
        let second = Duration::from_secs(1);
        let (before, after) = (counted(10, 0, 0, 0), counted(40, 0, 50, 0));
        let expected = Paged {
            charged: 30.0,
            waited: 50.0,
        };
        assert_eq!(added(before, after, 100 * second), Some(expected));
        assert_eq!(added(after, before, second), None, "another share's");
    }

    #[test]
    fn counters_are_believed_as_long_as_time_allows_it() {
        let lifetime = Some(Duration::from_secs(100));
        let processes = LANES as u64;
        for (found, expected) in [
            (counted(0, 0, 0, 0), true),
            (counted(101, 0, 0, 0), true),
            (counted(102, 0, 0, 0), false),
            (counted(0, 0, 0, 102), false),
            (counted(0, 500, 500, 0), true),
            (counted(0, 101 * processes, 0, 0), true),
            (counted(0, 102 * processes, 0, 0), false),
            (counted(0, 0, 102 * processes, 0), false),
        ] {
            let key = ("u".to_owned(), "s".to_owned());
            assert_eq!(
                Counters::default().accept(&key, found, None, lifetime),
                expected,
                "{found:?}"
            );
        }
        let key = ("u".to_owned(), "s".to_owned());
        let endless = counted(9_000_000_000, 0, 0, 0);
        assert!(
            Counters::default().accept(&key, endless, None, None),
            "nobody knows better"
        );
    }

    #[test]
    fn a_counter_that_goes_backwards_is_damage_until_it_is_where_it_was() {
        let key = ("u".to_owned(), "s".to_owned());
        let mut counters = Counters::default();
        let mut accept = |found, prepared| counters.accept(&key, found, prepared, Some(Duration::from_secs(1000)));
        assert!(accept(counted(50, 50, 50, 50), None));
        for less in [
            counted(49, 50, 50, 50),
            counted(50, 49, 50, 50),
            counted(50, 50, 49, 50),
            counted(50, 50, 50, 49),
            counted(0, 0, 0, 0),
        ] {
            assert!(!accept(less, None), "{less:?}");
        }
        assert!(accept(counted(51, 50, 50, 50), None));
        assert!(
            accept(counted(0, 0, 0, 0), Some(Instant::now())),
            "the same name, prepared again"
        );
    }
}
