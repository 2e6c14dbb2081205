//! Kubelet, containerd and the plugin end at any time: pods keep running, and the slices come back.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience};

use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("kubelet_restart_brings_the_slices_back", kubelet),
    ("plugin_restart_leaves_running_pods_alone", plugin_deleted),
    ("killed_plugin_leaves_running_pods_alone", plugin_killed),
    ("containerd_and_kubelet_that_end_leave_running_pods_alone", runtime),
];

/// Creates a pod that uses memory of its share throughout.
fn holding(kube: &Kube<'_>) -> Result<()> {
    let hold = ["vgpu-client", "hold", "1073741824"];
    kube.apply(&(template("t", "vgpu", json!({"memory": "4Gi"}), &[]) + &pod("before", "client", &hold, "t")))?;
    kube.wait_running("before", LIMIT)
}

/// Checks that the earlier pod still runs in its first container with its limit, and that a new pod gets a share.
fn goes_on(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "the GPUs to be published again", || {
        let gpus = install::published(kube)?;
        ensure!(gpus == installed.gpus, "{} GPUs are published", gpus.len());
        Ok(Some(()))
    })?;
    // A pod that starts while the kubelet does not know the plugin is retried only after a minute or more: the kubelet
    // considers such a pod synchronised (SyncPod returns no error when PrepareDynamicResources fails).
    let project = Kube::new(&installed.cluster, install::NAME);
    project.run(&["rollout", "status", "daemonset", &patience::timeout(LIMIT)])?;
    wait(LIMIT, "the plugin to be ready, which includes its registration", || {
        let found = project.get(&["pod", &shared::plugin_pod(&installed.cluster)?])?;
        Ok((found["status"]["containerStatuses"][0]["ready"] == true).then_some(()))
    })?;
    kube.apply(&pod("after", "client", &HOLD, "t"))?;
    kube.wait_running("after", LIMIT)?;
    for name in ["before", "after"] {
        let line: Value = serde_json::from_str(&kube.exec(name, &["vgpu-client", "check"])?)?;
        ensure!(
            line["total"].as_u64() == install::bytes("4Gi"),
            "{name} sees {} instead of 4Gi",
            line["total"]
        );
    }
    let found = kube.get(&["pod", "before"])?;
    match found["status"]["containerStatuses"][0]["restartCount"].as_u64() {
        Some(0) => Ok(()),
        other => bail!("the pod from before was restarted: {other:?}"),
    }
}

fn kubelet() -> Result<()> {
    shared::in_namespace("kubelet-restart", |installed, kube| {
        holding(kube)?;
        installed.cluster.node(Node::FIRST).restart("kubelet", false)?;
        // The kubelet deletes the node's slices when it starts, and the plugin has to notice.
        goes_on(installed, kube)
    })
}

/// containerd is terminated, then killed together with the kubelet. The containers belong to their shims.
fn runtime() -> Result<()> {
    shared::in_namespace("runtime-restart", |installed, kube| {
        holding(kube)?;
        let node = installed.cluster.node(Node::FIRST);
        node.restart("containerd", false)?;
        kube.apply(&pod("between", "client", &HOLD, "t"))?;
        kube.wait_running("between", LIMIT)?;
        node.restart("containerd", true)?;
        node.restart("kubelet", true)?;
        goes_on(installed, kube)
    })
}

fn plugin_deleted() -> Result<()> {
    shared::in_namespace("plugin-restart", |installed, kube| {
        holding(kube)?;
        let project = Kube::new(&installed.cluster, install::NAME);
        let old = shared::plugin_pod(&installed.cluster)?;
        project.run(&["delete", "pod", &old])?;
        wait(LIMIT, "another plugin pod", || {
            Ok(shared::plugin_pod(&installed.cluster).ok().filter(|new| *new != old))
        })?;
        goes_on(installed, kube)
    })
}

fn plugin_killed() -> Result<()> {
    shared::in_namespace("plugin-kill", |installed, kube| {
        holding(kube)?;
        let project = Kube::new(&installed.cluster, install::NAME);
        let name = shared::plugin_pod(&installed.cluster)?;
        let restarts = || -> Result<u64> {
            let found = project.get(&["pod", &name])?;
            Ok(found["status"]["containerStatuses"][0]["restartCount"]
                .as_u64()
                .unwrap_or(0))
        };
        let before = restarts()?;
        // Runs on the node: a signal from inside its own PID namespace would be ignored.
        vgpu_e2e::shell::run(&mut installed.cluster.inside(&["pkill", "-KILL", "-x", "vgpu-kubelet-pl"]))?;
        wait(LIMIT, "the plugin's container to be started again", || {
            Ok((restarts()? > before).then_some(()))
        })?;
        goes_on(installed, kube)
    })
}
