//! The plugin's own part of a Prepare: all but the read of the claim, which is answered at once here.
//!
//! ```text
//!  client (gRPC, a thread of its own) ─► socket ─► the plugin's service, as it runs on a node ─► tmpfs mounts, files
//! ```
//!
//! `bench-calls [--rounds 1000] [--claims 100] [--gpus 8] [--disk FOLDER]`, as root, without a cluster and without a GPU:
//! rounds of {Prepare, Unprepare} of one claim, then all claims at once, each in a call of its own, as kubelet sends them.
//! Prints one figure a line, `<name> <unit> <value>`; among them what grew over the rounds. Folders of the node's memory
//! are in /dev/shm, those of its disk in FOLDER (the folder of temporary files).
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use vgpu_kubelet_plugin::api::{self, Claims};
use vgpu_kubelet_plugin::config;
use vgpu_kubelet_plugin::crash_points::NeverStop;
use vgpu_kubelet_plugin::health::{Health, Report};
use vgpu_kubelet_plugin::inventory::{Gpu, Inventory};
use vgpu_kubelet_plugin::metrics::{Metrics, Sources};
use vgpu_kubelet_plugin::node::lock::LockFile;
use vgpu_kubelet_plugin::node::{Node, SharedNode};
use vgpu_kubelet_plugin::run::serve_dra;
use vgpu_kubelet_plugin::server::Service;
use vgpu_kubelet_plugin::waiting::NodeProcesses;
use vgpu_proto::dra::v1::dra_plugin_client::DraPluginClient;
use vgpu_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

#[derive(Parser)]
struct Flags {
    /// Rounds with one claim; a twentieth as many with all.
    #[arg(long, default_value_t = 1000)]
    rounds: usize,
    /// Claims that are prepared at once.
    #[arg(long, default_value_t = 100)]
    claims: usize,
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// A folder on a disk, for the state that a node keeps there.
    #[arg(long)]
    disk: Option<PathBuf>,
}

/// An API server that answers at once.
#[derive(Clone)]
struct Memory(Arc<BTreeMap<String, ResourceClaim>>);

impl Claims for Memory {
    async fn get(&self, _: &str, name: &str) -> Result<Option<ResourceClaim>, api::Error> {
        Ok(self.0.get(name).cloned())
    }
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let memory = tempfile::tempdir_in("/dev/shm")?;
    let disk = match &flags.disk {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let measured = measure(&flags, memory.path(), disk.path());
    unmount(&memory.path().join("run"));
    measured
}

fn measure(flags: &Flags, memory: &Path, disk: &Path) -> Result<()> {
    let gpus: Vec<Gpu> = (0..flags.gpus).map(gpu).collect::<Result<_>>()?;
    let claims: Vec<ResourceClaim> = (0..flags.claims)
        .map(|index| claim(index, &gpus))
        .collect::<Result<_>>()?;
    let node = node(memory, disk, gpus)?;
    let by_name = claims
        .iter()
        .filter_map(|claim| Some((claim.metadata.name.clone()?, claim.clone())));
    let api = Memory(Arc::new(by_name.collect()));
    let socket = memory.join("dra.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket)?;
    listener.set_nonblocking(true)?;
    let metrics = Metrics::default();
    let registry = metrics.registry(Sources::new(node.clone()));
    let (serving, shared) = (metrics, node.clone());
    std::thread::spawn(move || -> Result<()> {
        // As the plugin runs.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (health, stopped) = (
                Health::new(watch::channel(Report::default()).1),
                watch::channel(false).1,
            );
            let service = Service::new(shared, api, NodeProcesses::new(None), serving, stopped);
            let listener = UnixListener::from_std(listener)?;
            serve_dra(listener, Arc::new(service), health, std::future::pending()).await?;
            Ok(())
        })
    });
    let wire: Vec<Claim> = claims.iter().map(wire).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let plugin = DraPluginClient::new(endpoint.connect().await?);
        // The plugin keeps its search of the driver once the driver's folders are two seconds old. On a node they are.
        tokio::time::sleep(Duration::from_secs(3)).await;
        // Warm up: the first Prepare on a GPU creates its arbitration directory, and the allocator maps its first pages.
        at_once(&plugin, &wire).await?;
        one_by_one(&plugin, &wire[..1], 50).await?;
        let before = State::read(memory, disk)?;
        let (prepare, unprepare) = one_by_one(&plugin, &wire[..1], flags.rounds).await?;
        print("own_prepare_1", prepare);
        print("own_unprepare_1", unprepare);
        let rounds = flags.rounds.div_ceil(20);
        let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
        let mut spent = [0; 2];
        for _ in 0..rounds {
            let before = cpu_ticks()?;
            prepares.push(prepare_all(&plugin, &wire).await?);
            let after = cpu_ticks()?;
            spent = [0, 1].map(|of| spent[of] + after[of] - before[of]);
            unprepares.push(unprepare_all(&plugin, &wire).await?);
        }
        print(&format!("own_prepare_{}_calls_at_once", wire.len()), prepares);
        for (what, ticks) in ["user", "kernel"].into_iter().zip(spent) {
            let mean = ticks * 1_000_000 / rustix::param::clock_ticks_per_second() / rounds as u64;
            println!("own_prepare_{}_calls_at_once_{what}_cpu us {mean}", wire.len());
        }
        print(&format!("own_unprepare_{}_calls_at_once", wire.len()), unprepares);
        let after = State::read(memory, disk)?;
        for (what, unit, before, after) in [
            ("rss", "KiB", before.rss, after.rss),
            ("descriptors", "count", before.descriptors, after.descriptors),
            ("mounts", "count", before.mounts, after.mounts),
            ("files", "count", before.files, after.files),
        ] {
            println!("{what}_before {unit} {before}");
            println!("{what}_after {unit} {after}");
        }
        prepare_all(&plugin, &wire).await?;
        let mut scrapes = Vec::new();
        for _ in 0..100 {
            let start = Instant::now();
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry)?;
            scrapes.push(start.elapsed());
        }
        print(&format!("scrape_of_{}_claims", wire.len()), scrapes);
        println!("rss_with_{}_claims KiB {}", wire.len(), State::read(memory, disk)?.rss);
        unprepare_all(&plugin, &wire).await?;
        Ok(())
    })
}

/// A plugin's node with these GPUs, as after a start.
fn node(memory: &Path, disk: &Path, gpus: Vec<Gpu>) -> Result<SharedNode> {
    for file in ["libvgpu.so", "libvgpu-preload.so", "vgpu-cdi-hook"] {
        write(&memory.join("image").join(file))?;
    }
    for file in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        write(&memory.join("driver").join(file))?;
    }
    let folders = [
        ("driver-root", memory.join("driver")),
        ("library-dir", memory.join("image")),
        ("library-store", disk.join("store")),
        ("kubelet-root", disk.join("kubelet")),
        ("cdi-dir", memory.join("cdi")),
        ("run-dir", memory.join("run")),
    ];
    let mut arguments = vec!["bench".to_owned(), "--node-name=bench".into()];
    arguments.extend(folders.map(|(flag, folder)| format!("--{flag}={}", folder.display())));
    let mut config = config::Flags::try_parse_from(arguments)?.validate()?;
    config.soft_gpu_state = Some(memory.join("soft"));
    let lock = LockFile::open(&config.lock)?;
    let locked = lock.try_lock()?.context("somebody has the lock of a new folder")?;
    let mut node = Node::open(
        config,
        lock.clone(),
        &locked,
        // Nothing is run with these claims.
        Box::new(|_| Ok(BTreeSet::new())),
        Box::new(NeverStop),
    )?;
    node.set_inventory(Ok(Inventory::new(gpus)));
    drop(locked);
    Ok(SharedNode::new(node))
}

fn write(file: &Path) -> Result<()> {
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    Ok(std::fs::write(file, "bench")?)
}

fn gpu(index: u32) -> Result<Gpu> {
    Ok(serde_json::from_value(json!({
        "uuid": format!("GPU-{index:08x}-1111-2222-3333-444455556666"), "index": index, "minor": index,
        "name": "NVIDIA H100 80GB HBM3", "brand": "Nvidia", "architecture": "Hopper", "computeCapability": [9, 0],
        "driverVersion": "535.161.08", "cudaVersion": [12, 2], "memory": 80_u64 << 30}))?)
}

/// A claim of 64Mi, in turn over the GPUs.
fn claim(index: usize, gpus: &[Gpu]) -> Result<ResourceClaim> {
    let name = format!("claim-{index}");
    let uid = format!("11111111-2222-4333-8444-{index:012x}");
    let share = format!("00000000-0000-4000-8000-{index:012x}");
    let gpu = &gpus[index % gpus.len()];
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "bench", "uid": uid}, "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": name, "uid": share}],
            "allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "bench/vgpu",
            "device": format!("gpu-{:08x}", gpu.index), "shareID": share,
            "consumedCapacity": {"memory": "64Mi", "cores": "1", "shares": "1"}}]}}}}))?)
}

fn wire(claim: &ResourceClaim) -> Claim {
    let metadata = &claim.metadata;
    Claim {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

type Plugin = DraPluginClient<Channel>;

async fn one_by_one(plugin: &Plugin, claims: &[Claim], rounds: usize) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (prepare, unprepare) = at_once(plugin, claims).await?;
        prepares.push(prepare);
        unprepares.push(unprepare);
    }
    Ok((prepares, unprepares))
}

/// Prepares and unprepares all claims, each in a call of its own. Returns when the last call of each was answered.
async fn at_once(plugin: &Plugin, claims: &[Claim]) -> Result<(Duration, Duration)> {
    Ok((prepare_all(plugin, claims).await?, unprepare_all(plugin, claims).await?))
}

async fn prepare_all(plugin: &Plugin, claims: &[Claim]) -> Result<Duration> {
    let start = Instant::now();
    let calls = claims.iter().map(|claim| {
        let (mut plugin, claims) = (plugin.clone(), vec![claim.clone()]);
        async move {
            plugin
                .node_prepare_resources(NodePrepareResourcesRequest { claims })
                .await
        }
    });
    let answers = futures::future::try_join_all(calls).await?;
    let took = start.elapsed();
    for (uid, answer) in answers.into_iter().flat_map(|answer| answer.into_inner().claims) {
        ensure!(answer.error.is_empty(), "claim {uid}: {}", answer.error);
    }
    Ok(took)
}

async fn unprepare_all(plugin: &Plugin, claims: &[Claim]) -> Result<Duration> {
    let start = Instant::now();
    let calls = claims.iter().map(|claim| {
        let (mut plugin, claims) = (plugin.clone(), vec![claim.clone()]);
        async move {
            plugin
                .node_unprepare_resources(NodeUnprepareResourcesRequest { claims })
                .await
        }
    });
    let answers = futures::future::try_join_all(calls).await?;
    let took = start.elapsed();
    for (uid, answer) in answers.into_iter().flat_map(|answer| answer.into_inner().claims) {
        ensure!(answer.error.is_empty(), "claim {uid}: {}", answer.error);
    }
    Ok(took)
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    for (quantile, at) in [("p50", times.len() / 2), ("p99", (times.len() * 99).div_ceil(100) - 1)] {
        println!("{what}_{quantile} us {}", times[at].as_micros());
    }
}

/// This process's CPU time in its programs and in the kernel: plugin and client.
fn cpu_ticks() -> Result<[u64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("/proc/self/stat")?;
    // utime and stime are fields 14 and 15, and the third one is the first here.
    let mut ticks = fields.split(' ').skip(11).map(str::parse);
    let mut next = || ticks.next().context("/proc/self/stat has no utime or stime");
    Ok([next()??, next()??])
}

/// The resources of the plugin that must not grow with the number of calls.
struct State {
    rss: u64,
    descriptors: u64,
    mounts: u64,
    files: u64,
}

impl State {
    fn read(memory: &Path, disk: &Path) -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(Self {
            rss: line.context("VmRSS")?.trim().trim_end_matches(" kB").parse()?,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count() as u64,
            mounts: mounts
                .lines()
                .filter(|line| line.contains(&*memory.to_string_lossy()))
                .count() as u64,
            files: files(memory)? + files(disk)?,
        })
    }
}

fn files(folder: &Path) -> Result<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        count += 1;
        if entry.file_type()?.is_dir() {
            count += files(&entry.path())?;
        }
    }
    Ok(count)
}

/// Removes the mounts of shares and GPUs that are left.
fn unmount(run: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| Path::new(point).starts_with(run)) {
        let _ = vgpu_kubelet_plugin::tmpfs::remove(Path::new(point));
    }
}
