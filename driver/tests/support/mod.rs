//! The Helm chart as helm renders it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/dra-driver-vgpu")
}

/// The helm of this project's tools, else of this machine.
pub(crate) fn helm(test: &str) -> Option<PathBuf> {
    let tools = vgpu_cache::root()
        .ok()
        .and_then(|cache| std::fs::read_dir(cache.join("tools")).ok());
    let built = tools
        .into_iter()
        .flatten()
        .flatten()
        .map(|tool| tool.path().join("helm"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("helm"));
    let helm = built.chain(found).find(|helm| helm.is_file());
    if helm.is_none() {
        vgpu_skip::skip(test, "no helm; `make demo` builds one");
    }
    helm
}

/// The kinds of the Prometheus operator, as if a cluster had it.
pub(crate) const PROMETHEUS: [&str; 2] = ["--api-versions", "monitoring.coreos.com/v1/PodMonitor"];

/// All objects of the chart except its hooks, or helm's error for these values. The registry is r.example unless they
/// set it.
pub(crate) fn render(helm: &Path, values: &[&str]) -> Result<Vec<Value>, String> {
    render_on(helm, "1.37.1", values)
}

/// Like [`render`], for this version of Kubernetes.
pub(crate) fn render_on(helm: &Path, version: &str, values: &[&str]) -> Result<Vec<Value>, String> {
    template(helm, version, &[&["--no-hooks"], &PROMETHEUS[..]].concat(), values)
}

/// All objects of the chart, with these arguments for `helm template`.
pub(crate) fn template(helm: &Path, version: &str, more: &[&str], values: &[&str]) -> Result<Vec<Value>, String> {
    template_as(helm, "x", "n", &[&["--kube-version", version], more].concat(), values)
}

/// All objects of this release in this namespace.
pub(crate) fn template_as(
    helm: &Path,
    release: &str,
    namespace: &str,
    more: &[&str],
    values: &[&str],
) -> Result<Vec<Value>, String> {
    template_of(&chart(), helm, [release, namespace], more, values)
}

/// All objects of another chart in this release and namespace.
pub(crate) fn template_of(
    chart: &Path,
    helm: &Path,
    [release, namespace]: [&str; 2],
    more: &[&str],
    values: &[&str],
) -> Result<Vec<Value>, String> {
    let mut command = Command::new(helm);
    command
        .args(["template", release, "--namespace", namespace])
        .args(more)
        .arg(chart)
        .args(["--set", "images.registry=r.example"]);
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().expect("helm runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).expect("text");
    let documents = serde_saphyr::from_multiple::<Value>(&text).expect("YAML");
    Ok(documents.into_iter().filter(|object| !object.is_null()).collect())
}
