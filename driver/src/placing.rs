//! Controller mode: has the planner decide on claims, and performs its writes and reads.
//!
//! Writes and reads are sent in parallel, a few at a time. A write that waited for its turn is checked against lease and
//! age when its turn comes.

mod reads;
#[cfg(test)]
mod scrape_test;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::Semaphore;
use vgpu_allocator::Features;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::{self as planner, Intent, Mode, Planner, Read, Seen, Settings, State, Term, WriteId};

use crate::leader::clock::{Clock, SetBack};
use crate::leader::{self, Decider, HeldLease, Request, in_turn};
use crate::metrics::Decisions;
use crate::notices::Reported;

/// Requests that are sent in parallel.
const WRITES: usize = 16;
const READS: usize = 8;

/// The planner, and everything that its requests need.
pub(crate) struct Placer {
    client: Client,
    clock: Arc<Clock>,
    lease: HeldLease,
    settings: Settings,
    planner: Planner,
    writes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    metrics: Decisions,
}

/// A request that has ended.
pub(crate) enum Done {
    Wrote {
        id: WriteId,
        intent: &'static str,
        outcome: planner::Outcome,
        /// The policy of an allocation.
        policy: Option<AllocationPolicy>,
        took: Duration,
    },
    /// `None` if it failed: the planner requests it again.
    Read(Option<Box<planner::Change>>),
}

impl Placer {
    pub(crate) fn new(
        client: Client,
        clock: Arc<Clock>,
        lease: HeldLease,
        settings: Settings,
        metrics: Decisions,
    ) -> Self {
        let share_id = Box::new(|| uuid::Uuid::new_v4().to_string());
        Self {
            planner: Planner::new(settings, Features::default(), share_id),
            client,
            clock,
            lease,
            settings,
            writes: Arc::new(Semaphore::new(WRITES)),
            reads: Arc::new(Semaphore::new(READS)),
            metrics,
        }
    }

    /// Updates the metrics with sums that the planner has ready.
    pub(crate) fn observe(&self) {
        self.metrics.observe(&self.planner, self.clock.now());
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.planner.is_leading()
    }

    pub(crate) fn state(&mut self) -> &mut State {
        self.planner.state_mut()
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::Controller {
            settle: self.settings.settle,
        }
    }

    fn write(&self, write: planner::Write) -> Request<Done> {
        let (client, lease, clock) = (self.client.clone(), self.lease.clone(), self.clock.clone());
        let oldest = self.settings.oldest_decision;
        let begun = Instant::now();
        Box::pin(in_turn(self.writes.clone(), async move {
            let outcome = match write.check(lease.term().as_ref(), clock.now(), oldest) {
                Ok(()) => writer::send(&client, &write).await,
                Err(stale) => {
                    tracing::info!(claim = %writer::key(&write), intent = writer::name(&write.intent), "not sent: {stale}");
                    planner::Outcome::Dropped
                }
            };
            Done::Wrote {
                id: write.id,
                intent: writer::name(&write.intent),
                policy: match write.intent {
                    Intent::Allocate { policy, .. } => Some(policy),
                    _ => None,
                },
                outcome,
                took: begun.elapsed(),
            }
        }))
    }

    fn read(&self, read: Read) -> Request<Done> {
        let (client, clock) = (self.client.clone(), self.clock.clone());
        let seen = match read {
            Read::Claims => self.planner.state().seen(),
            Read::Slice(_) => Seen::default(),
        };
        Box::pin(in_turn(self.reads.clone(), async move {
            let change = reads::read(&client, &clock, &read, &seen).await;
            let change = change.inspect_err(|error| tracing::warn!(%error, "a read failed and is asked for again"));
            Done::Read(change.ok().map(Box::new))
        }))
    }
}

impl Decider for Placer {
    type Change = planner::Change;
    type Done = Done;

    fn lead(&mut self, term: Option<&Term>) {
        self.apply(planner::Change::Lease(term.cloned()));
    }

    fn apply(&mut self, change: planner::Change) -> Vec<Request<Done>> {
        let reads = self.planner.apply(change, self.clock.now());
        reads.into_iter().map(|read| self.read(read)).collect()
    }

    fn plan(&mut self) -> Result<leader::Plan<Done>, SetBack> {
        self.clock.check()?;
        let begun = Instant::now();
        let now = self.clock.now();
        let plan = self.planner.plan(now);
        self.metrics.planned(begun.elapsed());
        let mut requests: Vec<Request<Done>> = plan.writes.into_iter().map(|write| self.write(write)).collect();
        requests.extend(plan.reads.into_iter().map(|read| self.read(read)));
        let reports = plan.verdicts.into_iter().map(|(about, verdict)| {
            self.metrics.found(&verdict);
            let text = verdict.to_string();
            let lasting = verdict.lasts().then(|| text.clone());
            Reported::new(about, verdict.reason(), &text, lasting)
        });
        Ok(leader::Plan {
            requests,
            reports: reports.collect(),
            wake: plan.wake.map(|wake| wake.since(now)),
        })
    }

    fn report(&mut self, done: Done) -> Vec<Request<Done>> {
        match done {
            Done::Read(None) => Vec::new(),
            Done::Read(Some(change)) => self.apply(*change),
            Done::Wrote {
                id,
                intent,
                outcome,
                policy,
                took,
            } => {
                if let (Some(policy), planner::Outcome::Done(_)) = (policy, &outcome) {
                    self.metrics.allocated(policy);
                }
                self.metrics.wrote(intent, writer::result(&outcome), took);
                self.planner.report(id, outcome, self.clock.now());
                Vec::new()
            }
        }
    }
}
