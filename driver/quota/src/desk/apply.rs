//! A change becomes part of what is known, and names the namespaces to look at.

use std::collections::HashSet;

use crate::change::Change;
use crate::keeper;
use crate::names::QUOTA;
use crate::namespace::Namespace;
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{PodRef, Task};
use crate::pod::Pod;
use crate::status::Quota;
use crate::time::{Now, Wall};
use crate::view::View;

use super::Desk;

impl Desk {
    pub fn apply(&mut self, change: Change, now: Now) {
        self.now = now;
        let wall = self.clock.wall(now);
        match change {
            Change::Quota(quota) => self.set_quota(*quota, now),
            Change::QuotaGone { namespace, uid } => self.remove_quota(&namespace, &uid),
            Change::Quotas { uids } => {
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
            Change::Claim(claim) => {
                let name = claim.namespace.clone();
                let view = View {
                    classes: &self.classes,
                    gpus: &self.gpus,
                    wall,
                    epoch: &self.epoch,
                };
                self.namespaces.entry(name.clone()).or_default().set_claim(claim, &view);
                self.dirty.insert(name);
            }
            Change::ClaimGone { namespace, uid } => self.remove_claim(&namespace, &uid, wall),
            Change::Claims { uids } => {
                let uids: HashSet<String> = uids.into_iter().collect();
                for (namespace, uid) in self.others(&uids, Namespace::claim_uids) {
                    self.remove_claim(&namespace, &uid, wall);
                }
                self.listed.claims = true;
            }
            Change::Pod(pod) => self.set_pod(pod),
            Change::PodGone { namespace, uid } => self.remove_pod(&namespace, &uid),
            Change::Pods { uids } => {
                let uids: HashSet<String> = uids.into_iter().collect();
                for (namespace, uid) in self.others(&uids, Namespace::pod_uids) {
                    self.remove_pod(&namespace, &uid);
                }
                self.listed.pods = true;
            }
            Change::Class(class) => {
                let is_new = self.classes.set(class);
                // The end of the list recounts once.
                self.recount(is_new && self.listed.classes, wall);
            }
            Change::ClassGone { name } => {
                let is_new = self.classes.remove(&name);
                self.recount(is_new, wall);
            }
            Change::Classes { names } => {
                let is_new = self.classes.retain(&names) || !self.listed.classes;
                self.recount(is_new, wall);
                self.listed.classes = true;
            }
            Change::Slice(slice) => {
                let is_new = self.gpus.set(slice, now);
                self.recount(is_new && self.listed.slices, wall);
            }
            Change::SliceGone { name } => {
                let is_new = self.gpus.remove(&name, now);
                self.recount(is_new, wall);
            }
            Change::Slices { names } => {
                let is_new = self.gpus.retain(&names, now) || !self.listed.slices;
                self.recount(is_new, wall);
                self.listed.slices = true;
            }
            Change::ResourceQuota(quota) => {
                let name = quota.namespace.clone();
                self.namespaces
                    .entry(name.clone())
                    .or_default()
                    .set_resource_quota(quota);
                self.dirty.insert(name);
            }
            Change::ResourceQuotaGone { namespace, name } => {
                if let Some(known) = self.namespaces.get_mut(&namespace) {
                    known.remove_resource_quota(&name);
                    self.dirty.insert(namespace);
                }
            }
            Change::ResourceQuotas { names } => {
                let names: HashSet<(String, String)> = names.into_iter().collect();
                for (namespace, known) in &mut self.namespaces {
                    if known.retain_resource_quotas(|name| names.contains(&(namespace.clone(), name.to_owned()))) {
                        self.dirty.insert(namespace.clone());
                    }
                }
                self.listed.resource_quotas = true;
            }
            Change::Namespace(namespace) => {
                self.dirty.insert(namespace.name.clone());
                self.keeper.set_namespace(namespace);
            }
            Change::NamespaceGone { name, uid } => {
                self.keeper.remove_namespace(&name, &uid);
                self.pauses.remove(&Task::Label(name.clone()));
                self.pauses.remove(&Task::Stamp(name.clone()));
                self.dirty.insert(name);
            }
            Change::Namespaces { uids } => {
                self.dirty.extend(self.keeper.names());
                self.keeper.retain_namespaces(&uids.into_iter().collect());
                self.listed.namespaces = true;
            }
            Change::Default(default) => {
                let subject = keeper::subject(&default);
                self.told.remove(&subject);
                if let Err(problem) = &default.spec {
                    self.tell(subject, Notice::BadDefault(problem.clone()));
                }
                self.keeper.set_default(default);
                self.dirty.extend(self.keeper.names());
            }
            Change::DefaultGone { name } => self.remove_default(&name),
            Change::Defaults { names } => {
                for name in self.keeper.default_names() {
                    if !names.contains(&name) {
                        self.remove_default(&name);
                    }
                }
                self.listed.defaults = true;
            }
        }
    }

    fn others<'a, I: Iterator<Item = &'a str>>(
        &'a self,
        listed: &HashSet<String>,
        of: fn(&'a Namespace) -> I,
    ) -> Vec<(String, String)> {
        let all = self
            .namespaces
            .iter()
            .flat_map(|(name, namespace)| of(namespace).map(move |uid| (name, uid)));
        let gone = all.filter(|(_, uid)| !listed.contains(*uid));
        gone.map(|(name, uid)| (name.clone(), uid.to_owned())).collect()
    }

    pub(super) fn set_quota(&mut self, quota: Quota, now: Now) {
        if quota.name != QUOTA {
            // The policy refuses another name. With several it would not be known which one holds.
            return;
        }
        let name = quota.namespace.clone();
        let view = View {
            classes: &self.classes,
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
            && let Some(subject) = known.remove_quota(uid)
        {
            self.told.remove(&subject);
            self.dirty.insert(namespace.to_owned());
        }
    }

    fn remove_default(&mut self, name: &str) {
        if let Some(default) = self.keeper.remove_default(name) {
            self.told.remove(&keeper::subject(&default));
            self.dirty.extend(self.keeper.names());
        }
    }

    fn remove_claim(&mut self, namespace: &str, uid: &str, wall: Wall) {
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.remove_claim(uid, wall);
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    fn set_pod(&mut self, pod: Pod) {
        let name = pod.namespace.clone();
        if !pod.is_relevant() {
            self.remove_pod(&name, &pod.uid.clone());
            return;
        }
        let known = self.namespaces.get(&name);
        if !pod.is_gated {
            self.ungated.remove(&pod.uid);
            // Events about its closed gate are over. Later ones are not repeated at each change of the pod.
            if known.is_some_and(|known| known.is_gated(&pod.uid)) {
                self.forget(&pod.namespace, &pod.name, &pod.uid);
            }
        }
        self.namespaces.entry(name.clone()).or_default().set_pod(pod);
        self.dirty.insert(name);
        self.look_at_yielding();
    }

    fn remove_pod(&mut self, namespace: &str, uid: &str) {
        self.ungated.remove(uid);
        self.forget_evictions(uid);
        if let Some(known) = self.namespaces.get_mut(namespace)
            && let Some(pod) = known.remove_pod(uid)
        {
            self.pauses.remove(&Task::Pod(PodRef::of(&pod)));
            self.forget(namespace, &pod.name, uid);
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    fn forget(&mut self, namespace: &str, name: &str, uid: &str) {
        self.told.remove(&Subject {
            kind: Kind::Pod,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        });
    }

    /// Classes or GPUs changed, and with them what claims count.
    pub(super) fn recount(&mut self, is_new: bool, wall: Wall) {
        if !is_new {
            return;
        }
        let view = View {
            classes: &self.classes,
            gpus: &self.gpus,
            wall,
            epoch: &self.epoch,
        };
        for (name, namespace) in &mut self.namespaces {
            namespace.recount(&view);
            self.dirty.insert(name.clone());
        }
    }

    /// Pods of spent budgets may go on when one in budget no longer waits.
    pub(super) fn look_at_yielding(&mut self) {
        let yielding = self.namespaces.iter().filter(|(_, namespace)| namespace.may_yield());
        for name in yielding.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.look(&name, self.now);
        }
    }
}
