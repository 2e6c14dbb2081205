//! Performs the rotation's steps. Each is one write with the version that was read as its precondition.
//!
//! The leader performs them, and so does a replica without a certificate while the Secret has none either: when
//! `translate.dialects` is switched on, the leader is a pod of the old Deployment, which knows no webhook and is not
//! replaced before a new pod is ready. Any number of replicas may do this at the same time (see [`super::rotation`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use vgpu_planner::Term;

use super::certificate::{self, authorities};
use super::names::{Names, WEBHOOK};
use super::rotation::{Authority, Rotation, Seconds, Step, Stored};
use super::secret;
use super::served::Served;

/// The pause between two checks; there is none after a step.
const PAUSE: Duration = Duration::from_secs(10);
/// Timeout of one check with its write.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the API server answers with status {0}")]
    Status(u16),
    #[error("the answer is no Secret: {0}")]
    NoSecret(#[from] serde_json::Error),
    #[error(
        "the API server's answer has no Date that can be read, so nobody knows which certificates it takes for valid"
    )]
    NoDate,
    #[error(
        "MutatingWebhookConfiguration {0} has no webhook {WEBHOOK}; install the chart with translate.dialects again"
    )]
    NoWebhook(String),
    #[error("no certificate can be issued: {0}")]
    Issue(#[from] rcgen::Error),
}

/// Why a replica writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Leader,
    /// It has no certificate to show, so it makes the first pair if nobody else does.
    Starter,
}

/// Keeps Secret and caBundle while its replica leads, and makes the first pair.
pub(super) struct CertController {
    pub(super) client: Client,
    pub(super) names: Names,
    pub(super) term: watch::Receiver<Option<Term>>,
    /// The certificate that this replica shows.
    served: Arc<Served>,
    rotation: Rotation,
    started: Instant,
}

impl CertController {
    pub(super) fn new(client: Client, names: Names, term: watch::Receiver<Option<Term>>, served: Arc<Served>) -> Self {
        Self {
            client,
            names,
            term,
            served,
            rotation: Rotation::default(),
            started: Instant::now(),
        }
    }

    /// Runs until the process ends.
    pub(super) async fn run(mut self) {
        loop {
            let leads = self.term.borrow_and_update().is_some();
            let role = match leads {
                true => Some(Role::Leader),
                false => self.served.shown().is_none().then_some(Role::Starter),
            };
            let Some(role) = role else {
                // A replica that leads again has missed all changes since its last term.
                self.rotation = Rotation::default();
                if self.term.changed().await.is_err() {
                    // The election has ended, and the process is about to.
                    return std::future::pending().await;
                }
                continue;
            };
            match tokio::time::timeout(TIMEOUT, self.turn(role)).await {
                Ok(Ok(Step::Wait)) => {}
                Ok(Ok(_)) => continue,
                Ok(Err(Failure::Kube(kube::Error::Api(status)))) if status.code == 409 => {
                    tracing::info!(%status, "another replica changed the webhook's certificates");
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, name = self.names.name, "the webhook's certificates could not be looked after; tried again")
                }
                Err(_) => tracing::warn!(
                    name = self.names.name,
                    "the webhook's certificates: no answer within {TIMEOUT:?}"
                ),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Checks once, and performs the write that is needed.
    async fn turn(&mut self, role: Role) -> Result<Step, Failure> {
        let (secret, now) = self.secret().await?;
        let stored = self.stored(secret.as_ref());
        if role == Role::Starter && stored.current.is_some() {
            // This replica will show it in a moment. Everything else is done by the leader.
            return Ok(Step::Wait);
        }
        let configuration = self.configuration().await?;
        let bundle = bundle(&configuration).ok_or_else(|| Failure::NoWebhook(self.names.name.clone()))?;
        let step = self.rotation.step(&stored, &bundle, now, self.started.elapsed());
        match &step {
            Step::Wait => {}
            Step::Issue => {
                let pair = certificate::issue(&self.names.host(), now)?;
                tracing::info!(secret = self.names.secret(), "stores a new certificate, not in use yet");
                self.store(secret::with_next(secret, &self.names.name, &pair)).await?;
            }
            Step::Trust(wanted) => {
                tracing::info!(
                    name = self.names.name,
                    authorities = wanted.len(),
                    "writes the caBundle"
                );
                self.trust(&configuration, wanted).await?;
            }
            Step::Promote => {
                tracing::info!(secret = self.names.secret(), "puts the new certificate in use");
                self.store(secret::promoted(secret.unwrap_or_default())).await?;
            }
        }
        Ok(step)
    }

    /// The Secret, and the time by the API server's clock.
    async fn secret(&self) -> Result<(Option<Secret>, Seconds), Failure> {
        let url = Secret::url_path(&(), Some(&self.names.namespace));
        let request = kube::core::Request::new(url)
            .get(&self.names.name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        let answer = self.client.send(request.map(Body::from)).await?;
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let now = date.and_then(seconds).ok_or(Failure::NoDate)?;
        match answer.status().as_u16() {
            404 => Ok((None, now)),
            200 => {
                let body = answer.into_body().collect_bytes().await?;
                Ok((Some(serde_json::from_slice(&body)?), now))
            }
            other => Err(Failure::Status(other)),
        }
    }

    async fn configuration(&self) -> Result<MutatingWebhookConfiguration, Failure> {
        let api = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let found = api.get_opt(&self.names.name).await?;
        found.ok_or_else(|| Failure::NoWebhook(self.names.name.clone()))
    }

    /// Pairs that this webhook can serve with.
    fn stored(&self, secret: Option<&Secret>) -> Stored {
        let host = self.names.host();
        let usable = |pair: Option<certificate::Pair>| match pair?.authority(&host) {
            Ok(authority) => Some(authority),
            Err(error) => {
                tracing::warn!(secret = self.names.secret(), %error, "a pair in the webhook's Secret is replaced");
                None
            }
        };
        Stored {
            current: usable(secret.and_then(secret::current)),
            next: usable(secret.and_then(secret::next)),
        }
    }

    /// Creates the Secret, or replaces the version that was read.
    async fn store(&self, secret: Secret) -> Result<(), Failure> {
        let api = Api::<Secret>::namespaced(self.client.clone(), &self.names.namespace);
        let parameters = PostParams::default();
        match secret.metadata.resource_version {
            Some(_) => api.replace(&self.names.name, &parameters, &secret).await?,
            None => api.create(&parameters, &secret).await?,
        };
        Ok(())
    }

    async fn trust(&self, of: &MutatingWebhookConfiguration, wanted: &[Authority]) -> Result<(), Failure> {
        let text: String = wanted.iter().map(|ca| ca.pem.as_str()).collect();
        let patch = json!({
            "metadata": {"uid": of.uid(), "resourceVersion": of.resource_version()},
            "webhooks": [{"name": WEBHOOK, "clientConfig": {"caBundle": ByteString(text.into_bytes())}}],
        });
        let api = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        api.patch(&self.names.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        Ok(())
    }
}

/// The authorities that the API server trusts; `None` without our webhook.
fn bundle(configuration: &MutatingWebhookConfiguration) -> Option<Vec<Authority>> {
    let webhooks = configuration.webhooks.as_ref()?;
    let ours = webhooks.iter().find(|webhook| webhook.name == WEBHOOK)?;
    let text = ours.client_config.ca_bundle.as_ref();
    Some(text.map_or_else(Vec::new, |text| authorities(&String::from_utf8_lossy(&text.0))))
}

/// A Date header.
fn seconds(date: &str) -> Option<Seconds> {
    const PARSER: DateTimeParser = DateTimeParser::new();
    PARSER.parse_timestamp(date).ok().map(|time| time.as_second())
}

#[cfg(test)]
#[path = "cert_controller_test.rs"]
mod tests;
