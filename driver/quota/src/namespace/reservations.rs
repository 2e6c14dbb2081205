//! Reservations, and shares that count without one.

use std::collections::{BTreeMap, HashSet};

use crate::amount::{Amount, Dimension};
use crate::ceilings::Effective;
use crate::claim::{Uncounted, extended_amount, extended_key};
use crate::decision::Decision;
use crate::notice::{Kind, Notice};
use crate::plan::{PodRef, subject};
use crate::pod::Pod;
use crate::time::Now;
use crate::view::View;

use super::Namespace;
use super::held::HOLD;
use super::held::Held;

/// The amounts that one pod needs.
#[derive(Debug)]
pub(super) enum Needs {
    /// By key. Amounts of nothing are left out.
    Known(Vec<(String, Amount)>),
    /// Kubernetes has not made its claim yet.
    NotMade,
    NoClaim(String),
    Uncounted(String, Uncounted),
}

impl Namespace {
    /// The reservations that go on, with what they count now.
    pub(super) fn kept(
        &mut self,
        held: &Held,
        view: &View<'_>,
        now: Now,
        decided: &mut Decision,
    ) -> BTreeMap<String, Amount> {
        let used = self.used_keys();
        let mut kept = BTreeMap::new();
        for (key, amount) in &held.quota.status.reservations {
            let claim = self.claim_of(key);
            let is_used = used.contains(key);
            let amount = match claim {
                Some(claim) if claim.is_allocated() => claim.measured(view.gpus).unwrap_or(*amount),
                // Larger GPUs may have come meanwhile.
                Some(claim) => claim
                    .amount(view.classes, view.gpus)
                    .map_or(*amount, |now| amount.worst(now)),
                None => *amount,
            };
            let is_seen = claim.is_some_and(|claim| claim.is_allocated()) || is_used;
            // No pod can use it again.
            let is_deleted = claim.is_none() && self.ended.contains(key);
            if is_seen {
                self.idle.remove(key);
            } else if is_deleted || self.releases(key, held, view, now, decided) {
                continue;
            }
            kept.insert(key.clone(), amount);
        }
        kept
    }

    /// Decides on a reservation that nothing uses, as far as is seen: returns true if it is released now. Another leader may
    /// have seen a pod that uses it.
    fn releases(&mut self, key: &str, held: &Held, view: &View<'_>, now: Now, decided: &mut Decision) -> bool {
        let unseen_until = match self.ended.contains(key) {
            true => now,
            false => *self.idle.entry(key.to_owned()).or_insert(now) + HOLD,
        };
        let is_ours = held.quota.status.is_of(view.epoch);
        let until = match is_ours {
            true => unseen_until.max(held.releases_from),
            false => held.releases_from,
        };
        if until > now {
            decided.wake(until);
            return false;
        }
        decided.takes_over |= !is_ours;
        is_ours
    }

    /// The keys that pods which have not finished name, gated or not.
    fn used_keys(&self) -> HashSet<String> {
        let live = self.pods.values().filter(|pod| !pod.is_over);
        live.flat_map(|pod| {
            let names = pod
                .claims
                .iter()
                .filter_map(|(_, name)| self.names.get(name.as_ref()?).cloned());
            let extended = (!pod.extended.is_empty()).then(|| extended_key(&pod.uid));
            names.chain(extended)
        })
        .collect()
    }

    /// Returns claims that hold shares, or may, without a reservation: those from before the quota, and those of pods that
    /// passed without the gate. They count, but no gate opens for them: a watch of pods that lags may name a claim that
    /// belongs to another pod by now.
    pub(super) fn unreserved(
        &self,
        reservations: &BTreeMap<String, Amount>,
        effective: &Effective,
        view: &View<'_>,
        decided: &mut Decision,
    ) -> BTreeMap<String, Amount> {
        let mut counted: BTreeMap<String, Amount> = BTreeMap::new();
        let mut add = |key: String, amount: Amount| {
            let is_new = amount != Amount::default() && !reservations.contains_key(&key);
            is_new && counted.insert(key, amount).is_none()
        };
        for claim in self.claims.values().filter(|claim| claim.is_allocated()) {
            if let Ok(amount) = claim.amount(view.classes, view.gpus) {
                add(self.key(claim), amount);
            }
        }
        let passed = self
            .pods
            .values()
            .filter(|pod| !pod.is_gated && !pod.is_over && !pod.is_deleted);
        let mut pods = Vec::new();
        for pod in passed {
            if let Needs::Known(needs) = self.needs(pod, view) {
                let mut is_new = false;
                for (key, amount) in needs {
                    is_new |= add(key, amount);
                }
                if is_new && !pod.is_bound() {
                    pods.push(pod);
                }
            }
        }
        let used: Amount = reservations.values().chain(counted.values()).copied().sum();
        let mut above = Dimension::ALL.into_iter();
        let above =
            above.find_map(|at| Some((at, effective.ceilings.of(at).filter(|ceiling| used.of(at) > *ceiling)?)));
        for pod in pods {
            if let Some((dimension, ceiling)) = above {
                let notice = Notice::Ungated {
                    dimension,
                    used: dimension.text(used.of(dimension)),
                    ceiling: dimension.text(ceiling),
                };
                decided.notices.push((subject(Kind::Pod, &PodRef::of(pod)), notice));
            }
        }
        counted
    }

    pub(super) fn claims_of(&self, pod: &Pod) -> Vec<(String, String)> {
        let names = pod.claims.iter().filter_map(|(_, name)| name.as_ref());
        let known = names.filter_map(|name| self.names.get_key_value(name));
        known.map(|(name, uid)| (name.clone(), uid.clone())).collect()
    }

    pub(super) fn needs(&self, pod: &Pod, view: &View<'_>) -> Needs {
        let mut needs: BTreeMap<String, Amount> = BTreeMap::new();
        for (_, name) in &pod.claims {
            let Some(name) = name else { return Needs::NotMade };
            let Some(claim) = self.names.get(name).and_then(|uid| self.claims.get(uid)) else {
                return Needs::NoClaim(name.clone());
            };
            match claim.amount(view.classes, view.gpus) {
                Ok(amount) => needs.insert(claim.uid.clone(), amount),
                Err(why) => return Needs::Uncounted(name.clone(), why),
            };
        }
        let ours = pod.extended.iter().filter(|(name, _)| view.classes.is_extended(name));
        let count: u64 = ours.map(|(_, count)| *count).fold(0, u64::saturating_add);
        if count > 0 {
            match extended_amount(count, view.gpus) {
                Ok(amount) => needs.insert(extended_key(&pod.uid), amount),
                Err(why) => return Needs::Uncounted("of its extended resources".to_owned(), why),
            };
        }
        needs.retain(|_, amount| *amount != Amount::default());
        Needs::Known(needs.into_iter().collect())
    }
}
