//! Reservations, and shares that count without one.

use std::collections::{BTreeMap, HashSet};

use vgpu_api::quota::Dimension;
use vgpu_planner::About;
use vgpu_planner::model::Pod;

use crate::Now;
use crate::amount::Amount;
use crate::ceilings::Effective;
use crate::claim::{Uncounted, amount, extended_amount, extended_key, is_allocated, measured};
use crate::class::giving;
use crate::decision::Decision;
use crate::notice::Notice;
use crate::pod::{claim_names, is_gated};
use crate::view::View;

use super::Namespace;
use super::held::HOLD;
use super::held::Held;

/// The amounts that one pod needs.
#[derive(Debug)]
pub(super) enum Needs {
    /// The amount of each reservation, by its key, without empty ones.
    Known(Vec<(String, Amount)>),
    /// Kubernetes has not made its claim yet.
    NotMade,
    NoClaim(String),
    Uncounted(String, Uncounted),
}

impl Namespace {
    /// Returns the reservations that stay, each with its current amount.
    pub(super) fn kept(
        &mut self,
        held: &Held,
        view: &View<'_>,
        now: Now,
        decided: &mut Decision,
    ) -> BTreeMap<String, Amount> {
        let used = self.used_keys();
        let mut kept = BTreeMap::new();
        for (key, reserved) in &held.quota.status.reservations {
            let claim = self.claim_of(key);
            let is_used = used.contains(key);
            let amount = match claim {
                Some(claim) if is_allocated(claim) => measured(claim, view.gpus).unwrap_or(*reserved),
                // Larger GPUs may have come meanwhile.
                Some(claim) => {
                    let now = amount(claim, view.index, view.gpus);
                    now.map_or(*reserved, |now| reserved.worst(now))
                }
                None => *reserved,
            };
            let is_seen = claim.is_some_and(is_allocated) || is_used;
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

    /// Returns true if a reservation that seems unused is released now. Another leader may have seen a pod that uses
    /// it.
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

    /// The keys of the claims of all unfinished pods, gated or not.
    fn used_keys(&self) -> HashSet<String> {
        let live = self.pods.values().filter(|pod| !pod.is_finished);
        live.flat_map(|pod| {
            let names = claim_names(pod).filter_map(|name| self.names.get(name?).cloned());
            let extended = (!pod.extended.is_empty()).then(|| extended_key(&pod.uid));
            names.chain(extended)
        })
        .collect()
    }

    /// Returns shares that count without a reservation: claims that hold shares, or may soon, from before the quota or
    /// of pods that passed without the gate, and shares that nodes hold for claims that are gone. They count, but no
    /// gate opens because of them: with a watch of pods that lags, such a claim may meanwhile belong to another pod.
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
        for claim in self.claims.values().filter(|claim| is_allocated(claim)) {
            if let Ok(amount) = amount(claim, view.index, view.gpus) {
                add(self.key(claim), amount);
            }
        }
        for (key, amount) in self.still_held.amounts(view) {
            add(key.clone(), amount);
        }
        let passed = self
            .pods
            .values()
            .filter(|pod| !is_gated(pod) && !pod.is_finished && !pod.is_deleted);
        let mut pods = Vec::new();
        for pod in passed {
            if let Needs::Known(needs) = self.needs(pod, view) {
                let mut is_new = false;
                for (key, amount) in needs {
                    is_new |= add(key, amount);
                }
                if is_new && pod.node.is_none() {
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
                decided.notices.push((About::pod(&**pod), notice));
            }
        }
        counted
    }

    pub(super) fn claims_of(&self, pod: &Pod) -> Vec<(String, String)> {
        let known = claim_names(pod)
            .flatten()
            .filter_map(|name| self.names.get_key_value(name));
        known.map(|(name, uid)| (name.clone(), uid.clone())).collect()
    }

    pub(super) fn needs(&self, pod: &Pod, view: &View<'_>) -> Needs {
        let mut needs: BTreeMap<String, Amount> = BTreeMap::new();
        for name in claim_names(pod) {
            let Some(name) = name else { return Needs::NotMade };
            let Some(claim) = self.names.get(name).and_then(|uid| self.claims.get(uid)) else {
                return Needs::NoClaim(name.clone());
            };
            match amount(claim, view.index, view.gpus) {
                Ok(amount) => needs.insert(claim.uid().to_owned(), amount),
                Err(why) => return Needs::Uncounted(name.clone(), why),
            };
        }
        for extended in &pod.extended {
            let classes = giving(view.index, &extended.resource);
            match extended_amount(classes, extended.count.unsigned_abs(), view.index, view.gpus) {
                Ok(amount) => *needs.entry(extended_key(&pod.uid)).or_default() += amount,
                Err(why) => return Needs::Uncounted("of its extended resources".to_owned(), why),
            }
        }
        needs.retain(|_, amount| *amount != Amount::default());
        Needs::Known(needs.into_iter().collect())
    }
}
