//! Queue of decisions to report: bounded, and fair between namespaces.

use std::collections::{BTreeMap, HashMap};

use super::subject::{Now, Subject, Topic};

/// The most decisions that wait to be reported, or were reported recently. Beyond this, some are dropped.
pub const MAX_DECISIONS: usize = 1_000;

/// What happened to a new decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    New,
    /// It was reported already, is queued already, or is found again when the queue has room.
    Known,
    /// The queue was full, and a decision was dropped: this one or an older one.
    Dropped,
}

/// The decisions by namespace.
#[derive(Debug, Default)]
pub(super) struct Decided {
    of_namespaces: BTreeMap<String, HashMap<Topic, Subject>>,
    count: usize,
}

impl Decided {
    pub(super) fn get_mut(&mut self, topic: &Topic) -> Option<&mut Subject> {
        self.of_namespaces.get_mut(&topic.about.namespace)?.get_mut(topic)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Subject> {
        self.of_namespaces.values().flat_map(HashMap::values)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Topic, &mut Subject)> {
        self.of_namespaces.values_mut().flatten()
    }

    /// Adds a decision. If the queue is full, first drops one of the namespace that has the most. If the new decision
    /// is of that namespace, only a reported one is dropped for it; for a lasting state nothing is dropped, because it
    /// is found again.
    pub(super) fn insert(&mut self, topic: Topic, subject: Subject) -> Added {
        let mut added = Added::New;
        if self.count >= MAX_DECISIONS {
            let namespace = topic.about.namespace.as_str();
            let own = self.of_namespaces.get(namespace).map_or(0, HashMap::len);
            let fullest = self.of_namespaces.iter().max_by_key(|(_, of_it)| of_it.len());
            let fullest = fullest.filter(|(_, of_it)| of_it.len() > own);
            let gives_way = match fullest {
                Some((_, of_it)) => gives_way(of_it),
                None if subject.lasting.is_some() => return Added::Known,
                None => self
                    .of_namespaces
                    .get(namespace)
                    .and_then(gives_way)
                    .filter(|(_, is_said)| *is_said),
            };
            let Some((loser, is_said)) = gives_way else {
                return Added::Dropped;
            };
            if !is_said {
                added = Added::Dropped;
            }
            self.remove(&loser);
        }
        let of_it = self.of_namespaces.entry(topic.about.namespace.clone()).or_default();
        self.count += usize::from(of_it.insert(topic, subject).is_none());
        added
    }

    pub(super) fn remove_over(&mut self, now: Now) {
        self.of_namespaces.retain(|_, of_it| {
            let before = of_it.len();
            of_it.retain(|_, subject| !subject.is_over(now));
            self.count -= before - of_it.len();
            !of_it.is_empty()
        });
    }

    fn remove(&mut self, topic: &Topic) {
        let namespace = &topic.about.namespace;
        let Some(of_it) = self.of_namespaces.get_mut(namespace) else {
            return;
        };
        self.count -= usize::from(of_it.remove(topic).is_some());
        if of_it.is_empty() {
            self.of_namespaces.remove(namespace);
        }
    }
}

/// Returns the decision to drop, and true if it was reported already: then it is here only to prevent a repetition.
fn gives_way(of_it: &HashMap<Topic, Subject>) -> Option<(Topic, bool)> {
    let last = of_it
        .iter()
        .max_by_key(|(topic, subject)| (subject.said.is_some(), subject.since, *topic));
    last.map(|(topic, subject)| (topic.clone(), subject.said.is_some()))
}
