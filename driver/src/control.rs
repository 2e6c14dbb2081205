//! Controller mode: performs what the planner decides, and reports the outcomes back to it.
//!
//! ```text
//!  watch: changes ──┐                             ┌─► writer: last check, PATCH ─► Outcome ┐
//!  elect: terms ────┼─► Planner ─► Plan ──────────┼─► reads: lists and slices  ─► Change ──┤
//!        ▲          │      ▲                      └─► verdicts ─► notices, metrics         │
//!        │          └──────┴──────────────────────────────────────────────────────────────◄┘
//!      Lease
//! ```
//!
//! The main loop ([`crate::main_loop`]) drives it; only planning blocks the loop. Changes come in bursts, so a plan is
//! made a moment after the first of them, and planning takes at most half of the time. Writes and reads are sent in
//! parallel, a few at a time. A write that waited for its turn is checked against lease and age when its turn comes.
//!
//! Failure modes: see `docs/controller.md`. Whatever is lost when the process ends, the next leader makes again from
//! the objects themselves.

pub(crate) mod clock;
pub(crate) mod elect;
mod reads;
#[cfg(test)]
mod scrape_test;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::{Semaphore, watch};
use vgpu_allocator::Features;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::{
    About, Change, Intent, Outcome, Plan, Planner, Read, Seen, Settings, State, Term, Verdict, Write, WriteId,
};

use self::clock::{Clock, SetBack};
use self::writer::Fence;
use crate::metrics::Decisions;

/// Changes within this time of each other are decided on together.
const SETTLE: Duration = Duration::from_millis(10);
/// Requests that are sent in parallel.
const WRITES: usize = 16;
const READS: usize = 8;

/// The planner, and the requests that are sent for it.
pub(crate) struct Control {
    client: Client,
    clock: Arc<Clock>,
    planner: Planner,
    fence: Fence,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    writes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    plan_at: Option<Instant>,
    /// When the last plan was begun, and how long it took.
    planned: (Instant, Duration),
    metrics: Decisions,
}

/// A request that has ended.
pub(crate) enum Done {
    Wrote {
        id: WriteId,
        intent: &'static str,
        outcome: Outcome,
        /// The policy of an allocation.
        policy: Option<AllocationPolicy>,
        took: Duration,
    },
    /// `None` if it failed: the planner requests it again.
    Read(Option<Box<Change>>),
}

/// The next thing to do.
pub(crate) enum Next {
    Done(Done),
    Term,
    Plan,
}

impl Control {
    pub(crate) fn new(
        client: Client,
        clock: Arc<Clock>,
        term: watch::Receiver<Option<Term>>,
        settings: Settings,
        metrics: Decisions,
    ) -> Self {
        let share_id = Box::new(|| uuid::Uuid::new_v4().to_string());
        Self {
            planner: Planner::new(settings, Features::default(), share_id),
            fence: Fence {
                clock: clock.clone(),
                term,
                oldest: settings.oldest_decision,
            },
            clock,
            client,
            under_way: FuturesUnordered::new(),
            writes: Arc::new(Semaphore::new(WRITES)),
            reads: Arc::new(Semaphore::new(READS)),
            plan_at: None,
            planned: (Instant::now(), Duration::ZERO),
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

    /// Applies a change, and sends the reads that it makes necessary.
    pub(crate) fn apply(&mut self, change: Change) {
        for read in self.planner.apply(change, self.clock.now()) {
            self.read(read);
        }
        self.soon();
    }

    /// Schedules a plan, because something has changed.
    fn soon(&mut self) {
        let (begun, took) = self.planned;
        let rested = begun + took * 2;
        let at = (Instant::now() + SETTLE).max(rested);
        self.plan_at = Some(self.plan_at.map_or(at, |known| known.min(at)));
    }

    /// Waits for the next thing to do. Cancel-safe: nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Next {
        let plan = async {
            match self.plan_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let term = async {
            if self.fence.term.changed().await.is_err() {
                // The election has ended, and so will the process.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(done) = self.under_way.next(), if !self.under_way.is_empty() => Next::Done(done),
            () = term => Next::Term,
            () = plan => Next::Plan,
        }
    }

    /// Performs `next` and returns the verdicts to report.
    ///
    /// # Errors
    /// The machine's clock was set back, so this process must end.
    pub(crate) fn perform(&mut self, next: Next) -> Result<Vec<(About, Verdict)>, SetBack> {
        match next {
            Next::Term => {
                let term = self.fence.term.borrow_and_update().clone();
                self.apply(Change::Lease(term));
            }
            Next::Done(Done::Read(change)) => {
                if let Some(change) = change {
                    self.apply(*change);
                }
            }
            Next::Done(Done::Wrote {
                id,
                intent,
                outcome,
                policy,
                took,
            }) => {
                if let (Some(policy), Outcome::Done(_)) = (policy, &outcome) {
                    self.metrics.allocated(policy);
                }
                self.metrics.wrote(intent, writer::result(&outcome), took);
                self.planner.report(id, outcome, self.clock.now());
                self.soon();
            }
            Next::Plan => return self.plan(),
        }
        Ok(Vec::new())
    }

    fn plan(&mut self) -> Result<Vec<(About, Verdict)>, SetBack> {
        self.clock.check()?;
        let begun = Instant::now();
        let now = self.clock.now();
        let Plan {
            writes,
            reads,
            verdicts,
            wake,
        } = self.planner.plan(now);
        self.planned = (begun, begun.elapsed());
        self.metrics.planned(self.planned.1);
        // A pass whose budget was spent continues at once, except for the pause in which other work is done.
        let rested = begun + self.planned.1 * 2;
        self.plan_at = wake.map(|wake| (begun + wake.since(now)).max(rested));
        for write in writes {
            self.write(write);
        }
        for read in reads {
            self.read(read);
        }
        for (_, verdict) in &verdicts {
            self.metrics.decided(verdict);
        }
        Ok(verdicts)
    }

    fn write(&mut self, write: Write) {
        let (client, fence, turns) = (self.client.clone(), self.fence.clone(), self.writes.clone());
        let begun = Instant::now();
        self.under_way.push(Box::pin(async move {
            let _turn = turns.acquire().await;
            let outcome = writer::send(&client, &fence, &write).await;
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
        }));
    }

    fn read(&mut self, read: Read) {
        let (client, clock, turns) = (self.client.clone(), self.clock.clone(), self.reads.clone());
        let seen = match read {
            Read::Claims => self.planner.state().seen(),
            Read::Slice(_) => Seen::default(),
        };
        self.under_way.push(Box::pin(async move {
            let _turn = turns.acquire().await;
            let change = reads::read(&client, &clock, &read, &seen).await;
            let change = change.inspect_err(|error| tracing::warn!(%error, "a read failed and is asked for again"));
            Done::Read(change.ok().map(Box::new))
        }));
    }
}
