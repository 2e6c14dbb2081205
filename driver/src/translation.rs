//! Templates and annotations of translated pods: the reconciler of `vgpu_reconciler`, and its writes.
//!
//! All replicas apply changes, so that the next leader knows at once which templates are missing; only the leader
//! writes. The lease exists in both modes: a write without it could delete what another replica has just made. Failure modes: the head of
//! `vgpu_reconciler`.

#[cfg(test)]
pub(crate) mod tests;
mod writes;

use std::sync::Arc;

use kube::Client;
use tokio::sync::Semaphore;
use vgpu_api::PodRef;
use vgpu_planner::{About, Term};
use vgpu_reconciler::{self as reconciler, Notice, Reconciler, Settings, Task};

use crate::leader::clock::{Clock, SetBack};
use crate::leader::{self, Decider, HeldLease, Request, in_turn};
use crate::notices::Reported;

/// Requests that are sent in parallel.
const WRITES: usize = 16;

/// See the head of this file.
pub(crate) struct Translator {
    client: Client,
    clock: Arc<Clock>,
    lease: HeldLease,
    reconciler: Reconciler,
    turns: Arc<Semaphore>,
}

impl Translator {
    pub(crate) fn new(client: Client, clock: Arc<Clock>, lease: HeldLease, settings: Settings) -> Self {
        Self {
            client,
            clock,
            lease,
            reconciler: Reconciler::new(settings),
            turns: Arc::new(Semaphore::new(WRITES)),
        }
    }

    fn write(&self, write: reconciler::Write) -> Request<(Task, reconciler::Outcome)> {
        let (client, lease, gpus) = (self.client.clone(), self.lease.clone(), self.reconciler.gpus());
        Box::pin(in_turn(self.turns.clone(), async move {
            let outcome = match lease.is_held() {
                true => writes::send(&client, &write, &gpus).await,
                false => reconciler::Outcome::Dropped,
            };
            (write.task(), outcome)
        }))
    }
}

impl Decider for Translator {
    type Change = reconciler::Change;
    type Done = (Task, reconciler::Outcome);

    fn lead(&mut self, term: Option<&Term>) {
        self.apply(reconciler::Change::Leads(term.is_some()));
    }

    fn apply(&mut self, change: reconciler::Change) -> Vec<Request<Self::Done>> {
        self.reconciler.apply(change, self.clock.elapsed());
        Vec::new()
    }

    fn plan(&mut self) -> Result<leader::Plan<Self::Done>, SetBack> {
        let now = self.clock.elapsed();
        let plan = self.reconciler.plan(now);
        Ok(leader::Plan {
            requests: plan.writes.into_iter().map(|write| self.write(write)).collect(),
            reports: plan
                .notices
                .into_iter()
                .map(|(pod, notice)| reported(pod, &notice))
                .collect(),
            wake: plan.wake.map(|wake| wake.saturating_sub(now)),
        })
    }

    fn report(&mut self, (task, outcome): (Task, reconciler::Outcome)) -> Vec<Request<Self::Done>> {
        self.reconciler.report(&task, outcome, self.clock.elapsed());
        Vec::new()
    }
}

/// A notice as an event on its pod.
fn reported(pod: PodRef, notice: &Notice) -> Reported {
    let topic = notice.topic().to_owned();
    Reported::new(About::pod(pod), notice.reason(), notice, Some(topic))
}
