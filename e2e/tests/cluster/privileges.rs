//! What a stolen token of the plugin may do at the API server: slices and claims of its own node, and no more.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[("a_plugins_token_writes_what_is_its_own_alone", token)];

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

/// What kubectl says with a token, and with nothing else: an administrator's certificate would win over it.
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
        let own = Node::FIRST.name();
        let pool = format!("{own}/vgpu");
        let create = ["create", "--dry-run=server", "-f", "-"];
        let who = say(kube, &token, &["auth", "whoami"], &Value::Null)?;
        ensure!(who.1.contains(ACCOUNT), "not the plugin's token: {}", who.1);
        let (accepted, said) = say(kube, &token, &create, &slice("a", Some(&own), &pool, "dra.vgpu"))?;
        ensure!(accepted, "its own slice: {said}");
        for (token, slice, words) in [
            (
                &token,
                slice("a", Some("node2"), "node2/vgpu", "dra.vgpu"),
                "spec.nodeName",
            ),
            (&token, slice("a", None, &pool, "dra.vgpu"), "spec.nodeName"),
            (
                &token,
                slice("a", Some(&own), "node2/vgpu", "dra.vgpu"),
                "spec.pool.name",
            ),
            (&token, slice("a", Some(&own), &pool, "nic.example"), "spec.driver"),
            (&unbound, slice("a", Some(&own), &pool, "dra.vgpu"), "names no node"),
        ] {
            let (accepted, said) = say(kube, token, &create, &slice)?;
            ensure!(!accepted && said.contains(words), "{slice}: {said}");
        }
        // Another node's slice, made by the administrator, of another pool.
        kube.apply(&slice("privileges-other", Some("node2"), "node2/vgpu", "dra.vgpu").to_string())?;
        let deleted = say(
            kube,
            &token,
            &["delete", "resourceslice", "privileges-other"],
            &Value::Null,
        );
        let taken = [
            "patch",
            "resourceslice",
            "privileges-other",
            "--type=merge",
            "-p",
            r#"{"metadata":{"labels":{"a":"b"}}}"#,
        ];
        let taken = say(kube, &token, &taken, &Value::Null);
        let mut replaced = kube.get(&["resourceslice", "privileges-other"])?;
        replaced["metadata"]["labels"] = json!({"a": "b"});
        let replaced = say(kube, &token, &["replace", "-f", "-"], &replaced);
        kube.run(&["delete", "resourceslice", "privileges-other"])?;
        for (accepted, said) in [deleted?, taken?, replaced?] {
            ensure!(
                !accepted && (said.contains("spec.nodeName") || said.contains("forbidden")),
                "{said}"
            );
        }

        let small = template("t", "vgpu", json!({"memory": "1Gi"}), &[]);
        kube.apply(&format!("{small}{}", pod("p", "client", &HOLD, "t")))?;
        let claim = wait(LIMIT, "an allocated claim with our status", || {
            let found = kube.get(&["resourceclaims"])?["items"][0].clone();
            Ok(found["status"]["devices"][0].is_object().then_some(found))
        })?;
        let name = claim["metadata"]["name"].as_str().context("a name")?.to_owned();
        let ours = claim["status"]["devices"][0].clone();
        let foreign = json!({"driver": "nic.example", "pool": "p", "device": "d"});
        for (what, patch) in [
            ("its allocation", json!({"status": {"allocation": null}})),
            ("its users", json!({"status": {"reservedFor": []}})),
            (
                "another driver's device",
                json!({"status": {"devices": [ours, foreign]}}),
            ),
        ] {
            let patch = patch.to_string();
            let arguments = [
                "patch",
                "resourceclaim",
                &name,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ];
            let (accepted, said) = say(kube, &token, &arguments, &Value::Null)?;
            ensure!(!accepted, "{what}: {said}");
        }
        for arguments in [
            &["get", "secrets", "-A"][..],
            &["get", "resourceclaims", "-A"],
            &["delete", "pod", "p"],
            &["get", "pod", "p"],
        ] {
            let (accepted, said) = say(kube, &token, arguments, &Value::Null)?;
            ensure!(
                !accepted && said.to_lowercase().contains("forbidden"),
                "{arguments:?}: {said}"
            );
        }
        Ok(())
    })
}
