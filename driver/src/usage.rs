//! What each namespace holds and uses: the controller of VgpuUsages ([`controller`]), and its writes.
//!
//! All replicas apply changes, so that the next leader knows at once what nodes report; only the leader writes.

mod controller;
pub(crate) mod plan;
pub(crate) mod share;
mod sum;
#[cfg(test)]
mod tests;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use vgpu_planner::{Term, Time};

use self::controller::UsageController;
pub(crate) use self::plan::{Change, Others};
use self::plan::{Outcome, Write};
use crate::http::Health;
use crate::leader::clock::{Clock, SetBack};
use crate::leader::{self, Decider, HeldLease, Request};

/// How often to ask for waiting pods and budgets.
const OTHERS_EVERY: Duration = Duration::from_secs(5);

/// See the head of this file.
pub(crate) struct Usages {
    client: Client,
    clock: Arc<Clock>,
    lease: HeldLease,
    health: Arc<Health>,
    controller: UsageController,
    /// The term's epoch, while this replica leads.
    epoch: Option<String>,
    /// When the other parts' figures were last received.
    others_at: Option<Duration>,
}

impl Usages {
    pub(crate) fn new(client: Client, clock: Arc<Clock>, lease: HeldLease, health: Arc<Health>) -> Self {
        Self {
            client,
            clock,
            lease,
            health,
            controller: UsageController::default(),
            epoch: None,
            others_at: None,
        }
    }

    /// Returns true if it is time to ask for waiting pods and budgets again.
    pub(crate) fn wants_others(&self) -> bool {
        let now = self.clock.elapsed();
        self.epoch.is_some() && self.others_at.is_none_or(|at| now >= at + OTHERS_EVERY)
    }

    fn wall(&self) -> Time {
        Time::from_millis(self.clock.machine_millis())
    }

    /// A write is sent only in the term in which it was decided.
    fn write(&self, epoch: String, write: Write) -> Request<Done> {
        let (client, lease, health) = (self.client.clone(), self.lease.clone(), self.health.clone());
        Box::pin(async move {
            let (outcome, name) = match lease.is_held_in(&epoch) {
                true => match writes::send(&client, &write).await {
                    Outcome::Failed => (Outcome::Failed, "again"),
                    outcome => (outcome, "done"),
                },
                false => (Outcome::Failed, "dropped"),
            };
            health.metrics.usage_wrote(writes::intent(&write), name);
            Done {
                epoch,
                namespace: write.namespace().map(str::to_owned),
                outcome,
            }
        })
    }
}

/// A write that has ended.
pub(crate) struct Done {
    epoch: String,
    /// `None` for the list.
    namespace: Option<String>,
    outcome: Outcome,
}

impl Decider for Usages {
    type Change = Change;
    type Done = Done;

    fn lead(&mut self, term: Option<&Term>) {
        let epoch = term.map(|term| term.epoch.clone());
        if self.epoch != epoch {
            self.epoch = epoch;
            self.others_at = None;
            self.controller.begin();
        }
    }

    fn apply(&mut self, change: Change) -> Vec<Request<Done>> {
        let now = self.clock.elapsed();
        if matches!(change, Change::Others(_)) {
            self.others_at = Some(now);
        }
        let wall = self.wall();
        self.controller.apply(change, now, wall);
        Vec::new()
    }

    fn plan(&mut self) -> Result<leader::Plan<Done>, SetBack> {
        let (now, wall) = (self.clock.elapsed(), self.wall());
        let epoch = self.epoch.clone().filter(|epoch| self.lease.is_held_in(epoch));
        let Some(epoch) = epoch else {
            return Ok(leader::Plan {
                requests: Vec::new(),
                reports: Vec::new(),
                wake: None,
            });
        };
        let plan = self.controller.plan(now, wall);
        let writes = plan.writes.into_iter();
        Ok(leader::Plan {
            requests: writes.map(|write| self.write(epoch.clone(), write)).collect(),
            reports: Vec::new(),
            wake: plan.wake,
        })
    }

    fn report(&mut self, done: Done) -> Vec<Request<Done>> {
        if self.epoch.as_ref() == Some(&done.epoch) {
            let now = self.clock.elapsed();
            self.controller.report(done.namespace.as_deref(), done.outcome, now);
        }
        Vec::new()
    }
}
