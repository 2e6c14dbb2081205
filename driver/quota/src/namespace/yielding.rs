//! Who is in budget, and who comes after those that are.

use crate::amount::Amount;
use crate::claim::extended_amount;
use crate::class::Classes;
use crate::gpus::Gpus;
use crate::mark::Mark;
use crate::names::OVER_BUDGET;
use crate::pod::Pod;

use super::Namespace;
use super::held::Held;

impl Namespace {
    pub(crate) fn is_over_budget(&self) -> bool {
        self.quota.as_ref().is_some_and(Held::is_over_budget)
    }

    /// What its label says. `None` without a quota.
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

    pub(crate) fn given(&self, mut each: impl FnMut(&str, &str, Amount), gpus: &Gpus) {
        for claim in self.claims.values() {
            claim.given(gpus, &mut each);
        }
    }

    /// What each pod wants that may be bound and is not.
    pub(crate) fn unplaced(&self, classes: &Classes, gpus: &Gpus) -> Vec<Vec<Amount>> {
        let waits = |pod: &&Pod| !pod.is_gated && !pod.is_bound && !pod.is_over && !pod.is_deleted;
        let pods = self.pods.values().filter(waits);
        // A pod that chose the low priority itself waits behind.
        let pods = pods.filter(|pod| pod.priority_class.as_deref() != Some(OVER_BUDGET));
        let wanted = pods.map(|pod| {
            let names = pod.claims.iter().filter_map(|(_, name)| self.names.get(name.as_ref()?));
            let claims = names
                .filter_map(|uid| self.claims.get(uid))
                .filter(|claim| !claim.is_allocated());
            let claims = claims.flat_map(|claim| claim.wanted(classes, gpus));
            let extended = pod.extended.iter().filter(|(name, _)| classes.is_extended(name));
            let whole = extended.flat_map(|(_, count)| {
                let count = usize::try_from(*count).unwrap_or(usize::MAX).min(64);
                std::iter::repeat_n(extended_amount(1, gpus).unwrap_or_default(), count)
            });
            claims.chain(whole).collect::<Vec<_>>()
        });
        wanted.filter(|wanted| !wanted.is_empty()).collect()
    }
}
