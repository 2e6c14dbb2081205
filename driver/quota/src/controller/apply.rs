//! Applies a change to the known objects, and marks the namespaces to plan.

use std::collections::{BTreeMap, HashSet};

use vgpu_api::PodRef;
use vgpu_planner::model::{Claim, Pod};
use vgpu_planner::{Change as Cluster, Time};

use crate::Now;
use crate::change::{Change, Unclaimed};
use crate::names::QUOTA;
use crate::namespace::{Namespace, that_fit};
use crate::namespace_labels;
use crate::notice::Notice;
use crate::plan::Task;
use crate::pod::is_gated;
use crate::status::Quota;
use crate::view::View;

use super::QuotaController;

impl QuotaController {
    pub fn apply(&mut self, change: Change, now: Now) {
        self.now = now;
        match change {
            Change::Cluster(change) => self.apply_cluster(change),
            Change::Quota(quota) => self.set_quota(*quota, now),
            Change::QuotaGone { namespace, uid } => self.remove_quota(&namespace, &uid),
            Change::Quotas { uids } => self.retain_quotas(uids),
            Change::ResourceQuota(quota) => {
                let name = quota.namespace.clone();
                let namespace = self.namespaces.entry(name.clone()).or_default();
                namespace.set_resource_quota(quota);
                self.dirty.insert(name);
            }
            Change::ResourceQuotaGone { namespace, name } => {
                if let Some(known) = self.namespaces.get_mut(&namespace) {
                    known.remove_resource_quota(&name);
                    self.dirty.insert(namespace);
                }
            }
            Change::ResourceQuotas { names } => self.retain_resource_quotas(names),
            Change::Namespace(namespace) => {
                self.dirty.insert(namespace.name.clone());
                self.labels.set_namespace(namespace);
            }
            Change::NamespaceGone { name, uid } => {
                self.labels.remove_namespace(&name, &uid);
                self.pauses.remove(&Task::Label(name.clone()));
                self.pauses.remove(&Task::Stamp(name.clone()));
                self.dirty.insert(name);
            }
            Change::Namespaces { uids } => {
                self.dirty.extend(self.labels.names());
                self.labels.retain_namespaces(&uids.into_iter().collect());
                self.listed.namespaces = true;
            }
            Change::Default(default) => {
                if let Err(problem) = &default.spec {
                    let notice = Notice::BadDefault(problem.clone());
                    self.notices.push((namespace_labels::subject(&default), notice));
                }
                self.labels.set_default(default);
                self.dirty.extend(self.labels.names());
            }
            Change::DefaultGone { name } => self.remove_default(&name),
            Change::Defaults { names } => {
                for name in self.labels.default_names() {
                    if !names.contains(&name) {
                        self.remove_default(&name);
                    }
                }
                self.listed.defaults = true;
            }
            Change::Node { name, shares } => self.set_unclaimed(&name, shares),
            Change::NodeGone { name } => self.set_unclaimed(&name, Vec::new()),
            Change::Nodes { names } => self.retain_holding(&names),
        }
    }

    fn retain_holding(&mut self, nodes: &[String]) {
        self.nodes_until = None;
        let gone = self.holding.keys().filter(|name| !nodes.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.set_unclaimed(&name, Vec::new());
        }
    }

    /// Sets the shares that a node holds for claims that are gone. There are nearly always none.
    fn set_unclaimed(&mut self, node: &str, shares: Vec<Unclaimed>) {
        let old = self.holding.remove(node).unwrap_or_default();
        let mut new: BTreeMap<String, Vec<Unclaimed>> = BTreeMap::new();
        for share in that_fit(node, shares, &self.gpus) {
            new.entry(share.namespace.clone()).or_default().push(share);
        }
        if !new.is_empty() {
            self.holding.insert(node.to_owned(), new.keys().cloned().collect());
        }
        let view = View {
            index: self.free.index(),
            gpus: &self.gpus,
            wall: self.clock.wall(self.now),
            epoch: &self.epoch,
        };
        for name in old {
            new.entry(name).or_default();
        }
        for (name, shares) in new {
            let known = self.namespaces.entry(name.clone()).or_default();
            known.set_unclaimed(node, shares, &view);
            self.dirty.insert(name);
        }
    }

    /// Pods, claims, classes and slices.
    fn apply_cluster(&mut self, change: Cluster) {
        let wall = self.clock.wall(self.now);
        match change {
            Cluster::Pod(pod) => self.set_pod(pod),
            Cluster::PodGone { key } => self.remove_pod(&key),
            Cluster::Pods { keys } => {
                for key in self.unlisted(keys, Namespace::pod_names) {
                    self.remove_pod(&key);
                }
                self.listed.pods = true;
            }
            Cluster::Claim(claim) => self.set_claim(claim, wall),
            Cluster::ClaimGone { key, .. } => self.remove_claim(&key, wall),
            // A watch has sent each claim already.
            Cluster::Claims { same, .. } => {
                for key in self.unlisted(same, Namespace::claim_names) {
                    self.remove_claim(&key, wall);
                }
                self.listed.claims = true;
            }
            Cluster::Class(class) => {
                let is_new = self.free.set_class(class);
                // The end of the list recounts once.
                self.recount(is_new && self.listed.classes, wall);
            }
            Cluster::ClassGone { name } => {
                self.free.remove_class(&name);
                self.recount(true, wall);
            }
            Cluster::Classes { names } => {
                let known = self.free.index().classes().map(|class| &class.metadata.name);
                let gone: Vec<String> = known.filter(|name| !names.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.free.remove_class(name));
                let are_gone = !gone.is_empty();
                self.recount(are_gone || !self.listed.classes, wall);
                self.listed.classes = true;
            }
            Cluster::Slice { slice, .. } => {
                let is_new = self.gpus.set(&slice.facts, self.now);
                let is_new = self.free.set_slice(slice.facts) || is_new;
                self.recount(is_new && self.listed.slices, wall);
            }
            Cluster::SliceGone { name, .. } => {
                let is_new = self.remove_slice(&name);
                self.recount(is_new, wall);
            }
            Cluster::Slices { names, .. } => {
                let gone = self.gpus.others(&names);
                let are_gone = gone.iter().filter(|name| self.remove_slice(name)).count() > 0;
                self.recount(are_gone || !self.listed.slices, wall);
                self.listed.slices = true;
            }
            // See `Change::of`.
            _ => {}
        }
    }

    /// The known objects, of those with these names in a namespace, that a list no longer contains.
    fn unlisted<'a, I: Iterator<Item = &'a String>>(
        &'a self,
        listed: Vec<String>,
        names: fn(&'a Namespace) -> I,
    ) -> Vec<String> {
        let listed: HashSet<String> = listed.into_iter().collect();
        let namespaces = self.namespaces.iter();
        let known = namespaces.flat_map(|(namespace, known)| names(known).map(move |name| key(namespace, name)));
        known.filter(|key| !listed.contains(key)).collect()
    }

    fn retain_quotas(&mut self, uids: Vec<String>) {
        let uids: HashSet<String> = uids.into_iter().collect();
        let gone = self.namespaces.iter().filter_map(|(name, namespace)| {
            let uid = namespace.quota_uid().filter(|uid| !uids.contains(*uid))?;
            Some((name.clone(), uid.to_owned()))
        });
        for (name, uid) in gone.collect::<Vec<_>>() {
            self.remove_quota(&name, &uid);
        }
        self.listed.quotas = true;
    }

    fn retain_resource_quotas(&mut self, names: Vec<(String, String)>) {
        let names: HashSet<(String, String)> = names.into_iter().collect();
        for (namespace, known) in &mut self.namespaces {
            if known.retain_resource_quotas(|name| names.contains(&(namespace.clone(), name.to_owned()))) {
                self.dirty.insert(namespace.clone());
            }
        }
        self.listed.resource_quotas = true;
    }

    pub(super) fn set_quota(&mut self, quota: Quota, now: Now) {
        if quota.name != QUOTA {
            // The policy refuses other names. With several quotas it would not be known which one applies.
            return;
        }
        let name = quota.namespace.clone();
        let view = View {
            index: self.free.index(),
            gpus: &self.gpus,
            wall: self.clock.wall(now),
            epoch: &self.epoch,
        };
        let known = self.namespaces.entry(name.clone()).or_default();
        let was_over_budget = known.is_over_budget();
        known.set_quota(quota, &view, &self.clock, now);
        let is_other = known.is_over_budget() != was_over_budget;
        self.dirty.insert(name);
        if is_other {
            self.look_at_yielding();
        }
    }

    pub(super) fn remove_quota(&mut self, namespace: &str, uid: &str) {
        if let Some(known) = self.namespaces.get_mut(namespace)
            && known.remove_quota(uid)
        {
            self.dirty.insert(namespace.to_owned());
        }
    }

    fn remove_default(&mut self, name: &str) {
        if self.labels.remove_default(name) {
            self.dirty.extend(self.labels.names());
        }
    }

    fn remove_slice(&mut self, name: &str) -> bool {
        self.free.remove_slice(name);
        self.gpus.remove(name, self.now)
    }

    fn set_claim(&mut self, claim: Claim, wall: Time) {
        let name = claim.facts.metadata.namespace.clone();
        self.free
            .set_claim(&claim.key(), claim.facts.status.allocation.as_ref());
        let view = View {
            index: self.free.index(),
            gpus: &self.gpus,
            wall,
            epoch: &self.epoch,
        };
        self.namespaces.entry(name.clone()).or_default().set_claim(claim, &view);
        self.dirty.insert(name);
    }

    fn remove_claim(&mut self, key: &str, wall: Time) {
        self.free.set_claim(key, None);
        let (namespace, name) = split(key);
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.remove_claim(name, wall);
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    fn set_pod(&mut self, pod: Pod) {
        let name = pod.namespace.clone();
        let known = self.namespaces.get(&name).and_then(|known| known.pod(&pod.name));
        if known.is_some_and(|known| known.uid != pod.uid) {
            self.remove_pod(&pod.key());
        }
        if !is_gated(&pod) {
            self.ungated.remove(&pod.uid);
        }
        self.namespaces.entry(name.clone()).or_default().set_pod(pod);
        self.dirty.insert(name);
        self.look_at_yielding();
    }

    fn remove_pod(&mut self, key: &str) {
        let (namespace, name) = split(key);
        let known = self.namespaces.get_mut(namespace);
        if let Some(pod) = known.and_then(|known| known.remove_pod(name)) {
            let pod = PodRef::from(&*pod);
            self.ungated.remove(&pod.uid);
            self.forget_evictions(&pod.uid);
            self.pauses.remove(&Task::Pod(pod));
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    /// Recalculates what claims count after classes or GPUs changed.
    pub(super) fn recount(&mut self, is_new: bool, wall: Time) {
        if !is_new {
            return;
        }
        let view = View {
            index: self.free.index(),
            gpus: &self.gpus,
            wall,
            epoch: &self.epoch,
        };
        for (name, namespace) in &mut self.namespaces {
            namespace.recount(&view);
            self.dirty.insert(name.clone());
        }
    }

    /// Plans namespaces with a spent budget again: their pods may proceed when no pod in budget waits any more.
    pub(super) fn look_at_yielding(&mut self) {
        let yielding = self.namespaces.iter().filter(|(_, namespace)| namespace.may_yield());
        for name in yielding.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.look(&name, self.now);
        }
    }
}

/// `namespace/name`.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name of a key. An object in a file may have no namespace.
fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}
