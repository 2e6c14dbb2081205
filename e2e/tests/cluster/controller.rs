//! Controller mode on the real cluster: kube-scheduler leaves the devices alone, vgpu-controller allocates them, and
//! Kubernetes does everything after that.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience};

use crate::fleet::wait_for_event;
use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("controller_allocates_binds_and_gives_back", one_pod),
    ("controller_says_why_a_pod_gets_nothing", reasons),
    ("controller_clears_a_hold_that_nobody_comes_for", hold_runs_out),
    ("controller_that_is_killed_is_followed_by_the_other", killed),
    ("controller_mode_refuses_tolerations_of_everything", tolerations),
];

const KEY: &str = "dra.vgpu/allocator";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// A device can be allocated 30 s after it is tainted.
const SETTLED: Duration = Duration::from_secs(120);

fn claim(name: &str, memory: &str) -> String {
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory}}}}]}}});
    format!("{object}\n---\n")
}

fn named(name: &str, claim: &str) -> String {
    pod(name, "client", &HOLD, claim).replace("resourceClaimTemplateName", "resourceClaimName")
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Checks an allocation that only the controller writes in this form.
fn check_allocation(claim: &Value) -> Result<()> {
    let allocation = &claim["status"]["allocation"];
    let result = &allocation["devices"]["results"][0];
    let ours = json!({"key": KEY, "operator": "Equal", "value": "controller", "effect": "NoSchedule"});
    let pin = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["node1"]}]}]});
    let marked = claim["metadata"]["annotations"]["dra.vgpu/epoch"].is_string();
    for (what, is_so) in [
        (
            "the controller's toleration",
            list(result, "/tolerations").contains(&ours),
        ),
        ("a shareID", result["shareID"].is_string()),
        ("consumedCapacity", result["consumedCapacity"]["memory"].is_string()),
        ("a time", allocation["allocationTimestamp"].is_string()),
        ("the pin to its node", allocation["nodeSelector"] == pin),
        ("a mark", marked),
        (
            "the finalizer",
            list(claim, "/metadata/finalizers").contains(&json!(FINALIZER)),
        ),
    ] {
        ensure!(is_so, "the claim has not {what}: {claim}");
    }
    Ok(())
}

fn one_pod() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "one-pod", |installed, kube| {
        let slices = kube.get(&["resourceslices"])?;
        for device in list(&slices, "/items")
            .iter()
            .flat_map(|slice| list(slice, "/spec/devices"))
        {
            let is_gpu = device["attributes"]["type"]["string"] == "gpu";
            let tainted = list(device, "/taints")
                .iter()
                .any(|taint| taint["key"] == KEY && taint["value"] == "controller" && taint["timeAdded"].is_string());
            ensure!(
                is_gpu == tainted,
                "a GPU without the taint, or another device with it: {device}"
            );
        }
        kube.apply(&(claim("alone", "4Gi") + &named("alone", "alone")))?;
        kube.apply(&(template("t", "vgpu", json!({"memory": "2Gi"}), &[]) + &pod("made", "client", &HOLD, "t")))?;
        for (name, memory) in [("alone", "4Gi"), ("made", "2Gi")] {
            kube.wait_running(name, SETTLED)?;
            let line: Value = serde_json::from_str(&kube.exec(name, &["vgpu-client", "check"])?)?;
            ensure!(
                line["total"].as_u64() == install::bytes(memory),
                "{name} sees {} instead of {memory}",
                line["total"]
            );
        }
        // Two shares are packed onto one GPU. This does not prove who allocated them: kube-scheduler would choose the
        // same.
        let claims = kube.get(&["resourceclaims"])?;
        let mut devices = Vec::new();
        for claim in list(&claims, "/items") {
            check_allocation(claim)?;
            devices.push(claim["status"]["allocation"]["devices"]["results"][0]["device"].clone());
        }
        devices.dedup();
        ensure!(
            devices.len() == 1,
            "two small claims are on {} of {} GPUs",
            devices.len(),
            installed.gpus.len()
        );
        wait(LIMIT, "the hold to be released", || {
            let claim = kube.get(&["resourceclaim", "alone"])?;
            let reserved = list(&claim, "/status/reservedFor");
            Ok((reserved.len() == 1 && reserved[0]["resource"] == "pods").then_some(()))
        })?;
        kube.run(&["delete", "pod", "alone", "made", &patience::timeout(LIMIT)])?;
        wait(LIMIT, "the claims to be free", || {
            let claims = kube.get(&["resourceclaims"])?;
            match list(&claims, "/items") {
                // The controller can remove its finalizer again, so the claim may be allocated once more.
                [left] if left["metadata"]["name"] == "alone" => {
                    let free = left["status"]["allocation"].is_null() && list(left, "/status/reservedFor").is_empty();
                    free.then_some(Some(())).context(left.to_string())
                }
                left => Err(anyhow!("{} claims", left.len())),
            }
        })?;
        // The same claim once more.
        kube.apply(&named("again", "alone"))?;
        kube.wait_running("again", LIMIT)
    })
}

fn reasons() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "reasons", |_, kube| {
        let mut large: Value = serde_json::from_str(named("large", "one").trim_end_matches("---\n"))?;
        large["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1000"});
        kube.apply(&(claim("one", "1Gi") + &large.to_string()))?;
        wait(SETTLED, "an event that names the CPU", || {
            let events = kube.events("large", "NoNodeFits")?;
            let says = events.iter().any(|event| event.contains("1 not enough cpu"));
            says.then_some(Some(())).context(events.join(" | "))
        })?;
        kube.apply(&(claim("huge", "9Ti") + &named("greedy", "huge")))?;
        wait(LIMIT, "an event that names the memory, not the taint", || {
            let events = kube.events("greedy", "VgpuClaimPending")?;
            let says = events
                .iter()
                .any(|event| event.contains("Capacity: ") && !event.contains("Taint: "));
            says.then_some(Some(())).context(events.join(" | "))
        })
    })
}

/// A pod with a held device that cannot be bound for a reason that the controller does not check: a missing volume.
fn hold_runs_out() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "hold-runs-out", |_, kube| {
        let mut stuck: Value = serde_json::from_str(named("stuck", "one").trim_end_matches("---\n"))?;
        stuck["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nobody-made-it"}}]);
        kube.apply(&(claim("one", "1Gi") + &stuck.to_string()))?;
        let allocation = || -> Result<Value> { Ok(kube.get(&["resourceclaim", "one"])?["status"].clone()) };
        wait(SETTLED, "a device to be held", || {
            let status = allocation()?;
            let held = list(&status, "/reservedFor")
                .iter()
                .any(|entry| entry["resource"] == "holds");
            Ok((held && !status["allocation"].is_null()).then_some(()))
        })?;
        let first = allocation()?["allocation"]["allocationTimestamp"].clone();
        wait_for_event(kube, "one", "HoldTimeout", &[])?;
        // There is no other node, so this one is tried again.
        wait(LIMIT, "another hold", || {
            let allocation = &allocation()?["allocation"];
            let is_new = allocation["allocationTimestamp"].is_string() && allocation["allocationTimestamp"] != first;
            Ok(is_new.then_some(()))
        })
    })
}

/// The name of the leading pod, if there is one.
pub(crate) fn leader(project: &Kube<'_>) -> Result<Option<String>> {
    let lease = project.get(&["lease", "dra-driver-vgpu-controller"])?;
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let pod = holder.split('_').next().filter(|pod| !pod.is_empty());
    Ok(pod.map(str::to_owned))
}

fn killed() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "killed", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        kube.apply(&(template("t", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("before", "client", &HOLD, "t")))?;
        kube.wait_running("before", SETTLED)?;
        let first = wait(LIMIT, "a leader", || leader(&project))?;
        project.run(&["delete", "pod", &first, "--force", "--grace-period=0"])?;
        kube.apply(&pod("after", "client", &HOLD, "t"))?;
        kube.wait_running("after", LIMIT)?;
        let second = leader(&project)?.context("nobody leads")?;
        ensure!(second != first, "{first} leads although it was killed");
        kube.wait_running("before", LIMIT)
    })
}

fn tolerations() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "tolerations", |_, kube| {
        let of = |class: &str, toleration: Value| {
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {
                    "deviceClassName": class, "tolerations": [toleration]}}]}}})
        };
        let everything = || json!({"operator": "Exists"});
        for (class, toleration, refused) in [
            ("vgpu", everything(), Some("tolerates every taint")),
            ("of-somebody", everything(), Some("tolerates every taint")),
            ("nic.example", everything(), None),
            (
                "nic.example",
                json!({"key": KEY, "operator": "Exists"}),
                Some("remove the toleration"),
            ),
            (
                "of-somebody",
                json!({"key": "example.com/other", "operator": "Exists"}),
                None,
            ),
        ] {
            let object = of(class, toleration).to_string();
            let said = kube.try_run_with_input(&["create", "--dry-run=server", "-f", "-"], &object)?;
            match refused {
                None if said.status.success() => {}
                Some(words) if !said.status.success() && said.stderr.contains(words) => {}
                _ => bail!("{object}: {}{}", said.stdout, said.stderr),
            }
        }
        Ok(())
    })
}
