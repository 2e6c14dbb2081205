//! One namespace: its quota, what holds shares, and which pods wait. Makes the decisions; see the crate's documentation
//! for how each failure ends.

mod decide;
mod held;
mod queue;
mod reservations;
mod unclaimed;
mod yielding;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use vgpu_planner::model::{Claim, Pod};
use vgpu_planner::{About, Time};

use crate::Now;
use crate::budget::Steady;
use crate::ceilings::ResourceQuota;
use crate::change::Unclaimed;
use crate::claim::{allocated_at, extended_key, is_allocated, pod_of_key};
use crate::plan::Numbers;
use crate::pod::kept;
use crate::status::{Quota, Status};
use crate::view::View;

pub use held::HOLD;
use held::{Held, charge};
use unclaimed::StillHeld;
pub(crate) use unclaimed::that_fit;

/// The limit of reservations in a status. An object of etcd has room for three times as many.
pub const RESERVATIONS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Namespace {
    quota: Option<Held>,
    claims: HashMap<String, Box<Claim>>,
    /// By the claim's name: its UID.
    names: HashMap<String, String>,
    /// By name.
    pods: BTreeMap<String, Box<Pod>>,
    /// By UID: the names of pods with extended resources.
    extended: HashMap<String, String>,
    resource_quotas: BTreeMap<String, ResourceQuota>,
    /// The shares that nodes hold for claims that are gone.
    still_held: StillHeld,
    /// Since when no user of a reservation is seen.
    idle: HashMap<String, Now>,
    /// Claims with reservations that were deleted or freed: nothing holds them any more.
    ended: HashSet<String>,
    /// Since when a pod's claim is missing.
    missing: HashMap<String, Now>,
    waiting: usize,
}

impl Namespace {
    pub(crate) fn is_empty(&self) -> bool {
        let holds_nothing = self.claims.is_empty() && self.still_held.is_empty() && self.pods.is_empty();
        holds_nothing && self.quota.is_none() && self.resource_quotas.is_empty()
    }

    pub(crate) fn quota_uid(&self) -> Option<&str> {
        Some(self.quota.as_ref()?.quota.uid.as_str())
    }

    pub(crate) fn quota(&self) -> Option<&Quota> {
        Some(&self.quota.as_ref()?.quota)
    }

    pub(crate) fn status(&self) -> Option<&Status> {
        Some(&self.quota.as_ref()?.quota.status)
    }

    pub(crate) fn subject(&self) -> Option<About> {
        self.quota.as_ref().map(Held::subject)
    }

    pub(crate) fn claim_names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(crate) fn pod_names(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    pub(crate) fn pod(&self, name: &str) -> Option<&Pod> {
        self.pods.get(name).map(Box::as_ref)
    }

    /// The pod with extended resources that has this UID.
    fn extended_pod(&self, uid: &str) -> Option<&Pod> {
        self.pod(self.extended.get(uid)?)
    }

    pub(crate) fn set_quota(&mut self, quota: Quota, view: &View<'_>, clock: &Steady, now: Now) {
        if let Some(held) = &mut self.quota {
            if !quota.is_newer_than(&held.quota) {
                return;
            }
            let is_same = held.quota.uid == quota.uid;
            let budget = |quota: &Quota| quota.spec.as_ref().ok().and_then(|spec| spec.budget);
            // If this leader wrote the budget, or only the spec was changed, the account continues.
            let is_known = held.quota.status.budget == quota.status.budget || quota.status.is_of(view.epoch);
            let goes_on = is_same && is_known;
            let new = budget(&quota);
            held.note_leader(&quota.status, now);
            held.quota = quota;
            held.must_read = false;
            match (&mut held.account, new) {
                (Some(account), Some(budget)) if goes_on => {
                    if *account.budget() != budget {
                        account.advance(view.wall);
                        account.set_budget(budget);
                    }
                }
                _ => held.open(&self.claims, &self.still_held, view, clock),
            }
            return;
        }
        let mut held = Held {
            quota,
            account: None,
            is_busy: false,
            must_read: false,
            releases_from: Now::ZERO,
            summed: None,
        };
        held.open(&self.claims, &self.still_held, view, clock);
        self.quota = Some(held);
    }

    /// Returns false if the quota has another UID.
    pub(crate) fn remove_quota(&mut self, uid: &str) -> bool {
        if self.quota_uid() != Some(uid) {
            return false;
        }
        self.quota = None;
        self.idle.clear();
        self.ended.clear();
        true
    }

    pub(crate) fn set_claim(&mut self, mut claim: Claim, view: &View<'_>) {
        let (name, uid) = (claim.facts.metadata.name.clone(), claim.uid().to_owned());
        if self.names.get(&name).is_some_and(|known| *known != uid) {
            self.remove_claim(&name, view.wall);
        }
        let key = self.key(&claim);
        let old = self.claims.get(&uid);
        let was_allocated = old.is_some_and(|claim| is_allocated(claim));
        // It is not known how long a claim that was never seen before has been allocated.
        let found = old.is_none().then_some(allocated_at(&claim));
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(view.wall);
            charge(account, &claim, view, found);
        }
        match is_allocated(&claim) {
            true => {
                // From now on it counts the devices that it got, so its requests are dropped.
                claim.facts.spec = Arc::default();
                claim.reserved_for = Vec::new();
                self.ended.remove(&key);
            }
            // A claim is no longer allocated: Kubernetes freed it after its last pod.
            false if was_allocated => self.end(key),
            false => {}
        }
        self.names.insert(name, uid.clone());
        self.claims.insert(uid, Box::new(claim));
    }

    pub(crate) fn remove_claim(&mut self, name: &str, wall: Time) {
        let uid = self.names.remove(name);
        let Some(claim) = uid.and_then(|uid| self.claims.remove(&uid)) else {
            return;
        };
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(wall);
            account.end(claim.uid());
        }
        // Its pod may be gone already, and with it the proof that the claim was made for it. Nothing is freed too soon: a
        // reservation that a pod or an allocated claim still has is kept.
        if let Some(pod) = claim.extended_of() {
            self.end(extended_key(pod));
        }
        self.end(claim.uid().to_owned());
    }

    /// Replaces the shares that a node holds for claims that are gone.
    pub(crate) fn set_unclaimed(&mut self, node: &str, shares: Vec<Unclaimed>, view: &View<'_>) {
        let account = self.quota.as_mut().and_then(|held| held.account.as_mut());
        self.still_held.replace(node, shares, account, view);
    }

    /// Records that nothing holds this any more. Without a quota there is no reservation to end.
    fn end(&mut self, key: String) {
        if self.quota.is_some() {
            self.ended.insert(key);
        }
    }

    /// The key of a claim's reservation: its UID. A claim that kube-scheduler made for a pod's extended resources has
    /// that pod's key instead, but only if the pod names the claim; the claim's annotation alone proves nothing.
    pub(super) fn key(&self, claim: &Claim) -> String {
        let pod = claim.extended_of().and_then(|pod| self.extended_pod(pod));
        match pod.filter(|pod| pod.unusual().extended_claim.as_ref() == Some(&claim.facts.metadata.name)) {
            Some(pod) => extended_key(&pod.uid),
            None => claim.uid().to_owned(),
        }
    }

    /// The claim of a reservation.
    pub(super) fn claim_of(&self, key: &str) -> Option<&Claim> {
        match pod_of_key(key) {
            Some(pod) => self.extended_claim(self.extended_pod(pod)?),
            None => self.claims.get(key).map(Box::as_ref),
        }
    }

    /// The claim that was made for a pod's extended resources.
    pub(super) fn extended_claim(&self, pod: &Pod) -> Option<&Claim> {
        let uid = self.names.get(pod.unusual().extended_claim.as_ref()?)?;
        let claim = self.claims.get(uid)?;
        (claim.extended_of() == Some(&*pod.uid)).then_some(&**claim)
    }

    pub(crate) fn set_pod(&mut self, pod: Pod) {
        if !pod.extended.is_empty() || pod.unusual().extended_claim.is_some() {
            self.extended.insert(pod.uid.clone(), pod.name.clone());
        }
        self.pods.insert(pod.name.clone(), Box::new(kept(pod)));
    }

    pub(crate) fn remove_pod(&mut self, name: &str) -> Option<Box<Pod>> {
        let pod = self.pods.remove(name)?;
        self.missing.remove(&pod.uid);
        self.extended.remove(&pod.uid);
        Some(pod)
    }

    pub(crate) fn set_resource_quota(&mut self, quota: ResourceQuota) {
        match quota.is_relevant() {
            true => drop(self.resource_quotas.insert(quota.name.clone(), quota)),
            false => self.remove_resource_quota(&quota.name),
        }
    }

    pub(crate) fn remove_resource_quota(&mut self, name: &str) {
        self.resource_quotas.remove(name);
    }

    /// Returns true if some are gone.
    pub(crate) fn retain_resource_quotas(&mut self, is_listed: impl Fn(&str) -> bool) -> bool {
        let before = self.resource_quotas.len();
        self.resource_quotas.retain(|name, _| is_listed(name));
        self.resource_quotas.len() != before
    }

    /// Recalculates the charges after classes or GPUs changed.
    pub(crate) fn recount(&mut self, view: &View<'_>) {
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(view.wall);
            for claim in self.claims.values() {
                charge(account, claim, view, Some(allocated_at(claim)));
            }
            self.still_held.charge(account, view, None);
        }
    }

    /// Handles a jump of the clock. Returns the quota for an event, if the jump affects it.
    pub(crate) fn jump(&mut self, before: Time, by: i64) -> Option<About> {
        let account = self.quota.as_mut()?.account.as_mut()?;
        account.advance(before);
        account.jump(by);
        self.subject()
    }

    pub(crate) fn begin_write(&mut self) {
        if let Some(held) = &mut self.quota {
            held.is_busy = true;
        }
    }

    /// `is_known`: the answer shows the quota as the API server has it.
    pub(crate) fn end_write(&mut self, is_known: bool) {
        if let Some(held) = &mut self.quota {
            held.is_busy = false;
            held.must_read = !is_known;
        }
    }

    pub(crate) fn count(&self, numbers: &mut Numbers) {
        numbers.waiting += self.waiting;
        let Some(held) = &self.quota else { return };
        numbers.quotas += 1;
        numbers.refused += usize::from(held.quota.spec.is_err());
        numbers.spent += usize::from(held.is_spent());
        numbers.reservations += held.quota.status.reservations.len();
    }
}
