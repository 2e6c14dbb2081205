//! Measures NodePrepareResources and NodeUnprepareResources: a gRPC client on the running plugin's own socket, with
//! real claims.
//!
//! ```text
//!  make N claims, allocate them by status writes ─► rounds of {GET, Prepare, Unprepare} for 1 claim
//!                                                ─► rounds of {GETs, Prepare, Unprepare} for all N in one call
//!                                                ─► rounds of {GET, Prepare, Unprepare} for all N at once, a call each,
//!                                                   as kubelet sends them, timed to the last answer; with a pause
//!                                                   before each round, as on a node that starts a hundred pods
//!                                                ─► the plugin with N prepared claims for a minute
//!                                                ─► a Prepare after `--quiet` seconds without a request
//!  ─► p50 and p99 of each; the mean of each part of a Prepare of one claim, by the plugin's metrics; RSS and CPU time of
//!     the plugin and of its child, which asks NVML ─► the claims are deleted
//! ```
//!
//! Runs inside the cluster's namespaces (it opens the socket), as root, with KUBECONFIG set: `bench-prepare --node
//! NODE [--claims 100] [--rounds 200] [--quiet 310]`. Prints one figure per line: `<name> <unit> <value>`. Units:
//! microseconds, kibibytes, percent of a core.
#![forbid(unsafe_code)]

#[path = "../plugin.rs"]
mod plugin;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::StreamExt as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use plugin::{Plugin, prepare_each, print, unprepare_each};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Endpoint;
use vgpu_kubelet_plugin::connection;
use vgpu_kubelet_plugin::dra::server::CONCURRENT_GETS;
use vgpu_proto::dra::v1::dra_plugin_client::DraPluginClient;
use vgpu_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

#[derive(Parser)]
struct Flags {
    /// The node whose GPUs are allocated to the claims.
    #[arg(long)]
    node: String,
    /// The plugin's socket. Default: the newest socket of a plugin instance.
    #[arg(long)]
    socket: Option<PathBuf>,
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Claims in the call that prepares many at once.
    #[arg(long, default_value_t = 100)]
    claims: usize,
    /// Rounds with one claim; a tenth of it with all claims in one call, a 25th with a call per claim.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Seconds without a request before the last Prepare; 0 skips it.
    #[arg(long, default_value_t = 310)]
    quiet: u64,
}

const MINUTE: Duration = Duration::from_secs(60);
const SCRAPES: usize = 50;
/// The plugin writes the claims' status once a second. After this time the writes of the last round have ended.
const SETTLED: Duration = Duration::from_millis(1500);

/// Finds the newest socket. Each instance of the plugin has a socket `dra-<pod UID>.sock`.
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
    // Connects as the plugin does, so that the reads alone are a lower bound of its time.
    let client = connection::client(kube::Config::infer().await.context("KUBECONFIG")?)?;
    let claims = Api::<ResourceClaim>::namespaced(client.clone(), &flags.namespace);
    let made = make_claims(&client, &claims, &flags).await;
    let result = match &made {
        Ok(made) => measure(&flags, &client, &claims, made).await,
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

/// Creates claims of 64Mi each, in turn over the node's GPUs, allocated as kube-scheduler would.
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
    // A claim that does not exist or was not allocated needs no release.
    let _ = claims
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&none))
        .await;
    let _ = claims.delete(name, &DeleteParams::default()).await;
}

async fn measure(flags: &Flags, client: &kube::Client, api: &Api<ResourceClaim>, claims: &[Claim]) -> Result<()> {
    let socket = flags.socket.clone().map_or_else(newest_socket, Ok)?;
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
    let mut plugin = DraPluginClient::new(endpoint.connect().await.context("the plugin's socket")?);
    let processes = Processes::find()?;
    processes.print_rss("before")?;
    rounds(api, &mut plugin, "1", &claims[..1], flags.rounds).await?;
    let address = metrics_address(client, &flags.node).await?;
    print_parts(&metrics(&address).await?);
    processes.print_rss(&format!("after_{}_rounds", flags.rounds))?;
    let many = claims.len().to_string();
    rounds(api, &mut plugin, &many, claims, flags.rounds.div_ceil(10)).await?;
    at_once(api, &plugin, claims, flags.rounds.div_ceil(25)).await?;
    processes.print_rss("after_all")?;
    prepare(&mut plugin, claims).await?;
    processes.print_cpu(&format!("with_{many}_claims"), MINUTE).await?;
    processes.print_rss(&format!("with_{many}_claims"))?;
    let mut scrapes = Vec::new();
    for _ in 0..SCRAPES {
        let start = Instant::now();
        metrics(&address).await?;
        scrapes.push(start.elapsed());
    }
    print(&format!("scrape_of_{many}_claims"), scrapes);
    unprepare(&mut plugin, claims).await?;
    if flags.quiet > 0 {
        processes.print_cpu("idle", Duration::from_secs(flags.quiet)).await?;
        let what = format!("1_after_{}_quiet_seconds", flags.quiet);
        rounds(api, &mut plugin, &what, &claims[..1], 1).await?;
    }
    Ok(())
}

/// Prepares all claims at the same time with a call each, and for comparison only reads them at the same time.
/// Measures until the last answer.
async fn at_once(api: &Api<ResourceClaim>, plugin: &Plugin, claims: &[Claim], rounds: usize) -> Result<()> {
    let (mut reads, mut prepares, mut again, mut unprepares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut read_cpu, mut prepare_cpu) = (CpuTimes::default(), CpuTimes::default());
    for _ in 0..rounds {
        tokio::time::sleep(SETTLED).await;
        let (start, before) = (Instant::now(), CpuTimes::read()?);
        try_join_all(claims.iter().map(|claim| api.get(&claim.name))).await?;
        reads.push(start.elapsed());
        read_cpu.add(&before)?;
        let before = CpuTimes::read()?;
        prepares.push(prepare_each(plugin, claims).await?);
        prepare_cpu.add(&before)?;
        tokio::time::sleep(SETTLED).await;
        // The claims are prepared, so the plugin writes only the node pages, once per turn.
        again.push(prepare_each(plugin, claims).await?);
        unprepares.push(unprepare_each(plugin, claims).await?);
    }
    let count = claims.len();
    print(&format!("get_{count}_at_once"), reads);
    print(&format!("prepare_{count}_calls_at_once"), prepares);
    print(&format!("prepare_{count}_calls_again_at_once"), again);
    print(&format!("unprepare_{count}_calls_at_once"), unprepares);
    read_cpu.print(&format!("get_{count}_at_once"), rounds);
    prepare_cpu.print(&format!("prepare_{count}_calls_at_once"), rounds);
    Ok(())
}

/// The lower bound of a Prepare: reads each claim, with as many reads at a time as the plugin.
async fn floor(api: &Api<ResourceClaim>, claims: &[Claim]) -> Result<Duration> {
    let start = Instant::now();
    let gets = claims.iter().map(|claim| api.get(&claim.name));
    let read: Vec<_> = futures::stream::iter(gets)
        .buffer_unordered(CONCURRENT_GETS)
        .collect()
        .await;
    let took = start.elapsed();
    for claim in read {
        claim?;
    }
    Ok(took)
}

/// Interleaves read, Prepare and Unprepare, so that the plugin's status writes slow reads and Prepares equally.
async fn rounds(
    api: &Api<ResourceClaim>,
    plugin: &mut Plugin,
    what: &str,
    claims: &[Claim],
    rounds: usize,
) -> Result<()> {
    let (mut reads, mut prepares, mut unprepares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        reads.push(floor(api, claims).await?);
        prepares.push(prepare(plugin, claims).await?);
        unprepares.push(unprepare(plugin, claims).await?);
    }
    print(&format!("get_{what}"), reads);
    print(&format!("prepare_{what}"), prepares);
    print(&format!("unprepare_{what}"), unprepares);
    Ok(())
}

/// Prepares all claims in one call. Returns its duration.
async fn prepare(plugin: &mut Plugin, claims: &[Claim]) -> Result<Duration> {
    let request = NodePrepareResourcesRequest {
        claims: claims.to_vec(),
    };
    let start = Instant::now();
    let answers = plugin.node_prepare_resources(request).await?.into_inner().claims;
    let took = start.elapsed();
    check(claims, answers.iter().map(|(uid, answer)| (uid, &answer.error)))?;
    Ok(took)
}

async fn unprepare(plugin: &mut Plugin, claims: &[Claim]) -> Result<Duration> {
    let request = NodeUnprepareResourcesRequest {
        claims: claims.to_vec(),
    };
    let start = Instant::now();
    let answers = plugin.node_unprepare_resources(request).await?.into_inner().claims;
    let took = start.elapsed();
    check(claims, answers.iter().map(|(uid, answer)| (uid, &answer.error)))?;
    Ok(took)
}

/// Checks that each claim has an answer without an error.
fn check<'a>(claims: &[Claim], answers: impl ExactSizeIterator<Item = (&'a String, &'a String)>) -> Result<()> {
    let (answered, asked) = (answers.len(), claims.len());
    ensure!(answered == asked, "{answered} answers for {asked} claims");
    for (uid, error) in answers {
        ensure!(error.is_empty(), "claim {uid}: {error}");
    }
    Ok(())
}

async fn metrics_address(client: &kube::Client, node: &str) -> Result<String> {
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let plugins = on_node.labels("app.kubernetes.io/name=dra-driver-vgpu,app.kubernetes.io/component=plugin");
    let pods = Api::<Pod>::all(client.clone()).list(&plugins).await?;
    let address = |pod: &Pod| {
        let containers = &pod.spec.as_ref()?.containers;
        let ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
        let mut ports = ports.filter(|port| port.name.as_deref() == Some("http"));
        let address = pod.status.as_ref()?.pod_ip.as_ref()?;
        Some(format!("{address}:{}", ports.next()?.container_port))
    };
    pods.items.iter().find_map(address).context("no pod of the plugin")
}

/// The plugin's metrics, as Prometheus reads them.
async fn metrics(address: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    ensure!(
        text.starts_with("HTTP/1.1 200"),
        "metrics: {}",
        text.lines().next().unwrap_or_default()
    );
    Ok(text)
}

/// Prints the mean time of each part of the Prepares so far.
fn print_parts(metrics: &str) {
    let of = |suffix: &str| -> BTreeMap<&str, f64> {
        let prefix = format!("vgpu_prepare_part_seconds_{suffix}{{");
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.split_once("part=\"")?.1.split_once("\"} "));
        lines
            .filter_map(|(part, number)| Some((part, number.parse().ok()?)))
            .collect()
    };
    let counts = of("count");
    for (part, sum) in of("sum") {
        let count = counts.get(part).copied().unwrap_or(1.0);
        println!("part_{part}_mean us {:.0}", sum / count * 1e6);
    }
}

/// CPU time in nanoseconds of the node's programs by name (cut to 15 bytes), and of the whole machine. The API server
/// runs in another PID namespace, so only the machine's time includes it.
#[derive(Default)]
struct CpuTimes(BTreeMap<String, u64>);

const MACHINE: &str = "the_machine";

impl CpuTimes {
    fn read() -> Result<Self> {
        let mut all = Self::default();
        for entry in std::fs::read_dir("/proc")? {
            let process = entry?.path();
            let Ok(name) = std::fs::read_to_string(process.join("comm")) else {
                continue;
            };
            // Sums threads, because a process's schedstat covers only its first thread.
            let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
            let times = threads.filter_map(|thread| {
                let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
                text.split(' ').next()?.parse::<u64>().ok()
            });
            *all.0.entry(name.trim_end().to_owned()).or_default() += times.sum::<u64>();
        }
        // Read last here and first in `add`, so that the cost of reading /proc is not measured.
        all.0.insert(MACHINE.to_owned(), machine()?);
        Ok(all)
    }

    /// Adds the CPU time used since `before`.
    fn add(&mut self, before: &Self) -> Result<()> {
        let machine = machine()?;
        let mut now = Self::read()?;
        now.0.insert(MACHINE.to_owned(), machine);
        for (name, time) in now.0 {
            let used = time.saturating_sub(before.0.get(&name).copied().unwrap_or(0));
            *self.0.entry(name).or_default() += used;
        }
        Ok(())
    }

    /// Prints the mean of each program that used a millisecond or more.
    fn print(&self, when: &str, rounds: usize) {
        let mean = |time: u64| time / 1000 / rounds.max(1) as u64;
        for (name, time) in &self.0 {
            if mean(*time) >= 1000 {
                println!("cpu_of_{name}_{when} us {}", mean(*time));
            }
        }
    }
}

/// The machine's CPU time in nanoseconds. Its resolution is 10 ms, which the mean of many rounds evens out.
fn machine() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let words = stat.split_whitespace().skip(1);
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    let busy: u64 = [0, 1, 2, 5, 6].into_iter().filter_map(|field| ticks.get(field)).sum();
    Ok(busy * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// The plugin's process and its children, which run the same program.
struct Processes {
    plugin: u32,
    children: Vec<u32>,
}

impl Processes {
    fn find() -> Result<Self> {
        let mut parents = BTreeMap::new();
        let mut plugins = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // Either process may have ended.
            let (Ok(comm), Ok(parent)) = (
                std::fs::read_to_string(format!("/proc/{pid}/comm")),
                status(pid, "PPid:"),
            ) else {
                continue;
            };
            parents.insert(pid, parent);
            // comm is cut to 15 bytes.
            plugins.extend(Some(pid).filter(|_| comm.trim_end() == "vgpu-kubelet-pl"));
        }
        let plugin = *plugins
            .first()
            .context("no process vgpu-kubelet-plugin here: run inside the cluster's namespaces")?;
        let children = parents.iter().filter(|(_, parent)| **parent == u64::from(plugin));
        Ok(Self {
            plugin,
            children: children.map(|(pid, _)| *pid).collect(),
        })
    }

    fn print_rss(&self, when: &str) -> Result<()> {
        for (what, pid) in [("plugin", self.plugin)]
            .into_iter()
            .chain(self.children.iter().map(|pid| ("child", *pid)))
        {
            // A child that measured contexts may have ended.
            let Ok(resident) = status(pid, "VmRSS:") else { continue };
            println!("{what}_rss_{when} KiB {resident}");
            println!("{what}_rss_without_files_{when} KiB {}", status(pid, "RssAnon:")?);
        }
        Ok(())
    }

    /// Waits, and prints the CPU time used meanwhile.
    async fn print_cpu(&self, when: &str, wait: Duration) -> Result<()> {
        let pids = || self.children.iter().chain([&self.plugin]);
        let ticks = || pids().map(|pid| ticks(*pid)).sum::<Result<u64>>();
        let before = ticks()?;
        tokio::time::sleep(wait).await;
        let used = (ticks()? - before) as f64 / rustix::param::clock_ticks_per_second() as f64;
        println!("cpu_{when} percent {:.2}", 100.0 * used / wait.as_secs_f64());
        Ok(())
    }
}

/// A number in a process's status file.
fn status(pid: u32, key: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .context(key.to_owned())?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// CPU time in clock ticks, user plus system.
fn ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain anything.
    let (_, rest) = stat.rsplit_once(") ").context("stat")?;
    let mut fields = rest.split(' ').skip(11);
    let mut field = || {
        fields
            .next()
            .and_then(|field| field.parse::<u64>().ok())
            .context("stat")
    };
    Ok(field()? + field()?)
}
