//! Runs vgpu-controller as the chart does, and measures its processes and those of Kubernetes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;
use vgpu_e2e::wait::wait;

const DEPLOYMENT: &str = "deployment/dra-driver-vgpu-controller";
const PODS: &str = "app.kubernetes.io/component=controller";
const LIMIT: Duration = Duration::from_secs(120);
/// Process names as the kernel shows them: 15 bytes at most.
pub(super) const CONTROLLER: &str = "vgpu-controller";
const MEASURED: [(&str, &str); 5] = [
    ("kube-apiserver", "kube-apiserver"),
    ("etcd", "etcd"),
    ("kube-scheduler", "kube-scheduler"),
    ("kube-controller", "kube-controller-manager"),
    (CONTROLLER, CONTROLLER),
];

/// The controller's Deployment.
#[derive(Clone, Copy)]
pub(super) struct Deployed<'a> {
    cluster: &'a Cluster,
    kube: Kube<'a>,
}

/// Memory of one process, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) resident: u64,
    pub(super) peak: u64,
}

impl<'a> Deployed<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            kube: Kube::new(cluster, install::NAME),
        }
    }

    /// Scales to this number of replicas, and waits until exactly these are ready.
    pub(super) fn scale(self, replicas: usize) -> Result<()> {
        self.kube
            .run(&["scale", DEPLOYMENT, &format!("--replicas={replicas}")])?;
        self.wait_for(replicas)
    }

    /// Replaces the running processes by new ones.
    pub(super) fn start_anew(self, replicas: usize) -> Result<()> {
        self.kube.run(&[
            "delete",
            "pods",
            "-l",
            PODS,
            &patience::timeout(Duration::from_secs(60)),
        ])?;
        self.wait_for(replicas)
    }

    pub(super) fn wait_for(self, replicas: usize) -> Result<()> {
        // Wait for the new pods first, then for the end of the old ones.
        self.kube.run(&[
            "rollout",
            "status",
            DEPLOYMENT,
            &patience::timeout(Duration::from_secs(120)),
        ])?;
        wait(
            LIMIT,
            &format!("{replicas} replicas of vgpu-controller to be ready"),
            || {
                let pods = self.kube.get(&["pods", "-l", PODS])?;
                let pods = pods["items"].as_array().context("no list of pods")?;
                let ready = pods
                    .iter()
                    .filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true);
                match (ready.count(), pods.len()) {
                    (ready, all) if ready == replicas && all == replicas => Ok(Some(())),
                    (ready, all) => Err(anyhow!("{ready} of {all} are")),
                }
            },
        )
    }

    /// The memory of each controller process, once it has changed by less than a hundredth for ten seconds.
    pub(super) fn memory_at_rest(self) -> Result<Vec<Memory>> {
        const STILL: Duration = Duration::from_secs(10);
        let mut then: (Instant, Vec<Memory>) = (Instant::now(), Vec::new());
        wait(LIMIT, "the memory of vgpu-controller to settle", || {
            let now = self.memory()?;
            let is_near = |(was, is): (&Memory, &Memory)| was.resident.abs_diff(is.resident) * 100 <= was.resident;
            let is_still = now.len() == then.1.len() && then.1.iter().zip(&now).all(is_near);
            if now.is_empty() || !is_still {
                then = (Instant::now(), now);
                return Ok(None);
            }
            Ok((then.0.elapsed() >= STILL).then_some(now))
        })
    }

    fn memory(self) -> Result<Vec<Memory>> {
        let mut found = Vec::new();
        for process in processes(self.cluster)? {
            if process.name == CONTROLLER {
                let status = fs::read_to_string(process.folder.join("status")).context("a process ended meanwhile")?;
                found.push(memory_of(&status).context("a process without VmRSS")?);
            }
        }
        Ok(found)
    }

    /// Sums and counts of the controller's histograms, over all replicas.
    pub(super) fn counts(self) -> Result<BTreeMap<String, (f64, f64)>> {
        let mut all = BTreeMap::new();
        let pods = self.kube.get(&["pods", "-l", PODS])?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("/api/v1/namespaces/{}/pods/{name}:9441/proxy/metrics", install::NAME);
            for (name, (sum, count)) in histograms(&self.kube.run(&["get", "--raw", &path])?) {
                let total: &mut (f64, f64) = all.entry(name).or_default();
                *total = (total.0 + sum, total.1 + count);
            }
        }
        Ok(all)
    }
}

/// CPU seconds used so far by each program of interest.
pub(super) fn cpu(cluster: &Cluster) -> Result<BTreeMap<&'static str, f64>> {
    let mut used = BTreeMap::new();
    for process in processes(cluster)? {
        let Some((_, program)) = MEASURED.iter().find(|(name, _)| *name == process.name) else {
            continue;
        };
        let stat = fs::read_to_string(process.folder.join("stat")).unwrap_or_default();
        *used.entry(*program).or_default() += cpu_of(&stat).unwrap_or_default();
    }
    Ok(used)
}

struct Process {
    name: String,
    folder: PathBuf,
}

/// All processes of the cluster.
fn processes(cluster: &Cluster) -> Result<Vec<Process>> {
    let proc = cluster.path_inside("/proc")?;
    let entries = fs::read_dir(&proc).with_context(|| format!("cannot read {}", proc.display()))?;
    let read = |folder: PathBuf| {
        let name = fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned();
        Some(Process { name, folder })
    };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let folders = entries
        .flatten()
        .filter(|entry| is_number(&entry.file_name().to_string_lossy()));
    Ok(folders.filter_map(|entry| read(entry.path())).collect())
}

fn memory_of(status: &str) -> Option<Memory> {
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Memory {
        resident: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
}

/// User and system time in hundredths of a second: fields 14 and 15 of a process's stat. The name before them may
/// contain anything.
fn cpu_of(stat: &str) -> Option<f64> {
    two_fields(stat, 11)
}

/// The same for the children that the process has waited for: fields 16 and 17.
pub(super) fn cpu_of_children(stat: &str) -> Option<f64> {
    two_fields(stat, 13)
}

fn two_fields(stat: &str, after_name: usize) -> Option<f64> {
    let (_, after) = stat.rsplit_once(") ")?;
    let mut fields = after.split(' ').skip(after_name);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

/// `name_sum` and `name_count`, with labels as in the text.
fn histograms(text: &str) -> BTreeMap<String, (f64, f64)> {
    let mut found: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = name.split_at(name.find('{').unwrap_or(name.len()));
        if let Some(name) = name.strip_suffix("_sum") {
            found.entry(format!("{name}{labels}")).or_default().0 = value;
        } else if let Some(name) = name.strip_suffix("_count") {
            found.entry(format!("{name}{labels}")).or_default().1 = value;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status = "Name:\tvgpu-controller\nVmPeak:\t  900 kB\nVmHWM:\t   70 kB\nVmRSS:\t   64 kB\n";
        assert_eq!(memory_of(status), Some(Memory { resident: 64, peak: 70 }));
        assert_eq!(memory_of("Name:\tkthreadd\n"), None);
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_of(stat), Some(2.0));
        assert_eq!(
            cpu_of_children(&stat.replace("150 50 0 0", "150 50 300 25")),
            Some(3.25)
        );
    }

    #[test]
    fn histograms_keep_their_labels() {
        let text = "# TYPE a histogram\na_sum 1.5\na_count 3\na_bucket{le=\"+Inf\"} 3\nb_sum{i=\"x\"} 2\nb_count{i=\"x\"} 4\nc_total 9\n# EOF\n";
        let found = histograms(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found["a"], found["b{i=\"x\"}"]), ((1.5, 3.0), (2.0, 4.0)));
    }
}
