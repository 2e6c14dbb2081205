//! Templates and annotations of translated pods: watches, the reconciler, and its writes.
//!
//! ```text
//!  watches ─► Change ──┐
//!  term of the lease ──┼─► vgpu_reconciler::Reconciler ─► Plan ─┬─► writes: check of the lease, one request ─► Outcome ┐
//!          ▲           │        ▲                               └─► notices, to the main loop                        │
//!          └───────────┘        └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! It has watches of its own: those of the main loop leave out bound pods where kube-scheduler allocates, and keep of a
//! pod what allocation needs. All replicas watch, so that whoever takes over knows at once what is missing; only the
//! leader writes. The lease is that of the allocation, and exists in both modes: a write without it could delete what
//! another replica has just made. Failure modes: the head of `vgpu_reconciler`.

#[cfg(test)]
mod tests;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::sync::{Semaphore, mpsc, watch};
use vgpu_planner::{About, Object, Term};
use vgpu_reconciler::{Change, Notice, Now, Outcome, PodRef, Reconciler, Settings, Task, Write};

use crate::control::clock::Clock;
use crate::http::Health;
use crate::notices::Topic;
use crate::pending::{Message, MessageKind, TEXT_MAX};
use crate::text;

/// Changes within this time of each other are decided on together.
const SETTLE: Duration = Duration::from_millis(5);
/// Requests that are sent in parallel.
const WRITES: usize = 16;

/// The lease, as far as this replica knows.
#[derive(Debug, Clone)]
pub(crate) struct HeldLease {
    clock: Arc<Clock>,
    term: watch::Receiver<Option<Term>>,
}

impl HeldLease {
    pub(crate) fn new(clock: Arc<Clock>, term: watch::Receiver<Option<Term>>) -> Self {
        Self { clock, term }
    }

    pub(crate) fn is_held(&self) -> bool {
        let term = self.term.borrow();
        term.as_ref().is_some_and(|term| self.clock.now() < term.until)
    }
}

impl HeldLease {
    /// The epoch of the term, while it lasts.
    pub(crate) fn epoch(&self) -> Option<String> {
        let term = self.term.borrow();
        let term = term.as_ref().filter(|term| self.clock.now() < term.until)?;
        Some(term.epoch.clone())
    }

    /// Waits until the term was renewed, or is another, or is over.
    pub(crate) async fn changed(&mut self) {
        if self.term.changed().await.is_err() {
            // The election ends only with the process.
            std::future::pending::<()>().await;
        }
    }
}

/// See the head of this file.
pub(crate) struct Reconcile {
    client: Client,
    lease: HeldLease,
    reconciler: Reconciler,
    under_way: FuturesUnordered<BoxFuture<'static, (Task, Outcome)>>,
    turns: Arc<Semaphore>,
    started: Instant,
    plan_at: Option<Instant>,
    tell: mpsc::UnboundedSender<(Topic, Message)>,
    health: Arc<Health>,
}

impl Reconcile {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        lease: HeldLease,
        tell: mpsc::UnboundedSender<(Topic, Message)>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            client,
            lease,
            reconciler: Reconciler::new(settings),
            under_way: FuturesUnordered::new(),
            turns: Arc::new(Semaphore::new(WRITES)),
            started: Instant::now(),
            plan_at: None,
            tell,
            health,
        }
    }

    /// Runs for ever: the streams of kube's watcher do not end.
    pub(crate) async fn run(mut self) {
        let mut changes = watches::watch(&self.client);
        self.lease.term.mark_changed();
        loop {
            let plan_at = self.plan_at;
            let plan = async {
                match plan_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(change)) => self.apply(change),
                    Some(Err((kind, error))) => {
                        self.health.metrics.watch_errors.get_or_create(&[("resource", kind)]).inc();
                        tracing::warn!(%error, "the watch of {kind} for translated pods failed and is retried");
                    }
                    None => return,
                },
                Some((task, outcome)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.reconciler.report(&task, outcome, self.now());
                    self.plan_by(Instant::now() + SETTLE);
                }
                Ok(()) = self.lease.term.changed() => self.apply(Change::Leads(self.lease.is_held())),
                () = plan => self.plan().await,
            }
        }
    }

    fn now(&self) -> Now {
        self.started.elapsed()
    }

    fn apply(&mut self, change: Change) {
        self.reconciler.apply(change, self.now());
        self.plan_by(Instant::now() + SETTLE);
    }

    fn plan_by(&mut self, at: Instant) {
        self.plan_at = Some(self.plan_at.map_or(at, |known| known.min(at)));
    }

    async fn plan(&mut self) {
        let plan = self.reconciler.plan(self.now());
        self.plan_at = plan.wake.map(|wake| self.started + wake);
        for write in plan.writes {
            self.write(write);
        }
        for (pod, notice) in plan.notices {
            // The main loop ends only with the process.
            let _ = self.tell.send(message(pod, &notice));
        }
    }

    fn write(&mut self, write: Write) {
        let (client, lease, turns) = (self.client.clone(), self.lease.clone(), self.turns.clone());
        let gpus = self.reconciler.gpus();
        self.under_way.push(Box::pin(async move {
            let _turn = turns.acquire().await;
            let outcome = match lease.is_held() {
                true => writes::send(&client, &write, &gpus).await,
                false => Outcome::Dropped,
            };
            (write.task(), outcome)
        }));
    }
}

/// A notice as an event on its pod, reported once.
fn message(pod: PodRef, notice: &Notice) -> (Topic, Message) {
    let reason = notice.reason();
    let topic = Topic {
        about: About {
            object: Object::Pod,
            namespace: pod.namespace,
            name: pod.name,
            uid: pod.uid,
        },
        decided: Some(reason),
    };
    let message = Message {
        kind: MessageKind::Decided(reason),
        text: text::cut(&notice.to_string(), TEXT_MAX),
    };
    (topic, message)
}
