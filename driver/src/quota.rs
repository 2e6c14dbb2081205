//! Namespace quotas and budgets: watches, the desk of `vgpu_quota`, and its writes.
//!
//! ```text
//!  term of the lease ─► a desk ◄─ Change ─ watches that begin after the lease was won
//!                        │  ▲
//!                        │  └─ Outcome ─ writes: check of the lease, one request each
//!                        └─► notices, to the main loop
//! ```
//!
//! Only the leader watches and writes. A desk is one term: its lists are made after the lease was won, so it knows all
//! that the leader before it did. It has watches of its own: those of the main loop leave out bound pods where
//! kube-scheduler allocates. Failure modes: the head of `vgpu_quota`.

#[cfg(test)]
mod tests;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::{Semaphore, mpsc};
use vgpu_planner::{About, Object};
use vgpu_quota::{Change, Desk, Kind, Notice, Now, Numbers, Outcome, Steady, Subject, Task, Wall, Write};

use crate::http::Health;
use crate::notices::Topic;
use crate::pending::{Message, MessageKind, TEXT_MAX};
use crate::reconcile::HeldLease;
use crate::text;

/// Changes within this time of each other are decided on together.
const SETTLE: Duration = Duration::from_millis(5);
/// The clock is compared with the machine's at least this often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Requests that are sent in parallel.
const WRITES: usize = 16;

/// See the head of this file.
pub(crate) struct QuotaLeader {
    client: Client,
    lease: HeldLease,
    started: Instant,
    clock: Steady,
    evict_after: Duration,
    turns: Arc<Semaphore>,
    tell: mpsc::UnboundedSender<(Topic, Message)>,
    health: Arc<Health>,
}

/// One term.
struct Term {
    desk: Desk,
    under_way: FuturesUnordered<BoxFuture<'static, (Task, Outcome)>>,
    plan_at: Instant,
}

impl Term {
    fn plan_by(&mut self, at: Instant) {
        self.plan_at = self.plan_at.min(at);
    }
}

impl QuotaLeader {
    pub(crate) fn new(
        client: Client,
        lease: HeldLease,
        evict_after: Duration,
        tell: mpsc::UnboundedSender<(Topic, Message)>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            client,
            lease,
            started: Instant::now(),
            clock: Steady::new(Now::ZERO, machine_time()),
            evict_after,
            turns: Arc::new(Semaphore::new(WRITES)),
            tell,
            health,
        }
    }

    /// Runs for ever: term after term.
    pub(crate) async fn run(mut self) {
        loop {
            match self.lease.epoch() {
                Some(epoch) => self.lead(&epoch).await,
                None => self.lease.changed().await,
            }
        }
    }

    /// Leads until this term is over.
    async fn lead(&mut self, epoch: &str) {
        self.clock.check(self.now(), machine_time());
        let mut changes = watches::watch(&self.client);
        let mut term = Term {
            desk: Desk::new(epoch, self.clock).with_evictions_after(self.evict_after),
            under_way: FuturesUnordered::new(),
            plan_at: Instant::now() + HEARTBEAT,
        };
        while self.lease.epoch().as_deref() == Some(epoch) {
            let plan_at = term.plan_at;
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(change)) => self.apply(&mut term, change),
                    Some(Err((kind, error))) => {
                        self.health.metrics.watch_errors.get_or_create(&[("resource", kind)]).inc();
                        tracing::warn!(%error, "the watch of {kind} for quotas failed and is retried");
                    }
                    None => break,
                },
                Some((task, outcome)) = term.under_way.next(), if !term.under_way.is_empty() => {
                    term.desk.report(&task, outcome, self.now());
                    term.plan_by(Instant::now());
                }
                () = self.lease.changed() => {}
                () = tokio::time::sleep_until(plan_at.into()) => self.plan(&mut term),
            }
        }
        self.clock = *term.desk.clock();
        self.health.metrics.quotas.observe(Numbers::default());
    }

    fn now(&self) -> Now {
        self.started.elapsed()
    }

    fn apply(&self, term: &mut Term, change: Change) {
        term.desk.apply(change, self.now());
        term.plan_by(Instant::now() + SETTLE);
    }

    fn plan(&self, term: &mut Term) {
        term.desk.check_clock(self.now(), machine_time());
        let plan = term.desk.plan(self.now());
        let heartbeat = Instant::now() + HEARTBEAT;
        term.plan_at = plan.wake.map_or(heartbeat, |wake| heartbeat.min(self.started + wake));
        for write in plan.writes {
            term.under_way.push(self.write(write));
        }
        for (subject, notice) in plan.notices {
            // The main loop ends only with the process.
            let _ = self.tell.send(message(subject, &notice));
        }
        self.health.metrics.quotas.observe(term.desk.numbers());
    }

    fn write(&self, write: Write) -> BoxFuture<'static, (Task, Outcome)> {
        let (client, lease, turns) = (self.client.clone(), self.lease.clone(), self.turns.clone());
        let health = self.health.clone();
        Box::pin(async move {
            let _turn = turns.acquire().await;
            let outcome = match lease.is_held() {
                true => writes::send(&client, &write).await,
                false => Outcome::Dropped,
            };
            health
                .metrics
                .quotas
                .wrote(writes::intent(&write), writes::name(&outcome));
            (write.task(), outcome)
        })
    }
}

fn machine_time() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A notice as an event on its object, reported once.
fn message(subject: Subject, notice: &Notice) -> (Topic, Message) {
    let reason = notice.reason();
    let topic = Topic {
        about: About {
            object: match subject.kind {
                Kind::Pod => Object::Pod,
                Kind::Quota => Object::Quota,
                Kind::Default => Object::QuotaDefault,
            },
            namespace: subject.namespace,
            name: subject.name,
            uid: subject.uid,
        },
        decided: Some(reason),
    };
    let message = Message {
        kind: MessageKind::Decided(reason),
        text: text::cut(&notice.to_string(), TEXT_MAX),
    };
    (topic, message)
}
