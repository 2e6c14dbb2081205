//! The mutating webhook: pods that are written for other systems of GPU sharing get claims.
//!
//! ```text
//!  kube-apiserver ──TLS──► server ─► review (pure) ─► vgpu_dialects
//!                            ▲ served: the certificate of the moment
//!  Secret ──watch──► reload ─┘                                       every replica
//!  ─────────────────────────────────────────────────────────────────────────────
//!    ▲ one write, with a precondition                                the leader, and for the first
//!  cert_controller ◄── rotation (pure): which write comes next                pair any replica that serves
//!    ▼
//!  caBundle of the MutatingWebhookConfiguration
//! ```
//!
//! A review depends on the pod and the flags alone, so every replica gives the same answer, and none needs to know the
//! cluster. The API server refuses a pod that nobody reviews (failurePolicy Fail): none gets through untranslated.
//! `docs/translate.md` says how each failure ends.

mod admission;
mod cert_controller;
mod certificate;
pub mod names;
mod reload;
pub mod review;
mod rotation;
mod secret;
mod served;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use vgpu_dialects::Settings;
use vgpu_planner::Term;

use self::cert_controller::CertController;
use self::names::Names;
use self::review::Mode;
use self::served::Served;
use self::server::Reviewer;
use crate::http::Health;

/// How long a replica that is terminating continues with reviews: until API servers and proxies have noticed it.
const FAREWELL: Duration = Duration::from_secs(5);

/// The webhook's part of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub address: SocketAddr,
    pub names: Names,
    pub settings: Settings,
    pub mode: Mode,
}

/// A webhook that serves.
#[derive(Debug)]
pub(crate) struct Webhook {
    ends: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Webhook {
    /// Starts the server, the watch of the Secret, and the certificate controller.
    ///
    /// # Errors
    /// The address is already in use.
    pub(crate) fn start(
        client: &Client,
        config: &Config,
        term: watch::Receiver<Option<Term>>,
        health: &Arc<Health>,
    ) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind(config.address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| format!("--webhook-address {}: cannot listen", config.address))?;
        let served = Arc::new(Served::default());
        let tls = server::acceptor(served.clone()).context("no TLS for the webhook")?;
        let reviewer = Reviewer::new(config.settings.clone(), config.mode, health.metrics.reviews.clone());
        let (ends, ending) = watch::channel(false);
        health.waits_for_certificate();
        server::start(listener, tls, reviewer, ending).context("the webhook's thread cannot be started")?;
        let names = config.names.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(reload::reload(
            client.clone(),
            names.clone(),
            served.clone(),
            health.clone(),
        ));
        tasks.spawn(CertController::new(client.clone(), names, term, served).run());
        tracing::info!(address = %config.address, mode = ?config.mode, "the webhook serves");
        Ok(Self { ends, tasks })
    }

    /// Waits until a part has ended. None of them ends normally.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Err(error)) => anyhow::Error::new(error).context("a part of the webhook ended"),
            _ => anyhow::anyhow!("a part of the webhook ended by itself"),
        }
    }

    /// Answers reviews a little longer, and closes connections in order: the API server may not know for a moment that
    /// this replica ends, and would refuse the pods that it sends here.
    pub(crate) async fn end(self) {
        self.ends.send_replace(true);
        tokio::time::sleep(FAREWELL).await;
    }
}
