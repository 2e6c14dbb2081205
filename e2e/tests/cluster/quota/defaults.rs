//! Quotas created from a VgpuQuotaDefault.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;

use super::namespace::{quota, refused, set_quota, wait_label};
use crate::shared::{self, LIMIT};

fn default(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuotaDefault", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// A default for namespaces with this label.
fn shares(selected: &str, number: u64) -> Value {
    json!({"namespaceSelector": {"matchLabels": {"quota-test": selected}}, "quota": {"hard": {"shares": number}}})
}

fn wait_shares(kube: &Kube<'_>, wanted: u64) -> Result<Value> {
    wait(LIMIT, &format!("a quota of {wanted} shares"), || {
        let quota = kube.get(&["vgpuquota", "vgpu"])?;
        let is_so = quota["spec"]["hard"]["shares"] == wanted;
        is_so.then_some(Some(quota.clone())).with_context(|| quota.to_string())
    })
}

pub(super) fn stamped() -> Result<()> {
    shared::in_namespace("quota-default", |installed, kube| {
        let any_field = ["create", "--validate=false", "-f", "-"];
        let bad = default(
            "bad",
            &json!({"namespaceSelector": {}, "quota": {"hard": {"memory": "80GB"}}}),
        );
        refused(
            kube,
            &any_field,
            &bad,
            "spec.quota.hard.memory: \"80GB\" is not a quantity; did you mean 80Gi?",
        )?;
        let bad = default("bad", &json!({"quota": {}}));
        refused(
            kube,
            &any_field,
            &bad,
            "spec.namespaceSelector: missing; write matchLabels",
        )?;
        shared::in_namespace_of(installed, "quota-own", |_, own| {
            let outcome = with_defaults(kube, own);
            let names = ["test-a", "test-b"];
            let removed = [&["delete", "vgpuquotadefault", "--ignore-not-found"][..], &names].concat();
            after(outcome, kube.run(&removed).map(drop))
        })
    })
}

fn with_defaults(kube: &Kube<'_>, own: &Kube<'_>) -> Result<()> {
    // An administrator's own quota, and a namespace without one; both existed before the default.
    set_quota(own, &json!({"hard": {"shares": 7}}))?;
    for namespace in ["quota-default", "quota-own"] {
        kube.run(&["label", "namespace", namespace, "quota-test=yes"])?;
    }
    kube.apply(&default("test-b", &shares("yes", 2)))?;
    let quota_of_default = wait_shares(kube, 2)?;
    let made_by = &quota_of_default["metadata"]["labels"]["dra.vgpu/default"];
    ensure!(made_by == "test-b", "{quota_of_default}");
    wait_label(kube, "quota-default", Some("InBudget"))?;
    let table = kube.run(&["get", "vgpuquotas", "-o", "wide"])?;
    ensure!(table.contains("DEFAULT") && table.contains("test-b"), "{table}");
    // Changing the default changes the quota.
    kube.apply(&default("test-b", &shares("yes", 3)))?;
    wait_shares(kube, 3)?;
    // Of two defaults, the first by name applies, and the other gets an event.
    kube.apply(&default("test-a", &shares("yes", 4)))?;
    wait_shares(kube, 4)?;
    let in_default = ["get", "events", "-n", "default", "-o", "jsonpath={.items[*].message}"];
    wait(LIMIT, "an event on the other default", || {
        let said = kube.run(&in_default)?;
        let words = "matches VgpuQuotaDefault test-a too, which is the first by name";
        said.contains(words).then_some(Some(())).context(said)
    })?;
    // If an administrator changes the quota, it becomes theirs.
    kube.apply(&quota(&json!({"hard": {"shares": 5}})))?;
    kube.apply(&default("test-a", &shares("yes", 6)))?;
    kube.run(&["label", "namespace", "default", "quota-test=yes"])?;
    // The default is still effective: another namespace gets its quota now.
    let elsewhere = wait(LIMIT, "a quota in another namespace", || {
        let said = kube.run(&[
            "get",
            "vgpuquota",
            "vgpu",
            "-n",
            "default",
            "-o",
            "jsonpath={.spec.hard.shares}",
        ])?;
        (said == "6").then_some(Some(())).context(said)
    });
    let unlabelled = kube.run(&["label", "namespace", "default", "quota-test-"]).map(drop);
    let gone = kube.run(&["delete", "vgpuquotadefault", "test-a", "test-b"]).map(drop);
    // It stays after its defaults were deleted, until it is deleted itself.
    let stays = || {
        wait_shares(kube, 5)?;
        wait_shares(own, 7)?;
        let left = kube.run(&["get", "vgpuquota", "vgpu", "-n", "default", "-o", "name"])?;
        ensure!(left.contains("vgpu"), "the quota was deleted with its default");
        Ok(())
    };
    let outcome = after(elsewhere, after(unlabelled, gone)).and_then(|()| stays());
    let deleted = kube
        .run(&["delete", "vgpuquota", "vgpu", "-n", "default", "--ignore-not-found"])
        .map(drop);
    after(outcome, deleted)?;
    wait_label(kube, "default", None)
}
