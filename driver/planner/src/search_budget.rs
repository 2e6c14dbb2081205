//! Search budgets per pod and gang.
//!
//! Finding out whether claims fit together can take a nearly endless number of steps, and everyone who may create
//! claims can cause that. So each pod starts with a small budget. If the search ends without an answer, it is repeated
//! with twice the budget, after a pause that doubles too, so the pod's share of the time does not grow. Pods whose
//! searches were expensive are searched for one at a time, with a rest after each. Nearly all pods are cheap, and wait
//! for none of this.
//!
//! If slices must be read before the result can be used, the search is repeated as soon as they are read, without a
//! pause, because after a pause they would be too old. The next pause then counts both searches. A gang is searched for
//! as one unit: its pods share a budget, a pause and a rest; otherwise one pod could delay the next forever.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use vgpu_allocator::Budget;

use crate::time::Time;

/// Steps of a first search: some ten milliseconds.
const FIRST: u64 = 50_000;
/// The largest budget of a search: about a second.
const MOST: u64 = FIRST << 6;
/// A search that takes more steps is expensive.
const CHEAP: u64 = 20_000;
/// The budget of one pass, filters included: a decision must be young when it is sent.
const PASS: u64 = 1_000_000;
/// The length of a pod's pause, for each step of its search.
const PAUSE: Duration = Duration::from_micros(20);
/// The prefix of a gang's key.
pub(crate) const GANG: &str = "gang ";
/// The length of the rest for all expensive pods, for each step of an expensive search.
const REST: Duration = Duration::from_micros(2);

#[derive(Debug, Default)]
pub(crate) struct SearchBudgets {
    /// Expensive pods by uid, and gangs by key.
    known: HashMap<String, Effort>,
    /// Pods and gangs whose search is repeated once their slices are read.
    returns: HashMap<String, Return>,
    rest_until: Time,
    this_pass: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Effort {
    /// How often a search ended without an answer.
    failures: u32,
    until: Time,
}

#[derive(Debug, Default)]
struct Return {
    slices: Vec<String>,
    /// Steps that the next pause must count.
    owed: u64,
}

/// Who is charged for a search: a pod by its UID, or a gang by its key, and the number of its pods.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spender<'a> {
    pub(crate) who: &'a str,
    pub(crate) pods: usize,
}

/// How a search ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SearchEnd {
    /// With a result, or with the reason why the pod fits nowhere.
    Answered,
    /// With a result that is valid if these slices have not changed.
    NeedsReads(Vec<String>),
    /// The budget ended before an answer.
    Unanswered,
}

impl Spender<'_> {
    fn times(self, steps: u64) -> u64 {
        steps.saturating_mul(self.pods as u64)
    }

    /// The number of steps up to which a search for this many pods is cheap.
    fn cheap(self) -> u64 {
        self.times(CHEAP).min(PASS / 4)
    }
}

impl SearchBudgets {
    pub(crate) fn begin_pass(&mut self) {
        self.this_pass = 0;
    }

    /// Returns true if the budget of this pass is spent.
    pub(crate) fn is_pass_over(&self) -> bool {
        self.this_pass >= PASS
    }

    /// Charges work besides a search's steps to the pass. It makes no pod expensive.
    pub(crate) fn add_work(&mut self, work: u64) {
        self.this_pass = self.this_pass.saturating_add(work);
    }

    /// Returns the budget of a search now.
    ///
    /// # Errors
    /// The time at which its pause or rest ends.
    pub(crate) fn budget(&self, spender: Spender<'_>, now: Time) -> Result<Budget, Time> {
        let effort = self.known.get(spender.who).copied().unwrap_or_default();
        let is_known = self.known.contains_key(spender.who) && !self.returns.contains_key(spender.who);
        let until = effort.until.max(self.rest_until);
        match is_known && now < until {
            true => Err(until),
            false => {
                let first = spender.times(FIRST).min(MOST);
                Ok(Budget::new((first << effort.failures.min(6)).min(MOST)))
            }
        }
    }

    /// The slices that must be read before the search is repeated.
    pub(crate) fn reads(&self, who: &str) -> &[String] {
        self.returns.get(who).map_or(&[], |back| &back.slices)
    }

    /// Charges the steps of a search, and decides on pause and rest by how it ended.
    pub(crate) fn charge(&mut self, spender: Spender<'_>, steps: u64, answer: SearchEnd, now: Time) {
        let before = self.returns.remove(spender.who);
        let is_back = before.is_some();
        let mut owed = before.unwrap_or_default().owed;
        let is_cheap = steps <= spender.cheap() && answer != SearchEnd::Unanswered;
        self.add_work(steps);
        if !is_cheap {
            owed = owed.saturating_add(steps);
            self.rest_until = now.after(times(REST, steps));
        }
        let is_answered = answer != SearchEnd::Unanswered;
        if let SearchEnd::NeedsReads(slices) = answer
            && (is_cheap || !is_back)
        {
            self.returns.insert(spender.who.to_owned(), Return { slices, owed });
        } else if owed > 0 {
            let effort = self.known.entry(spender.who.to_owned()).or_default();
            effort.failures = effort.failures.saturating_add(u32::from(!is_answered));
            effort.until = now.after(times(PAUSE, owed));
        }
    }

    /// How often the pod's searches ended without an answer. Pods with a lower count go first.
    pub(crate) fn failures(&self, pod: &str) -> u32 {
        self.known.get(pod).map_or(0, |effort| effort.failures)
    }

    pub(crate) fn forget(&mut self, pod: &str) {
        self.known.remove(pod);
        self.returns.remove(pod);
    }

    /// Forgets all gangs except these.
    pub(crate) fn forget_gangs(&mut self, but: &BTreeSet<String>) {
        let stays = |key: &String| !key.starts_with(GANG) || but.contains(key);
        self.known.retain(|key, _| stays(key));
        self.returns.retain(|key, _| stays(key));
    }
}

fn times(pause: Duration, steps: u64) -> Duration {
    pause.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pod(who: &str) -> Spender<'_> {
        Spender { who, pods: 1 }
    }

    fn at(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn who_is_expensive_gets_more_each_time_and_later() {
        let mut budgets = SearchBudgets::default();
        let mut now = at(0);
        let mut given = Vec::new();
        for _ in 0..8 {
            let budget = budgets.budget(pod("p"), now).unwrap();
            let steps = budget.left();
            given.push(steps);
            budgets.charge(pod("p"), steps, SearchEnd::Unanswered, now);
            let until = budgets.budget(pod("p"), now).unwrap_err();
            assert_eq!(until.since(now), PAUSE * steps as u32, "the same part of the time");
            now = until;
        }
        assert_eq!((given[0], given[1], given[7]), (FIRST, 2 * FIRST, MOST));
        assert_eq!(budgets.failures("p"), 8);
        budgets.forget("p");
        assert!(budgets.budget(pod("p"), at(0)).is_ok());
    }

    #[test]
    fn the_expensive_rest_together_and_the_cheap_do_not() {
        let mut budgets = SearchBudgets::default();
        budgets.charge(pod("p"), 30_000, SearchEnd::Answered, at(0));
        budgets.charge(pod("q"), MOST, SearchEnd::Unanswered, at(1_000));
        assert_eq!(budgets.budget(pod("p"), at(1_000)).unwrap_err(), at(1_000 + 6_400));
        budgets.charge(pod("r"), CHEAP, SearchEnd::Answered, at(1_000));
        assert!(budgets.budget(pod("r"), at(1_000)).is_ok());
        assert!(budgets.is_pass_over());
        budgets.begin_pass();
        assert!(!budgets.is_pass_over());
    }

    #[test]
    fn what_has_a_place_comes_back_once_without_a_pause() {
        let mut budgets = SearchBudgets::default();
        let reads = || SearchEnd::NeedsReads(vec!["s".into()]);
        budgets.charge(pod("p"), MOST, reads(), at(0));
        assert_eq!(budgets.reads("p"), ["s"]);
        assert!(budgets.budget(pod("p"), at(1)).is_ok());
        budgets.charge(pod("p"), MOST, reads(), at(1));
        assert!(budgets.reads("p").is_empty(), "not twice");
        let until = budgets.budget(pod("p"), at(1)).unwrap_err();
        assert_eq!(until.since(at(1)), 2 * PAUSE * MOST as u32, "a pause for both");
        for _ in 0..3 {
            budgets.charge(pod("q"), CHEAP, reads(), at(1));
            assert!(
                budgets.budget(pod("q"), at(1)).is_ok(),
                "the cheap as often as they like"
            );
        }
    }

    #[test]
    fn a_gang_has_a_budget_for_each_of_its_pods_up_to_the_most() {
        let mut budgets = SearchBudgets::default();
        let gang = |pods| Spender { who: "gang g", pods };
        let left = |budgets: &SearchBudgets, pods| budgets.budget(gang(pods), at(0)).unwrap().left();
        assert_eq!((left(&budgets, 3), left(&budgets, 1_000)), (3 * FIRST, MOST));
        budgets.charge(gang(3), 3 * CHEAP, SearchEnd::Answered, at(0));
        assert!(budgets.budget(gang(3), at(0)).is_ok());
        budgets.charge(gang(1_000), MOST, SearchEnd::Answered, at(0));
        assert!(budgets.budget(gang(1_000), at(0)).is_err());
        budgets.forget_gangs(&BTreeSet::new());
        assert!(budgets.budget(gang(3), at(0)).is_ok());
    }
}
