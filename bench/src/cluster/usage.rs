//! Measures what VgpuNodes cost, and how long the commands that read them take: hand-made nodes whose claims are written as
//! allocated (memory.rs), and bench-nodes, which writes each node's VgpuNode once a minute.
//!
//! vgpu-controller is measured at rest, before any VgpuNode is there, and for some minutes while all are written. The
//! commands run last, one after the other, as a user would run them on this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::deployed::{self, CONTROLLER, Deployed};
use super::memory;
use crate::common::{NAMESPACE, machine, make_namespace, median, on_cluster};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::prepared::Prepared;

/// A pod that finds no room: its claim wants more than any GPU has.
const WAITING: &str = "waits";
const ROUNDS: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// The program bench-nodes.
    #[arg(long)]
    writer: PathBuf,
    /// The program vgpu.
    #[arg(long)]
    vgpu: PathBuf,
    #[command(flatten)]
    fleet: memory::Size,
    /// Minutes of writes that are measured, after the first one.
    #[arg(long, default_value_t = 3)]
    minutes: u32,
}

pub(crate) fn run(name: &str, prepared: &Prepared, options: &Options) -> Result<()> {
    println!("machine: {}", machine());
    println!("{}", options.fleet);
    on_cluster(name, prepared, |cluster| figures(cluster, prepared, options))
}

fn figures(cluster: &Cluster, prepared: &Prepared, options: &Options) -> Result<()> {
    let kube = Kube::new(cluster, NAMESPACE);
    make_namespace(&kube)?;
    install::install(cluster, prepared, &[])?;
    let fleet = memory::fill(&kube, options.fleet)?;
    kube.apply(&waiting())?;
    fleet.wait_until_still(&kube)?;
    let deployed = Deployed::new(cluster);
    let before = deployed.memory_at_rest()?;
    let rest = Rate::over(cluster, &kube, MINUTE)?;
    let minutes = (options.minutes + 1).to_string();
    let program = options
        .writer
        .to_str()
        .context("the path of bench-nodes is not UTF-8")?;
    let command = [program, "--selector", "fleet=bench", "--minutes", &minutes];
    let mut writer = cluster.node(Node::FIRST).inside(&command);
    let mut writer = writer.spawn().context("cannot run nsenter")?;
    // In the first minute every object is new.
    sleep(MINUTE);
    let busy = Rate::over(cluster, &kube, MINUTE * options.minutes);
    let ended = writer.wait().context("bench-nodes")?;
    ensure!(ended.success(), "bench-nodes: {ended}");
    let busy = busy?;
    let after = deployed.memory_at_rest()?;
    for (before, after) in before.iter().zip(&after) {
        println!(
            "vgpu-controller's RSS, MiB: {:.1} before, {:.1} with VgpuNodes",
            before.resident as f64 / 1024.0,
            after.resident as f64 / 1024.0
        );
    }
    println!("writes of VgpuNodes a second: {:.1}", busy.writes("vgpunodes"));
    println!("writes of VgpuUsages a second: {:.2}", busy.writes("vgpuusages"));
    for (program, cores) in &busy.cores {
        let rest = rest.cores.get(program).copied().unwrap_or_default();
        println!("{program}, cores: {rest:.3} before, {cores:.3} while they are written");
    }
    commands(cluster, options)
}

/// A pod with a claim that no GPU can have.
fn waiting() -> String {
    let claim = serde_json::json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": WAITING, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": "81Gi"}}}}]}}});
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": WAITING, "namespace": NAMESPACE}, "spec": {
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": WAITING}]}});
    format!("{claim}\n---\n{pod}")
}

/// Writes and CPU time during a period.
struct Rate {
    seconds: f64,
    writes: BTreeMap<String, f64>,
    /// Cores that each program used.
    cores: BTreeMap<&'static str, f64>,
}

impl Rate {
    fn over(cluster: &Cluster, kube: &Kube<'_>, time: Duration) -> Result<Self> {
        let begun = Instant::now();
        let (cpu, counts) = (deployed::cpu(cluster)?, writes(&kube.raw("/metrics")?));
        sleep(time);
        let (cpu_after, counts_after) = (deployed::cpu(cluster)?, writes(&kube.raw("/metrics")?));
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(cpu.contains_key(CONTROLLER), "{CONTROLLER} does not run");
        let more = |(name, after): (String, f64)| {
            let before = counts.get(&name).copied().unwrap_or_default();
            (name, after - before)
        };
        let cores = |(name, after): (&'static str, f64)| (name, (after - cpu.get(name).unwrap_or(&0.0)) / seconds);
        Ok(Self {
            seconds,
            writes: counts_after.into_iter().map(more).collect(),
            cores: cpu_after.into_iter().map(cores).collect(),
        })
    }

    fn writes(&self, resource: &str) -> f64 {
        self.writes.get(resource).copied().unwrap_or_default() / self.seconds
    }
}

/// The API server's count of successful writes of each of our kinds.
fn writes(metrics: &str) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, f64> = BTreeMap::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
    {
        let label = |name: &str| {
            let (_, after) = line.split_once(&format!("{name}=\""))?;
            after.split('"').next()
        };
        let is_write = matches!(label("verb"), Some("APPLY" | "PATCH" | "POST" | "PUT"));
        let is_done = label("code").is_some_and(|code| code.starts_with('2'));
        if label("group") == Some("dra.vgpu") && is_write && is_done {
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            *all.entry(label("resource").unwrap_or_default().to_owned()).or_default() += value.unwrap_or_default();
        }
    }
    all
}

/// Prints how long each command takes, from its start to its end.
fn commands(cluster: &Cluster, options: &Options) -> Result<()> {
    let of_pod = format!("pod/{WAITING}");
    let all: [&[&str]; 6] = [
        &["top", "-n", NAMESPACE],
        &["top", "-A"],
        &["top", "--nodes"],
        &["explain", &of_pod, "-n", NAMESPACE],
        &["explain", "-A"],
        &["doctor"],
    ];
    for words in all {
        let mut times = Vec::new();
        let cpu = of_children()?;
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let mut command = Command::new(&options.vgpu);
            let said = command.args(words).env("KUBECONFIG", cluster.kubeconfig()).output();
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            let said = said.with_context(|| format!("cannot run {}", options.vgpu.display()))?;
            // Exit status 1: the pod does not fit, or the command has a finding.
            ensure!(
                matches!(said.status.code(), Some(0 | 1)) && !said.stdout.is_empty(),
                "vgpu {}: {}: {}",
                words.join(" "),
                said.status,
                String::from_utf8_lossy(&said.stderr)
            );
        }
        let slowest = times.iter().copied().fold(0.0, f64::max);
        let cpu = (of_children()? - cpu) * 1000.0 / ROUNDS as f64;
        println!(
            "vgpu {}, ms: {:.0} at the median of {ROUNDS}, {slowest:.0} at most; {cpu:.0} of CPU time each",
            words.join(" "),
            median(times)
        );
    }
    Ok(())
}

/// CPU seconds that ended children of this process have used.
fn of_children() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    deployed::cpu_of_children(&stat).context("/proc/self/stat has no times")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_successful_writes_of_our_kinds_count() {
        let line = |verb: &str, code: &str, group: &str, resource: &str, count: u32| {
            format!(
                "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"{group}\",\
                 resource=\"{resource}\",scope=\"resource\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}} {count}\n"
            )
        };
        let text = line("APPLY", "200", "dra.vgpu", "vgpunodes", 7)
            + &line("APPLY", "201", "dra.vgpu", "vgpunodes", 1)
            + &line("APPLY", "409", "dra.vgpu", "vgpunodes", 100)
            + &line("LIST", "200", "dra.vgpu", "vgpunodes", 100)
            + &line("PUT", "200", "resource.k8s.io", "resourceslices", 100);
        let found = writes(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found["vgpunodes"], 8.0);
    }
}
