//! Shares that Kubernetes reallocates while a process of the former pod still uses them.
//!
//! A pod deleted by force disappears from the API server at once, and its claim is freed, while the kubelet is still
//! ending its containers. The node must not let two pods use the same memory. A share whose claim was removed while
//! its pod keeps running is reported.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{node, patience, shell, workload};

use crate::fleet::TAKEOVER;
use crate::manifests::{HOLD, pod, pod_object, template};
use crate::shared::{self, Installed, LIMIT, Test};
use crate::{load, size, truth};

pub(crate) const TESTS: &[Test] = &[
    ("share_of_a_living_process_is_given_away_after_it_alone", given_away),
    ("claim_that_is_allocated_again_holds_its_limit", allocated_again),
    (
        "share_without_a_claim_is_reported_and_who_waits_reads_no_name",
        without_a_claim,
    ),
];

/// Returns true while the process of the first pod is running.
fn lives(cluster: &Cluster) -> Result<bool> {
    let find = ["pgrep", "-f", "^vgpu-client hold 1073741824$"];
    Ok(shell::capture(&mut cluster.node(Node::FIRST).inside(&find))?
        .status
        .success())
}

/// A pod that ignores SIGTERM for `grace` seconds, and uses 1 GiB.
fn stubborn(name: &str, template: &str, grace: u64) -> Result<Value> {
    let mut pod = pod_object(name, &["sh", "-c", crate::node_faults::STUBBORN], template)?;
    pod["spec"]["terminationGracePeriodSeconds"] = json!(grace);
    Ok(pod)
}

fn holds_memory(kube: &Kube<'_>, name: &str) -> Result<()> {
    wait(LIMIT, &format!("{name} to hold its memory"), || {
        Ok(kube.logs(name, None)?.contains("\"holding\":").then_some(()))
    })
}

/// Waits for a pod to run, and fails if it does so while the process of the first pod is running. In a short run the
/// kubelet is made to retry as soon as that process has ended; by itself it would retry only after 60 to 90 s.
fn runs_after_it(cluster: &Cluster, kube: &Kube<'_>, name: &str) -> Result<()> {
    let mut is_nudged = size::is_full();
    wait(TAKEOVER, &format!("{name} to run"), || {
        let lived = lives(cluster)?;
        let found = kube.get(&["pod", name])?;
        let runs = found["status"]["phase"] == "Running";
        // It was running both before and after the pod was seen running.
        if runs && lived && lives(cluster)? {
            return Ok(Some(false));
        }
        if !runs && !lived && !is_nudged {
            is_nudged = true;
            kube.run(&["label", "pod", name, "nudged=1"])?;
        }
        Ok(runs.then_some(true))
    })
    .map_err(|error| error.context(kube.describe(name)))
    .and_then(|in_order| {
        ensure!(
            in_order,
            "{name} has the share while a process of before still holds memory of it"
        );
        Ok(())
    })
}

/// Two pods use two GPUs, a third waits. The first is deleted by force, and its process keeps running.
fn given_away() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "given-away", |installed, kube| {
        let cluster = &installed.cluster;
        let memory = installed.gpus.iter().map(|gpu| gpu.memory).max().unwrap_or(0);
        let most = json!({"memory": (memory / 4 * 3).to_string()});
        kube.apply(&template("most", "vgpu", most, &[]))?;
        kube.apply(&stubborn("first", "most", 8)?.to_string())?;
        kube.wait_running("first", LIMIT)?;
        holds_memory(kube, "first")?;
        for number in 1..installed.gpus.len() {
            kube.apply(&pod(&format!("other-{number}"), "client", &HOLD, "most"))?;
            kube.wait_running(&format!("other-{number}"), LIMIT)?;
        }
        kube.apply(&pod("next", "client", &HOLD, "most"))?;
        std::thread::sleep(Duration::from_secs(1));
        ensure!(
            kube.get(&["pod", "next"])?["status"]["phase"] == "Pending",
            "there was room for one more"
        );

        kube.run(&["delete", "pod", "first", "--force", "--grace-period=0"])?;
        wait(LIMIT, "the share to be given away", || {
            let shares = workload::shares(kube)?;
            let next = shares.iter().find(|share| share.pod == "next");
            Ok(next.and_then(|next| next.device.clone()))
        })?;
        ensure!(lives(cluster)?, "the process ended before its share was given away");
        runs_after_it(cluster, kube, "next")?;
        let failed = load::failed_prepares(kube)?;
        println!("while the process lived, the node said: {failed:?}");
        Ok(())
    })
}

/// The client's view of the pod's share: free and total bytes.
fn seen(kube: &Kube<'_>, pod: &str) -> Result<(u64, u64)> {
    let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
    let number = |key: &str| line[key].as_u64().with_context(|| format!("no {key} in {line}"));
    Ok((number("free")?, number("total")?))
}

/// A named claim whose first pod is deleted by force, and which a second pod uses at once.
///
/// The kubelet (1.34 to 1.37) then does not call the plugin: it considers the claim with that UID prepared, so the
/// second pod shares the first one's share, whose limit applies to both together. A pod that starts after both gets
/// the new allocation.
fn allocated_again() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "allocated-again", |installed, kube| {
        let cluster = &installed.cluster;
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "again"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "vgpu", "capacity": {"requests": {"memory": load::MEMORY}}}}]}}});
        let named = |mut pod: Value| -> Value {
            pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "again"}]);
            pod
        };
        kube.apply(&format!("{claim}\n---\n{}", named(stubborn("first", "", 10)?)))?;
        kube.wait_running("first", LIMIT)?;
        holds_memory(kube, "first")?;
        let share = || -> Result<(String, String)> {
            let found = kube.get(&["resourceclaim", "again"])?;
            let id = found["status"]["allocation"]["devices"]["results"][0]["shareID"].as_str();
            let uid = found["metadata"]["uid"].as_str().context("a claim without UID")?;
            Ok((uid.to_owned(), id.context("it is not allocated")?.to_owned()))
        };
        let (uid, old) = share()?;
        kube.run(&["delete", "pod", "first", "--force", "--grace-period=0"])?;
        wait(LIMIT, "the claim to be freed", || Ok(share().is_err().then_some(())))?;
        kube.apply(&named(pod_object("second", &HOLD, "")?).to_string())?;
        let (uid_now, new) = wait(LIMIT, "the claim to be allocated again", || share().map(Some))?;
        ensure!(
            uid_now == uid && new != old,
            "the same claim was to have another share: {old} and {new}"
        );
        ensure!(
            lives(cluster)?,
            "the process ended before its claim was allocated again"
        );
        kube.wait_running("second", TAKEOVER)?;
        if lives(cluster)? {
            has_share(installed, kube, "second", &uid, &old)?;
            let seen = seen(kube, "second")?;
            // Only compare if the first pod's process was running both before and after the second pod read its share.
            ensure!(
                seen == (load::BYTES - (1 << 30), load::BYTES) || !lives(cluster)?,
                "beside the first pod it sees {seen:?}"
            );
        }
        wait(LIMIT, "the first pod's memory to be free", || {
            let seen = seen(kube, "second")?;
            ensure!(seen == (load::BYTES, load::BYTES), "it sees {seen:?}");
            Ok(Some(()))
        })?;
        kube.run(&["delete", "pod", "second", &patience::timeout(LIMIT)])?;
        wait(LIMIT, "the node to forget the claim", || {
            let left = node::left_of(cluster, std::slice::from_ref(&uid))?;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(Some(()))
        })?;
        kube.apply(&named(pod_object("third", &HOLD, "")?).to_string())?;
        kube.wait_running("third", LIMIT)?;
        has_share(installed, kube, "third", &uid, &share()?.1)
    })
}

/// Checks that the container and the plugin have only this share of the claim.
fn has_share(installed: &Installed, kube: &Kube<'_>, pod: &str, uid: &str, share: &str) -> Result<()> {
    let (path, text) = node::cdi_spec(&installed.cluster, uid)?;
    ensure!(text.contains(share), "{path} does not name the share {share}: {text}");
    let folders = kube.exec(pod, &["ls", "/dev/vgpu"])?;
    ensure!(
        folders.lines().any(|name| name == share),
        "the container has {folders:?} instead of {share}"
    );
    let claims = node::claims(&installed.cluster)?;
    let held = claims.get(uid).map(|claim| &claim["shares"][0]["shareId"]);
    ensure!(held == Some(&json!(share)), "the plugin holds {held:?} for the claim");
    Ok(())
}

/// Removes the allocation and the finalizer of a claim and deletes it, as an administrator can while its pod runs.
fn remove_claim(kube: &Kube<'_>, claim: &str) -> Result<()> {
    let patch = |more: &[&str], patch: &Value| {
        let patch = patch.to_string();
        let words = ["patch", "resourceclaim", claim, "--type=merge", "-p", &patch];
        kube.try_run(&[&words[..], more].concat())
    };
    let no_finalizer = json!({"metadata": {"finalizers": null}});
    let refused = patch(&[], &no_finalizer)?;
    ensure!(
        !refused.status.success() && refused.stderr.contains("delete the pods that use the claim"),
        "the finalizer of an allocated claim: {refused:?}"
    );
    let ended = json!({"status": {"allocation": null, "reservedFor": null, "devices": null}});
    for (more, change) in [(&["--subresource=status"][..], &ended), (&[], &no_finalizer)] {
        let said = patch(more, change)?;
        ensure!(said.status.success(), "{change}: {said:?}");
    }
    kube.run(&["delete", "resourceclaim", claim, &patience::timeout(LIMIT)])
        .map(drop)
}

/// The plugin's number of shares without a claim, over all GPUs.
fn counted(cluster: &Cluster) -> Result<Option<u64>> {
    let text = truth::metrics(cluster)?;
    let of_gpus = text
        .lines()
        .filter(|line| line.starts_with("vgpu_gpu_shares_without_claim{"));
    let numbers: Vec<u64> = of_gpus
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    Ok((!numbers.is_empty()).then(|| numbers.iter().sum()))
}

/// Pods use all GPUs. The claim of one is removed while it runs, and its share is allocated to a pod of another
/// namespace.
fn without_a_claim() -> Result<()> {
    let installed = shared::observed()?;
    shared::in_namespace_of(installed, "spectre", |installed, owner| {
        shared::in_namespace_of(installed, "beside", |installed, beside| {
            haunted(installed, owner, beside)
        })
    })
}

fn haunted(installed: &Installed, owner: &Kube<'_>, beside: &Kube<'_>) -> Result<()> {
    let cluster = &installed.cluster;
    let memory = installed.gpus.iter().map(|gpu| gpu.memory).max().unwrap_or(0);
    let most = json!({"memory": (memory / 4 * 3).to_string()});
    let most = template("most", "vgpu", most, &[]);
    owner.apply(&most)?;
    beside.apply(&most)?;
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "alone"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": (memory / 4 * 3).to_string()}}}}]}}});
    let mut ghost = pod_object("ghost", &HOLD, "")?;
    ghost["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "alone"}]);
    owner.apply(&format!("{claim}\n---\n{ghost}"))?;
    owner.wait_running("ghost", LIMIT)?;
    for number in 1..installed.gpus.len() {
        owner.apply(&pod(&format!("other-{number}"), "client", &HOLD, "most"))?;
        owner.wait_running(&format!("other-{number}"), LIMIT)?;
    }
    remove_claim(owner, "alone")?;

    beside.apply(&pod("waits", "client", &HOLD, "most"))?;
    let told = wait(LIMIT, "the pod that waits to have an event", || {
        let failed = load::failed_prepares(beside)?;
        Ok(failed.into_iter().find(|text| text.contains("has no room")))
    })?;
    ensure!(
        told.contains("a share without a claim holds") && told.contains("event ShareWithoutClaim on this node"),
        "{told}"
    );
    for secret in ["spectre", "ghost", "alone", "other-1"] {
        ensure!(!told.contains(secret), "it names {secret} of another namespace: {told}");
    }

    let events = Kube::new(cluster, "default");
    let node = &installed.gpus.first().context("no GPU")?.node;
    let told = wait(LIMIT * 2, "the node to have an event", || {
        let told = events.events(node, "ShareWithoutClaim")?;
        Ok(told.into_iter().find(|text| text.contains("pod spectre/ghost ")))
    })?;
    ensure!(
        told.contains("ResourceClaim spectre/alone (uid ") && told.contains("Delete that pod"),
        "{told}"
    );
    ensure!(counted(cluster)? == Some(1), "counted: {:?}", counted(cluster)?);

    owner.run(&["delete", "pod", "ghost", &patience::timeout(LIMIT)])?;
    // Makes the kubelet retry at once.
    beside.run(&["label", "pod", "waits", "nudged=1"])?;
    beside.wait_running("waits", TAKEOVER)?;
    wait(LIMIT, "no share without a claim", || {
        Ok((counted(cluster)? == Some(0)).then_some(()))
    })
}
