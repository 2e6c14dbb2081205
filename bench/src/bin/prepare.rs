//! How long NodePrepareResources and NodeUnprepareResources take: a gRPC client of the plugin's own
//! socket, beside the running plugin, against real claims.
//!
//! ```text
//!  make N claims, allocate them by status writes ─► rounds of {Prepare, Unprepare} for 1 claim
//!                                                ─► rounds of {Prepare, Unprepare} for all N in one call
//!                                                   (before each: the same claims only read, by GET)
//!                                                ─► rounds of {GET, Prepare, Unprepare} for all N at once, a call each,
//!                                                   as kubelet sends them: when the last one was answered
//!                                                ─► a Prepare after `--quiet` seconds without a request
//!  ─► p50 and p99 of each, and the plugin's RSS before and after ─► the claims are deleted
//! ```
//!
//! Runs inside the cluster's namespaces (it opens the socket), as root, with KUBECONFIG set:
//! `bench-prepare --node NODE [--claims 100] [--rounds 200] [--quiet 310]`. Prints one figure a line:
//! `<name> <unit> <value>`. Units: microseconds, kibibytes.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use futures::StreamExt as _;
use futures::future::try_join_all;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use vgpu_kubelet_plugin::connection;
use vgpu_kubelet_plugin::server::CONCURRENT_GETS;
use vgpu_proto::dra::v1::dra_plugin_client::DraPluginClient;
use vgpu_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

#[derive(Parser)]
struct Flags {
    /// The node whose GPUs the claims are given.
    #[arg(long)]
    node: String,
    /// The plugin's socket. Without it: the newest one of an instance of the plugin.
    #[arg(long)]
    socket: Option<PathBuf>,
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Claims in the call that prepares many.
    #[arg(long, default_value_t = 100)]
    claims: usize,
    /// Rounds with one claim; a tenth as many with all.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Seconds without a request before the last Prepare; 0: it is left out.
    #[arg(long, default_value_t = 310)]
    quiet: u64,
}

/// Each instance of the plugin has a socket `dra-<pod UID>.sock`.
fn newest_socket() -> Result<PathBuf> {
    const FOLDER: &str = "/var/lib/kubelet/plugins/dra.vgpu";
    let mut found = Vec::new();
    for entry in std::fs::read_dir(FOLDER).context(FOLDER)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("dra") && name.ends_with(".sock") {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    let newest = found.into_iter().max();
    Ok(newest
        .with_context(|| format!("no socket of the plugin in {FOLDER}"))?
        .1)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    // As the plugin connects, so that the reads alone are its floor.
    let client = connection::client(kube::Config::infer().await.context("KUBECONFIG")?)?;
    let claims = Api::<ResourceClaim>::namespaced(client.clone(), &flags.namespace);
    let made = make_claims(&client, &claims, &flags).await;
    let result = match &made {
        Ok(made) => measure(&flags, &claims, made).await,
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    for index in 0..flags.claims {
        release(&claims, &name(index)).await;
    }
    result
}

fn name(index: usize) -> String {
    format!("prepare-bench-{index}")
}

/// Claims of 64Mi each, in turn over the node's GPUs, allocated as kube-scheduler would.
async fn make_claims(client: &kube::Client, claims: &Api<ResourceClaim>, flags: &Flags) -> Result<Vec<Claim>> {
    let slices = Api::<ResourceSlice>::all(client.clone());
    let list = slices
        .list(&ListParams::default().fields("spec.driver=dra.vgpu"))
        .await?;
    let devices: Vec<(String, String)> = list
        .items
        .iter()
        .filter(|slice| slice.spec.node_name.as_deref() == Some(&flags.node))
        .flat_map(|slice| {
            let devices = slice.spec.devices.iter().flatten();
            devices.map(move |device| (slice.spec.pool.name.clone(), device))
        })
        .filter(|(_, device)| device.allow_multiple_allocations == Some(true))
        .map(|(pool, device)| (pool, device.name.clone()))
        .collect();
    ensure!(
        !devices.is_empty(),
        "node {} publishes no shared device of dra.vgpu",
        flags.node
    );
    let mut made = Vec::new();
    for index in 0..flags.claims {
        let name = name(index);
        let (pool, device) = &devices[index % devices.len()];
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "vgpu", "capacity": {"requests": {"memory": "64Mi"}}}}]}},
        }))?;
        let claim = claims
            .create(&PostParams::default(), &claim)
            .await
            .with_context(|| format!("create {name}"))?;
        let share = format!("00000000-0000-4000-8000-{index:012x}");
        let status = json!({"status": {"allocation": {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": {"results": [{
                "request": "gpu", "driver": "dra.vgpu", "pool": pool, "device": device,
                "shareID": share, "consumedCapacity": {"memory": "64Mi", "cores": "0", "shares": "1"}}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [flags.node]}]}]},
        }}});
        let patch = PatchParams::default();
        claims
            .patch_status(&name, &patch, &Patch::Merge(&status))
            .await
            .with_context(|| format!("allocate {name}"))?;
        made.push(Claim {
            namespace: flags.namespace.clone(),
            uid: claim.metadata.uid.context("a claim without UID")?,
            name,
        });
    }
    Ok(made)
}

async fn release(claims: &Api<ResourceClaim>, name: &str) {
    let none = json!({"status": {"allocation": null}});
    // A claim that was never made, or never allocated, is as good as released.
    let _ = claims
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&none))
        .await;
    let _ = claims.delete(name, &DeleteParams::default()).await;
}

async fn measure(flags: &Flags, api: &Api<ResourceClaim>, claims: &[Claim]) -> Result<()> {
    let socket = flags.socket.clone().map_or_else(newest_socket, Ok)?;
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
    let mut plugin = DraPluginClient::new(endpoint.connect().await.context("the plugin's socket")?);
    let pid = plugin_pid()?;
    println!("plugin_rss_before KiB {}", rss(pid)?);
    floor(api, &claims[..1], flags.rounds).await?;
    rounds(&mut plugin, "1", &claims[..1], flags.rounds).await?;
    println!("plugin_rss_after_{}_rounds KiB {}", flags.rounds, rss(pid)?);
    floor(api, claims, flags.rounds.div_ceil(10)).await?;
    rounds(
        &mut plugin,
        &claims.len().to_string(),
        claims,
        flags.rounds.div_ceil(10),
    )
    .await?;
    at_once(api, &plugin, claims, flags.rounds.div_ceil(10)).await?;
    println!("plugin_rss_after_all KiB {}", rss(pid)?);
    if flags.quiet > 0 {
        tokio::time::sleep(Duration::from_secs(flags.quiet)).await;
        rounds(
            &mut plugin,
            &format!("1_after_{}_quiet_seconds", flags.quiet),
            &claims[..1],
            1,
        )
        .await?;
    }
    Ok(())
}

/// Each claim in a call of its own, all at once, beside as many reads at once. Times are those of the last answer.
async fn at_once(
    api: &Api<ResourceClaim>,
    plugin: &DraPluginClient<Channel>,
    claims: &[Claim],
    rounds: usize,
) -> Result<()> {
    let (mut reads, mut prepares, mut unprepares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        try_join_all(claims.iter().map(|claim| api.get(&claim.name))).await?;
        reads.push(start.elapsed().as_micros());
        let calls = claims.iter().map(|claim| {
            let (mut plugin, claims) = (plugin.clone(), vec![claim.clone()]);
            async move {
                plugin
                    .node_prepare_resources(NodePrepareResourcesRequest { claims })
                    .await
            }
        });
        let start = Instant::now();
        let answers = try_join_all(calls).await?;
        prepares.push(start.elapsed().as_micros());
        for (uid, claim) in answers.into_iter().flat_map(|answer| answer.into_inner().claims) {
            ensure!(claim.error.is_empty(), "claim {uid}: {}", claim.error);
        }
        let calls = claims.iter().map(|claim| {
            let (mut plugin, claims) = (plugin.clone(), vec![claim.clone()]);
            async move {
                plugin
                    .node_unprepare_resources(NodeUnprepareResourcesRequest { claims })
                    .await
            }
        });
        let start = Instant::now();
        let answers = try_join_all(calls).await?;
        unprepares.push(start.elapsed().as_micros());
        for (uid, claim) in answers.into_iter().flat_map(|answer| answer.into_inner().claims) {
            ensure!(claim.error.is_empty(), "claim {uid}: {}", claim.error);
        }
    }
    let count = claims.len();
    print(&format!("get_{count}_at_once"), reads);
    print(&format!("prepare_{count}_calls_at_once"), prepares);
    print(&format!("unprepare_{count}_calls_at_once"), unprepares);
    Ok(())
}

/// What a Prepare cannot do without: a read of each claim, as many at a time as the plugin has.
async fn floor(api: &Api<ResourceClaim>, claims: &[Claim], rounds: usize) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let gets = claims.iter().map(|claim| api.get(&claim.name));
        let read: Vec<_> = futures::stream::iter(gets)
            .buffer_unordered(CONCURRENT_GETS)
            .collect()
            .await;
        times.push(start.elapsed().as_micros());
        for claim in read {
            claim?;
        }
    }
    print(&format!("get_{}", claims.len()), times);
    Ok(())
}

async fn rounds(plugin: &mut DraPluginClient<Channel>, what: &str, claims: &[Claim], rounds: usize) -> Result<()> {
    let (mut prepare, mut unprepare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let request = NodePrepareResourcesRequest {
            claims: claims.to_vec(),
        };
        let answer = plugin.node_prepare_resources(request).await?.into_inner();
        prepare.push(start.elapsed().as_micros());
        for (uid, claim) in &answer.claims {
            ensure!(claim.error.is_empty(), "claim {uid}: {}", claim.error);
        }
        ensure!(
            answer.claims.len() == claims.len(),
            "{} answers for {} claims",
            answer.claims.len(),
            claims.len()
        );
        let start = Instant::now();
        let request = NodeUnprepareResourcesRequest {
            claims: claims.to_vec(),
        };
        let answer = plugin.node_unprepare_resources(request).await?.into_inner();
        unprepare.push(start.elapsed().as_micros());
        for (uid, claim) in &answer.claims {
            ensure!(claim.error.is_empty(), "claim {uid}: {}", claim.error);
        }
    }
    print(&format!("prepare_{what}"), prepare);
    print(&format!("unprepare_{what}"), unprepare);
    Ok(())
}

fn print(what: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    for (quantile, at) in [("p50", times.len() / 2), ("p99", (times.len() * 99).div_ceil(100) - 1)] {
        println!("{what}_{quantile} us {}", times[at]);
    }
}

/// The one process called vgpu-kubelet-plugin in this PID namespace.
fn plugin_pid() -> Result<u32> {
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // comm is cut to 15 bytes.
        if std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim_end() == "vgpu-kubelet-pl") {
            return Ok(pid);
        }
    }
    bail!("no process vgpu-kubelet-plugin here: run inside the cluster's namespaces")
}

fn rss(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
