//! Sends reviews to one replica over TLS, as fast as it answers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration, ServiceReference};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::common::{asking, percentiles, waiting_pod};

const WEBHOOK: &str = "pods.translate.dra.vgpu";
/// Concurrent reviews, as many as an API server sends in a burst of pods.
const CONNECTIONS: usize = 8;
const TIME: Duration = Duration::from_secs(10);

pub(crate) async fn reviews(client: &kube::Client) -> Result<()> {
    let (webhook, service) = webhook(client).await?;
    let body = review(client).await?;
    let config = replica(client, &webhook, &service).await?;
    let path = service.path.unwrap_or_default();
    let begun = Instant::now();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let direct = kube::Client::try_from(config.clone())?;
        let (path, body) = (path.clone(), body.clone());
        connections.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while begun.elapsed() < TIME {
                let start = Instant::now();
                let request = http::Request::post(&path)
                    .header("content-type", "application/json")
                    .body(body.clone().into_bytes())?;
                let answer: Value = serde_json::from_str(&direct.request_text(request).await?)?;
                times.push(start.elapsed());
                ensure!(
                    answer["response"]["patch"].is_string(),
                    "a review without a patch: {answer}"
                );
            }
            Ok(times)
        }));
    }
    let mut times = Vec::new();
    for connection in connections {
        times.extend(connection.await??);
    }
    let took = begun.elapsed();
    #[expect(clippy::cast_precision_loss, reason = "a few ten thousand")]
    let rate = times.len() as f64 / took.as_secs_f64();
    println!("direct_reviews per_second {rate:.0}");
    percentiles("direct_review", &mut times);
    Ok(())
}

async fn webhook(client: &kube::Client) -> Result<(MutatingWebhook, ServiceReference)> {
    let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let all = configurations.list(&ListParams::default()).await?;
    let mut webhooks = all.into_iter().flat_map(|one| one.webhooks.unwrap_or_default());
    let ours = webhooks.find(|webhook| webhook.name == WEBHOOK);
    let ours = ours.with_context(|| format!("no webhook is called {WEBHOOK}"))?;
    let service = ours.client_config.service.clone();
    Ok((ours, service.context("the webhook has no Service")?))
}

/// A pod's review as the API server sends it, with defaults.
async fn review(client: &kube::Client) -> Result<String> {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // This namespace is not labelled for translation, so the pod returns unchanged.
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let pod = pods.create(&dry, &waiting_pod("direct", &asking(3000))?).await?;
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": pod, "oldObject": null, "dryRun": false}});
    Ok(review.to_string())
}

/// A connection to one replica, with the name and the certificates that the API server uses.
async fn replica(client: &kube::Client, webhook: &MutatingWebhook, service: &ServiceReference) -> Result<kube::Config> {
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), &service.namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", service.name));
    let slices = slices.list(&of_service).await?;
    let reached = slices.iter().find_map(|slice| {
        let address = slice
            .endpoints
            .iter()
            .flatten()
            .find_map(|endpoint| endpoint.addresses.first())?;
        let port = slice.ports.iter().flatten().find_map(|port| port.port)?;
        Some(format!("https://{address}:{port}"))
    });
    let url = reached.context("the webhook's Service has no endpoint")?;
    let mut config = kube::Config::new(url.parse()?);
    config.tls_server_name = Some(format!("{}.{}.svc", service.name, service.namespace));
    let bundle = webhook
        .client_config
        .ca_bundle
        .as_ref()
        .context("the webhook has no caBundle yet")?;
    config.root_cert = Some(certificates(&bundle.0)?);
    Ok(config)
}

/// kube takes each certificate as DER.
fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    Ok(found?.into_iter().map(|one| one.to_vec()).collect())
}
