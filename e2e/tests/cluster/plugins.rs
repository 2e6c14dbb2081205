//! The plugin's pods on a cluster of one node: lists them, waits until exactly one is left, and kills its process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience, shell};

use crate::fleet::TAKEOVER;
use crate::shared::{Installed, LIMIT};

/// The process's name as the kernel shortens it.
const PROCESS: &str = "vgpu-kubelet-pl";
const COMPONENT: &str = "app.kubernetes.io/component=plugin";
pub(crate) const DAEMONSET: &str = "daemonset/dra-driver-vgpu-plugin";

/// All pods of the plugin, including terminating ones.
pub(crate) fn all(cluster: &Cluster) -> Result<Vec<Value>> {
    let pods = Kube::new(cluster, install::NAME).get(&["pods", "-l", COMPONENT])?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// Their UIDs.
pub(crate) fn uids(cluster: &Cluster) -> Result<Vec<String>> {
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    Ok(all(cluster)?.iter().map(uid).collect())
}

/// Kills the plugin's processes. Runs on the node: a signal from inside its own PID namespace would be ignored.
pub(crate) fn kill(cluster: &Cluster) -> Result<()> {
    // There may be none, if it was just killed.
    shell::capture(&mut cluster.node(Node::FIRST).inside(&["pkill", "-KILL", "-x", PROCESS])).map(drop)
}

/// Deletes its pods without grace, so that they are replaced.
pub(crate) fn replace(cluster: &Cluster) -> Result<()> {
    let now = ["--force", "--grace-period=0", "--wait=false"];
    let project = Kube::new(cluster, install::NAME);
    project
        .run(&[&["delete", "pods", "-l", COMPONENT], &now[..]].concat())
        .map(drop)
}

/// Waits until one ready plugin is left that is not in `before`. Returns its pod.
pub(crate) fn settle(cluster: &Cluster, before: &[String]) -> Result<Value> {
    let project = Kube::new(cluster, install::NAME);
    project.run(&["rollout", "status", DAEMONSET, &patience::timeout(TAKEOVER)])?;
    wait(TAKEOVER, "one plugin that is ready", || {
        let mut pods = all(cluster)?;
        let pod = pods.pop().context("no plugin")?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let is_new = !before.iter().any(|before| before == uid);
        let is_ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        ensure!(
            pods.is_empty() && is_new && is_ready && pod["metadata"]["deletionTimestamp"].is_null(),
            "{} plugins, the last is {}",
            pods.len() + 1,
            pod["metadata"]["name"]
        );
        Ok(Some(pod))
    })
}

/// Waits until all previous GPUs are published.
pub(crate) fn published(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "the GPUs to be published", || {
        let gpus = install::published(kube)?;
        ensure!(gpus == installed.gpus, "{} GPUs are published", gpus.len());
        Ok(Some(()))
    })
}

/// Checks that the sockets on the node belong to this pod only.
pub(crate) fn only_sockets_of(cluster: &Cluster, pod: &Value) -> Result<()> {
    let uid = pod["metadata"]["uid"].as_str().context("a pod without UID")?;
    let mut found = Vec::new();
    for folder in ["/var/lib/kubelet/plugins/dra.vgpu", "/var/lib/kubelet/plugins_registry"] {
        let folder = cluster.node(Node::FIRST).path_inside(folder)?;
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let names = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        found.extend(names.filter(|name| name.ends_with(".sock")));
    }
    found.sort();
    // A container that follows a killed one uses the second name.
    let registrations = ["", ".2"].map(|turn| format!("registration-{uid}{turn}@dra.vgpu.sock"));
    ensure!(
        found.len() == 2 && found[0] == format!("dra-{uid}.sock") && registrations.contains(&found[1]),
        "the sockets of pod {uid} are {found:?}"
    );
    Ok(())
}

/// UIDs of the slices.
pub(crate) fn slices(kube: &Kube<'_>) -> Result<Vec<String>> {
    let slices = kube.get(&["resourceslices"])?;
    let slices = slices["items"].as_array().cloned().unwrap_or_default();
    Ok(slices
        .iter()
        .map(|slice| slice["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
        .collect())
}

/// A watch of all slices that records whether one is deleted or loses a device.
pub(crate) struct SliceWatch {
    child: Child,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl SliceWatch {
    pub(crate) fn begin(kube: &Kube<'_>) -> Result<Self> {
        const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
        let list: Value = serde_json::from_str(&kube.raw(SLICES)?)?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .context("a list without version")?;
        let devices = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
        let before: usize = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(devices)
            .max()
            .unwrap_or(0);
        let watch = format!("{SLICES}?watch=true&resourceVersion={version}");
        let mut command = kube.command(["get", "--raw", &watch])?;
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no standard output")?;
        let thread = std::thread::spawn(move || {
            let mut losses = Vec::new();
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                let (kind, slice) = (event["type"].as_str().unwrap_or("nothing"), &event["object"]);
                if !["ADDED", "MODIFIED"].contains(&kind) || devices(slice) < before {
                    losses.push(format!(
                        "{kind} {} with {} of {before} devices",
                        slice["metadata"]["name"],
                        devices(slice)
                    ));
                }
            }
            losses
        });
        Ok(Self {
            child,
            thread: Some(thread),
        })
    }

    /// # Errors
    /// A slice was deleted or lost a device, or the watch has ended by itself.
    pub(crate) fn end(mut self) -> Result<()> {
        let ended = self.child.try_wait().context("cannot wait for kubectl")?;
        self.stop();
        let thread = self.thread.take().context("it has ended")?;
        let losses = thread.join().map_err(|_| anyhow!("the watch panicked"))?;
        ensure!(ended.is_none(), "the watch of slices ended by itself");
        ensure!(losses.is_empty(), "slices: {}", losses.join("; "));
        Ok(())
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for SliceWatch {
    fn drop(&mut self) {
        self.stop();
    }
}
