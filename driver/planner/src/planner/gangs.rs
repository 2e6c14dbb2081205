//! Places a gang: all of its waiting pods, or none.
//!
//! ```text
//!  one pod after the other, each on its best node ─► all placed ─► slices read lately? ─► write, all at once
//!      │  a pod fits nowhere                                          └─ no: read all of them first
//!      ▼
//!  that pod first, then the rest as before ─► again, as long as another pod fails
//!      │  it was first before
//!      ▼
//!  the pod before it takes its next best node, and so on backwards, depth first
//! ```
//!
//! The first try fails if an earlier pod takes the one node that a later pod needs. The rest is a search with a limit:
//! [`MOST_OF_EACH`] placements for each pod and [`MOST`] more, which is enough to try every choice of nodes for four
//! pods on four nodes. The search chooses nodes, not devices: on its node a pod gets the devices that the policy
//! prefers. Pods with equal claims are not searched, because no order of them is better. A search that finds nothing is
//! repeated only after a pause.

use std::collections::BTreeSet;

use vgpu_allocator::Budget;

use super::{Plan, Planner, soonest};
use crate::gang::{self, Gangs};
use crate::model::Pod;
use crate::place::{Placed, Waits};
use crate::search_budget::{GANG, SearchEnd, Spender};
use crate::term::Term;
use crate::time::Time;
use crate::verdict::Verdict;
use crate::write::Write;

const MOST_OF_EACH: usize = 4;
const MOST: usize = 64;
/// The cost of each placement, in steps of the allocator.
const STEPS: u64 = 2_000;

/// One pod's placement, and the nodes that were tried for it before.
#[derive(Default)]
pub(super) struct Step {
    pub(super) node: Option<String>,
    pub(super) writes: Vec<Write>,
    stale: Vec<String>,
    without: BTreeSet<String>,
}

/// The pod that could not be placed, by its index in the order, and why.
pub(super) struct Failed {
    at: usize,
    waits: Waits,
}

impl Planner {
    pub(super) fn place_gang(
        &mut self,
        term: &Term,
        name: &gang::Name,
        gangs: &Gangs,
        pods: &[String],
        now: Time,
        plan: &mut Plan,
    ) {
        if let Err(verdict) = gangs.check(name) {
            for key in pods {
                self.wait(key, verdict.clone().into(), now, plan);
            }
            return;
        }
        let (key, search_key) = (budget_key(name), search_key_of(name));
        let spender = |who| Spender { who, pods: pods.len() };
        let mut budget = match self.budget(spender(&key), now) {
            Ok(budget) => budget,
            Err(Waits::Until(until)) => {
                return pods
                    .iter()
                    .for_each(|pod| self.wait(pod, Waits::Until(until), now, plan));
            }
            Err(waits) => return self.wait(&pods[0], waits, now, plan),
        };
        let (found, searched) = self.find_places(term, pods, spender(&search_key), &mut budget, now, plan);
        let is_helped = found.as_ref().is_err_and(|failed| failed.waits.is_no_fit())
            && self.take_weak_holds(term, pods, &mut budget, now, plan);
        let answer = end_of(&found);
        match (searched, &answer) {
            (None, _) => {}
            (Some(_), SearchEnd::Answered) if found.is_ok() => self.budgets.forget(&search_key),
            (Some(steps), SearchEnd::NeedsReads(_)) => {
                self.spend(spender(&search_key), steps, answer.clone(), now, plan)
            }
            (Some(steps), _) => self.spend(spender(&search_key), steps, SearchEnd::Unanswered, now, plan),
        }
        self.spend(spender(&key), budget.spent(), answer, now, plan);
        let first = match found {
            Ok(steps) => return self.take_gang(pods, steps, now, plan),
            Err(_) if is_helped => return,
            Err(failed) => failed,
        };
        let waits = match first.waits {
            Waits::For(why) => {
                let gang = name.1.clone();
                Waits::from(Verdict::GangDoesNotFit { gang, why })
            }
            waits => waits,
        };
        self.wait(&pods[first.at], waits, now, plan);
    }

    /// Places one pod after the other; if a pod then fits nowhere, searches other orders and nodes. With the steps of that
    /// search, if one is made.
    fn find_places(
        &mut self,
        term: &Term,
        pods: &[String],
        searcher: Spender<'_>,
        budget: &mut Budget,
        now: Time,
        plan: &mut Plan,
    ) -> (Result<Vec<Step>, Failed>, Option<u64>) {
        let mut left = pods.len();
        let found = self.one_by_one(term, pods, false, &mut left, budget, now);
        let first = match &found {
            Err(first) if self.is_worth_a_search(pods, first) => first.at,
            _ => return (found, None),
        };
        match self.budgets.budget(searcher, now) {
            Err(until) => {
                soonest(&mut plan.wake, until, now);
                (found, None)
            }
            Ok(budget) => {
                let (steps, spent) = self.search_orders(term, pods, first, budget, now);
                (steps.map_or(found, Ok), Some(spent))
            }
        }
    }

    /// Tries other orders of the pods, and returns the result and the steps used.
    fn search_orders(
        &mut self,
        term: &Term,
        pods: &[String],
        failed: usize,
        mut budget: Budget,
        now: Time,
    ) -> (Option<Vec<Step>>, u64) {
        let most = pods.len() * MOST_OF_EACH + MOST;
        let mut left = most;
        let steps = self.search(term, &mut pods.to_vec(), failed, &mut left, &mut budget, now);
        let of_orders = STEPS.saturating_mul((most - left) as u64);
        (steps, of_orders.max(budget.spent()))
    }

    /// Moves the failed pod to the front. If it was there before, tries the next best nodes of the pods before it.
    fn search(
        &mut self,
        term: &Term,
        order: &mut [String],
        mut failed: usize,
        left: &mut usize,
        budget: &mut Budget,
        now: Time,
    ) -> Option<Vec<Step>> {
        let mut were_first = BTreeSet::new();
        while were_first.insert(order[failed].clone()) {
            order[..=failed].rotate_right(1);
            match self.one_by_one(term, order, false, left, budget, now) {
                Ok(steps) => return Some(steps),
                Err(next) if !next.waits.is_no_fit() || next.at == 0 => return None,
                Err(next) => failed = next.at,
            }
        }
        self.one_by_one(term, order, true, left, budget, now).ok()
    }

    /// Places the pods in this order, each in addition to those before it. If one cannot be placed, none is.
    pub(super) fn one_by_one(
        &mut self,
        term: &Term,
        order: &[String],
        goes_back: bool,
        left: &mut usize,
        budget: &mut Budget,
        now: Time,
    ) -> Result<Vec<Step>, Failed> {
        let mut steps: Vec<Step> = Vec::new();
        let mut without = BTreeSet::new();
        while let Some(key) = order.get(steps.len()) {
            let placed = match left.checked_sub(1) {
                Some(less) => {
                    *left = less;
                    self.place(term, key, &without, budget, now)
                }
                None => Err(Waits::Quietly),
            };
            match placed {
                Ok(placed) => steps.push(self.step(term, placed, std::mem::take(&mut without))),
                Err(Waits::Done) => steps.push(Step::default()),
                Err(waits) => {
                    let at = steps.len();
                    let back = (goes_back && waits.is_no_fit())
                        .then(|| steps.iter().rposition(|step| step.node.is_some()))
                        .flatten();
                    for step in steps.drain(back.unwrap_or(0)..).rev().collect::<Vec<_>>() {
                        self.cancel_writes(&step.writes);
                        without = step.without;
                        without.extend(step.node);
                    }
                    if back.is_none() {
                        return Err(Failed { at, waits });
                    }
                }
            }
        }
        Ok(steps)
    }

    fn step(&mut self, term: &Term, placed: Placed, without: BTreeSet<String>) -> Step {
        let mut own = Plan::default();
        let (node, stale) = (placed.node.clone(), placed.stale.clone());
        self.write_allocations(term, placed, &mut own);
        Step {
            node: Some(node),
            writes: own.writes,
            stale,
            without,
        }
    }

    /// Writes all allocations at once. If slices must be read first, requests all of them at once: one after the other,
    /// the first would be too old when the last is read.
    fn take_gang(&mut self, pods: &[String], steps: Vec<Step>, now: Time, plan: &mut Plan) {
        let stale = stale(&steps);
        if stale.is_empty() {
            return plan.writes.extend(steps.into_iter().flat_map(|step| step.writes));
        }
        for step in steps.iter().rev() {
            self.cancel_writes(&step.writes);
        }
        self.wait(&pods[0], Waits::ForSlices(stale), now, plan);
    }

    /// Returns false if the first pod already fails, or if all before the failed one ask for the same.
    fn is_worth_a_search(&self, order: &[String], failed: &Failed) -> bool {
        let Some(pod) = self.state.cluster.pod(&order[failed.at]) else {
            return false;
        };
        let mut before = order[..failed.at].iter().filter_map(|key| self.state.cluster.pod(key));
        failed.waits.is_no_fit() && before.any(|other| !self.are_alike(pod, other))
    }

    /// Returns true if the pods are certainly interchangeable; a cheap check.
    fn are_alike(&self, one: &Pod, other: &Pod) -> bool {
        let is_alone = |pod: &Pod| pod.affinity.is_empty() && pod.anti_affinity.is_empty() && pod.spread.is_empty();
        let specs = |pod: &Pod| -> Vec<_> {
            let known = pod.claim_keys().map(|key| self.state.claims.get(&key));
            known.map(|known| known.map(|known| &known.claim.facts.spec)).collect()
        };
        is_alone(one)
            && is_alone(other)
            && (&one.requests, &one.ports) == (&other.requests, &other.ports)
            && (&one.node_selector, &one.node_affinity) == (&other.node_selector, &other.node_affinity)
            && one.tolerations == other.tolerations
            && specs(one) == specs(other)
    }
}

fn end_of(found: &Result<Vec<Step>, Failed>) -> SearchEnd {
    match found {
        Ok(steps) => match stale(steps) {
            slices if slices.is_empty() => SearchEnd::Answered,
            slices => SearchEnd::NeedsReads(slices),
        },
        Err(failed) if failed.waits.is_unanswered() => SearchEnd::Unanswered,
        Err(_) => SearchEnd::Answered,
    }
}

/// The slices that must be read before anything is written.
fn stale(steps: &[Step]) -> Vec<String> {
    let stale: BTreeSet<&String> = steps.iter().flat_map(|step| &step.stale).collect();
    stale.into_iter().cloned().collect()
}

/// The key of a gang's search budget; no pod's uid is equal to it.
pub(super) fn budget_key((namespace, name): &gang::Name) -> String {
    format!("{GANG}{namespace}/{name}")
}

/// Like [`budget_key`], for the search over its orders; no namespace contains a space.
pub(super) fn search_key_of((namespace, name): &gang::Name) -> String {
    format!("{GANG}search {namespace}/{name}")
}
