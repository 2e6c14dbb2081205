//! Keeps the label of each namespace that has a quota, and creates the quotas of namespaces that match a
//! VgpuQuotaDefault and have none.
//!
//! If several defaults match, the first by name applies, and the others get an event. A quota that was created from a default
//! follows it until an administrator changes the quota's `spec`; from then on it belongs to the administrator. It stays when
//! its default is deleted or no longer matches, so no namespace loses its ceiling. An administrator's quota is never touched.
//!
//! Failure modes:
//! - **A crash, another leader, a lost answer:** labels and quotas are compared with what the watch shows and written
//!   again. If an old leader sets a label late, it is corrected when that is seen. A quota is only created if there is
//!   none, or overwritten in the version that was decided on.
//! - **The label removed or changed** (while its policy was off): it is written again. Pods created meanwhile are not
//!   gated, but they count.
//! - **The label left on a namespace without a quota:** it is removed, and the gates open.
//! - **A default that is invalid** (written while the policy was off): it matches nothing, and its event names the
//!   field.
//! - **A quota from a default is deleted while the default still matches:** it is created again, and gates wait for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::SelectorExt as _;
use serde::Deserialize;
use serde_json::json;
use vgpu_planner::{About, Object};

use crate::budget_state::BudgetState;
use crate::default::{DefaultSpec, QuotaDefault};
use crate::names::LABEL;
use crate::notice::Notice;
use crate::plan::{Outcome, Task, Write};
use crate::status::Quota;

/// A namespace, with the fields that quotas need.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Namespace")]
pub struct NamespaceLabels {
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub is_deleted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Labels {
    namespaces: BTreeMap<String, NamespaceLabels>,
    defaults: BTreeMap<String, QuotaDefault>,
    /// Writes in flight; for a label, with its value.
    busy: HashMap<Task, Option<BudgetState>>,
}

impl Labels {
    pub(crate) fn set_namespace(&mut self, namespace: NamespaceLabels) {
        self.namespaces.insert(namespace.name.clone(), namespace);
    }

    pub(crate) fn remove_namespace(&mut self, name: &str, uid: &str) {
        if self.namespaces.get(name).is_some_and(|known| known.uid == uid) {
            self.namespaces.remove(name);
        }
    }

    pub(crate) fn retain_namespaces(&mut self, uids: &HashSet<String>) {
        self.namespaces.retain(|_, namespace| uids.contains(&namespace.uid));
    }

    pub(crate) fn set_default(&mut self, default: QuotaDefault) {
        self.defaults.insert(default.name.clone(), default);
    }

    /// Returns false if there was none.
    pub(crate) fn remove_default(&mut self, name: &str) -> bool {
        self.defaults.remove(name).is_some()
    }

    pub(crate) fn default_names(&self) -> Vec<String> {
        self.defaults.keys().cloned().collect()
    }

    /// The names of all namespaces: what each one needs may have changed.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.namespaces.keys().cloned().collect()
    }

    /// Returns true if a default gives this namespace a quota as soon as it has none, so that its gates wait.
    pub(crate) fn stamps(&self, name: &str) -> bool {
        let namespace = self.namespaces.get(name);
        namespace.is_some_and(|namespace| self.matching(namespace).next().is_some())
    }

    /// The matching defaults; the first one applies.
    fn matching<'a>(
        &'a self,
        namespace: &'a NamespaceLabels,
    ) -> impl Iterator<Item = (&'a QuotaDefault, &'a DefaultSpec)> + 'a {
        let defaults = self.defaults.values().filter(|_| !namespace.is_deleted);
        let read = defaults.filter_map(|default| Some((default, default.spec.as_ref().ok()?)));
        read.filter(|(_, spec)| spec.selector.matches(&namespace.labels))
    }

    /// Returns the writes for a namespace with this quota, or with none.
    pub(crate) fn decide(
        &self,
        name: &str,
        quota: Option<&Quota>,
        state: Option<BudgetState>,
    ) -> (Vec<Write>, Vec<(About, Notice)>) {
        let (mut writes, mut notices) = (Vec::new(), Vec::new());
        let Some(namespace) = self.namespaces.get(name).filter(|namespace| !namespace.is_deleted) else {
            return (writes, notices);
        };
        let label = namespace.labels.get(LABEL).map(String::as_str);
        if label != state.map(BudgetState::text) {
            writes.push(Write::Label {
                namespace: name.to_owned(),
                uid: namespace.uid.clone(),
                state,
            });
        }
        let mut matching = self.matching(namespace);
        if let Some((default, spec)) = matching.next() {
            let is_outdated = |quota: &Quota| {
                let stamped = quota.stamped.as_ref();
                stamped.is_some_and(|stamped| stamped.default != default.name || stamped.spec != spec.quota)
            };
            if quota.is_none_or(is_outdated) {
                writes.push(Write::Stamp {
                    namespace: name.to_owned(),
                    default: default.name.clone(),
                    spec: json!(spec.quota),
                    over: quota.map(|quota| (quota.uid.clone(), quota.version.clone())),
                });
            }
            notices.extend(matching.map(|(other, _)| {
                let notice = Notice::DefaultsMatch {
                    namespace: name.to_owned(),
                    first: default.name.clone(),
                };
                (subject(other), notice)
            }));
        }
        writes.retain(|write| !self.busy.contains_key(&write.task()));
        (writes, notices)
    }

    pub(crate) fn begin(&mut self, write: &Write) {
        let state = match write {
            Write::Label { state, .. } => *state,
            _ => None,
        };
        self.busy.insert(write.task(), state);
    }

    /// Returns the event for it, if there is one.
    pub(crate) fn end(&mut self, task: &Task, outcome: &Outcome) -> Option<(About, Notice)> {
        let state = self.busy.remove(task)?;
        match (task, outcome) {
            (Task::Label(name), Outcome::Labelled) => {
                // Changes the known label until the watch shows it.
                let labels = &mut self.namespaces.get_mut(name)?.labels;
                match state {
                    Some(state) => labels.insert(LABEL.to_owned(), state.text().to_owned()),
                    None => labels.remove(LABEL),
                };
                None
            }
            (Task::Stamp(name), Outcome::Refused(why)) => {
                let (default, _) = self.matching(self.namespaces.get(name)?).next()?;
                let (namespace, why) = (name.clone(), why.clone());
                Some((subject(default), Notice::StampRefused { namespace, why }))
            }
            _ => None,
        }
    }
}

pub(crate) fn subject(default: &QuotaDefault) -> About {
    About {
        object: Object::QuotaDefault,
        namespace: String::new(),
        name: default.name.clone(),
        uid: default.uid.clone(),
    }
}

impl NamespaceLabels {
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            is_deleted: metadata.deletion_timestamp.is_some(),
        }
    }
}

impl From<Namespace> for NamespaceLabels {
    fn from(namespace: Namespace) -> Self {
        Self::of(&namespace.metadata)
    }
}
