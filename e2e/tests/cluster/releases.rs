//! Other releases of the plugin: one with another library, and some that never get ready.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::image::{self, Contents};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, shell};

use crate::shared::{self, LIMIT};

const PROGRAM: &str = "usr/bin/vgpu-kubelet-plugin";

/// A release of the plugin as an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// It works, and its library has another digest.
    Next,
    /// Its program ends at once.
    Exits,
    /// Its program does nothing.
    Hangs,
    /// Built without libvgpu.so: it runs, but cannot prepare anything.
    Incomplete,
}

impl Release {
    pub(crate) fn repository(self) -> String {
        format!("dra-driver-vgpu/kubelet-plugin-{self:?}").to_lowercase()
    }

    /// Builds the image, and imports it on every node.
    pub(crate) fn import(self, cluster: &Cluster) -> Result<()> {
        let work = tempfile::tempdir().context("cannot make a folder")?;
        let below = if self == Self::Hangs { "pause" } else { "kubelet-plugin" };
        let top = match self {
            Self::Next => {
                let from = shared::prepared().dist.join("libvgpu.so");
                let mut library = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
                // After all sections, where the loader reads nothing.
                library.extend(b"the next release");
                let to = work.path().join("libvgpu.so");
                fs::write(&to, library).with_context(|| format!("cannot write {}", to.display()))?;
                Contents::default().file(to, "opt/vgpu/libvgpu.so", 0o755)
            }
            // Without a container's state on its standard input, the hook ends with an error.
            Self::Exits => Contents::default().link("/opt/vgpu/vgpu-cdi-hook", PROGRAM),
            Self::Hangs => Contents::default().link("/pause", PROGRAM),
            Self::Incomplete => Contents::default().link("/nowhere", "opt/vgpu/libvgpu.so"),
        };
        let name = format!("docker.io/{}:dev", self.repository());
        let below = shared::prepared().archive_of(below)?;
        cluster.import(&image::on_top(below, &name, top, work.path())?)
    }

    /// `helm upgrade` to it, with these options.
    fn upgrade_command(self, project: &Kube<'_>, options: &[&str]) -> Result<Command> {
        let chart = install::chart();
        let chart = chart.to_str().context("the clone's path is not UTF-8")?;
        let value = format!("images.plugin={}", self.repository());
        let upgrade = ["upgrade", install::NAME, chart, "--reuse-values", "--set", &value];
        project.helm_command(&[&upgrade, options].concat())
    }

    /// Runs `helm upgrade` to it without waiting.
    pub(crate) fn upgrade(self, cluster: &Cluster) -> Result<()> {
        shell::run(&mut self.upgrade_command(&Kube::new(cluster, install::NAME), &[])?)
    }

    /// Upgrades to it and kills helm while it waits. Helm then considers the upgrade still in progress.
    pub(crate) fn upgrade_cut_off(self, cluster: &Cluster) -> Result<()> {
        let project = Kube::new(cluster, install::NAME);
        // Nobody has this image, so helm never stops waiting.
        let options = ["--set", "images.controller=dra-driver-vgpu/none", "--wait"];
        let mut command = self.upgrade_command(&project, &options)?;
        let mut helm = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run helm")?;
        let name = format!("{}-plugin", install::NAME);
        let written = wait(LIMIT, "helm to write the DaemonSet", || {
            let image = &project.get(&["daemonset", &name])?["spec"]["template"]["spec"]["containers"][0]["image"];
            let is_written = image.as_str().is_some_and(|image| image.contains(&self.repository()));
            Ok(is_written.then_some(()))
        });
        let killed = helm.kill().and_then(|()| helm.wait()).context("cannot kill helm");
        written?;
        ensure!(!killed?.success(), "helm did not wait");
        let again = shell::capture(&mut self.upgrade_command(&project, &[])?)?;
        ensure!(
            again.stderr.contains("another operation"),
            "after a killed upgrade: {}",
            again.stderr
        );
        Ok(())
    }
}

/// Runs `helm rollback` to the previous release without waiting.
pub(crate) fn roll_back(cluster: &Cluster) -> Result<()> {
    let project = Kube::new(cluster, install::NAME);
    project.helm(&["rollback", install::NAME]).map(drop)
}

/// Helm's number of the current release.
pub(crate) fn revision(cluster: &Cluster) -> Result<String> {
    let status = Kube::new(cluster, install::NAME).helm(&["status", install::NAME, "-o", "json"])?;
    let status: Value = serde_json::from_str(&status).context("helm gave no JSON")?;
    Ok(status["version"].to_string())
}

/// Runs `helm rollback` to this release without waiting.
pub(crate) fn roll_back_to(cluster: &Cluster, revision: &str) -> Result<()> {
    let project = Kube::new(cluster, install::NAME);
    project.helm(&["rollback", install::NAME, revision]).map(drop)
}
