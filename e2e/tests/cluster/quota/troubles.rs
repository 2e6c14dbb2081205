//! The foundations of quotas disappear: the namespace's label, the kind VgpuQuota, the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;

use super::namespace::{has_gate, is_gated, is_gated_now, refused, set_quota, wait_label};
use crate::fleet::{TAKEOVER, wait_for_event};
use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT};

/// An administrator may not remove it. If the controller's own account removes it, it is restored.
pub(super) fn label() -> Result<()> {
    const NAME: &str = "quota-label";
    shared::in_namespace(NAME, |_, kube| {
        set_quota(kube, &json!({"hard": {"memory": "1Gi"}}))?;
        wait_label(kube, NAME, Some("InBudget"))?;
        for change in ["dra.vgpu/quota-", "dra.vgpu/quota=OverBudget"] {
            let by_hand = ["label", "namespace", NAME, "--overwrite", change];
            let words = "vgpu-controller alone sets it, where the namespace has a VgpuQuota; to lift the quota, delete";
            refused(kube, &by_hand, "", words)?;
        }
        // Other labels of the namespace may be changed by administrators.
        kube.run(&["label", "namespace", NAME, "team=a"])?;
        // With all rights, because kubectl reads the object before it labels it; the policy checks the name.
        let name = format!("--as=system:serviceaccount:{}:{0}-controller", install::NAME);
        let account = [name.as_str(), "--as-group=system:masters"];
        kube.run(&[&["label", "namespace", NAME, "dra.vgpu/quota-"][..], &account].concat())?;
        wait_label(kube, NAME, Some("InBudget"))?;
        let words = "vgpu-controller may set the label dra.vgpu/quota of a namespace and change nothing else of it";
        let other = [&["label", "namespace", NAME, "--overwrite", "team=b"][..], &account].concat();
        refused(kube, &other, "", words)?;
        kube.run(&["delete", "vgpuquota", "vgpu"])?;
        wait_label(kube, NAME, None)?;
        wait(LIMIT, "pods to be created without the gate", || {
            Ok((!is_gated_now(kube)?).then_some(()))
        })
    })
}

const CRD: &str = "vgpuquotas.dra.vgpu";

/// The kind is deleted while one pod runs and one waits: then there is no ceiling, and no pod of any namespace is
/// refused. When the kind returns, so do the quotas.
pub(super) fn kind_deleted() -> Result<()> {
    const NAME: &str = "quota-kind";
    shared::in_namespace(NAME, |_, kube| {
        set_quota(kube, &json!({"hard": {"memory": "1Gi"}}))?;
        kube.apply(&(template("one", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("runs", "client", &HOLD, "one")))?;
        kube.wait_running("runs", LIMIT)?;
        kube.apply(&pod("waits", "client", &HOLD, "one"))?;
        wait_for_event(kube, "waits", "QuotaExceeded", &["memory 1Gi of 1Gi used, 1Gi wanted"])?;
        let mut kind = kube.get(&["crd", CRD])?;
        for written_by_the_server in [
            "resourceVersion",
            "uid",
            "creationTimestamp",
            "generation",
            "managedFields",
        ] {
            if let Some(metadata) = kind["metadata"].as_object_mut() {
                metadata.remove(written_by_the_server);
            }
        }
        kind["status"] = Value::Null;
        kube.run(&["delete", "crd", CRD, "--timeout=60s"])?;
        let without = kube
            .wait_running("waits", LIMIT)
            .and_then(|()| kube.wait_running("runs", LIMIT))
            .and_then(|()| wait_label(kube, NAME, None))
            .and_then(|()| kube.apply(&pod("free", "client", &HOLD, "one")))
            .and_then(|()| kube.wait_running("free", LIMIT));
        let again = kube.apply(&kind.to_string()).and_then(|()| {
            let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd", CRD];
            kube.run(&established).map(drop)
        });
        after(without, again)?;
        set_quota(kube, &json!({"hard": {"memory": "2Gi"}}))?;
        kube.apply(&pod("late", "client", &HOLD, "one"))?;
        // The three running pods are charged, even above the ceiling.
        wait_for_event(kube, "late", "QuotaExceeded", &["memory 3Gi of 2Gi used, 1Gi wanted"])?;
        ensure!(is_gated(kube, "late")?, "it was let through");
        kube.wait_running("free", LIMIT)
    })
}

/// Pods are created continuously while the API server is killed and restarts: pods without a quota are neither refused
/// by a policy nor gated, and pods with one are always gated.
pub(super) fn api_server_restarts() -> Result<()> {
    const NAME: &str = "quota-api";
    const FREE: &str = "quota-api-free";
    shared::in_namespace(NAME, |installed, kube| {
        shared::in_namespace_of(installed, FREE, |_, free| {
            set_quota(kube, &json!({"hard": {"memory": "0"}}))?;
            installed.cluster.restart("kube-apiserver", true)?;
            // For the first half minute after the start, a policy with a kind of ours used to refuse every pod.
            let (mut created, mut first, mut number) = (0, None, 0);
            let (begun, mut last) = (Instant::now(), String::new());
            while first.is_none_or(|first: Instant| first.elapsed() < Duration::from_secs(8)) || created < 5 {
                ensure!(
                    begun.elapsed() < TAKEOVER,
                    "only {created} pods were created; the last answer: {last}"
                );
                number += 1;
                for (kube, wants_gate) in [(kube, true), (free, false)] {
                    // Its claim is never created, so it does not start.
                    let text = pod(&format!("p{number:03}"), "client", &HOLD, "none");
                    // Without validation, which would fetch the description of the whole API; that takes long after a
                    // start.
                    let create = ["create", "--validate=false", "-o", "json", "-f", "-"];
                    let said = kube.try_run_with_input(&create, &text)?;
                    ensure!(
                        !said.stderr.contains("denied request") && !said.stderr.contains("forbidden: policy"),
                        "a pod was refused: {}",
                        said.stderr
                    );
                    if !said.status.success() {
                        last = said.stderr;
                        std::thread::sleep(Duration::from_millis(50));
                        continue;
                    }
                    first.get_or_insert_with(Instant::now);
                    created += 1;
                    let pod: Value = serde_json::from_str(&said.stdout).context("kubectl create gave no JSON")?;
                    ensure!(
                        has_gate(&pod) == wants_gate,
                        "pod {number} of {} after the restart: {}",
                        pod["metadata"]["namespace"],
                        pod["spec"]["schedulingGates"]
                    );
                }
            }
            println!("{created} pods were created of {number} pairs tried while the API server started");
            wait(TAKEOVER, "every pod with a quota to be gated, and no other", || {
                for namespace in [NAME, FREE] {
                    let pods = kube.get(&["pods", "-n", namespace])?;
                    let pods = pods["items"].as_array().cloned().unwrap_or_default();
                    let gated = pods.iter().filter(|pod| has_gate(pod)).count();
                    let wanted = if namespace == NAME { pods.len() } else { 0 };
                    if gated != wanted {
                        return Err(anyhow!("{gated} of {} pods of {namespace} are gated", pods.len()));
                    }
                }
                Ok(Some(()))
            })
        })
    })
}
