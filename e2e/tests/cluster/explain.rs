//! `vgpu explain` with the real kubectl on the real cluster, beside the controller's event: one engine, the same reasons.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::shell::{self, Said};
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod, pod_object, template};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("explain_and_the_event_give_the_same_reasons", same_reasons),
    ("explain_says_what_keeps_a_pod_from_its_gpu", obstacles),
];

const RULE: &str = "test-explain-drain";
const HELD: &str = "held by explain/holder-";

/// One GPU is wholly taken, and a rule taints all of them: for the one it is the memory that is short. A server before
/// 1.37 has no such rule: there all are taken.
fn same_reasons() -> Result<()> {
    shared::in_namespace("explain", |installed, kube| {
        let has_rules = has_rules(kube)?;
        if !has_rules {
            let why = "this server has no DeviceTaintRule of v1 (Kubernetes 1.37): every GPU is held instead";
            vgpu_skip::skip("explain_and_the_event_name_the_taint_of_a_rule", why);
        }
        let holders = if has_rules { 1 } else { installed.gpus.len() };
        kube.apply(&template("whole", "gpu", Value::Null, &[]))?;
        for number in 0..holders {
            let name = format!("holder-{number}");
            kube.apply(&pod(&name, "client", &HOLD, "whole"))?;
            kube.wait_running(&name, LIMIT)?;
        }
        if !has_rules {
            return compare(installed, kube, false);
        }
        let rule = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": RULE},
            "spec": {"deviceSelector": {"driver": "dra.vgpu"},
                "taint": {"key": "example.com/drain", "value": "tonight", "effect": "NoSchedule"}}});
        kube.apply(&rule.to_string())?;
        let outcome = compare(installed, kube, installed.gpus.len() > 1);
        let ended = kube.run(&["delete", "devicetaintrule", RULE]).map(drop);
        after(outcome, ended)
    })
}

/// Pods that the API server accepts and that never get a GPU, and one that runs without the GPU that it holds.
fn obstacles() -> Result<()> {
    shared::in_namespace("explain-obstacles", |installed, kube| {
        let node = installed.gpus.first().context("no GPU is published")?.node.clone();
        kube.apply(&template("t", "vgpu", json!({"memory": "1Gi"}), &[]))?;
        let mut pinned = pod_object("pinned", &HOLD, "t")?;
        pinned["spec"]["nodeName"] = json!(node);
        let mut gated = pod_object("gated", &HOLD, "t")?;
        gated["spec"]["schedulingGates"] = json!([{"name": "example.com/later"}]);
        let mut unnamed = pod_object("unnamed", &["python3", "-c", "import signal; signal.pause()"], "t")?;
        unnamed["spec"]["containers"][0]["resources"] = json!({});
        for pod in [&pinned, &gated, &unnamed] {
            kube.apply(&pod.to_string())?;
        }
        kube.wait_running("unnamed", LIMIT)?;
        for (name, words) in [
            ("pinned", format!("was put on node {node} by spec.nodeName")),
            ("gated", "has the scheduling gate example.com/later".to_owned()),
            ("unnamed", "no container names its claim gpu".to_owned()),
        ] {
            let start = format!("pod explain-obstacles/{name}: {words}");
            wait(LIMIT, &start, || {
                let said = run(installed, "explain-obstacles", &format!("pod/{name}"), "text")?;
                let is_said = said.status.code() == Some(1) && said.stdout.starts_with(&start);
                Ok(is_said.then_some(()))
            })?;
        }
        Ok(())
    })
}

/// Returns true if the server has DeviceTaintRules. Another failure is an error.
fn has_rules(kube: &Kube<'_>) -> Result<bool> {
    let said = kube.try_run(&["get", "devicetaintrules.v1.resource.k8s.io"])?;
    match said.status.success() {
        true => Ok(true),
        false if said.stderr.contains("the server doesn't have a resource type") => Ok(false),
        false => bail!("kubectl get devicetaintrules: {}", said.stderr.trim()),
    }
}

fn compare(installed: &Installed, kube: &Kube<'_>, tainted: bool) -> Result<()> {
    kube.apply(&(template("part", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("waiting", "client", &HOLD, "part")))?;
    wait(LIMIT, "an event on the pod with the reasons of vgpu explain", || {
        let explained = explain(installed, "explain")?;
        let expected = expected(&explained, installed, tainted)?;
        let events = kube.events("waiting", "VgpuClaimPending")?;
        let same = |event: &&String| expected.iter().all(|words| event.contains(words));
        match events.iter().find(same) {
            Some(_) => Ok(Some(())),
            None => Err(anyhow!("expected {expected:?} in: {}", events.join(" | "))),
        }
    })
}

/// The part of `vgpu explain`'s answer that the event must contain. `tainted`: at least one GPU has only the rule's taint.
fn expected(explained: &Value, installed: &Installed, tainted: bool) -> Result<BTreeSet<String>> {
    let reasons = explained["reasons"].as_array().context("no reasons")?;
    let text = |reason: &Value, key: &str| reason[key].as_str().unwrap_or_default().to_owned();
    // The monitors, of which the class has none.
    let of_the_class = reasons
        .iter()
        .filter(|reason| !text(reason, "field").starts_with("spec.selectors"));
    let mut expected = BTreeSet::new();
    let mut devices = 0;
    for reason in of_the_class {
        devices += 1;
        let message = text(reason, "message");
        // GPUs that are held alike are one in the event, with the holders of one of them.
        let said = match message.find(HELD) {
            Some(at) if !tainted => &message[..at + HELD.len()],
            _ => &message,
        };
        expected.insert(format!("{}: {said}", text(reason, "reason")));
        expected.insert(format!(
            "claim {}, request {}: ",
            text(reason, "claim"),
            text(reason, "request")
        ));
    }
    let says = |kind: &str, words: &str| {
        let mut all = expected.iter();
        all.any(|said| said.starts_with(&format!("{kind}: ")) && said.contains(words))
    };
    if devices != installed.gpus.len() {
        bail!("{devices} reasons for {} GPUs: {explained}", installed.gpus.len());
    }
    if !says("Capacity", HELD) {
        bail!("nobody names who holds the GPU: {explained}");
    }
    if tainted && !says("Taint", "example.com/drain=tonight:NoSchedule") {
        bail!("nobody names the rule's taint: {explained}");
    }
    expected.insert(format!(" of {devices} devices: "));
    expected.insert("vgpu explain pod/waiting -n explain".to_owned());
    Ok(expected)
}

/// Runs `vgpu explain` as a user would, without `-f`: kubectl is on PATH and the context is the current one.
fn run(installed: &Installed, namespace: &str, subject: &str, format: &str) -> Result<Said> {
    let kubectl = installed.cluster.toolchain().program("kubectl")?;
    let folder = kubectl.parent().context("kubectl is in no folder")?;
    let mut command = Command::new(shared::prepared().dist.join("vgpu"));
    command
        .args(["explain", subject, "-n", namespace, "-o", format])
        .env("PATH", folder)
        .env("KUBECONFIG", installed.cluster.kubeconfig())
        .env("KUBECACHEDIR", installed.cluster.kubeconfig().with_file_name("tmp"));
    shell::capture(&mut command)
}

/// What a person reads.
pub(crate) fn as_text(installed: &Installed, namespace: &str, subject: &str) -> Result<String> {
    let said = run(installed, namespace, subject, "text")?;
    match said.status.code() {
        Some(0 | 1) => Ok(said.stdout),
        _ => bail!("vgpu explain ended with {}: {}", said.status, said.stderr),
    }
}

fn explain(installed: &Installed, namespace: &str) -> Result<Value> {
    let said = run(installed, namespace, "pod/waiting", "json")?;
    if said.status.code() != Some(1) {
        bail!(
            "vgpu explain ended with {}: {}{}",
            said.status,
            said.stdout,
            said.stderr
        );
    }
    serde_json::from_str(&said.stdout).context("vgpu explain gave no JSON")
}
