//! `vgpu explain` and `vgpu doctor` on the real cluster. `explain` is compared with the controller's event: the same
//! engine must give the same reasons.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::shell::{self, Said};
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod, pod_object, template};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("explain_and_the_event_give_the_same_reasons", same_reasons),
    ("explain_names_obstacles_other_than_free_devices", obstacles),
    ("rights_in_one_namespace_are_enough_for_explain", own_namespace),
    ("doctor_finds_nothing_where_all_is_well", doctor),
];

const RULE: &str = "test-explain-drain";
const HELD: &str = "held by explain/holder-";

/// One GPU is completely allocated, and a rule taints all GPUs: the reason for the allocated GPU is missing memory, and
/// for the others the taint. Servers before 1.37 have no such rule, so there all GPUs are allocated.
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

/// Pods that the API server accepts but that never get a GPU, and one that runs without its allocated GPU.
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
        let mut misnamed = pod_object("misnamed", &HOLD, "t")?;
        misnamed["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "t"}]);
        for pod in [&pinned, &gated, &unnamed, &misnamed] {
            kube.apply(&pod.to_string())?;
        }
        kube.wait_running("unnamed", LIMIT)?;
        for (name, words) in [
            ("pinned", format!("was put on node {node} by spec.nodeName")),
            ("gated", "has the scheduling gate example.com/later".to_owned()),
            ("unnamed", "no container names its claim gpu".to_owned()),
            (
                "misnamed",
                "claim explain-obstacles/t does not exist: that is a ResourceClaimTemplate".to_owned(),
            ),
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

/// Returns true if the server has DeviceTaintRules. Other failures are errors.
pub(crate) fn has_rules(kube: &Kube<'_>) -> Result<bool> {
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

/// The part of `vgpu explain`'s answer that the event must contain. `tainted`: the rule's taint is the only reason for
/// at least one GPU.
fn expected(explained: &Value, installed: &Installed, tainted: bool) -> Result<BTreeSet<String>> {
    let reasons = explained["reasons"].as_array().context("no reasons")?;
    let text = |reason: &Value, key: &str| reason[key].as_str().unwrap_or_default().to_owned();
    // Leave out the monitor devices, which the class excludes by its selectors.
    let of_the_class = reasons
        .iter()
        .filter(|reason| !text(reason, "field").starts_with("spec.selectors"));
    let mut expected = BTreeSet::new();
    let mut devices = 0;
    for reason in of_the_class {
        devices += 1;
        let message = text(reason, "message");
        // The event lists GPUs with equal holders once, with the holders of one of them.
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
    ensure!(
        devices == installed.gpus.len(),
        "{devices} reasons for {} GPUs: {explained}",
        installed.gpus.len()
    );
    ensure!(says("Capacity", HELD), "nobody names who holds the GPU: {explained}");
    ensure!(
        !tainted || says("Taint", "example.com/drain=tonight:NoSchedule"),
        "nobody names the rule's taint: {explained}"
    );
    expected.insert(format!(" of {devices} devices: "));
    expected.insert("vgpu explain pod/waiting -n explain".to_owned());
    Ok(expected)
}

/// Runs `vgpu explain` as a user would, without `-f`: the context is the current one.
fn run(installed: &Installed, namespace: &str, subject: &str, format: &str) -> Result<Said> {
    vgpu(installed, &["explain", subject, "-n", namespace, "-o", format])
}

pub(crate) fn vgpu(installed: &Installed, args: &[&str]) -> Result<Said> {
    let mut command = Command::new(shared::prepared().dist.join("vgpu"));
    let kubeconfig = installed.cluster.kubeconfig();
    shell::capture(command.args(args).env("KUBECONFIG", kubeconfig))
}

/// To a user with the rights of `edit` in one namespace, `vgpu explain` shows what the controller says, and names the
/// rights that are needed to show more.
fn own_namespace() -> Result<()> {
    shared::in_namespace("explain-own", |installed, kube| {
        kube.run(&["create", "rolebinding", "jane", "--clusterrole=edit", "--user=jane"])?;
        kube.apply(
            &(template("part", "vgpu", json!({"memory": "1Ti"}), &[]) + &pod("waiting", "client", &HOLD, "part")),
        )?;
        wait(LIMIT, "the controller's event in the answer of vgpu explain", || {
            let said = vgpu(installed, &["explain", "pod/waiting", "-n", "explain-own", "--as=jane"])?;
            let has_event = said.stdout.contains("VgpuClaim");
            let names_right = said.stdout.contains("the right to list ") && said.stdout.contains("in all namespaces");
            match said.status.code() == Some(1) && has_event && names_right {
                true => Ok(Some(())),
                false => Err(anyhow!("{}: {}{}", said.status, said.stdout, said.stderr)),
            }
        })
    })
}

/// `vgpu doctor` finds nothing on the test cluster, and tells a user without rights what was not checked. A probe runs
/// and leaves nothing behind; `helm test` runs a probe too.
fn doctor() -> Result<()> {
    shared::in_namespace("doctor", |installed, kube| {
        wait(LIMIT, "vgpu doctor finds nothing", || {
            let said = vgpu(installed, &["doctor"])?;
            match said.status.code() {
                Some(0) => Ok(Some(())),
                _ => Err(anyhow!("{}: {}{}", said.status, said.stdout, said.stderr)),
            }
        })?;
        let said = vgpu(installed, &["doctor", "--as=jane"])?;
        if said.status.code() != Some(2)
            || !said
                .stdout
                .contains("not checked: the right to list nodes in all namespaces")
        {
            bail!("{}: {}{}", said.status, said.stdout, said.stderr);
        }
        let said = vgpu(installed, &["doctor", "--probe", "-n", "doctor"])?;
        ensure!(
            said.status.code() == Some(0) && said.stdout.contains("the probe ran on node "),
            "{}: {}{}",
            said.status,
            said.stdout,
            said.stderr
        );
        for kind in ["pods", "resourceclaimtemplates"] {
            let left = kube.get(&[kind])?;
            ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "left: {left}");
        }
        kube.helm(&["test", install::NAME, "--namespace", install::NAME])
            .map(drop)
    })
}

/// The output for people.
pub(crate) fn as_text(installed: &Installed, namespace: &str, subject: &str) -> Result<String> {
    let said = run(installed, namespace, subject, "text")?;
    match said.status.code() {
        Some(0 | 1) => Ok(said.stdout),
        _ => bail!("vgpu explain ended with {}: {}", said.status, said.stderr),
    }
}

fn explain(installed: &Installed, namespace: &str) -> Result<Value> {
    let said = run(installed, namespace, "pod/waiting", "json")?;
    ensure!(
        said.status.code() == Some(1),
        "vgpu explain ended with {}: {}{}",
        said.status,
        said.stdout,
        said.stderr
    );
    serde_json::from_str(&said.stdout).context("vgpu explain gave no JSON")
}
