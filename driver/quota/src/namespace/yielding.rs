//! Budgets that are spent: which namespaces are over budget, and what pods in budget wait for.

use std::collections::HashMap;
use std::sync::Arc;

use vgpu_allocator::Index;
use vgpu_allocator::model::{Allocation, ResourceClaim};
use vgpu_planner::Time;
use vgpu_planner::model::{Claim, Pod};

use crate::budget_state::BudgetState;
use crate::claim::{self, NotKnown, for_extended, is_allocated};
use crate::class::giving;
use crate::pod::{claim_names, is_gated};

use super::Namespace;
use super::held::Held;

/// The GPUs that a pod waits for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wanted {
    /// The claims, without requests for other devices.
    pub(crate) claims: Vec<ResourceClaim>,
    /// Pools of the devices that it already has: it can only run on their node.
    pub(crate) pools: Vec<String>,
    /// Why it is not known which GPUs it could have.
    pub(crate) not_known: Option<NotKnown>,
}

impl Namespace {
    pub(crate) fn is_over_budget(&self) -> bool {
        self.quota.as_ref().is_some_and(Held::is_over_budget)
    }

    /// When its next period begins.
    pub(crate) fn reset(&self) -> Option<Time> {
        Some(self.quota.as_ref()?.account.as_ref()?.sum().period_end)
    }

    /// Returns true if it has a quota that is not refused, and has not spent its hours: others are evicted for its pods.
    pub(crate) fn is_in_budget(&self) -> bool {
        let is_good = |held: &Held| held.quota.spec.is_ok() && !held.is_spent();
        self.quota.as_ref().is_some_and(is_good)
    }

    /// Returns the value for its label; `None` without a quota.
    pub(crate) fn state(&self) -> Option<BudgetState> {
        let held = self.quota.as_ref()?;
        Some(match held.quota.spec.is_err() {
            true => BudgetState::Held,
            false if held.is_over_budget() => BudgetState::OverBudget,
            false if held.is_spent() => BudgetState::Held,
            false => BudgetState::InBudget,
        })
    }

    /// Returns true if its gated pods must wait while pods in budget wait.
    pub(crate) fn may_yield(&self) -> bool {
        self.pods.values().any(|pod| is_gated(pod)) && self.is_over_budget()
    }

    /// Its allocated claims.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = (&Claim, &Arc<Allocation>)> {
        let claims = self.claims.values();
        claims.filter_map(|claim| Some((claim.as_ref(), claim.facts.status.allocation.as_ref()?)))
    }

    /// Pods that may be bound but are not, without those that have the low priority or started over budget.
    pub(crate) fn unbound(&self) -> impl Iterator<Item = &Pod> {
        let may_bind = |pod: &&Pod| !pod.is_gated && pod.is_waiting();
        let pods = self.pods.values().map(Box::as_ref).filter(may_bind);
        pods.filter(|pod| !pod.is_over_budget && !pod.was_opened_over_budget)
    }

    /// Returns the GPUs that a pod needs besides those it has; `None` if it needs none of ours, or if a claim is missing.
    pub(crate) fn wanted(&self, pod: &Pod, index: &Index) -> Option<Wanted> {
        let mut wanted = Wanted::default();
        let made = self.extended_claim(pod).map(Claim::uid);
        let named = claim_names(pod).map(|name| Some(self.names.get(name?)?.as_str()));
        let mut claims = Vec::new();
        for uid in named.chain(made.map(Some)) {
            claims.push(self.claims.get(uid?)?);
        }
        for claim in claims {
            if is_allocated(claim) {
                wanted.pools.extend(claim::pools(claim).map(str::to_owned));
                continue;
            }
            let claim = claim::wanted(claim, index, &mut wanted.not_known);
            wanted.claims.extend(claim);
        }
        let extended = pod.extended.iter().filter(|_| made.is_none());
        let extended = extended.filter_map(|extended| {
            let classes = giving(index, &extended.resource);
            let class = classes.first()?;
            Some(for_extended(class, extended.count.unsigned_abs()))
        });
        wanted.claims.extend(extended);
        (!wanted.claims.is_empty()).then_some(wanted)
    }

    /// For each claim, by UID: the pods that hold it, or will.
    pub(crate) fn holders(&self) -> HashMap<&str, Vec<&Pod>> {
        let mut holders: HashMap<&str, Vec<&Pod>> = HashMap::new();
        for pod in self.pods.values().filter(|pod| !pod.is_finished && !is_gated(pod)) {
            let named = claim_names(pod).filter_map(|name| Some(self.names.get(name?)?.as_str()));
            for uid in named.chain(self.extended_claim(pod).map(Claim::uid)) {
                holders.entry(uid).or_default().push(pod);
            }
        }
        holders
    }
}
