//! Measures a running plugin as kubelet sees it: claims are created and allocated on a cluster
//! (KUBECONFIG), then prepared and unprepared over the plugin's socket.
//!
//! ```text
//! prepare_rounds SOCKET NODE DEVICE [ROUNDS]
//! ```
//!
//! Prints median and p99 of a call for one claim and for a hundred, in milliseconds.

use anyhow::Context as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use vgpu_proto::dra::v1::dra_plugin_client::DraPluginClient;
use vgpu_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

const BATCH: usize = 60;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, node, device, rest @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: prepare_rounds SOCKET NODE DEVICE [ROUNDS]");
    };
    let rounds: usize = rest
        .first()
        .map_or(Ok(200), |text| text.parse())
        .context("ROUNDS is no number")?;
    let channel = Endpoint::from_shared(format!("unix://{socket}"))?.connect().await?;
    let mut client = DraPluginClient::new(channel);
    let api: Api<ResourceClaim> = Api::namespaced(kube::Client::try_default().await?, "default");
    let mut claims = Vec::new();
    for number in 0..BATCH {
        claims.push(allocated(&api, number, node, device).await?);
    }
    for (what, batch, rounds) in [
        ("1 claim", &claims[..1], rounds),
        ("all claims", &claims[..], rounds.div_ceil(10)),
    ] {
        let (mut prepare, mut unprepare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            prepare.push(timed_prepare(&mut client, batch).await?);
            unprepare.push(timed_unprepare(&mut client, batch).await?);
        }
        println!(
            "{what} ({}): prepare {}, unprepare {}",
            batch.len(),
            summary(prepare),
            summary(unprepare)
        );
    }
    let label = ListParams::default().labels("vgpu-bench=true");
    api.delete_collection(&DeleteParams::default(), &label).await?;
    Ok(())
}

async fn allocated(api: &Api<ResourceClaim>, number: usize, node: &str, device: &str) -> anyhow::Result<Claim> {
    let name = format!("bench-{number}");
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {"vgpu-bench": "true"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}}});
    let created = api
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await?;
    let allocation = json!({"status": {"allocation": {
        "allocationTimestamp": "2026-01-01T00:00:00Z",
        "devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": format!("{node}/vgpu"),
            "device": device, "shareID": format!("00000000-0000-4000-8000-{number:012}"),
            "consumedCapacity": {"memory": "1Gi", "cores": "1", "shares": "1"}}]}}}});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&allocation))
        .await?;
    Ok(Claim {
        namespace: "default".into(),
        uid: created.metadata.uid.context("a claim without UID")?,
        name,
    })
}

async fn timed_prepare(client: &mut DraPluginClient<Channel>, claims: &[Claim]) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let request = NodePrepareResourcesRequest {
        claims: claims.to_vec(),
    };
    let answer = client.node_prepare_resources(request).await?.into_inner();
    let took = started.elapsed();
    for answer in answer.claims.values() {
        anyhow::ensure!(answer.error.is_empty(), "{}", answer.error);
    }
    Ok(took)
}

async fn timed_unprepare(client: &mut DraPluginClient<Channel>, claims: &[Claim]) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let request = NodeUnprepareResourcesRequest {
        claims: claims.to_vec(),
    };
    let answer = client.node_unprepare_resources(request).await?.into_inner();
    let took = started.elapsed();
    for answer in answer.claims.values() {
        anyhow::ensure!(answer.error.is_empty(), "{}", answer.error);
    }
    Ok(took)
}

fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1000.0;
    format!("median {:.2} ms, p99 {:.2} ms", at(50), at(99))
}
