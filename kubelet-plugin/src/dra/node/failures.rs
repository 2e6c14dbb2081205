//! What pods are told of failures that the node knows alone: kubelet only logs a failed Unprepare, and crun does not pass on
//! why a hook let no container start. The reporter makes events of both.
//!
//! How it fails: a restart of the plugin forgets both, until kubelet calls again or the container starts again. Of more than
//! [`MOST`] containers between two looks of the reporter, the oldest are forgotten.

use super::{Error, Node};
use crate::dra::checkpoint::Pod;
use crate::dra::share::ClaimId;
use std::collections::{BTreeMap, VecDeque};

const MOST: usize = 100;

#[derive(Default)]
pub(super) struct Failures {
    /// Claims that could not be unprepared, by UID, and the last error. kubelet retries them.
    not_unprepared: BTreeMap<String, (ClaimId, String)>,
    /// Of claims that were unprepared before the reporter looked: a pod that never restarts ends at once.
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

impl Node {
    /// Claims whose last Unprepare failed, and why.
    #[must_use]
    pub fn not_unprepared(&self) -> Vec<(ClaimId, String)> {
        self.failures.not_unprepared.values().cloned().collect()
    }

    /// Remembers how an Unprepare ended, for the event on the claim's pods.
    pub fn note_unprepare(&mut self, id: &ClaimId, answer: &Result<(), Error>) {
        let failed = &mut self.failures.not_unprepared;
        match answer {
            Ok(()) => drop(failed.remove(&id.uid)),
            Err(error) => drop(failed.insert(id.uid.clone(), (id.clone(), error.to_string()))),
        }
    }

    /// Takes what hooks said of containers since the last time.
    pub fn take_not_started(&mut self) -> Vec<NotStarted> {
        let uids: Vec<String> = self.checkpoint.claims.keys().cloned().collect();
        for uid in uids {
            self.keep_not_started(&uid);
        }
        self.failures.not_started.drain(..).collect()
    }

    /// Keeps what hooks said of a claim's containers, whose files may be removed then.
    pub(super) fn keep_not_started(&mut self, uid: &str) {
        // A claim that was rebuilt from limits files has no name and no pods until the API server has named it.
        let Some(entry) = self.checkpoint.claims.get(uid).filter(|entry| !entry.pods.is_empty()) else {
            return;
        };
        let kept = &mut self.failures.not_started;
        kept.extend(self.dirs.take_not_started(uid).into_iter().map(|why| NotStarted {
            claim: entry.id(uid),
            pods: entry.pods.clone(),
            why,
        }));
        let excess = kept.len().saturating_sub(MOST);
        kept.drain(..excess);
    }
}
