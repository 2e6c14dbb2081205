//! Namespace quotas and budgets: the `QuotaController` of `vgpu_quota`, and its writes.
//!
//! A `QuotaController` is for one term: its lists are read after the lease was won, so it knows everything
//! that the leader before it did. Failure modes: the head of `vgpu_quota`.

#[cfg(test)]
mod tests;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::Semaphore;
use vgpu_api::usage::BudgetUse;
use vgpu_planner::{Term, Time};
use vgpu_quota::{self as quotas, Now, Numbers, QuotaController, Steady, Task};

use crate::http::Health;
use crate::leader::clock::{Clock, SetBack};
use crate::leader::{self, Decider, HeldLease, Request, in_turn};
use crate::notices::Reported;

/// The quotas' clock is compared with the machine's at least this often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the metrics of namespaces are set.
const RATIOS_EVERY: Duration = Duration::from_secs(1);
/// Requests that are sent in parallel.
const WRITES: usize = 16;
/// How long the first decisions of a term wait for the VgpuNodes.
const NODES_WITHIN: Duration = Duration::from_secs(10);

/// See the head of this file.
pub(crate) struct Quotas {
    client: Client,
    clock: Arc<Clock>,
    lease: HeldLease,
    evict_after: Duration,
    /// Nodes report shares without a claim.
    has_nodes: bool,
    turns: Arc<Semaphore>,
    health: Arc<Health>,
    /// The clock by which budgets are charged. It is kept from one term to the next.
    steady: Steady,
    /// The term's epoch and controller, while this replica leads.
    term: Option<(String, QuotaController)>,
    /// When the metrics of namespaces were last set in this term.
    ratios_at: Option<Now>,
}

impl Quotas {
    pub(crate) fn new(
        client: Client,
        clock: Arc<Clock>,
        lease: HeldLease,
        evict_after: Duration,
        has_nodes: bool,
        health: Arc<Health>,
    ) -> Self {
        Self {
            client,
            lease,
            evict_after,
            has_nodes,
            turns: Arc::new(Semaphore::new(WRITES)),
            health,
            steady: Steady::new(clock.elapsed(), machine_time(&clock)),
            clock,
            term: None,
            ratios_at: None,
        }
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.term.is_some()
    }

    pub(crate) fn epoch(&self) -> Option<&str> {
        self.term.as_ref().map(|(epoch, _)| epoch.as_str())
    }

    /// The budgets of all namespaces, as their quotas say; `None` while they are not known.
    pub(crate) fn budgets(&self) -> Option<BTreeMap<String, BudgetUse>> {
        let (_, controller) = self.term.as_ref().filter(|(_, controller)| controller.is_complete())?;
        let budgets = controller.budgets().map(|(name, budget)| {
            let budget = BudgetUse {
                gpu_hours: budget.gpu_hours,
                used_gpu_hours: budget.used_gpu_hours,
                state: budget.state,
            };
            (name.to_owned(), budget)
        });
        Some(budgets.collect())
    }

    fn now(&self) -> Now {
        self.clock.elapsed()
    }

    /// A write is sent only in the term in which it was decided.
    fn write(&self, epoch: String, write: quotas::Write) -> Request<Done> {
        let (client, lease, health) = (self.client.clone(), self.lease.clone(), self.health.clone());
        Box::pin(in_turn(self.turns.clone(), async move {
            let outcome = match lease.is_held_in(&epoch) {
                true => writes::send(&client, &write).await,
                false => quotas::Outcome::Dropped,
            };
            let (intent, name) = (writes::intent(&write), writes::name(&outcome));
            health.metrics.quotas.wrote(intent, name);
            Done {
                epoch,
                task: write.task(),
                outcome,
            }
        }))
    }
}

/// A write that has ended.
pub(crate) struct Done {
    epoch: String,
    task: Task,
    outcome: quotas::Outcome,
}

impl Decider for Quotas {
    type Change = quotas::Change;
    type Done = Done;

    fn lead(&mut self, term: Option<&Term>) {
        if self.epoch() == term.map(|term| term.epoch.as_str()) {
            return;
        }
        if let Some((_, controller)) = self.term.take() {
            self.steady = *controller.clock();
            self.health.metrics.quotas.observe(Numbers::default());
            self.health.metrics.quotas.used(&[]);
            self.ratios_at = None;
        }
        self.steady.check(self.now(), machine_time(&self.clock));
        self.term = term.map(|term| {
            let controller = QuotaController::new(&*term.epoch, self.steady).with_evictions_after(self.evict_after);
            let controller = match self.has_nodes {
                true => controller.with_nodes(self.now() + NODES_WITHIN),
                false => controller,
            };
            (term.epoch.clone(), controller)
        });
    }

    fn apply(&mut self, change: quotas::Change) -> Vec<Request<Done>> {
        let now = self.now();
        if let Some((_, controller)) = &mut self.term {
            controller.apply(change, now);
        }
        Vec::new()
    }

    fn plan(&mut self) -> Result<leader::Plan<Done>, SetBack> {
        let (now, machine) = (self.now(), machine_time(&self.clock));
        let Some((epoch, controller)) = self.term.as_mut().filter(|(epoch, _)| self.lease.is_held_in(epoch)) else {
            return Ok(leader::Plan {
                requests: Vec::new(),
                reports: Vec::new(),
                wake: None,
            });
        };
        controller.check_clock(now, machine);
        let plan = controller.plan(now);
        let metrics = &self.health.metrics.quotas;
        metrics.observe(controller.numbers());
        // A plan follows each change, and a cluster may have thousands of namespaces.
        if self.ratios_at.is_none_or(|at| now >= at + RATIOS_EVERY) {
            self.ratios_at = Some(now);
            metrics.used(&controller.used().collect::<Vec<_>>());
        }
        let epoch = epoch.clone();
        let wake = plan
            .wake
            .map_or(HEARTBEAT, |wake| HEARTBEAT.min(wake.saturating_sub(now)));
        let writes = plan.writes.into_iter();
        Ok(leader::Plan {
            requests: writes.map(|write| self.write(epoch.clone(), write)).collect(),
            reports: plan
                .notices
                .into_iter()
                .map(|(about, notice)| Reported::new(about, notice.reason(), &notice, notice.topic()))
                .collect(),
            wake: Some(wake),
        })
    }

    fn report(&mut self, done: Done) -> Vec<Request<Done>> {
        let now = self.now();
        if let Some((_, controller)) = self.term.as_mut().filter(|(epoch, _)| *epoch == done.epoch) {
            controller.report(&done.task, done.outcome, now);
        }
        Vec::new()
    }
}

fn machine_time(clock: &Clock) -> Time {
    Time::from_millis(clock.machine_millis())
}
