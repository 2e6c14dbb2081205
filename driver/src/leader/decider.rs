//! A decider, and the loop around it: when it plans, and the requests that are sent for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use vgpu_planner::Term;

use super::clock::SetBack;
use crate::notices::Reported;

/// Changes within this time of each other are decided on together.
const SETTLE: Duration = Duration::from_millis(10);

/// A request by which a decider writes or reads something.
pub(crate) type Request<T> = BoxFuture<'static, T>;

/// What to do now.
pub(crate) struct Plan<T> {
    pub(crate) requests: Vec<Request<T>>,
    pub(crate) reports: Vec<Reported>,
    /// How long to wait before the next plan if nothing changes before.
    pub(crate) wake: Option<Duration>,
}

/// Something that the leader decides on. Everything in it is synchronous; its requests run concurrently.
pub(crate) trait Decider {
    type Change;
    /// How a request ended.
    type Done: Send + 'static;

    /// A term has begun, was renewed, or is over (`None`).
    fn lead(&mut self, term: Option<&Term>);

    /// Applies a change, and returns the requests that it makes necessary at once.
    fn apply(&mut self, change: Self::Change) -> Vec<Request<Self::Done>>;

    /// Decides.
    ///
    /// # Errors
    /// The machine's clock was set back, so this process must end.
    fn plan(&mut self) -> Result<Plan<Self::Done>, SetBack>;

    /// A request has ended. Returns the requests that this makes necessary at once.
    fn report(&mut self, done: Self::Done) -> Vec<Request<Self::Done>>;
}

/// A decider with its requests.
pub(crate) struct Runner<D: Decider> {
    pub(crate) decider: D,
    requests: FuturesUnordered<Request<D::Done>>,
    plan_at: Option<Instant>,
    /// When the last plan began, and how long it took.
    planned: (Instant, Duration),
}

impl<D: Decider> Runner<D> {
    pub(crate) fn new(decider: D) -> Self {
        Self {
            decider,
            requests: FuturesUnordered::new(),
            plan_at: None,
            planned: (Instant::now(), Duration::ZERO),
        }
    }

    pub(crate) fn lead(&mut self, term: Option<&Term>) {
        self.decider.lead(term);
        self.soon();
    }

    pub(crate) fn apply(&mut self, change: D::Change) {
        let requests = self.decider.apply(change);
        self.requests.extend(requests);
        self.soon();
    }

    /// Waits until a request has ended or a plan is due, handles that, and returns what to report. Cancel-safe, because
    /// its only wait is the first step.
    pub(crate) async fn turn(&mut self) -> Result<Vec<Reported>, SetBack> {
        let plan_at = self.plan_at;
        let plan = async {
            match plan_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let done = tokio::select! {
            Some(done) = self.requests.next(), if !self.requests.is_empty() => done,
            () = plan => return self.plan(),
        };
        let requests = self.decider.report(done);
        self.requests.extend(requests);
        self.soon();
        Ok(Vec::new())
    }

    fn plan(&mut self) -> Result<Vec<Reported>, SetBack> {
        let begun = Instant::now();
        let plan = self.decider.plan()?;
        self.planned = (begun, begun.elapsed());
        self.plan_at = plan.wake.map(|wake| (begun + wake).max(self.rested()));
        self.requests.extend(plan.requests);
        Ok(plan.reports)
    }

    /// Schedules a plan, because something has changed.
    fn soon(&mut self) {
        let at = (Instant::now() + SETTLE).max(self.rested());
        self.plan_at = Some(self.plan_at.map_or(at, |known| known.min(at)));
    }

    /// The earliest time of the next plan: planning blocks the main loop, so it takes at most half of the time.
    fn rested(&self) -> Instant {
        let (begun, took) = self.planned;
        begun + took * 2
    }
}

/// Sends a request when it is its turn: of each kind a few are sent in parallel.
pub(crate) async fn in_turn<T>(turns: Arc<Semaphore>, request: impl Future<Output = T>) -> T {
    let _turn = turns.acquire().await;
    request.await
}
