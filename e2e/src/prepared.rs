//! Tools, images and artefacts, built as the caller before a cluster runs as root.
//!
//! Root's part finds them through a file that the variable `VGPU_E2E_PREPARED` names. So nothing is built as root, and
//! root owns no file in the clone or the cache.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::cluster::{Config, Gpu};
use crate::image::{self, Built};
use crate::toolchain::{Beside, Toolchain};
use crate::{layout, patience, progress};

/// Names a file that lists artefacts built on another machine, for a machine without Go and network.
pub const BUILT: &str = "VGPU_E2E_BUILT";
/// Names the file with the artefacts for root's half.
pub const VARIABLE: &str = "VGPU_E2E_PREPARED";
/// Variables that sudo removes and the second half needs.
const PASSED_ON: [&str; 17] = [
    "HOME",
    "PATH",
    "XDG_CACHE_HOME",
    "CARGO_TARGET_DIR",
    "VGPU_DIST",
    "VGPU_E2E_PART",
    "VGPU_SKIP_LOG",
    "VGPU_FULL_SIZE",
    "VGPU_STORM_PODS",
    "VGPU_STORM_SECONDS",
    "KUBERNETES_VERSION",
    "CONTAINERD_VERSION",
    FEATURE_GATES,
    patience::VARIABLE,
    "CLUSTER",
    "KEEP",
    progress::VARIABLE,
];

/// Feature gates of Kubernetes to switch on, by name, with commas between.
const FEATURE_GATES: &str = "VGPU_FEATURE_GATES";

/// Everything that is needed for a cluster with this project.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepared {
    program: PathBuf,
    pub dist: PathBuf,
    pub toolchain: Toolchain,
    pub gpu: Gpu,
    pause: PathBuf,
    pub images: Built,
    /// The programs that [`Prepared::build_beside`] built, by name.
    #[serde(default)]
    pub beside: BTreeMap<String, Beside>,
    owner: Option<(u32, u32)>,
    /// The factor by which the waits of this run are stretched.
    time_factor: f64,
    /// The steps and the time of the first half.
    pub so_far: (u32, Duration),
}

impl Prepared {
    /// Builds everything. `program` is vgpu-e2e's path.
    pub fn make(program: PathBuf, say: &mut dyn FnMut(&str)) -> Result<Self> {
        let time_factor = patience::start()?;
        let dist = layout::dist()?;
        let (toolchain, pause, images) = match env::var_os(BUILT) {
            Some(file) => Self::read(Path::new(&file)).map(|built| (built.toolchain, built.pause, built.images))?,
            None => (Toolchain::build(say)?, image::pause()?, image::all(&dist, say)?),
        };
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let owner = (!user.is_root()).then(|| (user.as_raw(), group.as_raw()));
        let gpu = Gpu::of_this_machine(&dist)?;
        Ok(Self {
            program,
            dist,
            toolchain,
            gpu,
            pause,
            images,
            beside: BTreeMap::new(),
            owner,
            time_factor,
            so_far: (0, Duration::ZERO),
        })
    }

    /// Builds programs that people run beside this driver.
    pub fn build_beside(&mut self, names: &[&str], say: &mut dyn FnMut(&str)) -> Result<()> {
        for name in names {
            self.beside.insert((*name).to_owned(), Beside::build(name, say)?);
        }
        Ok(())
    }

    /// Used in root's half of a run: reads the artefacts that the caller's half built.
    pub fn inherited() -> Result<Option<Self>> {
        let Some(file) = env::var_os(VARIABLE).map(PathBuf::from) else {
            return Ok(None);
        };
        let prepared = Self::read(&file);
        let _ = fs::remove_file(&file);
        let prepared = prepared?;
        patience::inherit(prepared.time_factor);
        Ok(Some(prepared))
    }

    fn read(file: &Path) -> Result<Self> {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))
    }

    /// The same for another machine.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).context("cannot encode the prepared artefacts")
    }

    /// The program that clusters run.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Every image's archive.
    pub fn archives(&self) -> impl Iterator<Item = &Path> {
        let all = std::iter::once(&self.pause).chain(&self.images.archives);
        all.map(PathBuf::as_path)
    }

    /// The archive of one image.
    pub fn archive_of(&self, image: &str) -> Result<&Path> {
        let named = |path: &&Path| path.file_stem().is_some_and(|stem| stem == image);
        self.archives()
            .find(named)
            .with_context(|| format!("no image {image} was prepared"))
    }

    /// Continues as root: at once if this is root, else by running this program again through sudo.
    pub fn as_root(self) -> Result<Self> {
        if is_root() {
            return Ok(self);
        }
        let file = self.save()?;
        let own = env::current_exe().context("this program has no path")?;
        Err(sudo(&own, &[(VARIABLE, &file)]))
    }

    /// Writes this to a file for another process, which removes the file after reading it.
    pub fn save(&self) -> Result<PathBuf> {
        let file = layout::output().join(format!("prepared-{}.json", std::process::id()));
        fs::write(&file, self.to_json()?).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// The configuration of a cluster with that name.
    #[must_use]
    pub fn config(&self, name: &str) -> Config {
        Config {
            name: name.to_owned(),
            program: self.program.clone(),
            toolchain: self.toolchain.clone(),
            gpu: self.gpu.clone(),
            pause: self.pause.clone(),
            owner: self.owner,
            nodes: 1,
            cdi: true,
            lists_processes: true,
            limits_cgroups: false,
            feature_gates: feature_gates(&env::var(FEATURE_GATES).unwrap_or_default()),
        }
    }
}

fn feature_gates(names: &str) -> Vec<String> {
    let names = names.split(',').map(|name| name.trim().trim_end_matches("=true"));
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs this program again as root, with the same arguments. Returns only when that fails.
pub fn rerun_as_root() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    ensure!(env::var_os(VARIABLE).is_none(), "sudo did not make this program root");
    Err(sudo(&env::current_exe().context("this program has no path")?, &[]))
}

fn sudo(program: &Path, more: &[(&str, &Path)]) -> anyhow::Error {
    let mut command = Command::new("sudo");
    command.arg("env");
    for name in PASSED_ON {
        if let Ok(value) = env::var(name) {
            command.arg(format!("{name}={value}"));
        }
    }
    for (name, value) in more {
        command.arg(format!("{name}={}", value.display()));
    }
    command.arg(program).args(env::args_os().skip(1));
    anyhow!(
        "the cluster needs root, and sudo cannot be run: {}; run as root",
        command.exec()
    )
}
