//! How much is thought about whom.
//!
//! Whether claims fit together can take steps without end to find out, and whoever may create claims may ask so. Each
//! pod has a small budget at first. If that brings no answer, the pod is asked about again with twice as much, after a
//! pause that grows alike, so that what it takes of the time does not; and among all pods that were expensive one at a
//! time is thought about, with a rest after each. Pods that are cheap, as nearly all are, wait for none of this.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use vgpu_allocator::Budget;

use crate::time::Time;

/// Steps of a first question: some ten milliseconds.
const FIRST: u64 = 50_000;
/// The most that a question gets: a second or so.
const MOST: u64 = FIRST << 6;
/// What takes more is expensive.
const CHEAP: u64 = 20_000;
/// Expensive questions of one round: a decision must be young when it is sent.
const ROUND: u64 = 1_000_000;
/// A pod's pause, for each step that it took.
const PAUSE: Duration = Duration::from_micros(20);
/// How a gang's key begins; its searches are counted beside pods.
pub(crate) const GANG: &str = "gang ";
/// What all expensive pods rest together, for each step that one took.
const REST: Duration = Duration::from_micros(2);

#[derive(Debug, Default)]
pub(crate) struct Efforts {
    /// By the pod's uid, or the gang; of those that were expensive.
    known: HashMap<String, Effort>,
    rest_until: Time,
    this_round: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Effort {
    /// How often there was no answer.
    failures: u32,
    until: Time,
}

impl Efforts {
    pub(crate) fn begin_round(&mut self) {
        self.this_round = 0;
    }

    /// Whether enough was thought in this round.
    pub(crate) fn is_round_over(&self) -> bool {
        self.this_round >= ROUND
    }

    /// What may be spent on the pod now, or when to come again.
    pub(crate) fn budget(&self, pod: &str, now: Time) -> Result<Budget, Time> {
        let Some(effort) = self.known.get(pod) else {
            return Ok(Budget::new(FIRST));
        };
        let until = effort.until.max(self.rest_until);
        match now < until {
            true => Err(until),
            false => Ok(Budget::new((FIRST << effort.failures.min(6)).min(MOST))),
        }
    }

    pub(crate) fn spent(&mut self, pod: &str, steps: u64, is_answered: bool, now: Time) {
        if steps <= CHEAP && is_answered {
            return;
        }
        let times = |pause: Duration| pause.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        let effort = self.known.entry(pod.to_owned()).or_default();
        effort.failures = effort.failures.saturating_add(u32::from(!is_answered));
        effort.until = now.after(times(PAUSE));
        self.rest_until = now.after(times(REST));
        self.this_round = self.this_round.saturating_add(steps);
    }

    /// How often a pod was too much: others are served first.
    pub(crate) fn failures(&self, pod: &str) -> u32 {
        self.known.get(pod).map_or(0, |effort| effort.failures)
    }

    pub(crate) fn forget(&mut self, pod: &str) {
        self.known.remove(pod);
    }

    /// All but these.
    pub(crate) fn forget_gangs(&mut self, but: &BTreeSet<String>) {
        self.known.retain(|key, _| !key.starts_with(GANG) || but.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_expensive_gets_more_each_time_and_later() {
        let mut efforts = Efforts::default();
        let mut now = Time::from_millis(0);
        let mut budgets = Vec::new();
        for _ in 0..8 {
            let budget = efforts.budget("p", now).unwrap();
            let steps = budget.left();
            budgets.push(steps);
            efforts.spent("p", steps, false, now);
            let until = efforts.budget("p", now).unwrap_err();
            assert_eq!(until.since(now), PAUSE * steps as u32, "the same part of the time");
            now = until;
        }
        assert_eq!((budgets[0], budgets[1], budgets[7]), (FIRST, 2 * FIRST, MOST));
        assert_eq!(efforts.failures("p"), 8);
        efforts.forget("p");
        assert!(efforts.budget("p", Time::from_millis(0)).is_ok());
    }

    #[test]
    fn the_expensive_rest_together_and_the_cheap_do_not() {
        let mut efforts = Efforts::default();
        let at = |millis: i64| Time::from_millis(millis);
        efforts.spent("p", 30_000, true, at(0));
        efforts.spent("q", MOST, false, at(1_000));
        assert_eq!(efforts.budget("p", at(1_000)).unwrap_err(), at(1_000 + 6_400));
        efforts.spent("r", CHEAP, true, at(1_000));
        assert!(efforts.budget("r", at(1_000)).is_ok());
        assert!(efforts.is_round_over());
        efforts.begin_round();
        assert!(!efforts.is_round_over());
    }
}
