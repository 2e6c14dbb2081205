//! Measures how soon a translated pod has its template.

use std::pin::pin;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use tokio::time::Instant;

use crate::common::{asking, percentiles, waiting_pod};

const PODS: u32 = 50;

/// Measures from the answer to the pod's creation until a watch shows its template. Each pod requests a different
/// amount of memory, so each needs its own template.
pub(crate) async fn delays(client: &kube::Client, namespace: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let templates = Api::<ResourceClaimTemplate>::namespaced(client.clone(), namespace);
    let version = templates.list(&ListParams::default()).await?.metadata.resource_version;
    let mut events = pin!(
        templates
            .watch(&WatchParams::default(), &version.unwrap_or_default())
            .await?
    );
    let mut times = Vec::new();
    for number in 0..PODS {
        let name = format!("template-{number}");
        let made = pods
            .create(&PostParams::default(), &waiting_pod(&name, &asking(2001 + number))?)
            .await?;
        let start = Instant::now();
        let claims = made.spec.and_then(|spec| spec.resource_claims).unwrap_or_default();
        let wanted = claims.into_iter().find_map(|claim| claim.resource_claim_template_name);
        let wanted = wanted.with_context(|| format!("pod {name} was not translated"))?;
        loop {
            let event = events.try_next().await?.context("the watch of templates ended")?;
            if matches!(event, WatchEvent::Added(template) if template.metadata.name.as_ref() == Some(&wanted)) {
                break;
            }
        }
        times.push(start.elapsed());
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
    }
    percentiles("template", &mut times);
    Ok(())
}
