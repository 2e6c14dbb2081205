//! Measures how soon a quota removes a pod's gate: pods are created at a fixed rate in a namespace whose quota has
//! room for all of them, and a watch shows when their gates disappear. Each pod's claim exists before the pod:
//! kube-controller-manager creates claims from templates at only 20 per second, which would dominate the measurement.
//!
//! Runs inside the cluster's namespaces, as root, with KUBECONFIG set: `bench-gates --namespace WITH-QUOTA... [--rate
//! 50] [--seconds 20]`. Pods are spread over the namespaces in turn. Prints one figure per line: `<name> <unit>
//! <value>`.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::Instant;

#[derive(Parser)]
struct Flags {
    /// Namespaces whose quota has room for all of the pods.
    #[arg(long = "namespace", required = true)]
    namespaces: Vec<String>,
    /// Pods per second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

const PREFIX: &str = "gate-";
/// Time to wait for the last gates.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let client = kube::Client::try_default().await.context("KUBECONFIG")?;
    let namespace = |number: u32| flags.namespaces[number as usize % flags.namespaces.len()].as_str();
    let count = flags.rate * flags.seconds;
    for number in 0..count {
        let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace(number));
        claims.create(&PostParams::default(), &claim(number)?).await?;
    }
    let watched = Api::<Pod>::all(client.clone());
    let version = watched.list(&ListParams::default()).await?.metadata.resource_version;
    let seen = tokio::spawn(async move {
        let parameters = WatchParams::default();
        let mut events = pin!(watched.watch(&parameters, &version.unwrap_or_default()).await?);
        let mut opened = HashMap::new();
        while opened.len() < count as usize {
            let event = events.try_next().await?.context("the watch of pods ended")?;
            if let WatchEvent::Modified(pod) = event
                && !is_gated(&pod)
                && pod.metadata.name.as_ref().is_some_and(|name| name.starts_with(PREFIX))
            {
                opened
                    .entry(pod.metadata.name.unwrap_or_default())
                    .or_insert_with(Instant::now);
            }
        }
        anyhow::Ok(opened)
    });
    let mut timer = tokio::time::interval(Duration::from_secs(1) / flags.rate);
    let mut calls = Vec::new();
    for number in 0..count {
        timer.tick().await;
        let pods = Api::<Pod>::namespaced(client.clone(), namespace(number));
        calls.push(tokio::spawn(async move {
            let made = pods.create(&PostParams::default(), &pod(number)?).await?;
            ensure!(is_gated(&made), "pod {number} has no gate: is there a quota?");
            anyhow::Ok((name(number), Instant::now()))
        }));
    }
    let mut created = HashMap::new();
    for call in calls {
        let (name, at) = call.await??;
        created.insert(name, at);
    }
    let opened = tokio::time::timeout(LIMIT, seen).await.context("gates stay shut")???;
    let mut times: Vec<Duration> = created
        .iter()
        // The watch may deliver the event before the call returns.
        .filter_map(|(name, at)| Some(opened.get(name)?.saturating_duration_since(*at)))
        .collect();
    times.sort_unstable();
    println!("gates count {}", times.len());
    for (percent, of) in [("p50", 50), ("p99", 99)] {
        println!("gate_off_{percent} us {}", times[times.len() * of / 100].as_micros());
    }
    Ok(())
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

fn name(number: u32) -> String {
    format!("{PREFIX}{number}")
}

fn claim(number: u32) -> Result<ResourceClaim> {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name(number)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": "1Gi"}}}}]}}});
    Ok(serde_json::from_value(claim)?)
}

/// A pod that no scheduler handles, so that scheduling and its events are not measured.
fn pod(number: u32) -> Result<Pod> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(number)}, "spec": {
        "schedulerName": "none",
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name(number)}],
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}]}});
    Ok(serde_json::from_value(pod)?)
}
