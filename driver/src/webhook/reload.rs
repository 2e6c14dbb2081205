//! Runs on every replica: watches the Secret, and presents its certificate.
//!
//! If there is no Secret, or none with a usable pair, nothing changes: the certificate that was loaded last is trusted
//! for a day (see [`super::rotation`]).

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
    // Selected by name, the only Secret that the controller may watch.
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
                    tracing::warn!(secret = names.secret(), %error, "the pair in the webhook's Secret cannot be used and will be replaced; the webhook shows what it had before");
                }
            },
            Ok(_) => {}
            Err(error) => {
                health.metrics.watch_failed("secrets");
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

#[cfg(test)]
mod tests {
    use super::super::certificate::issue;
    use super::*;

    #[test]
    fn only_a_usable_pair_in_use_replaces_what_is_shown() {
        let names = Names {
            namespace: "n".into(),
            name: "x-webhook".into(),
        };
        let pair = |host: &str| issue(host, 1_800_000_000).unwrap();
        let served = Served::default();
        let shown = || served.shown().map(|certified| certified.cert[0].to_vec());
        let next = secret::with_next(None, "x-webhook", &pair("x-webhook.n.svc"));
        assert_eq!(load(&next, &names, &served).unwrap(), None);
        assert_eq!(shown(), None, "the next pair may not be trusted yet");
        let first = secret::promoted(next);
        let until = load(&first, &names, &served).unwrap();
        assert_eq!(until, Some(1_800_000_000 + 90 * 86_400));
        let before = shown();
        assert!(before.is_some());
        load(&Secret::default(), &names, &served).unwrap();
        assert_eq!(shown(), before, "a Secret without a pair");
        let other = secret::promoted(secret::with_next(None, "x-webhook", &pair("other.n.svc")));
        assert!(matches!(load(&other, &names, &served), Err(Unusable::OtherName(_))));
        assert_eq!(shown(), before, "another name's certificate");
        let second = secret::promoted(secret::with_next(Some(first), "x-webhook", &pair("x-webhook.n.svc")));
        load(&second, &names, &served).unwrap();
        assert_ne!(shown(), before);
    }
}
