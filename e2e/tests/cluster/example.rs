//! The documented examples, run as their README describes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::wait::wait;
use vgpu_e2e::{gpu_time, install, node, patience, workload};

use crate::dialects;
use crate::fleet::wait_for_event;
use crate::kueue;
use crate::manifests::{HOLD, pod};
use crate::mig;
use crate::quota;
use crate::shared::{self, LIMIT, Test};

/// These need a quiet machine: the steps of a pod with the released programs, and assertions about GPU time.
pub(crate) const QUIET: &[Test] = &[
    ("example_fraction_four_a_gpu_and_the_ninth_waits", fraction),
    ("example_gpu_time_pods_have_their_cores", gpu_time_of_pods),
];

pub(crate) const TESTS: &[Test] = &[
    ("example_two_containers_hold_one_share_together", two_containers),
    ("claim_of_two_pods_is_one_share_until_the_last_ends", two_pods),
    ("example_whole_gpu_is_shared_with_nobody", whole_gpu),
    ("example_workloads_are_accepted_and_the_job_runs", workloads),
    ("example_driver_limit_waits_for_a_gpu_that_has_it", driver_limit),
    ("example_nvlink_has_two_gpus_of_one_island", nvlink),
    ("every_example_is_run_here_and_has_a_readme", every_example),
];

fn fraction() -> Result<()> {
    shared::in_namespace("example-fraction", |installed, kube| {
        kube.apply(&workload::manifests(&install::example("fraction"))?)?;
        let room = installed.gpus.len() * 4;
        let (running, pending) = workload::settle(kube, room, 1, LIMIT)?;
        let shares = workload::shares(kube)?;
        for (device, pods) in workload::by_device(&shares) {
            ensure!(pods.len() == 4, "{device} has {} pods instead of four", pods.len());
        }
        for pod in &running {
            let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
            ensure!(
                line["total"].as_u64() == install::bytes("20Gi"),
                "{pod} sees {} instead of 20Gi",
                line["total"]
            );
        }
        for share in shares.iter().filter(|share| share.device.is_some()) {
            let claim = kube.get(&["resourceclaim", &share.claim])?;
            let result = &claim["status"]["allocation"]["devices"]["results"][0];
            let share_id = result["shareID"].as_str().context("an allocation without shareID")?;
            let (path, text) = node::cdi_spec(&installed.cluster, &share.claim_uid)?;
            ensure!(text.contains(share_id), "{path} does not name the share {share_id}");
        }
        kube.run(&["delete", "pod", &running[0], "--wait=false"])?;
        kube.wait_running(&pending[0], LIMIT)
    })
}

fn two_containers() -> Result<()> {
    shared::in_namespace("example-two-containers", |_, kube| {
        kube.apply(&workload::manifests(&install::example("two-containers"))?)?;
        kube.wait_running("two-containers", LIMIT)?;
        let total = |container: &str| -> Result<Value> {
            let said = kube.run(&["exec", "two-containers", "-c", container, "--", "vgpu-client", "check"])?;
            serde_json::from_str(&said).context("vgpu-client gave no JSON")
        };
        let (first, second) = (total("first")?, total("second")?);
        ensure!(
            first["uuid"] == second["uuid"] && first["total"].as_u64() == install::bytes("20Gi"),
            "the containers see different things: {first} and {second}"
        );
        // A GPU that one of them uses is not available to the other.
        let taken = 12u64 << 30;
        let mut holder = kube.command([
            "exec",
            "two-containers",
            "-c",
            "first",
            "--",
            "vgpu-client",
            "hold",
            &taken.to_string(),
        ])?;
        let mut holder = holder.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("kubectl has no standard output")?).read_line(&mut line)?;
        let refused = kube.try_run(&[
            "exec",
            "two-containers",
            "-c",
            "second",
            "--",
            "vgpu-client",
            "alloc",
            &taken.to_string(),
        ]);
        holder.kill()?;
        holder.wait()?;
        let refused = refused?;
        ensure!(
            !refused.status.success() && refused.stderr.contains("CUDA_ERROR_OUT_OF_MEMORY"),
            "two containers allocated 24 of 20 GiB together: {}{}",
            refused.stdout,
            refused.stderr
        );
        Ok(())
    })
}

/// A named ResourceClaim used by two pods: one share, prepared once, and removed with the claim.
fn two_pods() -> Result<()> {
    shared::in_namespace("two-pods", |installed, kube| {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "both"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "vgpu", "capacity": {"requests": {"memory": "4Gi"}}}}]}}});
        let named = |name: &str, command: &[&str]| {
            pod(name, "client", command, "both").replace("resourceClaimTemplateName", "resourceClaimName")
        };
        let hold = ["vgpu-client", "hold", "1073741824"];
        kube.apply(&format!(
            "{claim}\n---\n{}{}",
            named("first", &hold),
            named("second", &HOLD)
        ))?;
        kube.wait_running("first", LIMIT)?;
        kube.wait_running("second", LIMIT)?;
        let path = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/both/gpu/dra.vgpu-metadata.json";
        let shares = ["first", "second"].map(|pod| -> Result<Value> {
            let metadata: Value = serde_json::from_str(&kube.exec(pod, &["cat", path])?)?;
            Ok(metadata["requests"][0]["devices"][0]["attributes"]["share"]["string"].clone())
        });
        let results = kube.get(&["resourceclaim", "both"])?;
        let allocated = &results["status"]["allocation"]["devices"]["results"][0]["shareID"];
        for share in shares {
            let share = share?;
            ensure!(
                share == *allocated,
                "the metadata says share {share}, and {allocated} is allocated"
            );
        }
        let free = || -> Result<Option<u64>> {
            let line: Value = serde_json::from_str(&kube.exec("second", &["vgpu-client", "check"])?)?;
            Ok(line["free"].as_u64())
        };
        let seen = free()?;
        ensure!(
            seen == install::bytes("3Gi"),
            "the second pod sees {seen:?} bytes free of 4Gi, but the first uses 1Gi"
        );
        kube.run(&["delete", "pod", "first", &patience::timeout(LIMIT)])?;
        wait(LIMIT, "the first pod's memory to be free for the second", || {
            Ok((free()? == install::bytes("4Gi")).then_some(()))
        })?;
        let uid = kube.run(&["get", "resourceclaim", "both", "-o", "jsonpath={.metadata.uid}"])?;
        kube.run(&["delete", "pod", "second", &patience::timeout(LIMIT)])?;
        wait(LIMIT, "the node to forget the claim", || {
            let left = node::left_of(&installed.cluster, std::slice::from_ref(&uid))?;
            Ok(left.is_empty().then_some(()))
        })
    })
}

fn whole_gpu() -> Result<()> {
    shared::in_namespace("example-whole-gpu", |installed, kube| {
        kube.apply(&workload::manifests(&install::example("whole-gpu"))?)?;
        kube.wait_running("whole-gpu", LIMIT)?;
        let line: Value = serde_json::from_str(&kube.exec("whole-gpu", &["vgpu-client", "check"])?)?;
        let whole = installed.gpus.iter().map(|gpu| gpu.memory).max();
        ensure!(
            line["total"].as_u64() == whole,
            "a whole GPU shows {} of {whole:?} bytes",
            line["total"]
        );
        let shares = workload::shares(kube)?;
        let device = shares
            .first()
            .and_then(|share| share.device.clone())
            .context("the pod has no GPU")?;
        // The other GPUs have room for as many quarters as there are GPUs; one pod more must wait.
        kube.apply(&workload::manifests(&install::example("fraction"))?)?;
        workload::settle(
            kube,
            1 + (installed.gpus.len() - 1) * 4,
            9 - (installed.gpus.len() - 1) * 4,
            LIMIT,
        )?;
        match workload::by_device(&workload::shares(kube)?).get(&device) {
            Some(pods) if pods.len() == 1 => Ok(()),
            pods => bail!("{device} is shared after all: {pods:?}"),
        }
    })
}

/// The API server takes all of them without a warning. Only the Job has an image that this cluster has.
fn workloads() -> Result<()> {
    shared::in_namespace("example-workloads", |_, kube| {
        let folder = install::example("workloads");
        let create = ["create", "--dry-run=server", "-f", "-"];
        let said = kube.try_run_with_input(&create, &workload::manifests(&folder)?)?;
        ensure!(
            said.status.success() && said.stderr.is_empty(),
            "{}{}",
            said.stdout,
            said.stderr
        );
        let job = folder.join("job.yaml");
        kube.apply(&std::fs::read_to_string(&job).with_context(|| format!("cannot read {}", job.display()))?)?;
        kube.run(&[
            "wait",
            "--for=condition=Complete",
            "job/batch",
            &patience::timeout(LIMIT * 4),
        ])?;
        for line in kube.run(&["logs", "--selector=app=batch", "--tail=-1"])?.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
            ensure!(
                line["total"].as_u64() == install::bytes("18Gi"),
                "a pod of the Job saw {} instead of 18Gi",
                line["total"]
            );
        }
        Ok(())
    })
}

fn gpu_time_of_pods() -> Result<()> {
    shared::in_namespace("example-gpu-time", |installed, kube| {
        gpu_time::on_one_gpu(kube, &workload::manifests(&install::example("gpu-time"))?, LIMIT)?;
        gpu_time::divided(kube, &[("thirty", 30.0), ("seventy", 70.0)], 3)?;
        if installed.gpus.len() < 2 {
            kube.run(&["delete", "pod", "thirty", "seventy"])?;
        }
        kube.wait_running("capped", LIMIT)?;
        gpu_time::capped(kube, "capped", 40.0, 3).map(drop)
    })
}

/// The test machines' GPUs say `driverLimit: none`, so that the example's selector leaves all of them out.
fn driver_limit() -> Result<()> {
    shared::in_namespace("example-driver-limit", |_, kube| {
        kube.apply(&workload::manifests(&install::example("driver-limit"))?)?;
        wait_for_event(
            kube,
            "driver-limit",
            "FailedScheduling",
            &["cannot allocate all claims"],
        )
    })
}

/// The software GPUs of the cluster are joined by a switch.
fn nvlink() -> Result<()> {
    if shared::prepared().gpu.is_nvidia() {
        vgpu_skip::skip(
            "example::example_nvlink_has_two_gpus_of_one_island",
            "this machine's GPUs may have no NVLink",
        );
        return Ok(());
    }
    shared::in_namespace("example-nvlink", |_, kube| {
        kube.apply(&workload::manifests(&install::example("nvlink"))?)?;
        kube.wait_running("nvlink", LIMIT)?;
        let claims = kube.get(&["resourceclaims"])?;
        let results = &claims["items"][0]["status"]["allocation"]["devices"]["results"];
        ensure!(
            results[0]["device"] != results[1]["device"] && results[2].is_null(),
            "the pod has shares of {results}"
        );
        Ok(())
    })
}

fn every_example() -> Result<()> {
    let folder = install::example("");
    for entry in std::fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.path().is_dir() {
            continue;
        }
        std::fs::read_to_string(entry.path().join("README.md")).with_context(|| format!("{name} has no README.md"))?;
        let test = format!("example_{}_", name.replace('-', "_"));
        if !TESTS
            .iter()
            .chain(QUIET)
            .chain(dialects::ON_KUBE_SCHEDULER)
            .chain(quota::ON_KUBE_SCHEDULER)
            .chain(kueue::ON_KUBE_SCHEDULER)
            .chain(mig::TESTS)
            .any(|(known, _)| known.starts_with(&test))
        {
            bail!("no test runs the example {name}");
        }
    }
    Ok(())
}
