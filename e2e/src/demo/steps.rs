//! The demo's steps on a cluster. Each is an assertion that people can read.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, Gpu};
use crate::install::{self, PublishedGpu};
use crate::kube::Kube;
use crate::progress::Progress;
use crate::wait::wait;
use crate::{gpu_time, image, node, patience, shell, workload};

pub(super) const NAMESPACE: &str = "demo";
const EXAMPLE: &str = "fraction";
/// The memory that the example requests.
const ASKED: &str = "20Gi";
const LIMIT: Duration = Duration::from_secs(60);
/// Time for a pod that imports a framework.
const EXTRA: Duration = Duration::from_secs(90);
/// Seconds for which a pod keeps its GPU busy.
const WORK: u32 = 3;

/// Runs an unmodified CUDA program under `vgpu run`.
pub(super) fn local_share(dist: &Path, progress: &Progress) -> Result<()> {
    let client = image::client_program()?;
    let mut command = shell::command(dist.join("vgpu"), ["run"]);
    let mut on = "";
    match Gpu::of_this_machine(dist)? {
        Gpu::Nvidia { folder, .. } => {
            command.env("LD_LIBRARY_PATH", folder); // the loader may not search this folder
        }
        Gpu::Soft(_) | Gpu::Absent => {
            command.arg("--soft-gpu");
            on = " (on this project's software GPU: this machine has no NVIDIA driver)";
        }
    }
    let said = shell::output(command.args(["--memory", ASKED, "--"]).arg(client).arg("check"))?;
    let seen: Value = serde_json::from_str(&said).context("vgpu-client said something that is no JSON")?;
    let total = seen["total"].as_u64().unwrap_or(0);
    ensure!(
        Some(total) == install::bytes(ASKED),
        "the program sees {total} bytes in total instead of {ASKED}"
    );
    progress.note(&format!(
        "the program sees 20 GiB, can allocate all that is free, and not one granule more{on}"
    ));
    progress.detail(said.trim());
    progress.why("a library in the process enforces the limit; the program is unchanged and needs no cluster");
    Ok(())
}

/// A cluster with this project installed, and the example's namespace.
pub(super) struct Demo<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) kube: Kube<'a>,
    pub(super) gpus: Vec<PublishedGpu>,
}

impl Demo<'_> {
    /// A quarter of the smallest GPU, in whole MiB.
    fn quarter(&self) -> u64 {
        (self.gpus.iter().map(|gpu| gpu.memory).min().unwrap_or(0) / 4) >> 20 << 20
    }

    /// Applies the example; returns the pod that waits.
    pub(super) fn apply(&self, gpu: &Gpu, progress: &Progress) -> Result<String> {
        let mut text = workload::manifests(&install::example(EXAMPLE))?;
        if gpu.is_nvidia() {
            let quarter = format!("{}Mi", self.quarter() >> 20);
            text = fit(&text, &quarter, self.gpus.len() * 4 + 1)?;
            progress.note(&format!("fitted to the GPUs of this machine: {quarter} each"));
        }
        self.kube.run(&["create", "namespace", NAMESPACE])?;
        self.kube.wait_service_account(LIMIT)?;
        self.kube.apply(&text)?;
        let room = self.gpus.len() * 4;
        let (running, pending) = workload::settle(&self.kube, room, 1, LIMIT)?;
        let devices = workload::by_device(&workload::shares(&self.kube)?);
        for (device, pods) in &devices {
            ensure!(
                pods.len() == 4,
                "{device} has {} pods instead of four: {}",
                pods.len(),
                pods.join(", ")
            );
            progress.detail(&format!("{device}: {}", pods.join(", ")));
        }
        let devices: Vec<&str> = devices.keys().map(String::as_str).collect();
        progress.note(&format!(
            "{} pods run, four on each of {}; {} waits",
            running.len(),
            devices.join(", "),
            pending[0]
        ));
        progress.why("Kubernetes itself counts memory and cores of each GPU, so no GPU is ever over-committed");
        Ok(pending[0].clone())
    }

    /// Checks that our controller's event names the claim and its request, which the scheduler's event does not.
    pub(super) fn event(&self, pod: &str, progress: &Progress) -> Result<()> {
        let (claim, asked) = self.claim_and_memory(pod)?;
        let message = wait(
            LIMIT,
            &format!("an event on {pod} that names {claim} and {asked}"),
            || {
                let events = self.kube.events(pod, "")?;
                Ok(events
                    .into_iter()
                    .find(|message| message.contains(&claim) && message.contains(&asked)))
            },
        )?;
        for said in self.kube.events(pod, "FailedScheduling")?.into_iter().take(1) {
            progress.detail(&format!("kube-scheduler: {said}"));
        }
        progress.note(&format!("vgpu-controller: {message}"));
        progress
            .why("kube-scheduler only says that it cannot allocate; this names what is free and who holds the rest");
        Ok(())
    }

    fn claim_and_memory(&self, pod: &str) -> Result<(String, String)> {
        let shares = workload::shares(&self.kube)?;
        let share = shares
            .into_iter()
            .find(|share| share.pod == pod)
            .with_context(|| format!("{pod} has no claim"))?;
        let claim = self.kube.get(&["resourceclaim", &share.claim])?;
        let asked = &claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"];
        Ok((
            share.claim,
            asked.as_str().context("the claim asks for no memory")?.to_owned(),
        ))
    }

    /// Checks that all pods of a GPU can allocate their whole share at the same time.
    pub(super) fn limits(&self, progress: &Progress) -> Result<()> {
        let shares = workload::shares(&self.kube)?;
        let (device, pods) = workload::by_device(&shares)
            .into_iter()
            .next()
            .context("no pod is allocated")?;
        let seen: Vec<Result<String>> = thread::scope(|scope| {
            let runs: Vec<_> = pods
                .iter()
                .map(|pod| scope.spawn(|| self.kube.exec(pod, &["vgpu-client", "check"])))
                .collect();
            runs.into_iter()
                .map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))))
                .collect()
        });
        for (pod, said) in pods.iter().zip(seen) {
            let said = said.map_err(|error| error.context(format!("in {pod} on {device}")))?;
            let line: Value = serde_json::from_str(&said).with_context(|| format!("{pod} said {said:?}"))?;
            self.is_the_limit(pod, line["total"].as_u64())?;
            ensure!(
                line["devices"] == 1,
                "{pod} sees {} GPUs instead of one",
                line["devices"]
            );
            progress.detail(&format!("{pod}: {}", said.trim()));
        }
        progress.note(&format!(
            "{} pods of {device} allocated their whole share at the same time, and not one granule more",
            pods.len()
        ));
        progress.why("no pod can take memory that another was given, nor run into its out-of-memory error");
        Ok(())
    }

    fn is_the_limit(&self, pod: &str, total: Option<u64>) -> Result<()> {
        let (_, asked) = self.claim_and_memory(pod)?;
        ensure!(
            total.is_some() && total == install::bytes(&asked),
            "{pod} sees {total:?} bytes in total instead of {asked}"
        );
        Ok(())
    }

    pub(super) fn nvml(&self, nvidia_smi: bool, progress: &Progress) -> Result<()> {
        let (running, _) = workload::settle(&self.kube, self.gpus.len() * 4, 1, LIMIT)?;
        let pod = running.first().context("no pod runs")?;
        let python = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); \
            print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(h).total, n.nvmlDeviceGetName(h))";
        let said = self.kube.exec(pod, &["python3", "-c", python])?;
        let mut words = said.split_whitespace();
        ensure!(
            words.next() == Some("1"),
            "pynvml in {pod} does not see one GPU: {said}"
        );
        self.is_the_limit(pod, words.next().and_then(|word| word.parse().ok()))?;
        let mut shown = format!("pynvml in {pod}: {}", said.trim());
        if nvidia_smi {
            let query = [
                "nvidia-smi",
                "--query-gpu=name,memory.total,memory.used",
                "--format=csv,noheader",
            ];
            shown += &format!("; nvidia-smi: {}", self.kube.exec(pod, &query)?.trim());
        }
        progress.note(&shown);
        progress.why("frameworks and monitoring size themselves by what NVML reports");
        Ok(())
    }

    /// Lets a program use part of its share. Shows the memory that the driver measures, and that every claim's
    /// condition says its limit is enforced.
    pub(super) fn compared(&self, gpu: &Gpu, progress: &Progress) -> Result<()> {
        let shares = workload::shares(&self.kube)?;
        let allocated: Vec<_> = shares.iter().filter(|share| share.device.is_some()).collect();
        let user = allocated.last().context("no claim is allocated")?;
        let used = self.quarter() / 4;
        // Its output would keep `exec` waiting.
        let hold = format!("vgpu-client hold {used} >/dev/null 2>&1 &");
        self.kube.exec(&user.pod, &["sh", "-c", &hold])?;
        // A real driver may list processes by other PIDs than those of this cluster's node. Then no condition becomes True.
        let limit = if gpu.is_nvidia() { LIMIT / 3 } else { LIMIT };
        let compared = wait(limit, "every claim to say that its memory limit is enforced", || {
            let metric = self.driver_memory(&user.claim)?;
            let metric = metric.filter(|bytes| *bytes >= used);
            let mut said = Vec::new();
            for share in &allocated {
                let claim = self.kube.get(&["resourceclaim", &share.claim])?;
                said.push(condition(&claim, "MemoryEnforced"));
            }
            // On a node whose driver limits cgroups, the reason is the other one.
            let holds = ["True Library", "True DriverAndLibrary"];
            let others: Vec<&String> = said.iter().filter(|one| !holds.contains(&one.as_str())).collect();
            match metric {
                Some(bytes) if others.is_empty() => Ok(Some(bytes)),
                _ => bail!(
                    "by NVML {} has {metric:?} bytes of {used}; other conditions: {others:?}",
                    user.pod
                ),
            }
        });
        match compared {
            Ok(bytes) => progress.note(&format!(
                "MemoryEnforced=True in all {} claims; by NVML {} uses {} of {} MiB",
                allocated.len(),
                user.pod,
                bytes >> 20,
                install::bytes(&self.claim_and_memory(&user.pod)?.1).unwrap_or(0) >> 20
            )),
            Err(error) if gpu.is_nvidia() => progress.note(&format!("not shown by this driver: {error:#}")),
            Err(error) => return Err(error),
        }
        progress.why("a program that goes around the library is found by the driver's own figures");
        Ok(())
    }

    /// Returns the claim's device memory by the driver, from the plugin's metrics.
    fn driver_memory(&self, claim: &str) -> Result<Option<u64>> {
        let metrics = self.plugin_metrics()?;
        let of_claim = format!("claim=\"{claim}\"");
        let mut lines = metrics
            .lines()
            .filter(|line| line.starts_with("vgpu_share_driver_memory_bytes"));
        let line = lines.find(|line| line.contains(&of_claim));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()))
    }

    /// Shows `status.allocation` and the CDI spec of a claim.
    pub(super) fn documents(&self, progress: &Progress) -> Result<()> {
        let shares = workload::shares(&self.kube)?;
        let share = shares
            .iter()
            .find(|share| share.device.is_some())
            .context("no claim is allocated")?;
        let claim = self.kube.get(&["resourceclaim", &share.claim])?;
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        for key in ["shareID", "consumedCapacity"] {
            ensure!(
                !result[key].is_null(),
                "status.allocation of {} has no {key}",
                share.claim
            );
        }
        progress.detail(&format!("{}: {result}", share.claim));
        let (path, text) = node::cdi_spec(self.cluster, &share.claim_uid)?;
        let spec: Value = serde_json::from_str(&text).with_context(|| format!("{path} is no JSON"))?;
        let shown = mounts(&spec).with_context(|| format!("{path} mounts no library or no limits"))?;
        progress.note(&format!("{path} mounts {shown}"));
        progress.detail(text.trim());
        progress.why("kubelet hands this file to the runtime: the image and the pod know nothing of the library");
        Ok(())
    }

    /// Deletes a pod and waits until the pending one runs. Returns the UID of the deleted pod's claim.
    pub(super) fn release(&self, waiting: &str, progress: &Progress) -> Result<String> {
        let (running, _) = workload::settle(&self.kube, self.gpus.len() * 4, 1, LIMIT)?;
        let gone = running.first().context("no pod runs")?;
        let shares = workload::shares(&self.kube)?;
        let share = shares.into_iter().find(|share| share.pod == *gone);
        self.kube.run(&["delete", "pod", gone, "--wait=false"])?;
        self.kube.wait_running(waiting, LIMIT)?;
        progress.detail(&format!("{gone} was deleted, {waiting} runs"));
        Ok(share.with_context(|| format!("{gone} had no claim"))?.claim_uid)
    }

    /// Replaces the pods by ones that keep their GPUs busy: two share a GPU in proportion to their cores, one of them
    /// alone uses all of it, and a Guaranteed one is limited to its cores. Returns the UIDs of the deleted claims.
    pub(super) fn time(&self, gpu: &Gpu, progress: &Progress) -> Result<Vec<String>> {
        let gone = workload::shares(&self.kube)?
            .into_iter()
            .map(|share| share.claim_uid)
            .collect();
        let mut text = workload::manifests(&install::example("gpu-time"))?;
        if gpu.is_nvidia() {
            text = text.replace(
                &format!("memory: {ASKED}"),
                &format!("memory: {}Mi", self.quarter() >> 20),
            );
        }
        gpu_time::on_one_gpu(&self.kube, &text, LIMIT)?;
        let before = self.charged()?;
        let both = gpu_time::divided(&self.kube, &[("thirty", 30.0), ("seventy", 70.0)], WORK)?;
        let charged = self.charged()? - before;
        let alone = gpu_time::of_pods(&self.kube, &["seventy"], WORK)?[0];
        self.kube
            .run(&["delete", "pod", "thirty", "seventy", &patience::timeout(LIMIT)])?;
        self.kube.wait_running("capped", LIMIT)?;
        let capped = gpu_time::capped(&self.kube, "capped", 40.0, WORK)?;
        progress.note(&format!(
            "of the same GPU, pods of 30 and 70 cores had {:.0} and {:.0} percent by their own count of kernels (by the \
             plugin's metrics {charged:.1} s together), the second one alone {alone:.0}, and a Guaranteed one of \
             40 cores, alone, {capped:.0}",
            both[0], both[1]
        ));
        progress.why("a share's cores are a promise to it, and Guaranteed is one to whoever pays for the rest");
        ensure!(
            alone >= 75.0,
            "alone on its GPU, the pod of 70 cores had {alone:.0} percent of the time"
        );
        Ok(gone)
    }

    /// Applies a pod for each of three other systems, unchanged, and checks that it sees its requested share.
    pub(super) fn dialects(&self, progress: &Progress) -> Result<()> {
        const MIB: u64 = 1 << 20;
        let half = self.gpus.iter().map(|gpu| gpu.memory / 2 / MIB * MIB);
        let pods = [
            ("hami", "hami-part", vec![3000 * MIB]),
            ("koordinator", "koordinator-shared", half.collect()),
            ("volcano", "volcano-vgpu", vec![3000 * MIB]),
        ];
        self.kube
            .run(&["label", "namespace", NAMESPACE, "dra.vgpu/translate=true"])?;
        for (file, pod, _) in &pods {
            let path = install::example("dialects").join(format!("{file}.yaml"));
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let name = format!("name: {pod}\n");
            let document = text.split("---\n").find(|document| document.contains(&name));
            let document = document.with_context(|| format!("{} has no pod {pod}", path.display()))?;
            self.kube.apply(document)?;
        }
        let mut seen = Vec::new();
        for (_, pod, expected) in &pods {
            self.kube.wait_running(pod, LIMIT)?;
            let said = self.kube.exec(pod, &["vgpu-client", "check"])?;
            let line: Value = serde_json::from_str(&said).with_context(|| format!("{pod} said {said:?}"))?;
            let total = line["total"].as_u64().unwrap_or(0);
            ensure!(
                expected.contains(&total),
                "{pod} sees {total} bytes in total instead of {expected:?}"
            );
            seen.push(format!("{pod} {} MiB", total >> 20));
            progress.detail(&format!("{pod}: {}", said.trim()));
        }
        progress.note(&format!("each meets its limit to the granule: {}", seen.join(", ")));
        progress.why("a cluster can move here by a chart value, and no manifest changes");
        Ok(())
    }

    /// Applies the caller's file, and waits for its pod to succeed.
    pub(super) fn extra(&self, file: &Path, progress: &Progress) -> Result<()> {
        const POD: &str = "extra";
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.kube.apply(&text)?;
        let phase = wait(EXTRA, "the pod of the file to end", || {
            let pod = self.kube.get(&["pod", POD])?;
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            Ok(["Succeeded", "Failed"].contains(&phase).then(|| phase.to_owned()))
        });
        let phase = phase.with_context(|| self.kube.describe(POD))?;
        let said = self.kube.logs(POD, None)?;
        ensure!(
            phase == "Succeeded",
            "pod {POD} of {} {phase}: {}",
            file.display(),
            said.trim()
        );
        progress.note(said.trim());
        Ok(())
    }

    /// The GPU time of all shares by the plugin's metrics, in seconds.
    fn charged(&self) -> Result<f64> {
        let metrics = self.plugin_metrics()?;
        let of_shares = metrics
            .lines()
            .filter(|line| line.starts_with("vgpu_share_gpu_seconds_total"));
        let seconds = of_shares.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(seconds.sum())
    }

    fn plugin_metrics(&self) -> Result<String> {
        let project = Kube::new(self.cluster, install::NAME);
        let pods = project.get(&["pods", "-l", "app.kubernetes.io/component=plugin"])?;
        let pod = pods["items"][0]["metadata"]["name"]
            .as_str()
            .context("no plugin runs")?;
        let path = format!("/api/v1/namespaces/{}/pods/{pod}:9440/proxy/metrics", install::NAME);
        project.raw(&path)
    }

    /// Checks that nothing of the claims is left on the node after the last pod.
    pub(super) fn clean(&self, gone: Vec<String>, progress: &Progress, limit: Duration) -> Result<()> {
        let uids: BTreeSet<String> = workload::shares(&self.kube)?
            .into_iter()
            .map(|share| share.claim_uid)
            .chain(gone)
            .collect();
        let uids: Vec<String> = uids.into_iter().collect();
        self.kube.run(&[
            "delete",
            "namespace",
            NAMESPACE,
            &patience::timeout(Duration::from_secs(90)),
        ])?;
        wait(limit, "the node to forget the claims", || {
            let left = node::left_of(self.cluster, &uids)?;
            ensure!(left.is_empty(), "left: {}", left.join(", "));
            Ok(Some(()))
        })?;
        progress.note(&format!(
            "then all {} claims end, and no CDI file, folder, mount or checkpoint entry is left",
            uids.len()
        ));
        progress.why("a share is free again as soon as its pod is gone, and nothing of it stays on the node");
        Ok(())
    }
}

/// Status and reason of a condition of the claim's first device.
fn condition(claim: &Value, kind: &str) -> String {
    let conditions = claim["status"]["devices"][0]["conditions"].as_array();
    let one = conditions.and_then(|all| all.iter().find(|one| one["type"] == kind));
    let word = |key: &str| one.and_then(|one| one[key].as_str()).unwrap_or("none");
    format!("{} {}", word("status"), word("reason"))
}

/// The mounts of a CDI spec in one line: the library under the driver's names, and the read-only limits.
fn mounts(spec: &Value) -> Option<String> {
    fn target(mount: &Value) -> Option<&Path> {
        mount["containerPath"].as_str().map(Path::new)
    }
    let devices = spec["devices"].as_array().into_iter().flatten();
    let edits = devices.map(|device| &device["containerEdits"]);
    let edits = edits.chain([&spec["containerEdits"]]);
    let all: Vec<&Value> = edits.filter_map(|edits| edits["mounts"].as_array()).flatten().collect();
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let library = all.iter().filter(|mount| {
        let host = mount["hostPath"].as_str().unwrap_or_default();
        Path::new(host).ends_with("libvgpu.so")
    });
    let names: BTreeSet<String> = library.filter_map(|mount| target(mount)).filter_map(name).collect();
    let is_read_only = |mount: &Value| {
        mount["options"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == "ro"))
    };
    let limits = all
        .iter()
        .filter(|mount| is_read_only(mount))
        .filter_map(|mount| target(mount))
        .find(|path| path.parent() == Some(Path::new("/dev/vgpu")))?;
    (!names.is_empty()).then(|| {
        format!(
            "libvgpu.so as {}, and the limits, read-only, in {} ({} mounts in all)",
            names.into_iter().collect::<Vec<_>>().join(", "),
            limits.display(),
            all.len()
        )
    })
}

/// Adapts the example to other GPUs: the requested memory, and the number of pods like its first one.
fn fit(manifests: &str, memory: &str, pods: usize) -> Result<String> {
    let documents: Vec<&str> = manifests
        .split("\n---\n")
        .filter(|document| !document.trim().is_empty())
        .collect();
    let is_pod = |document: &&&str| document.lines().any(|line| line == "kind: Pod");
    let (first, rest): (Vec<&str>, Vec<&str>) = (
        documents.iter().filter(is_pod).take(1).copied().collect(),
        documents.iter().filter(|document| !is_pod(document)).copied().collect(),
    );
    let pod = first.first().context("the example has no pod")?;
    let named = |number: usize| pod.replace(&format!("name: {EXAMPLE}-1\n"), &format!("name: {EXAMPLE}-{number}\n"));
    let mut all: Vec<String> = rest
        .iter()
        .map(|document| document.replace(&format!("memory: {ASKED}"), &format!("memory: {memory}")))
        .collect();
    all.extend((1..=pods).map(named));
    Ok(all.join("\n---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_in_a_line_and_limits_that_can_be_written_are_not() {
        let spec = |option: &str| {
            serde_json::json!({
                "devices": [{"name": "a", "containerEdits": {"mounts": [
                    {"hostPath": "/h/claims/c/s", "containerPath": "/dev/vgpu/s", "options": [option, "bind"]},
                    {"hostPath": "/h/claims/c/s/ledger", "containerPath": "/dev/vgpu/s/ledger", "options": ["rw"]},
                ]}}],
                "containerEdits": {"mounts": [
                    {"hostPath": "/h/libvgpu.so", "containerPath": "/usr/lib/libnvidia-ml.so.1"},
                    {"hostPath": "/h/libvgpu.so", "containerPath": "/usr/lib/libcuda.so.1"},
                    {"hostPath": "/h/libvgpu.so", "containerPath": "/usr/lib64/libcuda.so.1"},
                ]},
            })
        };
        let told = "libvgpu.so as libcuda.so.1, libnvidia-ml.so.1, and the limits, read-only, in /dev/vgpu/s (5 mounts in all)";
        assert_eq!(mounts(&spec("ro")).as_deref(), Some(told));
        assert_eq!(mounts(&spec("rw")), None);
        assert_eq!(mounts(&serde_json::json!({"devices": []})), None);
    }

    #[test]
    fn the_example_is_fitted_to_other_gpus() {
        let text = workload::manifests(&install::example(EXAMPLE)).unwrap();
        let fitted = fit(&text, "20389Mi", 5).unwrap();
        assert_eq!(fitted.matches("kind: Pod\n").count(), 5);
        assert_eq!(fitted.matches("memory: 20389Mi").count(), 1);
        assert!(fitted.contains("name: fraction-5\n") && !fitted.contains("fraction-6") && !fitted.contains("20Gi"));
    }
}
