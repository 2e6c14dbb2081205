//! The main loop: applies changes from the watches, has the leader decide and explanations brought up to date, and
//! delivers notices as events.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;

use crate::explain::Explanations;
use crate::flags::Config;
use crate::http::Health;
use crate::leader::Leader;
use crate::leader::clock::Clock;
use crate::notices::{Added, Notice, Notices, Reported, Topic};
use crate::publish::{Delivery, deliver};
use crate::watch::watch;

/// The longest time between two turns of the loop.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// Events that are written in parallel.
const DELIVERIES: usize = 4;

/// Applies changes, decides, works on explanations and delivers notices, until a stream ends or an error.
pub(crate) async fn main_loop(
    client: &Client,
    config: &Config,
    health: &Health,
    clock: &Clock,
    mut leader: Leader,
) -> anyhow::Result<()> {
    let mut changes = watch(client, leader.interest());
    let mut explanations = Explanations::new();
    let mut notices = Notices::new(config.repeat_after, config.events_per_second);
    let mut outbox = Outbox {
        client,
        instance: &config.instance,
        queue: VecDeque::new(),
        deliveries: FuturesUnordered::new(),
    };
    loop {
        let due = notices.next().filter(|_| outbox.queue.is_empty());
        let notice_at = due.map(|due| Instant::now() + due.saturating_sub(clock.elapsed()));
        let wake = [explanations.work_at, notice_at]
            .into_iter()
            .flatten()
            .fold(Instant::now() + HEARTBEAT, Instant::min);
        let mut reports = Vec::new();
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(changes)) => if leader.apply(changes) {
                    explanations.soon();
                },
                Some(Err((kind, error))) => {
                    tracing::warn!(%error, "the watch of {kind} failed and is retried");
                    health.metrics.watch_failed(&kind);
                }
                // The streams of kube's watcher do not end.
                None => return Ok(()),
            },
            turn = leader.turn() => {
                reports = turn?;
                if leader.takes_other_watches() {
                    changes = watch(client, leader.interest());
                }
            }
            Some((notice, delivery)) = outbox.deliveries.next(), if !outbox.deliveries.is_empty() => {
                health.metrics.delivered(delivery);
                if delivery == Delivery::Failed {
                    notices.failed(&notice, clock.elapsed());
                }
            }
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        health.beat(leader.state().is_complete());
        leader.observe();
        leader.tell_usages();
        note(reports, &mut notices, clock, health);
        let explains = leader.explains();
        health.metrics.decisions.leads(explains);
        explanations.turn(leader.state(), explains, &mut notices, clock, health);
        outbox.deliver(&mut notices, &mut leader, clock);
    }
}

/// Adds decisions to the notices.
fn note(reports: Vec<Reported>, notices: &mut Notices, clock: &Clock, health: &Health) {
    for report in reports {
        let Topic { about, decided } = &report.topic;
        tracing::debug!(object = %about.key(), reason = decided, "{}", report.message.text);
        let reason = decided.unwrap_or_default();
        match notices.add_decision(report, clock.elapsed()) {
            Added::New => health.metrics.decisions.decided(reason),
            Added::Known => {}
            Added::Dropped => health.metrics.dropped(),
        }
    }
}

/// Notices that are due, and those that are being delivered.
struct Outbox<'a> {
    client: &'a Client,
    instance: &'a str,
    queue: VecDeque<Notice>,
    deliveries: FuturesUnordered<BoxFuture<'a, (Notice, Delivery)>>,
}

impl Outbox<'_> {
    /// Begins to deliver notices that are due, a few in parallel.
    fn deliver(&mut self, notices: &mut Notices, leader: &mut Leader, clock: &Clock) {
        if self.queue.is_empty() {
            self.queue.extend(notices.due(clock.elapsed()));
        }
        let (client, instance) = (self.client, self.instance);
        while self.deliveries.len() < DELIVERIES {
            let Some(notice) = self.queue.pop_front() else { break };
            if is_current(&notice.topic, leader) {
                tracing::info!(object = %notice.topic.about.key(), "{}", notice.message.text);
                self.deliveries.push(Box::pin(async move {
                    let delivery = deliver(client, instance, &notice).await;
                    (notice, delivery)
                }));
            }
        }
    }
}

/// Returns false for an explanation whose pod was bound or deleted while it waited for its delivery.
fn is_current(topic: &Topic, leader: &mut Leader) -> bool {
    let Topic { about, decided } = topic;
    let pod = leader.state().pod(&about.key());
    decided.is_some() || pod.is_some_and(|pod| pod.uid == about.uid && pod.node.is_none() && !pod.is_finished)
}
