//! The values files of deploy/platforms, and what the pages of docs/platforms tell users to apply: does the API server accept them?
//!
//! Nothing is created (`--dry-run=server`), so no platform is tried here. The API server checks what helm cannot: unknown fields,
//! names, paths, the pod's volumes and mounts, the CEL of policies. The release has another name than the installed one, so that
//! most objects are new.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::{install, layout, node, workload};

use crate::explain::has_rules;
use crate::shared::{self, LIMIT, OTHER_STORE, Test, hold};

pub(crate) const TESTS: &[Test] = &[
    ("an_api_server_accepts_the_values_of_every_platform", accepted),
    ("a_node_may_have_the_library_in_another_folder", other_store),
];

/// As on Container-Optimized OS, whose `/var` is mounted noexec.
fn other_store() -> Result<()> {
    shared::in_namespace_of(shared::translating()?, "other-store", |installed, kube| {
        hold(kube, "one", "1Gi")?;
        let share = workload::shares(kube)?.pop().context("the pod has no claim")?;
        let (file, spec) = node::cdi_spec(&installed.cluster, &share.claim_uid)?;
        for named in [
            format!("{OTHER_STORE}/"),
            "libvgpu.so".to_owned(),
            "vgpu-cdi-hook".to_owned(),
        ] {
            ensure!(spec.contains(&named), "{file} does not name {named}: {spec}");
        }
        ensure!(
            !spec.contains("/var/lib/vgpu/"),
            "{file} names the default folder: {spec}"
        );
        // The limit holds: the library was loaded from there.
        let too_much = kube.try_run(&["exec", "one", "--", "vgpu-client", "alloc", "2147483648"])?;
        ensure!(
            !too_much.status.success(),
            "a share of 1Gi allocates 2 GiB: {}",
            too_much.stdout
        );
        kube.exec("one", &["vgpu-client", "alloc", "2097152"]).map(drop)
    })
}

const NAMESPACE: &str = "platforms";

/// A cluster without the Prometheus operator does not have this kind.
const POD_MONITOR: &str = "podmonitors.monitoring.coreos.com";

fn accepted() -> Result<()> {
    shared::in_namespace_of(shared::translating()?, NAMESPACE, |_, kube| {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let files = files("deploy/platforms", "yaml")?;
        for file in &files {
            let name = file.file_stem().context("no name")?.to_string_lossy().into_owned();
            let values = ["--values", file.to_str().context("the clone's path is not UTF-8")?];
            all.insert(name, rendered(kube, &values)?);
        }
        all.insert("every part of the chart".to_owned(), rendered(kube, &EVERY_PART)?);
        let pages = documented(kube)?;
        ensure!(!pages.is_empty(), "no page of docs/platforms has an object to apply");
        all.extend(pages);
        // The pod of `helm test` is refused before its account exists, and a dry run makes none.
        kube.run(&["create", "serviceaccount", "platform-test"])?;
        with_pod_monitors(kube, || refusals(kube, &all))
    })
}

/// Values that render every template of the chart, and some that a platform's file may combine.
const EVERY_PART: [&str; 8] = [
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
    "--set=allocator=controller,quota.enabled=true,softGpu.gpus=2,admission.derivedClasses={team}",
    "--set=podMonitor.enabled=true,podMonitor.labels.release=prometheus,networkPolicy.monitorNamespace=monitoring",
    "--set=readers.subjects[0].kind=Group,readers.subjects[0].name=system:authenticated",
    "--set=deviceClasses.gpu.extendedResourceName=nvidia.com/gpu,images.pullSecrets[0].name=registry",
    "--set=translate.highPriorityClass=vgpu-high,plugin.podAnnotations.team=gpu",
    "--set",
    install::TRANSLATES[0],
];

/// The objects of the chart with these arguments for `helm template`.
fn rendered(kube: &Kube<'_>, arguments: &[&str]) -> Result<Vec<Value>> {
    let chart = install::chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    let template = [
        "template",
        "platform",
        chart,
        "--set=images.registry=registry.example.com",
    ];
    // helm template assumes some version of Kubernetes, which may be an old one.
    let version = format!("--kube-version={}", shared::prepared().toolchain.kubernetes);
    let text = kube.helm(&[&template[..], &[&version], arguments].concat())?;
    objects(&text).with_context(|| format!("helm template {arguments:?}"))
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let documents = serde_saphyr::from_multiple::<Value>(text).context("no YAML")?;
    Ok(documents.into_iter().filter(|object| !object.is_null()).collect())
}

/// The objects that pages of docs/platforms, and docs/health.md, tell users to apply, by page.
fn documented(kube: &Kube<'_>) -> Result<BTreeMap<String, Vec<Value>>> {
    let mut found = BTreeMap::new();
    let mut pages = files("docs/platforms", "md")?;
    // Its DeviceTaintRule needs Kubernetes 1.37.
    if has_rules(kube)? {
        pages.push(layout::workspace().join("docs/health.md"));
    }
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let blocks = text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|part| part.split("```").next());
        for block in blocks.filter(|block| block.contains("apiVersion:")) {
            // kubectl refuses other namespaces than that of its flag.
            let here = format!("namespace: {NAMESPACE}");
            let block = block.replace(&format!("namespace: {}", install::NAME), &here);
            let of = objects(&block).with_context(|| page.display().to_string())?;
            // Configuration files of kubeadm and the kubelet are no API objects.
            let is_file = |object: &Value| {
                object["kind"]
                    .as_str()
                    .is_some_and(|kind| kind.ends_with("Configuration"))
            };
            for object in of.into_iter().filter(|object| !is_file(object)) {
                found
                    .entry(page.display().to_string())
                    .or_insert_with(Vec::new)
                    .push(object);
            }
        }
    }
    Ok(found)
}

fn files(folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let folder = layout::workspace().join(folder);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == ending));
    files.sort();
    ensure!(!files.is_empty(), "{} has no file *.{ending}", folder.display());
    Ok(files)
}

/// An error that names each refused object and where it comes from. Most platforms share most objects, so all different objects are
/// sent at once, and those of each platform only after a refusal.
fn refusals(kube: &Kube<'_>, all: &BTreeMap<String, Vec<Value>>) -> Result<()> {
    let mut distinct: Vec<&Value> = Vec::new();
    for object in all.values().flatten() {
        if !distinct.contains(&object) {
            distinct.push(object);
        }
    }
    let said = dry_run(kube, &distinct)?;
    if said.is_none() {
        return Ok(());
    }
    let mut refused = Vec::new();
    for (of, objects) in all {
        if let Some(said) = dry_run(kube, &objects.iter().collect::<Vec<_>>())? {
            refused.push(format!("{of}: {said}"));
        }
    }
    ensure!(!refused.is_empty(), "together: {}", said.unwrap_or_default());
    Err(anyhow::anyhow!(refused.join("\n")))
}

/// Returns the API server's refusals of these objects; None if it accepts all.
fn dry_run(kube: &Kube<'_>, objects: &[&Value]) -> Result<Option<String>> {
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        "-",
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let said = kube.try_run_with_input(&apply, &list.to_string())?;
    let applied = said.stdout.matches("serverside-applied (server dry run)").count();
    if said.status.success() && applied == objects.len() && said.stderr.trim().is_empty() {
        return Ok(None);
    }
    let of = objects.len();
    Ok(Some(format!(
        "{applied} of {of} objects accepted; {}",
        said.stderr.trim()
    )))
}

/// Runs the test with a kind PodMonitor that has only the fields that the chart writes. The Prometheus operator's own definition is
/// not tried.
fn with_pod_monitors(kube: &Kube<'_>, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let of = |properties: Value| json!({"type": "object", "properties": properties});
    let labels = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let endpoint = of(json!({
        "port": {"type": "string"}, "interval": {"type": "string"}, "honorLabels": {"type": "boolean"}}));
    let spec = of(json!({
        "selector": of(json!({"matchLabels": labels})),
        "podMetricsEndpoints": {"type": "array", "items": endpoint},
    }));
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": of(json!({"spec": spec}))}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": POD_MONITOR},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
            "versions": [version],
        },
    });
    kube.apply_as_user(&definition.to_string())?;
    let limit = vgpu_e2e::patience::timeout(LIMIT);
    let tested = kube
        .run(&["wait", "--for=condition=Established", "crd", POD_MONITOR, &limit])
        .and_then(|_| test());
    let removed = kube.run(&["delete", "crd", POD_MONITOR]).map(drop);
    after(tested, removed)
}
