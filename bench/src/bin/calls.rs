//! Measures the plugin's own part of a Prepare: everything except reading the claim from the API server, which a stub
//! answers at once.
//!
//! ```text
//!  client (gRPC, a thread of its own) ─► socket ─► the plugin's service, as it runs on a node ─► tmpfs mounts, files
//! ```
//!
//! `bench-calls [--rounds 1000] [--claims 100] [--gpus 8] [--disk FOLDER] [--instances DIST]`, as root, without a cluster
//! and without a GPU: rounds of {Prepare, Unprepare} of one claim, then all claims at once with a call each, as the kubelet
//! sends them. `--instances`: also rounds of a claim that makes an instance of a software GPU in MIG mode, whose driver is
//! the one of DIST, in the child of DIST's plugin; the variable SOFT_GPU_STATE names an empty folder for it. Prints one figure per line, `<name> <unit> <value>`, including resources that grew over the rounds. The
//! node's in-memory folders are in /dev/shm, its folders on disk in FOLDER (default: the folder of temporary files).
#![forbid(unsafe_code)]

#[path = "../plugin.rs"]
mod plugin;

use anyhow::{Context as _, Result};
use clap::Parser;
use k8s_openapi::api::resource::v1::ResourceClaim;
use plugin::{Plugin, prepare_each, print, unprepare_each};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use vgpu_kubelet_plugin::api::{self, Claims};
use vgpu_kubelet_plugin::config::{self, Config};
use vgpu_kubelet_plugin::dra::health::{Health, Report};
use vgpu_kubelet_plugin::dra::node::{LockFile, Node, SharedNode};
use vgpu_kubelet_plugin::dra::server::Service;
use vgpu_kubelet_plugin::enforcement::Processes;
use vgpu_kubelet_plugin::metrics::{Metrics, Sources};
use vgpu_kubelet_plugin::nvml::Nvml;
use vgpu_kubelet_plugin::publish::inventory::{DynamicGpu, Gpu, Gpus as _, Inventory};
use vgpu_kubelet_plugin::run::serve_dra;
use vgpu_mig::candidates::short;
use vgpu_mig::{Answer, Call, MigDriver, Pool, Refused};
use vgpu_proto::dra::v1::Claim;

#[derive(Parser)]
struct Flags {
    /// Rounds with one claim; a twentieth of it with all claims.
    #[arg(long, default_value_t = 1000)]
    rounds: usize,
    /// Claims that are prepared at the same time.
    #[arg(long, default_value_t = 100)]
    claims: usize,
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// A folder on a disk, for the node's state.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// A folder of `make dist`, with which claims make instances.
    #[arg(long)]
    instances: Option<PathBuf>,
}

/// The software GPU's own variable.
const STATE: &str = "SOFT_GPU_STATE";
/// The node's name.
const NODE: &str = "bench";

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
    let measured = measure(&flags, memory.path(), disk.path()).and_then(|()| match &flags.instances {
        Some(dist) => instances(
            flags.rounds,
            dist,
            [&memory, &disk].map(|folder| folder.path().join("mig")),
        ),
        None => Ok(()),
    });
    unmount(memory.path());
    measured
}

fn measure(flags: &Flags, memory: &Path, disk: &Path) -> Result<()> {
    let gpus: Vec<Gpu> = (0..flags.gpus).map(gpu).collect::<Result<_>>()?;
    let claims: Vec<ResourceClaim> = (0..flags.claims)
        .map(|index| claim(index, &share_of(&gpus[index % gpus.len()], index)))
        .collect::<Result<_>>()?;
    let node = node(config(memory, disk)?, Inventory::new(gpus), None)?;
    let socket = memory.join("dra.sock");
    let registry = serve(node, api_of(&claims), &socket)?;
    let wire: Vec<Claim> = claims.iter().map(wire).collect();
    let many = wire.len();
    runtime()?.block_on(async {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let plugin = Plugin::new(endpoint.connect().await?);
        // The plugin caches its search for the driver once the driver's folders are two seconds old, as they are on a
        // node.
        tokio::time::sleep(Duration::from_secs(3)).await;
        // Warm up: the first Prepare on a GPU creates its arbitration directory, and the allocator maps its first pages.
        at_once(&plugin, &wire).await?;
        one_by_one(&plugin, &wire[..1], 50).await?;
        let before = State::read(memory, disk)?;
        let (prepare, unprepare) = one_by_one(&plugin, &wire[..1], flags.rounds).await?;
        print("own_prepare_1", prepare);
        print("own_unprepare_1", unprepare);
        all_at_once(&plugin, &wire, flags.rounds.div_ceil(20)).await?;
        State::read(memory, disk)?.print_since(&before);
        prepare_each(&plugin, &wire).await?;
        print(&format!("scrape_of_{many}_claims"), scrapes(&registry)?);
        println!("rss_with_{many}_claims KiB {}", State::read(memory, disk)?.rss);
        unprepare_each(&plugin, &wire).await.map(drop)
    })
}

/// An API server with these claims.
fn api_of(claims: &[ResourceClaim]) -> Memory {
    let by_name = claims
        .iter()
        .filter_map(|claim| Some((claim.metadata.name.clone()?, claim.clone())));
    Memory(Arc::new(by_name.collect()))
}

/// Measures claims that make an instance: on a GPU without other ones, and on a full one. The plugin's own part is all but
/// the driver's acts.
fn instances(rounds: usize, dist: &Path, [memory, disk]: [PathBuf; 2]) -> Result<()> {
    let state = std::env::var_os(STATE).with_context(|| format!("{STATE} is not set: it names an empty folder"))?;
    let state = PathBuf::from(state);
    std::fs::write(state.join("profile"), "gpus = 1\nmig = 0:\n").context("the software GPU's profile")?;
    let mut config = config(&memory, &disk)?;
    config.soft_gpu_state = Some(state);
    let nvml = Nvml::with_instances(
        &dist.join("vgpu-kubelet-plugin"),
        &dist.join("soft-gpu"),
        &config.memory_sizes,
        &config.calls_lock,
    );
    let gpu = nvml
        .list()?
        .divided
        .into_iter()
        .next()
        .context("no GPU is in MIG mode")?;
    let pool = Pool::new(&gpu.uuid, &nvml.profiles(&gpu.uuid)?, &[], &[])?;
    let eighths = pool.candidates.iter().filter(|one| one.profile.name == "1g.10gb");
    let results = eighths.map(|one| {
        let pool = format!("{NODE}/vgpu-mig-{}", short(&gpu.uuid));
        json!({"request": "gpu", "driver": "dra.vgpu", "pool": pool, "device": one.name})
    });
    let claims = results.enumerate().map(|(index, result)| claim(index, &result));
    let claims: Vec<ResourceClaim> = claims.collect::<Result<_>>()?;
    let driver = Arc::new(Timed {
        nvml,
        spent: Mutex::default(),
    });
    let dynamic = DynamicGpu {
        gpu,
        pool,
        undivided_unavailable: None,
    };
    let inventory = Inventory::new(Vec::new()).with_dynamic(vec![dynamic], BTreeMap::new());
    let node = node(config, inventory, Some(driver.clone()))?;
    let socket = memory.join("dra.sock");
    serve(node, api_of(&claims), &socket)?;
    let wire: Vec<Claim> = claims.iter().map(wire).collect();
    let (one, others) = wire.split_at(1);
    runtime()?.block_on(async {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let plugin = Plugin::new(endpoint.connect().await?);
        tokio::time::sleep(Duration::from_secs(3)).await;
        with_instances(&plugin, &driver, one, 20).await?;
        with_instances(&plugin, &driver, one, rounds).await?.print("alone");
        prepare_each(&plugin, others).await?;
        let beside = format!("beside_{}", others.len());
        with_instances(&plugin, &driver, one, rounds).await?.print(&beside);
        unprepare_each(&plugin, others).await.map(drop)
    })
}

/// Durations of rounds: all, the driver's acts, and the driver's answers to questions.
#[derive(Default)]
struct Rounds {
    prepares: Vec<[Duration; 3]>,
    unprepares: Vec<[Duration; 3]>,
}

impl Rounds {
    fn print(&self, which: &str) {
        for (call, rounds) in [("prepare", &self.prepares), ("unprepare", &self.unprepares)] {
            let name = |what: &str| format!("instance_{call}_{which}{what}");
            let of = |duration: fn(&[Duration; 3]) -> Duration| rounds.iter().map(duration).collect();
            print(&name(""), of(|[all, ..]| *all));
            print(&name("_own"), of(|[all, acts, _]| *all - *acts));
            print(&name("_questions"), of(|[.., questions]| *questions));
        }
    }
}

async fn with_instances(plugin: &Plugin, driver: &Timed, claims: &[Claim], rounds: usize) -> Result<Rounds> {
    let mut done = Rounds::default();
    for _ in 0..rounds {
        driver.take();
        let all = prepare_each(plugin, claims).await?;
        let [acts, questions] = driver.take();
        done.prepares.push([all, acts, questions]);
        let all = unprepare_each(plugin, claims).await?;
        let [acts, questions] = driver.take();
        done.unprepares.push([all, acts, questions]);
    }
    Ok(done)
}

/// A driver whose calls are timed.
struct Timed {
    nvml: Nvml,
    /// For acts, and for questions.
    spent: Mutex<[Duration; 2]>,
}

impl Timed {
    /// Returns the times since the last call.
    fn take(&self) -> [Duration; 2] {
        std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl MigDriver for Timed {
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused> {
        self.call_by(gpu, call, Instant::now() + Duration::from_secs(60))
    }

    fn call_by(&self, gpu: &str, call: &Call, deadline: Instant) -> Result<Answer, Refused> {
        let start = Instant::now();
        let answer = self.nvml.call_by(gpu, call, deadline);
        let is_question = matches!(
            call,
            Call::Mode | Call::IsResetless | Call::Users | Call::Profiles | Call::Instances
        );
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(is_question)] += start.elapsed();
        answer
    }
}

/// The same runtime as the plugin's.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Serves the plugin's calls at the socket, in a thread of its own. Returns its metrics.
fn serve(node: SharedNode, api: Memory, socket: &Path) -> Result<Registry> {
    let listener = std::os::unix::net::UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    let metrics = Metrics::default();
    let registry = metrics.registry(Sources::new(node.clone()));
    std::thread::spawn(move || -> Result<()> {
        runtime()?.block_on(async {
            let (health, stopped) = (
                Health::new(watch::channel(Report::default()).1),
                watch::channel(false).1,
            );
            let service = Service::new(node, api, Processes::of_node(None), metrics, stopped);
            let listener = UnixListener::from_std(listener)?;
            serve_dra(listener, Arc::new(service), health, std::future::pending()).await?;
            Ok(())
        })
    });
    Ok(registry)
}

/// Rounds of all claims, with the CPU time of their Prepares.
async fn all_at_once(plugin: &Plugin, claims: &[Claim], rounds: usize) -> Result<()> {
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    let mut spent = [0; 2];
    for _ in 0..rounds {
        let before = cpu_ticks()?;
        prepares.push(prepare_each(plugin, claims).await?);
        let after = cpu_ticks()?;
        spent = [0, 1].map(|of| spent[of] + after[of] - before[of]);
        unprepares.push(unprepare_each(plugin, claims).await?);
    }
    let many = claims.len();
    print(&format!("own_prepare_{many}_calls_at_once"), prepares);
    for (what, ticks) in ["user", "kernel"].into_iter().zip(spent) {
        let mean = ticks * 1_000_000 / rustix::param::clock_ticks_per_second() / rounds as u64;
        println!("own_prepare_{many}_calls_at_once_{what}_cpu us {mean}");
    }
    print(&format!("own_unprepare_{many}_calls_at_once"), unprepares);
    Ok(())
}

fn scrapes(registry: &Registry) -> Result<Vec<Duration>> {
    let mut scrapes = Vec::new();
    for _ in 0..100 {
        let start = Instant::now();
        prometheus_client::encoding::text::encode(&mut String::new(), registry)?;
        scrapes.push(start.elapsed());
    }
    Ok(scrapes)
}

/// The plugin's configuration, with the files that it looks for.
fn config(memory: &Path, disk: &Path) -> Result<Config> {
    for file in ["libvgpu.so", "libvgpu-preload.so", "vgpu-cdi-hook", "vgpu-driver-limit"] {
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
    let mut arguments = vec![
        "bench".to_owned(),
        format!("--node-name={NODE}"),
        "--pod-uid=bench".into(),
    ];
    arguments.extend(folders.map(|(flag, folder)| format!("--{flag}={}", folder.display())));
    let mut config = config::Flags::try_parse_from(arguments)?.validate()?;
    config.soft_gpu_state = Some(memory.join("soft"));
    Ok(config)
}

/// The plugin's state of a node with these GPUs, as right after the plugin has started.
fn node(config: Config, inventory: Inventory, maker: Option<Arc<Timed>>) -> Result<SharedNode> {
    let lock = LockFile::open(&config.lock)?;
    let locked = lock.try_lock()?.context("somebody has the lock of a new folder")?;
    let mut node = Node::open(
        config,
        lock.clone(),
        &locked,
        // No program uses these claims.
        Box::new(|_| Ok(BTreeSet::new())),
    )?;
    if let Some(driver) = maker {
        node.make_instances_with(driver, "this boot".into());
    }
    node.set_inventory(Ok(inventory));
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

/// A share of 64Mi.
fn share_of(gpu: &Gpu, index: usize) -> Value {
    json!({"request": "gpu", "driver": "dra.vgpu", "pool": format!("{NODE}/vgpu"),
        "device": format!("gpu-{:08x}", gpu.index), "shareID": share_id(index),
        "consumedCapacity": {"memory": "64Mi", "cores": "1", "shares": "1"}})
}

fn share_id(index: usize) -> String {
    format!("00000000-0000-4000-8000-{index:012x}")
}

/// A claim that was allocated this result.
fn claim(index: usize, result: &Value) -> Result<ResourceClaim> {
    let name = format!("claim-{index}");
    let uid = format!("11111111-2222-4333-8444-{index:012x}");
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "bench", "uid": uid}, "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": name, "uid": share_id(index)}],
            "allocation": {"devices": {"results": [result]}}}}))?)
}

fn wire(claim: &ResourceClaim) -> Claim {
    let metadata = &claim.metadata;
    Claim {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

async fn one_by_one(plugin: &Plugin, claims: &[Claim], rounds: usize) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (prepare, unprepare) = at_once(plugin, claims).await?;
        prepares.push(prepare);
        unprepares.push(unprepare);
    }
    Ok((prepares, unprepares))
}

/// Prepares and unprepares all claims with a call each. Returns when the last call of each kind was answered.
async fn at_once(plugin: &Plugin, claims: &[Claim]) -> Result<(Duration, Duration)> {
    Ok((
        prepare_each(plugin, claims).await?,
        unprepare_each(plugin, claims).await?,
    ))
}

/// CPU time of this process (plugin and client), in user mode and in the kernel.
fn cpu_ticks() -> Result<[u64; 2]> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("/proc/self/stat")?;
    // utime and stime are fields 14 and 15; the first field here is number 3.
    let mut ticks = fields.split(' ').skip(11).map(str::parse);
    let mut next = || ticks.next().context("/proc/self/stat has no utime or stime");
    Ok([next()??, next()??])
}

/// Resources of the plugin that must not grow with the number of calls.
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

    fn print_since(&self, before: &Self) {
        for (what, unit, before, after) in [
            ("rss", "KiB", before.rss, self.rss),
            ("descriptors", "count", before.descriptors, self.descriptors),
            ("mounts", "count", before.mounts, self.mounts),
            ("files", "count", before.files, self.files),
        ] {
            println!("{what}_before {unit} {before}");
            println!("{what}_after {unit} {after}");
        }
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

/// Removes remaining mounts of shares and GPUs below this folder.
fn unmount(folder: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| Path::new(point).starts_with(folder)) {
        let _ = vgpu_kubelet_plugin::tmpfs::remove(Path::new(point));
    }
}
