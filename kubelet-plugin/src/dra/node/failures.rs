//! Failures that pods would not hear of otherwise: kubelet only logs that an Unprepare failed, and crun does not pass on why a
//! hook ended a container's start. The reporter makes events of both.
//!
//! How it fails: a restart of the plugin forgets both, until kubelet calls again or the container starts again. Of more than
//! [`MOST`] containers between two looks of the reporter, the oldest are forgotten.

use crate::dra::checkpoint::Pod;
use crate::dra::share::ClaimId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

const MOST: usize = 100;

#[derive(Default)]
pub(super) struct Failures {
    /// Claims that could not be unprepared, by UID, and the last error. kubelet retries them.
    not_unprepared: BTreeMap<String, (ClaimId, String)>,
    /// Containers that did not start. A claim's are moved here from its directory at the latest when it is unprepared: a pod
    /// that never restarts ends before the reporter looks.
    not_started: VecDeque<NotStarted>,
}

/// A container that a hook did not let start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    pub claim: ClaimId,
    /// The pods of the claim; the container is in one of them.
    pub pods: Vec<Pod>,
    /// Begins with the hook's name, a colon and the container.
    pub why: String,
}

impl Failures {
    pub(super) fn not_unprepared(&self) -> Vec<(ClaimId, String)> {
        self.not_unprepared.values().cloned().collect()
    }

    pub(super) fn note_unprepare<E: Display>(&mut self, id: &ClaimId, answer: &Result<(), E>) {
        match answer {
            Ok(()) => drop(self.not_unprepared.remove(&id.uid)),
            Err(error) => drop(
                self.not_unprepared
                    .insert(id.uid.clone(), (id.clone(), error.to_string())),
            ),
        }
    }

    pub(super) fn keep(&mut self, not_started: impl IntoIterator<Item = NotStarted>) {
        self.not_started.extend(not_started);
        let excess = self.not_started.len().saturating_sub(MOST);
        self.not_started.drain(..excess);
    }

    pub(super) fn take_not_started(&mut self) -> Vec<NotStarted> {
        self.not_started.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_containers_are_kept() {
        let mut failures = Failures::default();
        let id = ClaimId {
            namespace: "n".into(),
            name: "c".into(),
            uid: "u".into(),
        };
        let one = |number: usize| NotStarted {
            claim: id.clone(),
            pods: Vec::new(),
            why: number.to_string(),
        };
        failures.keep((0..MOST + 7).map(one));
        let kept = failures.take_not_started();
        assert_eq!((kept.len(), kept[0].why.as_str()), (MOST, "7"));
        assert_eq!(failures.take_not_started(), []);
    }
}
