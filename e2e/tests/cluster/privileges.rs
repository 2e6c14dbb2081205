//! The rights of a stolen plugin token at the API server: slices and claims of its own node, and nothing else. Also the
//! rights of a user of one namespace: to read classes, slices, quota defaults and the quota of that namespace.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_plugins_token_writes_what_is_its_own_alone", token),
    ("a_user_of_one_namespace_reads_what_is_offered_and_its_quota", user),
];

const ACCOUNT: &str = "dra-driver-vgpu-plugin";

/// A slice without GPUs.
fn slice(name: &str, node: Option<&str>, pool: &str, driver: &str) -> Value {
    let mut slice = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "devices": []},
    });
    match node {
        Some(node) => slice["spec"]["nodeName"] = json!(node),
        None => slice["spec"]["allNodes"] = json!(true),
    }
    slice
}

/// kubectl's output with only a token: an administrator's certificate would take precedence.
fn say(kube: &Kube<'_>, token: &str, arguments: &[&str], input: &Value) -> Result<(bool, String)> {
    let text = kube.run(&["config", "view", "--raw", "--minify", "-o", "json"])?;
    let mut config: Value = serde_json::from_str(&text).context("kubectl gave no JSON")?;
    config["users"][0]["user"] = json!({"token": token});
    let file = std::env::temp_dir().join(format!("vgpu-e2e-token-{}", std::process::id()));
    std::fs::write(&file, config.to_string()).context("cannot write a kubeconfig")?;
    let option = format!("--kubeconfig={}", file.display());
    let said = kube.try_run_with_input(&[&[option.as_str()], arguments].concat(), &input.to_string());
    let _ = std::fs::remove_file(&file);
    let said = said?;
    Ok((said.status.success(), format!("{}{}", said.stdout, said.stderr)))
}

/// Checks that the API server refuses the command with a message that contains one of these words.
fn refused(kube: &Kube<'_>, token: &str, arguments: &[&str], input: &Value, words: &[&str]) -> Result<()> {
    let (accepted, said) = say(kube, token, arguments, input)?;
    ensure!(
        !accepted
            && words
                .iter()
                .any(|word| said.to_lowercase().contains(&word.to_lowercase())),
        "{arguments:?} {input}: {said}"
    );
    Ok(())
}

/// `edit` in one namespace includes `view`, to which the chart's roles are added by aggregation.
fn user() -> Result<()> {
    shared::in_namespace("one-namespace", |_, kube| {
        kube.run(&["create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann"])?;
        let reader = format!("--clusterrole={}-reader", install::NAME);
        let binding = ["clusterrolebinding", "vgpu-e2e-ann"];
        kube.run(&[&["create"], &binding[..], &[&reader, "--user=ann"]].concat())?;
        let may = |verb: &str, resource: &str, namespace: &str| -> Result<bool> {
            let asked = ["auth", "can-i", verb, resource, "--as=ann", "-n", namespace];
            Ok(kube.try_run(&asked)?.status.success())
        };
        let seen = wait(LIMIT, "the roles to be aggregated", || {
            Ok(may("list", "vgpuquotas.dra.vgpu", "one-namespace")?.then_some(()))
        })
        .and_then(|()| {
            for (verb, resource, namespace, is_allowed) in [
                ("get", "vgpuquotas.dra.vgpu", "one-namespace", true),
                ("get", "vgpuquotas.dra.vgpu", "default", false),
                ("update", "vgpuquotas.dra.vgpu", "one-namespace", false),
                ("list", "deviceclasses.resource.k8s.io", "", true),
                ("list", "resourceslices.resource.k8s.io", "", true),
                ("list", "vgpuquotadefaults.dra.vgpu", "", true),
                ("update", "deviceclasses.resource.k8s.io", "", false),
            ] {
                let may = may(verb, resource, namespace)?;
                ensure!(may == is_allowed, "{verb} {resource} in {namespace:?}: {may}");
            }
            Ok(())
        });
        let removed = kube.run(&[&["delete"], &binding[..]].concat()).map(drop);
        after(seen, removed)
    })
}

fn token() -> Result<()> {
    shared::in_namespace("privileges", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let plugin = shared::plugin_pod(&installed.cluster)?;
        let bound = ["--bound-object-kind=Pod", &format!("--bound-object-name={plugin}")];
        let token = project
            .run(&[&["create", "token", ACCOUNT][..], &bound].concat())?
            .trim()
            .to_owned();
        let unbound = project.run(&["create", "token", ACCOUNT])?.trim().to_owned();
        let who = say(kube, &token, &["auth", "whoami"], &Value::Null)?;
        ensure!(who.1.contains(ACCOUNT), "not the plugin's token: {}", who.1);
        creates_only_objects_of_its_node(kube, &token, &unbound)?;
        changes_no_slice_of_another_node(kube, &token)?;
        changes_only_status_devices_of_claims(kube, &token)?;
        for arguments in [
            &["get", "secrets", "-A"][..],
            &["get", "resourceclaims", "-A"],
            &["delete", "pod", "p"],
            &["get", "pod", "p"],
        ] {
            refused(kube, &token, arguments, &Value::Null, &["forbidden"])?;
        }
        Ok(())
    })
}

/// `unbound` is a token that is not bound to a pod.
fn creates_only_objects_of_its_node(kube: &Kube<'_>, token: &str, unbound: &str) -> Result<()> {
    let own = Node::FIRST.name();
    let pool = format!("{own}/vgpu");
    let create = ["create", "--dry-run=server", "-f", "-"];
    for pool in [
        &pool,
        &format!("{own}/vgpu-mig"),
        &format!("{own}/vgpu-mig-3f8a1c20"),
        &format!("{own}/vgpu-monitor"),
    ] {
        let (accepted, said) = say(kube, token, &create, &slice("a", Some(&own), pool, "dra.vgpu"))?;
        ensure!(accepted, "its own slice in {pool}: {said}");
    }
    for (token, node, pool, driver, words) in [
        (token, Some("node2"), "node2/vgpu", "dra.vgpu", "spec.nodeName"),
        (token, None, &*pool, "dra.vgpu", "spec.nodeName"),
        (token, Some(&*own), "node2/vgpu", "dra.vgpu", "spec.pool.name"),
        (token, Some(&*own), "node2/vgpu-monitor", "dra.vgpu", "spec.pool.name"),
        (
            token,
            Some(&*own),
            "node2/vgpu-mig-3f8a1c20",
            "dra.vgpu",
            "spec.pool.name",
        ),
        (
            token,
            Some(&*own),
            &*format!("{own}/vgpu-mig-3f8a1c20x"),
            "dra.vgpu",
            "spec.pool.name",
        ),
        (token, Some(&*own), &*pool, "nic.example", "spec.driver"),
        (unbound, Some(&*own), &*pool, "dra.vgpu", "names no node"),
    ] {
        refused(kube, token, &create, &slice("a", node, pool, driver), &[words])?;
    }
    let other =
        json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuNode", "metadata": {"name": "node2"}, "spec": {}});
    refused(kube, token, &create, &other, &["metadata.name", "node2 is not"])
}

/// The administrator creates the slice of another node, in another pool.
fn changes_no_slice_of_another_node(kube: &Kube<'_>, token: &str) -> Result<()> {
    const OTHER: &str = "privileges-other";
    kube.apply(&slice(OTHER, Some("node2"), "node2/vgpu", "dra.vgpu").to_string())?;
    let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let patch = ["patch", "resourceslice", OTHER, "--type=merge", "-p", &label];
    let mut replaced = kube.get(&["resourceslice", OTHER])?;
    replaced["metadata"]["labels"] = json!({"a": "b"});
    let results = [
        (&["delete", "resourceslice", OTHER][..], Value::Null),
        (&patch, Value::Null),
        (&["replace", "-f", "-"], replaced),
    ]
    .map(|(arguments, input)| refused(kube, token, arguments, &input, &["spec.nodeName", "forbidden"]));
    kube.run(&["delete", "resourceslice", OTHER])?;
    results.into_iter().collect()
}

fn changes_only_status_devices_of_claims(kube: &Kube<'_>, token: &str) -> Result<()> {
    let small = template("t", "vgpu", json!({"memory": "1Gi"}), &[]);
    kube.apply(&format!("{small}{}", pod("p", "client", &HOLD, "t")))?;
    let claim = wait(LIMIT, "an allocated claim with our status", || {
        let found = kube.get(&["resourceclaims"])?["items"][0].clone();
        Ok(found["status"]["devices"][0].is_object().then_some(found))
    })?;
    let name = claim["metadata"]["name"].as_str().context("a name")?;
    let ours = &claim["status"]["devices"][0];
    let foreign = json!({"driver": "nic.example", "pool": "p", "device": "d"});
    let patch = [
        "patch",
        "resourceclaim",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    for status in [
        json!({"allocation": null}),
        json!({"reservedFor": []}),
        json!({"devices": [ours, foreign]}),
    ] {
        let status = json!({"status": status}).to_string();
        let (accepted, said) = say(kube, token, &[&patch[..], &[&status]].concat(), &Value::Null)?;
        ensure!(!accepted, "{status}: {said}");
    }
    Ok(())
}
