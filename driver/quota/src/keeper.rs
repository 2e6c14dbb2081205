//! Keeps the label of each namespace that has a quota, and creates the quotas of namespaces that match a
//! VgpuQuotaDefault and have none.
//!
//! Of several defaults that match, the first by name applies; the others are told. A quota that was stamped follows the
//! default that applies, until an administrator changes its `spec`: then it is theirs. It stays when its default goes or
//! no longer matches: nobody loses a ceiling by that. An administrator's quota is never touched.
//!
//! Failure modes:
//! - **A crash, another leader, a lost answer:** label and stamp are compared with what the watch shows and written again.
//!   A label that an old leader sets late is corrected when it is seen. A stamp is a creation, which fails if there is a
//!   quota, or lands only on the version that it was decided on.
//! - **The label removed or changed** (while its policy was off): it is written again. Pods made meanwhile are not gated;
//!   they count.
//! - **The label left on a namespace without a quota:** it is removed, and the gates open.
//! - **A default that is refused** (written while the policy was off): it matches nothing, and its event names the field.
//! - **A stamped quota that is deleted while its default matches:** it is stamped again, and gates wait for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::default::{DefaultSpec, QuotaDefault};
use crate::mark::Mark;
use crate::names::LABEL;
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{Outcome, Task, Write};
use crate::status::Quota;

/// A namespace, as far as quotas go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceLabels {
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub is_deleted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Keeper {
    namespaces: BTreeMap<String, NamespaceLabels>,
    defaults: BTreeMap<String, QuotaDefault>,
    /// Writes under way; of a label with its value.
    busy: HashMap<Task, Option<Mark>>,
}

impl Keeper {
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

    /// Returns it.
    pub(crate) fn remove_default(&mut self, name: &str) -> Option<QuotaDefault> {
        self.defaults.remove(name)
    }

    pub(crate) fn default_names(&self) -> Vec<String> {
        self.defaults.keys().cloned().collect()
    }

    /// All namespaces: what is wanted of each may have changed.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.namespaces.keys().cloned().collect()
    }

    /// Returns true if this namespace gets a quota as soon as it has none: its gates wait for that.
    pub(crate) fn stamps(&self, name: &str) -> bool {
        let namespace = self.namespaces.get(name);
        namespace.is_some_and(|namespace| self.matching(namespace).next().is_some())
    }

    /// The defaults that match, the one that applies first.
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
        mark: Option<Mark>,
    ) -> (Vec<Write>, Vec<(Subject, Notice)>) {
        let (mut writes, mut notices) = (Vec::new(), Vec::new());
        let Some(namespace) = self.namespaces.get(name).filter(|namespace| !namespace.is_deleted) else {
            return (writes, notices);
        };
        let label = namespace.labels.get(LABEL).map(String::as_str);
        if label != mark.map(Mark::text) {
            writes.push(Write::Label {
                namespace: name.to_owned(),
                uid: namespace.uid.clone(),
                mark,
            });
        }
        let mut matching = self.matching(namespace);
        if let Some((default, spec)) = matching.next() {
            let is_outdated = |quota: &Quota| {
                let stamped = quota.stamped.as_ref();
                stamped.is_some_and(|stamped| stamped.default != default.name || stamped.spec != spec.text())
            };
            if quota.is_none_or(is_outdated) {
                writes.push(Write::Stamp {
                    namespace: name.to_owned(),
                    default: default.name.clone(),
                    spec: spec.quota.clone(),
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
        let mark = match write {
            Write::Label { mark, .. } => *mark,
            _ => None,
        };
        self.busy.insert(write.task(), mark);
    }

    /// Returns what to tell of it.
    pub(crate) fn end(&mut self, task: &Task, outcome: &Outcome) -> Option<(Subject, Notice)> {
        let mark = self.busy.remove(task)?;
        match (task, outcome) {
            (Task::Label(name), Outcome::Labelled) => {
                // Until the watch shows it.
                let labels = &mut self.namespaces.get_mut(name)?.labels;
                match mark {
                    Some(mark) => labels.insert(LABEL.to_owned(), mark.text().to_owned()),
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

pub(crate) fn subject(default: &QuotaDefault) -> Subject {
    Subject {
        kind: Kind::Default,
        namespace: String::new(),
        name: default.name.clone(),
        uid: default.uid.clone(),
    }
}

impl<'de> Deserialize<'de> for NamespaceLabels {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            name: String,
            #[serde(default)]
            uid: String,
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
            deletion_timestamp: Option<Value>,
        }
        let Whole { metadata } = Whole::deserialize(deserializer)?;
        Ok(Self {
            name: metadata.name,
            uid: metadata.uid,
            labels: metadata.labels.unwrap_or_default(),
            is_deleted: metadata.deletion_timestamp.is_some(),
        })
    }
}
