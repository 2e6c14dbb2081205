//! The edges: watches in, events out, one loop between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

use crate::answers::Answers;
use crate::cluster::Cluster;
use crate::flags::Config;
use crate::http::{self, Health};
use crate::notices::{Notice, Notices};
use crate::pending::verdicts;
use crate::publish::{Delivery, deliver};
use crate::watch::watch;

/// The loop turns at least so often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// Changes come in bursts: what follows within this time is looked at together.
const SETTLE: Duration = Duration::from_millis(250);
/// Answers are worked on for so long at a time; what has come in since is taken in before it goes on.
const TURN: Duration = Duration::from_millis(50);
/// They take at most one part in so many of the time.
const SHARE_OF_TIME: u32 = 10;
/// Events that are under way at once.
const DELIVERIES: usize = 4;

/// Runs until it is told to stop.
pub async fn run(config: Config) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(config.log.as_str())
        .with_writer(std::io::stderr)
        .init();
    let client = Client::try_default()
        .await
        .context("no way to the API server; set KUBECONFIG or run in a cluster")?;
    let listener = tokio::net::TcpListener::bind(config.http_address)
        .await
        .with_context(|| format!("--http-address {}: cannot listen", config.http_address))?;
    let health = Arc::new(Health::new());
    tracing::info!(address = %config.http_address, "vgpu-controller {} runs", env!("CARGO_PKG_VERSION"));
    let (mut stop, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        () = control(&client, &config, &health) => {}
        served = http::serve(listener, health.clone()) => served.context("--http-address: serving ended")?,
        _ = stop.recv() => tracing::info!("stopped by SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stopped by SIGINT"),
    }
    Ok(())
}

async fn control(client: &Client, config: &Config, health: &Health) {
    let start = Instant::now();
    let mut cluster = Cluster::default();
    let mut answers = Answers::default();
    let mut notices = Notices::new(config.repeat_after, config.events_per_second);
    let mut changes = watch(client);
    let mut queue: VecDeque<Notice> = VecDeque::new();
    let mut deliveries = FuturesUnordered::new();
    // When to work on answers again; None where nothing has changed since they were all given.
    let mut look_at: Option<Instant> = None;
    let mut looked = (start, Duration::ZERO);
    loop {
        let speak_at = notices.next().filter(|_| queue.is_empty()).map(|due| start + due);
        let wake = [look_at, speak_at]
            .into_iter()
            .flatten()
            .fold(Instant::now() + HEARTBEAT, Instant::min);
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(change)) => {
                    cluster.apply(change);
                    let rest = looked.0 + looked.1 * SHARE_OF_TIME;
                    look_at.get_or_insert((Instant::now() + SETTLE).max(rest));
                }
                Some(Err((kind, error))) => {
                    health.metrics.watch_errors.get_or_create(&[("resource", kind)]).inc();
                    tracing::warn!(%error, "the watch of {kind} stumbled and is tried again");
                }
                // The streams of kube's watcher do not end.
                None => return,
            },
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
        health.beat(cluster.is_complete());
        if look_at.is_some_and(|at| at <= Instant::now()) {
            let begun = Instant::now();
            let mut done = true;
            if cluster.is_complete() {
                answers.ask(&cluster);
                done = answers.work(&mut cluster, &mut || begun.elapsed() < TURN);
                notices.observe(verdicts(&cluster, &answers), start.elapsed());
                health.metrics.looked(begun.elapsed(), notices.len(), answers.len());
            }
            looked = (begun, begun.elapsed());
            look_at = (!done).then(|| begun + looked.1 * SHARE_OF_TIME);
        }
        if queue.is_empty() {
            queue.extend(notices.due(start.elapsed()));
        }
        while deliveries.len() < DELIVERIES {
            let Some(notice) = queue.pop_front() else { break };
            // It may have been bound or deleted while its notice waited here.
            if cluster.pods.get(&notice.pod).is_some_and(|pod| pod.uid == notice.uid) {
                tracing::info!(pod = %notice.pod, "{}", notice.verdict.text);
                deliveries.push(async move {
                    let delivery = deliver(client, &config.instance, &notice).await;
                    (notice, delivery)
                });
            }
        }
    }
}
