//! How many pods and claims wait for the controller, for the metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::device_ownership::ClaimAllocator;
use crate::state::State;
use crate::time::Time;

/// Pods without scheduling gates that wait for unallocated claims of the controller's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue {
    pub pods: usize,
    /// The claims that they wait for; a claim of several pods counts once.
    pub claims: usize,
    /// When the first of the pods was created.
    oldest: Option<Time>,
}

impl Queue {
    /// Counts the pods that wait for claims which the controller allocates.
    pub(crate) fn of(state: &State, pods: &[String]) -> Self {
        let mut queue = Self::default();
        let mut counted = BTreeSet::new();
        for pod in pods.iter().filter_map(|key| state.cluster.pod(key)) {
            let waits = pod.claim_keys().filter(|key| {
                let known = state.claims.get(key).filter(|known| known.allocation().is_none());
                known.is_some_and(|known| {
                    state.ownership.claim_allocator(&known.claim.facts) == ClaimAllocator::Controller
                })
            });
            let claims: Vec<String> = waits.collect();
            if !claims.is_empty() {
                queue.add(pod.created);
                counted.extend(claims);
            }
        }
        queue.claims = counted.len();
        queue
    }

    fn add(&mut self, created: Time) {
        self.pods += 1;
        self.oldest = Some(self.oldest.map_or(created, |oldest| oldest.min(created)));
    }

    /// The age of the oldest pod; zero without one.
    #[must_use]
    pub fn oldest(&self, now: Time) -> Duration {
        self.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}
