//! Every replica: watches the Secret, and shows its certificate.
//!
//! A Secret without a usable pair, or none, changes nothing: what was loaded last is trusted for a day (see
//! [`super::rotation`]).

use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};

use super::certificate::Unusable;
use super::names::Names;
use super::secret;
use super::served::Served;
use crate::http::Health;

/// Runs until the process ends.
pub(super) async fn reload(client: Client, names: Names, served: Arc<Served>, health: Arc<Health>) {
    let api = Api::<Secret>::namespaced(client, &names.namespace);
    // By its name: that is all that the controller may watch.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", names.name));
    let mut events = watcher(api, config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => match load(&secret, &names, &served) {
                Ok(Some(until)) => {
                    tracing::info!(
                        secret = names.secret(),
                        until,
                        "the webhook shows the Secret's certificate"
                    );
                    health.certificate_loaded(until);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(secret = names.secret(), %error, "the webhook keeps its certificate; the leader will replace the Secret's");
                }
            },
            Ok(_) => {}
            Err(error) => {
                health
                    .metrics
                    .watch_errors
                    .get_or_create(&[("resource", "secrets")])
                    .inc();
                tracing::warn!(secret = names.secret(), %error, "the watch of the webhook's Secret failed and is retried");
            }
        }
    }
}

/// Returns until when the certificate is valid that is shown now; `None` if the Secret has none in use.
fn load(secret: &Secret, names: &Names, served: &Served) -> Result<Option<i64>, Unusable> {
    let Some(pair) = secret::current(secret) else {
        return Ok(None);
    };
    let authority = pair.authority(&names.host())?;
    served.set(pair.certified()?);
    Ok(Some(authority.until))
}
