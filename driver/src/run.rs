//! Starts the controller's parts: metrics server, election, webhook, watches and the main loop. Stops them on a signal.

use std::io::IsTerminal as _;
use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use vgpu_allocator::Features;
use vgpu_planner::{Mode, Settings, State};

use crate::control::Control;
use crate::control::clock::Clock;
use crate::control::elect::Election;
use crate::flags::{Config, LeaseName};
use crate::http::{self, Health};
use crate::main_loop::{StateOwner, main_loop};
use crate::quota::QuotaLeader;
use crate::reconcile::{HeldLease, Reconcile};
use crate::watch::watch;
use crate::webhook::Webhook;

/// Runs until SIGTERM or SIGINT.
pub async fn run(config: Config) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(config.log.as_str())
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let no_way = "no way to the API server; set KUBECONFIG or run in a cluster";
    let api = kube::Config::infer().await.context(no_way)?;
    let client = Client::try_from(api.clone()).context(no_way)?;
    let listener = tokio::net::TcpListener::bind(config.http_address)
        .await
        .with_context(|| format!("--http-address {}: cannot listen", config.http_address))?;
    let health = Arc::new(Health::new());
    tracing::info!(address = %config.http_address, "vgpu-controller {} runs", env!("CARGO_PKG_VERSION"));
    let (mut stop, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (over, is_over) = oneshot::channel::<()>();
    let clock = Arc::new(Clock::start());
    let mut election: Option<JoinHandle<()>> = None;
    let mut term = None;
    // With several replicas one of them decides, writes what the webhook, translated pods and quotas need, and explains.
    if config.controller.is_some() || config.webhook.is_some() || config.quota {
        let LeaseName { namespace, name } = &config.lease;
        let (elects, leads) = Election::new(&client, namespace, name, &config.instance, clock.clone());
        // A task of its own: it renews while the loop decides.
        election = Some(tokio::spawn(elects.run(async { drop(is_over.await) })));
        term = Some(leads);
    }
    // Without a limit: quotas and decisions must not wait for the main loop. Each object has a few notices at most.
    let (tell, told) = mpsc::unbounded_channel();
    let (mut webhook, mut reconcile) = (None, None);
    if let (Some(config), Some(term)) = (&config.webhook, &term) {
        webhook = Some(Webhook::start(&client, config, term.clone(), &health)?);
        let settings = vgpu_reconciler::Settings {
            high_priority_class: config.settings.high_priority_class.clone(),
        };
        let lease = HeldLease::new(clock.clone(), term.clone());
        reconcile = Some(Reconcile::new(
            client.clone(),
            settings,
            lease,
            tell.clone(),
            health.clone(),
        ));
    }
    let mut quota = None;
    if let (true, Some(term)) = (config.quota, &term) {
        let lease = HeldLease::new(clock.clone(), term.clone());
        // A PodDisruptionBudget refuses an eviction by status 429, which kube would otherwise send again until the write is
        // given up, so that no other pod is ever chosen.
        let mut sends_once = api;
        sends_once.default_retry = false;
        quota = Some(QuotaLeader::new(
            Client::try_from(sends_once).context(no_way)?,
            lease,
            config.quota_evict_after,
            tell,
            health.clone(),
        ));
    }
    let (watched, owner) = match (&config.controller, term) {
        (Some(mode), Some(term)) => {
            let settings = Settings {
                policy: mode.policy,
                hold: mode.hold_timeout,
                ..Settings::default()
            };
            let watched = Mode::Controller {
                settle: settings.settle,
            };
            let decisions = health.metrics.decisions.clone();
            let control = Control::new(client.clone(), clock, term, settings, decisions);
            (watched, StateOwner::Controller(Box::new(control)))
        }
        (_, term) => {
            let state = Box::new(State::new(Mode::Scheduler, Features::default()));
            (Mode::Scheduler, StateOwner::Scheduler { state, term })
        }
    };
    let changes = watch(&client, watched);
    let mut farewell = None;
    let ended = tokio::select! {
        ended = main_loop(&client, &config, &health, changes, owner, told) => ended,
        () = reconciling(reconcile) => Ok(()),
        () = leading_quotas(quota) => Ok(()),
        Err(error) = election_ended(&mut election) => Err(error),
        error = webhook_failed(&mut webhook) => Err(error),
        served = http::serve(listener, health.clone()) => served.context("--http-address: serving ended"),
        _ = stop.recv() => {
            tracing::info!("stopped by SIGTERM");
            farewell = webhook.take();
            Ok(())
        }
        _ = interrupt.recv() => {
            tracing::info!("stopped by SIGINT");
            Ok(())
        }
    };
    // All requests of this replica are dropped by now, so the next leader need not wait for any of them.
    drop(over);
    election_ended(&mut election).await?;
    if let Some(webhook) = farewell {
        webhook.end().await;
    }
    ended
}

/// Runs for ever, with or without translated pods.
async fn reconciling(reconcile: Option<Reconcile>) {
    match reconcile {
        Some(reconcile) => reconcile.run().await,
        None => std::future::pending().await,
    }
}

/// Runs for ever, with or without quotas.
async fn leading_quotas(quota: Option<QuotaLeader>) {
    match quota {
        Some(quota) => quota.run().await,
        None => std::future::pending().await,
    }
}

/// Waits until the election has ended; returns at once without one.
async fn election_ended(election: &mut Option<JoinHandle<()>>) -> anyhow::Result<()> {
    match election {
        Some(task) if !task.is_finished() => task.await.context("the election ended by itself"),
        _ => Ok(()),
    }
}

/// Waits until the webhook fails; without one for ever.
async fn webhook_failed(webhook: &mut Option<Webhook>) -> anyhow::Error {
    match webhook {
        Some(webhook) => webhook.failed().await,
        None => std::future::pending().await,
    }
}
