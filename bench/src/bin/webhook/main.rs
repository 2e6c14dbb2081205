//! Measures the translating webhook as the API server sees it: creates pods at a fixed rate, as dry runs, alternately
//! with and without translation. Then measures how many reviews one replica answers when asked directly, and how soon
//! a translated pod has its template.
//!
//! Runs inside the cluster's namespaces, as root, with KUBECONFIG set: `bench-webhook --namespace LABELLED [--rate 50]
//! [--seconds 20]`. Prints one figure per line: `<name> <unit> <value>`.
#![forbid(unsafe_code)]

mod common;
mod direct;
mod templates;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::time::Instant;

use common::{asking, percentiles, waiting_pod};

#[derive(Parser)]
struct Flags {
    /// A namespace whose pods are translated.
    #[arg(long)]
    namespace: String,
    /// Pods per second.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

/// The API server's histogram of webhook durations, labelled with the webhook's name.
const HISTOGRAM: &str = "apiserver_admission_webhook_admission_duration_seconds";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let client = kube::Client::try_default().await.context("KUBECONFIG")?;
    let pods = Api::<Pod>::namespaced(client.clone(), &flags.namespace);
    let before = histogram(&client).await?;
    let mut timer = tokio::time::interval(Duration::from_secs(1) / flags.rate);
    let mut calls = Vec::new();
    for number in 0..flags.rate * flags.seconds {
        timer.tick().await;
        let (pods, is_asking) = (pods.clone(), number % 2 == 0);
        calls.push(tokio::spawn(async move {
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let start = Instant::now();
            let made = pods.create(&dry, &pod(number, is_asking)?).await?;
            let took = start.elapsed();
            let claims = made.spec.and_then(|spec| spec.resource_claims).unwrap_or_default();
            ensure!(
                claims.is_empty() != is_asking,
                "pod {number} came back with {} claims",
                claims.len()
            );
            anyhow::Ok((is_asking, took))
        }));
    }
    let mut times: BTreeMap<bool, Vec<Duration>> = BTreeMap::new();
    for call in calls {
        let (is_asking, took) = call.await??;
        times.entry(is_asking).or_default().push(took);
    }
    for (is_asking, mut times) in times {
        let name = if is_asking { "translated" } else { "other" };
        percentiles(&format!("create_{name}"), &mut times);
    }
    let after = histogram(&client).await?;
    let all = rise(&before, &after, "+Inf");
    println!("webhook_calls count {all}");
    for bucket in ["0.005", "0.025"] {
        println!(
            "webhook_within_{bucket}s percent {:.2}",
            rise(&before, &after, bucket) * 100.0 / all
        );
    }
    direct::reviews(&client).await?;
    templates::delays(&client, &flags.namespace).await
}

fn rise(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>, bucket: &str) -> f64 {
    let of = |histogram: &BTreeMap<String, f64>| histogram.get(bucket).copied().unwrap_or(0.0);
    of(after) - of(before)
}

/// Our webhook's calls in the histogram, by the bounds of the buckets.
async fn histogram(client: &kube::Client) -> Result<BTreeMap<String, f64>> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await.context("the API server's metrics")?;
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("vgpu")) {
        let Some(rest) = line
            .strip_prefix(HISTOGRAM)
            .and_then(|rest| rest.strip_prefix("_bucket"))
        else {
            continue;
        };
        let bound = rest.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
        let value = rest.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        if let (Some(bound), Some(value)) = (bound, value) {
            *found.entry(bound.to_owned()).or_default() += value;
        }
    }
    Ok(found)
}

fn pod(number: u32, is_asking: bool) -> Result<Pod> {
    let limits = match is_asking {
        true => asking(3000),
        false => json!({"cpu": "100m"}),
    };
    waiting_pod(&format!("webhook-{number}"), &limits)
}
