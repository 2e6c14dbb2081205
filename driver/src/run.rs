//! Starts the controller's parts: metrics server, election, webhook, watches and the main loop. Stops them on a signal.

use std::io::IsTerminal as _;
use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vgpu_planner::Settings;

use crate::flags::{Config, LeaseName};
use crate::http::{self, Health};
use crate::leader::clock::Clock;
use crate::leader::elect::Election;
use crate::leader::{HeldLease, Leader};
use crate::main_loop::main_loop;
use crate::placing::Placer;
use crate::quota::Quotas;
use crate::translation::Translator;
use crate::usage::Usages;
use crate::webhook::Webhook;

const NO_API_SERVER: &str = "no way to the API server; set KUBECONFIG or run in a cluster";

/// Runs until SIGTERM or SIGINT.
pub async fn run(config: Config) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(config.log.as_str())
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let api = kube::Config::infer().await.context(NO_API_SERVER)?;
    let client = Client::try_from(api.clone()).context(NO_API_SERVER)?;
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
    // With several replicas, the leader decides, explains, and writes for the webhook, translated pods, quotas and
    // usages.
    if config.controller.is_some() || config.webhook.is_some() || config.quota || config.usage {
        let LeaseName { namespace, name } = &config.lease;
        let (elects, leads) = Election::new(&client, namespace, name, &config.instance, clock.clone());
        // A separate task, so that it renews the lease while the main loop is busy.
        election = Some(tokio::spawn(elects.run(async { drop(is_over.await) })));
        term = Some(leads);
    }
    let mut webhook = None;
    if let (Some(config), Some(term)) = (&config.webhook, &term) {
        webhook = Some(Webhook::start(&client, config, term.clone(), &health)?);
    }
    let lease = term.map(|term| HeldLease::new(clock.clone(), term));
    let leader = leader(&config, &client, api, &clock, lease, &health)?;
    let mut farewell = None;
    let ended = tokio::select! {
        ended = main_loop(&client, &config, &health, &clock, leader) => ended,
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

/// Makes the deciders that the configuration asks for. Each has the lease, which exists if there is any.
fn leader(
    config: &Config,
    client: &Client,
    api: kube::Config,
    clock: &Arc<Clock>,
    lease: Option<HeldLease>,
    health: &Arc<Health>,
) -> anyhow::Result<Leader> {
    let Some(held) = &lease else {
        return Ok(Leader::new(None, None, None, None, None));
    };
    let placer = config.controller.as_ref().map(|mode| {
        let settings = Settings {
            policy: mode.policy,
            hold: mode.hold_timeout,
            ..Settings::default()
        };
        let decisions = health.metrics.decisions.clone();
        Placer::new(client.clone(), clock.clone(), held.clone(), settings, decisions)
    });
    let mut quotas = None;
    if config.quota {
        // A PodDisruptionBudget refuses an eviction by status 429, which kube would otherwise send again until the write
        // is given up, so that no other pod is ever chosen.
        let mut sends_once = api;
        sends_once.default_retry = false;
        let client = Client::try_from(sends_once).context(NO_API_SERVER)?;
        let (clock, held, health) = (clock.clone(), held.clone(), health.clone());
        quotas = Some(Quotas::new(
            client,
            clock,
            held,
            config.quota_evict_after,
            config.usage,
            health,
        ));
    }
    let translator = config.webhook.as_ref().map(|webhook| {
        let settings = vgpu_reconciler::Settings {
            high_priority_class: webhook.settings.high_priority_class.clone(),
        };
        Translator::new(client.clone(), clock.clone(), held.clone(), settings)
    });
    let usages = config
        .usage
        .then(|| Usages::new(client.clone(), clock.clone(), held.clone(), health.clone()));
    Ok(Leader::new(lease, placer, quotas, translator, usages))
}

/// Waits until the election has ended; returns at once without one.
async fn election_ended(election: &mut Option<JoinHandle<()>>) -> anyhow::Result<()> {
    match election {
        Some(task) if !task.is_finished() => task.await.context("the election ended by itself"),
        _ => Ok(()),
    }
}

/// Waits until the webhook fails. Never returns without a webhook.
async fn webhook_failed(webhook: &mut Option<Webhook>) -> anyhow::Error {
    match webhook {
        Some(webhook) => webhook.failed().await,
        None => std::future::pending().await,
    }
}
