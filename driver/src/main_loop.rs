//! The main loop: applies changes from the watches, has decisions performed and explanations brought up to date, and
//! delivers notices as events.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::{BoxStream, FuturesUnordered};
use kube::Client;
use tokio::sync::{mpsc, watch};
use vgpu_planner::{About, Change, State, Term, Time, Verdict};

use crate::control::{Control, Next};
use crate::explain::Explanations;
use crate::flags::Config;
use crate::http::Health;
use crate::notices::{Notice, Notices, Topic};
use crate::pending::{Message, MessageKind, TEXT_MAX};
use crate::publish::{Delivery, deliver};
use crate::text;
use crate::watch::Watched;

/// The longest time between two turns of the loop.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// Events that are written in parallel.
const DELIVERIES: usize = 4;

/// Who owns the state: nobody but this loop, or in controller mode the planner.
pub(crate) enum StateOwner {
    Scheduler {
        state: Box<State>,
        /// `None`: there is no other replica.
        term: Option<watch::Receiver<Option<Term>>>,
    },
    Controller(Box<Control>),
}

impl StateOwner {
    fn state(&mut self) -> &mut State {
        match self {
            Self::Scheduler { state, .. } => state,
            Self::Controller(control) => control.state(),
        }
    }

    /// Returns true if this replica explains why pods wait: of several, the leader.
    fn explains(&self) -> bool {
        match self {
            Self::Scheduler { term, .. } => term.as_ref().is_none_or(|term| term.borrow().is_some()),
            Self::Controller(control) => control.is_leading(),
        }
    }

    fn apply(&mut self, change: Change) {
        match self {
            Self::Scheduler { state, .. } => {
                // Only decisions need the time and the reads.
                state.apply(change, Time::default());
            }
            Self::Controller(control) => control.apply(change),
        }
    }

    /// Waits for the next thing that controller mode has to do; in scheduler mode for ever.
    async fn next(&mut self) -> Next {
        match self {
            Self::Scheduler { .. } => std::future::pending().await,
            Self::Controller(control) => control.next().await,
        }
    }

    /// Performs it, and returns the verdicts to report.
    fn perform(&mut self, next: Next) -> anyhow::Result<Vec<(About, Verdict)>> {
        match self {
            Self::Scheduler { .. } => Ok(Vec::new()),
            Self::Controller(control) => Ok(control.perform(next)?),
        }
    }

    fn observe(&self) {
        if let Self::Controller(control) = self {
            control.observe();
        }
    }
}

/// Applies changes, performs decisions, works on explanations and delivers notices, until a stream ends or an error.
/// `told`: what other parts have to report.
pub(crate) async fn main_loop(
    client: &Client,
    config: &Config,
    health: &Health,
    mut changes: BoxStream<'static, Watched>,
    mut owner: StateOwner,
    mut told: mpsc::UnboundedReceiver<(Topic, Message)>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut explanations = Explanations::new(start);
    let mut notices = Notices::new(config.repeat_after, config.events_per_second);
    let mut queue: VecDeque<Notice> = VecDeque::new();
    let mut deliveries = FuturesUnordered::new();
    loop {
        let notice_at = notices.next().filter(|_| queue.is_empty()).map(|due| start + due);
        let wake = [explanations.work_at, notice_at]
            .into_iter()
            .flatten()
            .fold(Instant::now() + HEARTBEAT, Instant::min);
        let mut decided = Vec::new();
        let mut reported: Vec<(Topic, Message)> = Vec::new();
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(change)) => {
                    owner.apply(change);
                    explanations.soon();
                }
                Some(Err((kind, error))) => {
                    health.metrics.watch_errors.get_or_create(&[("resource", kind)]).inc();
                    tracing::warn!(%error, "the watch of {kind} failed and is retried");
                }
                // The streams of kube's watcher do not end.
                None => return Ok(()),
            },
            Some(notice) = told.recv() => reported.push(notice),
            next = owner.next() => decided = owner.perform(next)?,
            Some((notice, delivery)) = deliveries.next(), if !deliveries.is_empty() => {
                let outcome = match delivery {
                    Delivery::Said => "said",
                    Delivery::Refused => "refused",
                    Delivery::Failed => "failed",
                };
                health.metrics.events.get_or_create(&[("outcome", outcome)]).inc();
                if delivery == Delivery::Failed {
                    notices.failed(&notice, start.elapsed());
                }
            }
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        health.beat(owner.state().is_complete());
        owner.observe();
        for (about, verdict) in decided {
            tracing::debug!(object = %about.key(), reason = verdict.reason(), "{verdict}");
            reported.push(decision_notice(about, &verdict));
        }
        for (topic, message) in reported {
            if !notices.add_decision(topic, message, start.elapsed()) {
                health.metrics.events.get_or_create(&[("outcome", "too many")]).inc();
            }
        }
        let explains = owner.explains();
        explanations.turn(owner.state(), explains, &mut notices, health);
        if queue.is_empty() {
            queue.extend(notices.due(start.elapsed()));
        }
        while deliveries.len() < DELIVERIES {
            let Some(notice) = queue.pop_front() else { break };
            // The pod may have been bound or deleted while its notice waited here.
            let Topic { about, decided } = &notice.topic;
            let pod = owner.state().pod(&about.key());
            let waits = pod.is_some_and(|pod| pod.uid == about.uid && pod.node.is_none() && !pod.is_finished);
            if waits || decided.is_some() {
                tracing::info!(object = %about.key(), "{}", notice.message.text);
                deliveries.push(async move {
                    let delivery = deliver(client, &config.instance, &notice).await;
                    (notice, delivery)
                });
            }
        }
    }
}

/// Converts a decision to a notice.
fn decision_notice(about: About, verdict: &Verdict) -> (Topic, Message) {
    let reason = verdict.reason();
    let topic = Topic {
        about,
        decided: Some(reason),
    };
    let message = Message {
        kind: MessageKind::Decided(reason),
        text: text::cut(&verdict.to_string(), TEXT_MAX),
    };
    (topic, message)
}
