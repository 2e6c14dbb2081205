//! Budgets that are spent: which namespaces are over budget, and what pods in budget wait for.

use std::collections::HashMap;

use crate::claim::{Claim, NotKnown};
use crate::class::Classes;
use crate::demand::Demand;
use crate::gpus::Gpus;
use crate::mark::Mark;
use crate::names::OVER_BUDGET;
use crate::pod::Pod;
use crate::time::Wall;

use super::Namespace;
use super::held::Held;

/// The GPUs that a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// In each combination of alternatives.
    pub(crate) ways: Vec<Vec<Demand>>,
    /// Pools of what it has already: it can go to their node only.
    pub(crate) pools: Vec<String>,
    /// Why it is not known which GPUs it could have.
    pub(crate) not_known: Option<NotKnown>,
}

impl Namespace {
    pub(crate) fn is_over_budget(&self) -> bool {
        self.quota.as_ref().is_some_and(Held::is_over_budget)
    }

    /// When its hours begin anew.
    pub(crate) fn reset(&self) -> Option<Wall> {
        Some(self.quota.as_ref()?.account.as_ref()?.sum().period_end)
    }

    /// Returns true if it has a quota that is not refused, and has not spent its hours: others are evicted for its pods.
    pub(crate) fn is_in_budget(&self) -> bool {
        let is_good = |held: &Held| held.quota.spec.is_ok() && !held.is_spent();
        self.quota.as_ref().is_some_and(is_good)
    }

    /// Returns the value for its label; `None` without a quota.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let held = self.quota.as_ref()?;
        Some(match held.quota.spec.is_err() {
            true => Mark::Held,
            false if held.is_over_budget() => Mark::OverBudget,
            false if held.is_spent() => Mark::Held,
            false => Mark::InBudget,
        })
    }

    /// Its pods wait while others that are in budget do.
    pub(crate) fn may_yield(&self) -> bool {
        self.pods.values().any(|pod| pod.is_gated) && self.is_over_budget()
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.values().map(Box::as_ref)
    }

    /// Pods that may be bound and are not. Those with the low priority, and those that started over budget, wait behind.
    pub(crate) fn unbound(&self) -> impl Iterator<Item = &Pod> {
        let may_bind = |pod: &&Pod| !pod.has_gates() && !pod.is_bound() && !pod.is_over && !pod.is_deleted;
        let pods = self.pods.values().map(Box::as_ref).filter(may_bind);
        pods.filter(|pod| pod.priority_class.as_deref() != Some(OVER_BUDGET) && !pod.was_opened_over_budget)
    }

    /// Returns the GPUs that a pod needs besides those it has; `None` if it needs none of ours, or if a claim is missing.
    pub(crate) fn wanted(&self, pod: &Pod, classes: &Classes, gpus: &Gpus) -> Option<Wanted> {
        let mut wanted = Wanted {
            ways: vec![Vec::new()],
            pools: Vec::new(),
            not_known: None,
        };
        let made = self.extended_claim(pod).map(|claim| &claim.uid);
        let named = pod.claims.iter().map(|(_, name)| self.names.get(name.as_ref()?));
        let mut claims = Vec::new();
        for uid in named.chain(made.map(Some)) {
            claims.push(self.claims.get(uid?)?);
        }
        for claim in claims {
            if claim.is_allocated() {
                wanted.pools.extend(claim.given(gpus).map(|(pool, ..)| pool.to_owned()));
                continue;
            }
            wanted.not_known = wanted.not_known.or_else(|| claim.not_known(classes));
            wanted.add(&claim.ways(classes));
        }
        let extended = pod.extended.iter().filter(|_| made.is_none());
        for (name, count) in extended.filter(|(name, _)| classes.is_extended(name)) {
            let class = classes.giving(name).unwrap_or_default();
            let kind = classes.kind(class);
            if kind.is_none() {
                wanted.not_known.get_or_insert(NotKnown::ClassSelects(class.to_owned()));
            }
            let whole = Demand {
                memory: None,
                cores: 0,
                kind: kind.flatten().map(str::to_owned),
            };
            let count = usize::try_from(*count).unwrap_or(usize::MAX).min(32);
            wanted.add(&[vec![whole; count]]);
        }
        wanted.ways.iter().any(|way| !way.is_empty()).then_some(wanted)
    }

    /// Of each claim, by UID: the pods that hold it, or will.
    pub(crate) fn holders(&self) -> HashMap<&str, Vec<&Pod>> {
        let mut holders: HashMap<&str, Vec<&Pod>> = HashMap::new();
        for pod in self.pods.values().filter(|pod| !pod.is_over && !pod.is_gated) {
            let named = pod.claims.iter().filter_map(|(_, name)| self.names.get(name.as_ref()?));
            for uid in named.chain(self.extended_claim(pod).map(|claim| &claim.uid)) {
                holders.entry(uid).or_default().push(pod);
            }
        }
        holders
    }
}

impl Wanted {
    fn add(&mut self, ways: &[Vec<Demand>]) {
        let both = |known: &Vec<Demand>| ways.iter().map(|way| [&known[..], way].concat()).collect::<Vec<_>>();
        self.ways = self.ways.iter().flat_map(both).take(16).collect();
    }
}
