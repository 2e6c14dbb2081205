//! Programs that people run beside this driver, as pods of a test's cluster: built from their Go modules, installed by the
//! charts of these modules.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use vgpu_e2e::image::{self, Contents};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::patience;
use vgpu_e2e::toolchain::Beside;

use crate::shared::{self, Installed, LIMIT};

/// Returns true, and reports the test as skipped, if this program was not built.
pub(crate) fn skips(test: &str, name: &str) -> bool {
    let is_missing = !shared::prepared().beside.contains_key(name);
    if is_missing {
        let why = format!("it builds {name} and takes minutes: VGPU_FULL_SIZE=1 runs it");
        vgpu_skip::skip(test, &why);
    }
    is_missing
}

/// A program that was built, by its name.
pub(crate) fn program(name: &str) -> Result<&'static Beside> {
    let found = shared::prepared().beside.get(name);
    found.with_context(|| format!("{name} was not built for this run"))
}

/// The repository of a program's image; its tag is [`TAG`].
pub(crate) fn repository(name: &str) -> String {
    format!("docker.io/dra-driver-vgpu/{name}")
}

pub(crate) const TAG: &str = "tested";

/// Imports an image with the program at `to`. Its entrypoint is `/pause`, that of the image below.
pub(crate) fn import(installed: &Installed, name: &str, to: &str) -> Result<()> {
    let work = tempfile::tempdir().context("cannot make a folder")?;
    let top = Contents::default().file(&program(name)?.program, to, 0o755);
    let below = shared::prepared().archive_of("pause")?;
    let archive = image::on_top(below, &format!("{}:{TAG}", repository(name)), top, work.path())?;
    installed.cluster.import(&archive)
}

/// Installs a chart into the namespace of `system`, and waits until its pods are ready. If that fails, both are removed.
pub(crate) fn install(
    system: &Kube<'_>,
    release: &str,
    chart: &Path,
    values: Option<&Path>,
    set: &[String],
) -> Result<()> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
    let (chart, set, limit) = (text(chart)?, set.join(","), patience::timeout(LIMIT * 2));
    let mut words = vec!["install", release, &chart, "--create-namespace", "--wait", &limit];
    let values = values.map(text).transpose()?;
    if let Some(values) = &values {
        words.extend(["--values", values]);
    }
    if !set.is_empty() {
        words.extend(["--set", &set]);
    }
    match system.helm(&words) {
        Ok(_) => Ok(()),
        Err(error) => {
            let why = system.run(&["describe", "pods"]).unwrap_or_default();
            let removed = after(uninstall(system, release), delete_namespace(system));
            after(Err(error.context(why)), removed)
        }
    }
}

/// Takes a release off, if it is there.
pub(crate) fn uninstall(system: &Kube<'_>, release: &str) -> Result<()> {
    let limit = patience::timeout(LIMIT * 2);
    system
        .helm(&["uninstall", release, "--ignore-not-found", "--wait", &limit])
        .map(drop)
}

/// Deletes a namespace, and waits until it is gone.
pub(crate) fn delete_namespace(system: &Kube<'_>) -> Result<()> {
    let limit = patience::timeout(LIMIT * 2);
    let words = ["delete", "namespace", system.namespace(), "--ignore-not-found", &limit];
    system.run(&words).map(drop)
}

pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}
