//! Conditions of claims about their limits, and reports about pods that bypass the library, use a GPU without a claim,
//! or run without their mounts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Config, Node, SOFT_GPU_DRIVER, SOFT_GPU_STATE};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::toolchain::is_containerd_1;
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    (
        "claims_say_that_their_limits_are_enforced_and_are_written_on_change_alone",
        honest,
    ),
    ("a_program_that_got_out_of_memory_is_reported", refused),
    ("a_pod_that_bypasses_the_library_is_reported", around),
    ("a_pod_without_a_claim_that_uses_a_gpu_is_reported", without_a_claim),
    ("on_breach_kill_kills_the_offender_alone", killed),
    ("a_container_without_its_mounts_is_reported", without_cdi),
];

/// On the cluster whose driver lists no processes.
pub(crate) const WITHOUT_PROCESSES: &[Test] = &[("a_driver_that_hides_processes_leaves_memory_unknown", hidden)];

/// Sets D to the folder of the real driver, and creates a loader that reads no list.
pub(crate) const LOADER: &str = "D=$(ls -d /dev/vgpu/.driver /usr/lib/vgpu/driver 2>/dev/null | head -n 1); \
                      python3 /kit/loader.py /lib64/ld-linux-x86-64.so.2 /tmp/ld.so; ";
pub(crate) const AROUND: &str = "exec /tmp/ld.so /usr/bin/python3 /kit/around.py $D/libcuda.so.1 2";

/// The ConfigMap with the programs of tenants.
pub(crate) fn kit() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kit"},
        "data": {
            "loader.py": include_str!("attacks/loader.py"),
            "around.py": include_str!("attacks/around.py"),
        },
    })
}

fn programs(kube: &Kube<'_>) -> Result<()> {
    let kit = kit();
    let small = template("t", "vgpu", json!({"memory": "1Gi", "cores": "10"}), &[]);
    kube.apply(&format!("{kit}\n---\n{small}"))
}

/// A pod of the client image that runs this script beside the programs.
pub(crate) fn scripted(name: &str, script: &str) -> Value {
    let text = pod(name, "client", &["sh", "-c", script], "t");
    let mut object: Value = serde_json::from_str(text.trim_end_matches("\n---\n")).unwrap_or_default();
    object["spec"]["volumes"] = json!([{"name": "kit", "configMap": {"name": "kit"}}]);
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "kit", "mountPath": "/kit"}]);
    object
}

/// The claim of a pod.
pub(crate) fn claim(kube: &Kube<'_>, name: &str) -> Result<Value> {
    let found = kube.get(&["pod", name])?;
    let claim = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str();
    kube.get(&["resourceclaim", claim.context("the pod has no claim yet")?])
}

/// Status and reason of a condition of the claim's first device.
fn condition(claim: &Value, kind: &str) -> Option<(String, String)> {
    let conditions = claim["status"]["devices"][0]["conditions"].as_array()?;
    let one = conditions.iter().find(|one| one["type"] == kind)?;
    Some((one["status"].as_str()?.to_owned(), one["reason"].as_str()?.to_owned()))
}

pub(crate) fn becomes(kube: &Kube<'_>, name: &str, kind: &str, status: &str, reason: &str) -> Result<Value> {
    let expected = Some((status.to_owned(), reason.to_owned()));
    // The driver's own limits are read every 45 s.
    wait(
        LIMIT * 2,
        &format!("{kind} {status} {reason} of {name}'s claim"),
        || {
            let claim = claim(kube, name)?;
            let found = condition(&claim, kind);
            ensure!(found == expected, "it is {found:?}");
            Ok(Some(claim))
        },
    )
}

/// Waits for an event on a pod, and returns its text.
pub(crate) fn event(kube: &Kube<'_>, name: &str, reason: &str) -> Result<String> {
    let of = format!("--field-selector=involvedObject.name={name},reason={reason}");
    wait(LIMIT * 2, &format!("the event {reason} on {name}"), || {
        let events = kube.get(&["events", &of])?;
        Ok(events["items"][0]["message"].as_str().map(str::to_owned))
    })
}

pub(crate) fn logs(kube: &Kube<'_>, name: &str, line: &str) -> Result<()> {
    wait(LIMIT, &format!("{name} to print {line:?}"), || {
        Ok(kube.logs(name, None)?.lines().any(|found| found == line).then_some(()))
    })
}

/// The plugin's metrics.
pub(crate) fn metrics(cluster: &Cluster) -> Result<String> {
    let project = Kube::new(cluster, install::NAME);
    let plugin = shared::plugin_pod(cluster)?;
    let path = format!("/api/v1/namespaces/{}/pods/{plugin}:9440/proxy/metrics", install::NAME);
    project.raw(&path)
}

/// Checks the claim's share in the VgpuNode. The plugin writes that object once a minute, so a new share may take that
/// long to appear.
fn node_object(kube: &Kube<'_>, claim: &Value) -> Result<()> {
    let (node, share) = wait(LIMIT * 2, "the claim in the VgpuNode", || {
        let node = kube.get(&["vgpunode", &Node::FIRST.name()])?;
        let mut shares = node["status"]["shares"].as_array().into_iter().flatten();
        // `refusals` is missing while the plugin has not yet read the ledger of a new share.
        let is_read = |share: &&Value| share["uid"] == claim["metadata"]["uid"] && !share["refusals"].is_null();
        let share = shares.find(is_read).cloned();
        Ok(share.map(|share| (node, share)))
    })?;
    let result = &claim["status"]["allocation"]["devices"]["results"][0];
    for (found, expected) in [
        (&share["claim"], &claim["metadata"]["name"]),
        (&share["namespace"], &claim["metadata"]["namespace"]),
        (&share["device"], &result["device"]),
        (&share["share"], &result["shareID"]),
        (&share["memory"], &json!("1Gi")),
        (&share["cores"], &json!(10)),
        (&share["refusals"], &json!(0)),
        (&node["metadata"]["ownerReferences"][0]["kind"], &json!("Node")),
        (&node["status"]["conditions"][0]["reason"], &json!("EveryPartWorks")),
    ] {
        ensure!(found == expected, "{found} and {expected}: {share}");
    }
    let mut gpus = node["status"]["gpus"].as_array().into_iter().flatten();
    let gpu = gpus.find(|gpu| gpu["device"] == result["device"]).context("its GPU")?;
    ensure!(
        gpu["shares"].as_u64() >= Some(1) && gpu["largestFree"].is_string(),
        "{gpu}"
    );
    ensure!(node["status"]["gpuCount"].as_u64() >= Some(1), "{node}");
    Ok(())
}

/// More than two rounds of the plugin, which observes its shares every 4 s.
const REST: Duration = Duration::from_secs(10);

fn honest() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "truth-honest", |_, kube| {
        let small = template("t", "vgpu", json!({"memory": "1Gi", "cores": "10"}), &[]);
        kube.apply(&format!("{small}{}", pod("p", "client", &HOLD, "t")))?;
        becomes(kube, "p", "MemoryEnforced", "True", "Library")?;
        let claim = becomes(kube, "p", "Injected", "True", "Mounted")?;
        ensure!(condition(&claim, "Prepared") == Some(("True".into(), "Prepared".into())));
        let (compute, _) = condition(&claim, "ComputeEnforced").context("no ComputeEnforced")?;
        ensure!(compute != "False", "an idle share broke its limit of time");
        let device = &claim["status"]["devices"][0];
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        for key in ["driver", "pool", "device", "shareID"] {
            ensure!(device[key] == result[key], "{key}: {} and {}", device[key], result[key]);
        }
        ensure!(
            device["data"]["memory"] == 1 << 30 && device["data"]["cores"] == 10,
            "{device}"
        );
        ensure!(
            device["data"]["uuid"]
                .as_str()
                .is_some_and(|uuid| uuid.starts_with("GPU-"))
        );
        node_object(kube, &claim)?;
        // Nothing changes any more, except the condition about GPU time, which takes longest to be known.
        let mut last = (
            self::claim(kube, "p")?["metadata"]["resourceVersion"].clone(),
            Instant::now(),
        );
        wait(
            LIMIT,
            &format!("{REST:?} without a write to the unchanged claim"),
            || {
                let now = self::claim(kube, "p")?["metadata"]["resourceVersion"].clone();
                if now != last.0 {
                    last = (now, Instant::now());
                }
                Ok((last.1.elapsed() > REST).then_some(()))
            },
        )
    })
}

fn refused() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "truth-refused", |installed, kube| {
        let small = template("t", "vgpu", json!({"memory": "1Gi", "cores": "10"}), &[]);
        let script = "vgpu-client alloc 2147483648; exec vgpu-client hold";
        let asks = pod("asks", "client", &["sh", "-c", script], "t");
        let neighbour = pod("neighbour", "client", &HOLD, "t");
        kube.apply(&format!("{small}{asks}{neighbour}"))?;
        becomes(kube, "asks", "MemoryGranted", "False", "MemoryRefused")?;
        let text = event(kube, "asks", "MemoryRefused")?;
        for part in ["vgpu-client (PID ", "asked for 2048 MiB", "limit of 1024 MiB"] {
            ensure!(text.contains(part), "{part}: {text}");
        }
        becomes(kube, "neighbour", "MemoryGranted", "True", "NothingRefused")?;
        let claim = claim(kube, "asks")?["metadata"]["name"].to_string();
        wait(LIMIT, "the metric of the share", || {
            let text = metrics(&installed.cluster)?;
            let is_it = |line: &&str| line.starts_with("vgpu_share_memory_refusals_total{") && line.contains(&claim);
            let counted = text.lines().find(is_it).is_some_and(|line| line.ends_with(" 1"));
            Ok(counted.then_some(()))
        })
    })
}

fn around() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "truth-around", |installed, kube| {
        programs(kube)?;
        let neighbour = pod("neighbour", "client", &HOLD, "t");
        let around = scripted("around", &format!("{LOADER}{AROUND}"));
        kube.apply(&format!("{around}\n---\n{neighbour}"))?;
        logs(kube, "around", "taken")?;
        let taken = Instant::now();
        becomes(kube, "around", "MemoryEnforced", "False", "OverLimit")?;
        println!(
            "truth::around: from the breach to the condition {:.1} s",
            taken.elapsed().as_secs_f64()
        );
        let text = event(kube, "around", "MemoryLimitBroken")?;
        ensure!(text.contains("2048 MiB") && text.contains("1024 MiB"), "{text}");
        becomes(kube, "neighbour", "MemoryEnforced", "True", "Library")?;
        let name = |pod: &str| Ok::<_, anyhow::Error>(claim(kube, pod)?["metadata"]["name"].to_string());
        let (around, neighbour) = (name("around")?, name("neighbour")?);
        wait(LIMIT, "the metrics of both shares", || {
            let text = metrics(&installed.cluster)?;
            let value = |claim: &str| {
                let label = format!("claim={claim}");
                let mut lines = text
                    .lines()
                    .filter(|line| line.starts_with("vgpu_share_memory_enforced{"));
                lines
                    .find(|line| line.contains(&label))
                    .and_then(|line| line.rsplit(' ').next().map(str::to_owned))
            };
            let found = (value(&around), value(&neighbour));
            ensure!(found == (Some("0".into()), Some("1".into())), "{found:?}");
            Ok(Some(()))
        })
    })
}

fn without_a_claim() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "truth-unclaimed", |installed, kube| {
        programs(kube)?;
        let mut stray = scripted(
            "stray",
            &format!("exec python3 /kit/around.py {SOFT_GPU_DRIVER}/usr/lib/x86_64-linux-gnu/libcuda.so.1 3"),
        );
        stray["spec"]["resourceClaims"].take();
        let volume = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        stray["spec"]["volumes"] = json!([
            {"name": "kit", "configMap": {"name": "kit"}}, volume("driver", SOFT_GPU_DRIVER), volume("state", SOFT_GPU_STATE)
        ]);
        let container = &mut stray["spec"]["containers"][0];
        container["resources"].take();
        container["volumeMounts"] = json!([
            mount("kit", "/kit"),
            mount("driver", SOFT_GPU_DRIVER),
            mount("state", SOFT_GPU_STATE)
        ]);
        container["env"] = json!([{"name": "SOFT_GPU_STATE", "value": SOFT_GPU_STATE}]);
        kube.apply(&stray.to_string())?;
        logs(kube, "stray", "taken")?;
        let text = event(kube, "stray", "UnexplainedUse")?;
        ensure!(text.contains("3072 MiB") && text.contains("python3"), "{text}");
        let bytes = format!(" {}", 3_u64 << 30);
        wait(LIMIT, "the metric of the GPU", || {
            let text = metrics(&installed.cluster)?;
            let mut lines = text
                .lines()
                .filter(|line| line.starts_with("vgpu_gpu_unexplained_bytes{"));
            Ok(lines.any(|line| line.ends_with(&bytes)).then_some(()))
        })?;
        kube.run(&["delete", "pod", "stray"])?;
        wait(LIMIT, "nothing unexplained", || {
            let text = metrics(&installed.cluster)?;
            let mut lines = text
                .lines()
                .filter(|line| line.starts_with("vgpu_gpu_unexplained_bytes{"));
            Ok(lines.all(|line| line.ends_with(" 0")).then_some(()))
        })
    })
}

/// Sets `plugin.onBreach=kill`. The last test of that cluster.
fn kill_on_breach(cluster: &Cluster) -> Result<()> {
    let project = Kube::new(cluster, install::NAME);
    let name = "daemonset/dra-driver-vgpu-plugin";
    let found = project.get(&[name])?;
    let arguments = found["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let place = arguments.and_then(|all| all.iter().position(|one| one == "--on-breach=report"));
    let place = place.context("no --on-breach=report in the DaemonSet")?;
    let path = format!("/spec/template/spec/containers/0/args/{place}");
    let patch = json!([{"op": "replace", "path": path, "value": "--on-breach=kill"}]).to_string();
    project.run(&["patch", name, "--type=json", "-p", &patch])?;
    project
        .run(&["rollout", "status", name, &vgpu_e2e::patience::timeout(LIMIT)])
        .map(drop)
}

fn killed() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "truth-killed", |installed, kube| {
        kill_on_breach(&installed.cluster)?;
        programs(kube)?;
        let neighbour = pod("neighbour", "client", &HOLD, "t");
        // Another program in the same container, which stays within the limit, is not killed.
        let both = format!("{LOADER}vgpu-client hold 1048576 & ({AROUND}); echo ended $?; wait");
        let around = scripted("around", &both);
        kube.apply(&format!("{around}\n---\n{neighbour}"))?;
        logs(kube, "around", "ended 137")?;
        let text = event(kube, "around", "KilledOverLimit")?;
        ensure!(text.contains("2048 MiB"), "{text}");
        becomes(kube, "around", "MemoryEnforced", "True", "Library")?;
        for pod in ["around", "neighbour"] {
            let phase = kube.get(&["pod", pod])?["status"]["phase"].clone();
            ensure!(phase == "Running", "{pod} is {phase}");
        }
        Ok(())
    })
}

/// The limit itself does not need the driver's list: the library enforces it.
fn hidden() -> Result<()> {
    shared::in_namespace("truth-hidden", |_, kube| {
        let hold = ["vgpu-client", "hold", "134217728"];
        kube.apply(&(template("t", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("p", "client", &hold, "t")))?;
        becomes(kube, "p", "MemoryEnforced", "Unknown", "ProcessesUnknown")?;
        let said = kube.exec("p", &["vgpu-client", "check"])?;
        let seen: Value = serde_json::from_str(&said).with_context(|| format!("it said {said:?}"))?;
        ensure!(
            seen["total"] == 1 << 30 && seen["allocated"].as_u64() < Some(1 << 30),
            "{seen}"
        );
        Ok(())
    })
}

fn without_cdi() -> Result<()> {
    let name = shared::name("nocdi");
    let config = Config {
        cdi: false,
        ..shared::prepared().config(&name)
    };
    if !is_containerd_1(&config.toolchain.containerd) {
        vgpu_skip::skip(
            "truth::a_container_without_its_mounts_is_reported",
            "containerd 2 cannot switch CDI off: CONTAINERD_VERSION=1.7.35 chooses one that can",
        );
        return Ok(());
    }
    let cluster = Cluster::up(config)?;
    let tested = install::install(&cluster, shared::prepared(), &[]).and_then(|_| {
        let kube = Kube::new(&cluster, "default");
        kube.wait_service_account(LIMIT)?;
        let small = template("t", "vgpu", json!({"memory": "1Gi"}), &[]);
        let mut lacking: Value =
            serde_json::from_str(pod("p", "client", &["sleep", "600"], "t").trim_end_matches("\n---\n"))?;
        // An init container without the claim does not matter.
        lacking["spec"]["initContainers"] = json!([{
            "name": "before", "image": "dra-driver-vgpu/client:dev", "command": ["sleep", "3"],
        }]);
        kube.apply(&format!("{small}{lacking}"))?;
        becomes(&kube, "p", "Injected", "False", "MountsMissing")?;
        let text = event(&kube, "p", "MountsMissing")?;
        ensure!(text.contains("container main") && text.contains("enable_cdi"), "{text}");
        Ok(())
    });
    after(tested, vgpu_e2e::cluster::down(&name).map(drop))
}
