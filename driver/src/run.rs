//! The edges: watches in, events out, one loop between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vgpu_planner::Settings;

use crate::cluster::Cluster;
use crate::control::clock::Clock;
use crate::control::elect::Election;
use crate::control::{Control, Next};
use crate::explain::Explainer;
use crate::flags::Config;
use crate::http::{self, Health};
use crate::model::Key;
use crate::notices::{About, Notice, Notices, Object};
use crate::pending::{Kind, TEXT_MAX, Verdict};
use crate::publish::{Delivery, deliver};
use crate::watch::{Brought, watch, watch_to_control};
use crate::words;

/// The loop turns at least so often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
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
    let (over, is_over) = oneshot::channel::<()>();
    let mut control = None;
    let mut election: Option<JoinHandle<()>> = None;
    if let Some(mode) = &config.controller {
        let clock = Arc::new(Clock::start());
        let (namespace, name) = (&mode.lease_namespace, &mode.lease_name);
        let (elects, term) = Election::new(&client, namespace, name, &config.instance, clock.clone());
        // A task of its own: it renews while the loop decides.
        election = Some(tokio::spawn(elects.run(async { drop(is_over.await) })));
        let decisions = health.metrics.decisions.clone();
        let settings = Settings {
            policy: mode.policy,
            hold: mode.hold_timeout,
            ..Settings::default()
        };
        control = Some(Control::new(client.clone(), clock, term, settings, decisions));
    }
    let ended = tokio::select! {
        ended = turn(&client, &config, &health, control) => ended,
        Err(error) = ended(&mut election) => Err(error),
        served = http::serve(listener, health.clone()) => served.context("--http-address: serving ended"),
        _ = stop.recv() => {
            tracing::info!("stopped by SIGTERM");
            Ok(())
        }
        _ = interrupt.recv() => {
            tracing::info!("stopped by SIGINT");
            Ok(())
        }
    };
    // What was under way is dropped by now, so whoever leads next has nothing of this replica to wait for.
    drop(over);
    self::ended(&mut election).await?;
    ended
}

/// Whether the election is over; at once, without one.
async fn ended(election: &mut Option<JoinHandle<()>>) -> anyhow::Result<()> {
    match election {
        Some(task) if !task.is_finished() => task.await.context("the election ended by itself"),
        _ => Ok(()),
    }
}

async fn turn(client: &Client, config: &Config, health: &Health, control: Option<Control>) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut changes = match control {
        Some(_) => watch_to_control(client),
        None => watch(client),
    };
    let cluster = match control {
        Some(_) => Cluster::of_controller(),
        None => Cluster::default(),
    };
    let mut control = control;
    let mut explainer = Explainer::new(cluster, start);
    let mut notices = Notices::new(config.repeat_after, config.events_per_second);
    let mut queue: VecDeque<Notice> = VecDeque::new();
    let mut deliveries = FuturesUnordered::new();
    loop {
        let speak_at = notices.next().filter(|_| queue.is_empty()).map(|due| start + due);
        let wake = [explainer.look_at, speak_at]
            .into_iter()
            .flatten()
            .fold(Instant::now() + HEARTBEAT, Instant::min);
        let mut decided = Vec::new();
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(brought)) => take_in(brought, &mut explainer, control.as_mut()),
                Some(Err((kind, error))) => {
                    health.metrics.watch_errors.get_or_create(&[("resource", kind)]).inc();
                    tracing::warn!(%error, "the watch of {kind} stumbled and is tried again");
                }
                // The streams of kube's watcher do not end.
                None => return Ok(()),
            },
            (control, next) = next(control.as_mut()) => decided = control.take(next)?,
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
        health.beat(explainer.cluster.is_complete());
        if let Some(control) = &control {
            control.observe();
        }
        for (about, verdict) in decided {
            let (about, verdict) = told(about, &verdict);
            tracing::debug!(object = %about.key, reason = verdict.kind.reason(), "{}", verdict.text);
            if !notices.tell(about, verdict, start.elapsed()) {
                health.metrics.events.get_or_create(&[("outcome", "too many")]).inc();
            }
        }
        let planner = control.as_mut().map(Control::planner);
        explainer.turn(planner, &mut notices, health);
        if queue.is_empty() {
            queue.extend(notices.due(start.elapsed()));
        }
        while deliveries.len() < DELIVERIES {
            let Some(notice) = queue.pop_front() else { break };
            // It may have been bound or deleted while its notice waited here.
            let about = &notice.about;
            let waits = explainer
                .cluster
                .pods
                .get(&about.key)
                .is_some_and(|pod| pod.uid == about.uid);
            if waits || about.decided.is_some() {
                tracing::info!(object = %about.key, "{}", notice.verdict.text);
                deliveries.push(async move {
                    let delivery = deliver(client, &config.instance, &notice).await;
                    (notice, delivery)
                });
            }
        }
    }
}

/// Never, where kube-scheduler allocates.
async fn next(control: Option<&mut Control>) -> (&mut Control, Next) {
    match control {
        Some(control) => {
            let next = control.next().await;
            (control, next)
        }
        None => std::future::pending().await,
    }
}

fn take_in(brought: Brought, explainer: &mut Explainer, control: Option<&mut Control>) {
    match (brought, control) {
        (Brought::Change(change), _) => explainer.take_in(*change),
        (Brought::Fed(fed), control) => {
            if let Some(change) = fed.explained() {
                explainer.take_in(change);
            }
            if let Some(control) = control {
                control.take_in(*fed);
            }
        }
    }
}

/// A decision as a notice.
fn told(about: vgpu_planner::About, verdict: &vgpu_planner::Verdict) -> (About, Verdict) {
    let (object, namespace, name, uid) = match about {
        vgpu_planner::About::Pod { namespace, name, uid } => (Object::Pod, namespace, name, uid),
        vgpu_planner::About::Claim { namespace, name, uid } => (Object::Claim, namespace, name, uid),
    };
    let about = About {
        object,
        key: Key { namespace, name },
        uid,
        decided: Some(verdict.reason()),
    };
    let verdict = Verdict {
        kind: Kind::Decided(verdict.reason()),
        text: words::cut(&verdict.to_string(), TEXT_MAX),
    };
    (about, verdict)
}
