//! Checks the counters of slot pages, which tenants can write, against time. Pure but for the reading of the pages.
//!
//! A share was charged at most as long as it exists; each of its processes waited at most that long. Counters never go
//! backwards. Counters that do otherwise are damaged: none of them is used, until they are plausible again.
//!
//! How it fails: a tenant that raises its counters no faster than time passes is believed. The comparison with NVML finds
//! that. After a restart of the plugin a share counts as old as the machine runs.

use crate::node::Node;
use crate::share::{Role, ShareKey};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vgpu_abi::arbitration::Counted;
use vgpu_abi::ledger::LANES;

/// Clocks and readings are not exact.
const SLACK: Duration = Duration::from_secs(1);

/// The counters that were read last, by share.
#[derive(Debug, Default)]
pub(super) struct Charges(BTreeMap<ShareKey, Last>);

#[derive(Debug)]
struct Last {
    /// When this instance prepared the share: one with that name may come again.
    prepared: Option<Instant>,
    counted: Counted,
}

// === impl Charges ===

impl Charges {
    /// Reads the counters of every share with a slot; None for those that are damaged.
    pub(super) fn read(&mut self, node: &Node, now: Instant) -> BTreeMap<ShareKey, Option<Counted>> {
        let uptime = uptime();
        let mut all = BTreeMap::new();
        for (uid, entry) in &node.claims().claims {
            let prepared = node.prepared_at(uid);
            let lifetime = prepared.map(|at| now.saturating_duration_since(at)).or(uptime);
            for held in entry.shares.iter().filter(|held| held.share.role == Role::Share) {
                let Some(slot) = held.slot else { continue };
                let counted = node.arbitration().counted(&held.share.gpu, slot).ok().flatten();
                let key = (uid.clone(), held.share.name.clone());
                let accepted = counted.filter(|counted| self.accept(&key, *counted, prepared, lifetime));
                all.insert(key, accepted);
            }
        }
        self.0.retain(|key, _| all.contains_key(key));
        all
    }

    /// Returns true if the counters can be those of the share, and remembers them.
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

fn is_later(before: Counted, after: Counted) -> bool {
    after.charged >= before.charged
        && after.throttled >= before.throttled
        && after.waited >= before.waited
        && after.overlapped >= before.overlapped
}

fn is_within(counted: Counted, lifetime: Duration) -> bool {
    let longest = u64::try_from((lifetime + SLACK).as_nanos()).unwrap_or(u64::MAX);
    // Processes wait side by side, and a share has at most so many.
    let longest_waits = longest.saturating_mul(LANES as u64);
    counted.charged <= longest
        && counted.overlapped <= longest
        && counted.throttled <= longest_waits
        && counted.waited <= longest_waits
}

/// How long the machine runs; None if the kernel does not say.
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
                Charges::default().accept(&key, found, None, lifetime),
                expected,
                "{found:?}"
            );
        }
        let key = ("u".to_owned(), "s".to_owned());
        let endless = counted(9_000_000_000, 0, 0, 0);
        assert!(
            Charges::default().accept(&key, endless, None, None),
            "nobody knows better"
        );
    }

    #[test]
    fn a_counter_that_goes_backwards_is_damage_until_it_is_where_it_was() {
        let key = ("u".to_owned(), "s".to_owned());
        let mut charges = Charges::default();
        let mut accept = |found, prepared| charges.accept(&key, found, prepared, Some(Duration::from_secs(1000)));
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
