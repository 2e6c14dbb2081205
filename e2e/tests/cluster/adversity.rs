//! Controller mode when others misbehave: a leader that stands still, a third party that writes status, nodes that go, an
//! API server that dies, a mode that is changed under load. What is given out is added up at every version (`fleet.rs`).

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::{Kube, wait};
use vgpu_e2e::shell;

use crate::controller::leader;
use crate::fleet::{Checker, Fleet, bound, create, many};
use crate::manifests::template;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("leader_that_stands_still_gives_nothing_twice", stands_still),
    ("allocation_that_is_wiped_is_made_again", wiped),
    ("allocation_by_a_third_party_counts_and_is_named", third_party),
    ("held_claim_of_a_node_that_goes_moves_on", node_goes),
    ("controller_goes_on_after_the_api_server_died", api_server_dies),
    ("controller_looks_at_what_a_pod_needs_elsewhere", needs_elsewhere),
];

/// A new leader waits for the lease to run out, and for what its predecessor may have sent.
const TAKEOVER: Duration = Duration::from_secs(120);

fn quarter() -> String {
    template("quarter", "vgpu", json!({"memory": "20Gi", "cores": "25"}), &[])
}

fn pods<'a>(fleet: &Fleet<'_>, names: impl IntoIterator<Item = &'a str>) -> String {
    many(
        names
            .into_iter()
            .map(|name| fleet.pod(name, "quarter", "100m"))
            .collect(),
    )
}

fn wait_bound(kube: &Kube<'_>, wanted: &[&str], limit: Duration) -> Result<()> {
    wait(limit, &format!("pods {} to be bound", wanted.join(", ")), || {
        let bound = bound(kube)?;
        let missing: Vec<_> = wanted.iter().filter(|name| !bound.contains(**name)).collect();
        match missing.is_empty() {
            true => Ok(Some(())),
            false => Err(anyhow!("not bound: {missing:?}")),
        }
    })
}

/// Claims of the namespace by the pod that they were made for.
fn claim_of(kube: &Kube<'_>, pod: &str) -> Result<Value> {
    let claims = kube.get(&["resourceclaims"])?;
    let claims = claims["items"].as_array().cloned().unwrap_or_default();
    let mut claims = claims.into_iter();
    let claim = claims.find(|claim| claim["metadata"]["ownerReferences"][0]["name"] == pod);
    claim.with_context(|| format!("pod {pod} has no claim"))
}

fn node_of(claim: &Value) -> Option<&str> {
    claim["status"]["allocation"]["devices"]["results"][0]["pool"]
        .as_str()?
        .split('/')
        .next()
}

fn signal(installed: &Installed, pid: &str, signal: &str) -> Result<()> {
    shell::run(&mut installed.cluster.inside(&["kill", &format!("-{signal}"), pid]))
}

/// The process of the pod that leads, as the cluster numbers it.
fn leading_process(installed: &Installed, pod: &str) -> Result<String> {
    let find = format!(
        "for pid in $(pgrep -x vgpu-controller); do tr '\\0' '\\n' </proc/$pid/environ | grep -qx POD_NAME={pod} && echo $pid; done; true"
    );
    let found = shell::output(&mut installed.cluster.inside(&["sh", "-c", &find]))?;
    let pid = found.trim().to_owned();
    ensure!(
        !pid.is_empty() && !pid.contains('\n'),
        "the processes of {pod}: {found:?}"
    );
    Ok(pid)
}

/// Stopped in the middle of its work, followed by the other, and let go on: what it had decided lands nowhere.
fn stands_still() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "stands-still", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let fleet = Fleet::new(Kube::new(&installed.cluster, "stands-still"), "still", 3)?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        create(kube, &pods(&fleet, ["first"]))?;
        wait_bound(kube, &["first"], TAKEOVER)?;
        let first = wait(LIMIT, "a leader", || leader(&project).map(Some))?;
        let pid = leading_process(installed, &first)?;
        let names: Vec<String> = (0..12).map(|number| format!("p{number:02}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        create(kube, &pods(&fleet, all.iter().copied()))?;
        // It has seen some of them by now, and is deciding or writing.
        std::thread::sleep(Duration::from_millis(400));
        signal(installed, &pid, "STOP")?;
        let outcome = followed(kube, &project, &first, &all);
        // Also when that failed: nobody else wakes it.
        let woken = signal(installed, &pid, "CONT");
        outcome?;
        // kubelet may have ended it meanwhile, for it did not answer.
        let _ = woken;
        create(kube, &pods(&fleet, ["last"]))?;
        wait_bound(kube, &["last"], TAKEOVER)?;
        kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
        gone(kube)?;
        checker.end().map(drop)
    })
}

fn followed(kube: &Kube<'_>, project: &Kube<'_>, first: &str, all: &[&str]) -> Result<()> {
    wait(TAKEOVER, "the other to lead", || {
        let now = leader(project)?;
        Ok((now != first).then_some(()))
    })?;
    wait_bound(kube, all, TAKEOVER)
}

fn gone(kube: &Kube<'_>) -> Result<()> {
    wait(TAKEOVER, "every claim to be freed", || {
        let claims = kube.get(&["resourceclaims"])?;
        match claims["items"].as_array().map_or(0, Vec::len) {
            0 => Ok(Some(())),
            left => Err(anyhow!("{left} claims are left")),
        }
    })
}

fn patch_status(kube: &Kube<'_>, claim: &str, status: &Value) -> Result<()> {
    let patch = json!({"status": status}).to_string();
    kube.run(&[
        "patch",
        "resourceclaim",
        claim,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ])
    .map(drop)
}

/// A pod that cannot be bound yet is held a device for; somebody takes allocation and hold away.
fn wiped() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "wiped", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "wiped"), "wiping", 1)?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        let mut pod = fleet.pod("waits", "quarter", "100m");
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nobody-made-it"}}]);
        create(kube, &pod.to_string())?;
        let allocated = |not: &Value| {
            wait(TAKEOVER, "the claim to be allocated", || {
                let claim = claim_of(kube, "waits")?;
                let at = claim["status"]["allocation"]["allocationTimestamp"].clone();
                Ok((at.is_string() && at != *not).then_some((claim, at)))
            })
        };
        let (claim, first) = allocated(&Value::Null)?;
        let name = claim["metadata"]["name"].as_str().context("a claim without a name")?;
        // Timestamps have whole seconds.
        std::thread::sleep(Duration::from_millis(1_100));
        patch_status(kube, name, &json!({"allocation": null, "reservedFor": null}))?;
        allocated(&first)?;
        kube.run(&["delete", "pod", "waits", "--force", "--grace-period=0"])?;
        gone(kube)?;
        checker.end().map(drop)
    })
}

/// An allocation of our device that is not ours takes room, and its claim is told so.
fn third_party() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "third-party", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "third-party"), "theirs", 1)?;
        let node = fleet.nodes().next().context("no node")?;
        let checker = Checker::begin(kube)?;
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "theirs"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                "capacity": {"requests": {"memory": "70Gi", "cores": "10"}}}}]}}});
        kube.apply(&claim.to_string())?;
        let result = |device: &str, share: &str| {
            json!({"request": "gpu", "driver": "dra.vgpu", "pool": format!("{node}/vgpu"), "device": device,
                "shareID": share, "consumedCapacity": {"memory": "70Gi", "cores": "10"}})
        };
        let share = "11111111-1111-4111-8111-111111111111";
        let allocation = json!({"devices": {"results": [result("gpu-0", share)]}});
        patch_status(kube, "theirs", &json!({"allocation": allocation}))?;
        wait(LIMIT, "an event that names it", || {
            let events = kube.events("theirs", "AllocatedByOthers")?;
            Ok((!events.is_empty()).then_some(()))
        })?;
        kube.apply(&quarter())?;
        // Four fit on the other GPU, and none beside theirs.
        create(kube, &pods(&fleet, ["a", "b", "c", "d", "e"]))?;
        wait(TAKEOVER, "four pods to be bound", || {
            let bound = bound(kube)?.len();
            Ok((bound == 4).then_some(()))
        })?;
        let claims = kube.get(&["resourceclaims"])?;
        for claim in claims["items"].as_array().into_iter().flatten() {
            let device = &claim["status"]["allocation"]["devices"]["results"][0]["device"];
            if *device == "gpu-0" && claim["metadata"]["name"] != "theirs" {
                bail!("given out beside a third party's: {claim}");
            }
        }
        patch_status(kube, "theirs", &json!({"allocation": null}))?;
        wait_bound(kube, &["a", "b", "c", "d", "e"], TAKEOVER)?;
        kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
        kube.run(&["delete", "resourceclaim", "theirs"])?;
        gone(kube)?;
        checker.end().map(drop)
    })
}

/// The node of a claim that is held and not yet used is deleted: the claim goes where there still is one.
fn node_goes() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "node-goes", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "node-goes"), "going", 2)?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        let mut pod = fleet.pod("waits", "quarter", "100m");
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nobody-made-it"}}]);
        create(kube, &pod.to_string())?;
        let node = wait(TAKEOVER, "a device to be held", || {
            Ok(node_of(&claim_of(kube, "waits")?).map(str::to_owned))
        })?;
        kube.run(&["delete", "node", &node])?;
        wait(TAKEOVER, "a device of the other node to be held", || {
            let claim = claim_of(kube, "waits")?;
            Ok(node_of(&claim).is_some_and(|now| now != node).then_some(()))
        })?;
        kube.run(&["delete", "pod", "waits", "--force", "--grace-period=0"])?;
        gone(kube)?;
        checker.end().map(drop)
    })
}

/// No checker here: its watch ends with the API server. What is there afterwards is added up once.
fn api_server_dies() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "api-dies", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "api-dies"), "apiless", 2)?;
        kube.apply(&quarter())?;
        let names: Vec<String> = (0..12).map(|number| format!("p{number:02}")).collect();
        let (before, after) = names.split_at(6);
        let of = |names: &[String]| pods(&fleet, names.iter().map(String::as_str));
        create(kube, &of(before))?;
        installed.cluster.restart("kube-apiserver", true)?;
        wait(TAKEOVER, "the API server to answer", || {
            kube.run(&["get", "--raw", "/readyz"]).map(Some)
        })?;
        create(kube, &of(after))?;
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        wait_bound(kube, &all, TAKEOVER)?;
        Checker::begin(kube)?.end()?;
        kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
        gone(kube)
    })
}

/// Each pod fits on one node alone, by another rule each.
fn needs_elsewhere() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "elsewhere", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "elsewhere"), "needing", 3)?;
        let nodes: Vec<String> = fleet.nodes().collect();
        let [first, second, third] = nodes.as_slice() else {
            bail!("three nodes")
        };
        kube.run(&["label", "node", second, "disk=fast"])?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        // Its CPU is full.
        let mut full = fleet.pod("full", "quarter", "31");
        full["spec"]["nodeName"] = json!(first);
        for (key, empty) in [("resourceClaims", json!([])), ("nodeSelector", json!({}))] {
            full["spec"][key] = empty;
        }
        full["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "31900m"}});
        let mut selected = fleet.pod("selected", "quarter", "1");
        selected["spec"]["nodeSelector"]["disk"] = json!("fast");
        create(kube, &many(vec![full, selected]))?;
        wait_bound(kube, &["full", "selected"], TAKEOVER)?;
        let on = |pod: &str| -> Result<String> {
            let pod = kube.get(&["pod", pod])?;
            let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
            node.context("not bound")
        };
        ensure!(on("selected")? == *second, "{} instead of {second}", on("selected")?);
        // Not beside it, and not where the CPU is full.
        let mut apart = fleet.pod("apart", "quarter", "1");
        apart["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "selected"}}}]}});
        kube.run(&["label", "pod", "selected", "role=selected"])?;
        create(kube, &apart.to_string())?;
        wait_bound(kube, &["apart"], TAKEOVER)?;
        ensure!(on("apart")? == *third, "{} instead of {third}", on("apart")?);
        // A taint that it does not tolerate, on two of three.
        let mut intolerant = fleet.pod("intolerant", "quarter", "1");
        intolerant["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}]);
        for node in [first, third] {
            kube.run(&["taint", "node", node, "example.com/mine=yes:NoSchedule"])?;
        }
        create(kube, &intolerant.to_string())?;
        wait_bound(kube, &["intolerant"], TAKEOVER)?;
        ensure!(
            on("intolerant")? == *second,
            "{} instead of {second}",
            on("intolerant")?
        );
        kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
        gone(kube)?;
        checker.end().map(drop)
    })
}
