//! Whether the driver limits cgroups on this node, and who keeps the limits: by one that is made, limited and removed again.
//!
//! How it fails: killed in between, it leaves an empty cgroup, which the next probe removes. With the driver's own
//! accounting, its limit stays in the driver too, for a cgroup without processes.

use std::{fs, io, path::PathBuf};

use crate::{
    apply::{self, Driver, NO_LIMIT},
    code::Code,
    hierarchy::{Hierarchy, Leaf},
    records::Limit,
};

/// The beginning of its cgroup's name; the rest is a PID.
const NAME: &str = "vgpu-probe-";
/// Bytes. Any GPU has more.
const LIMIT: u64 = 256 << 20;

/// Who keeps the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The kernel's controller.
    Dmem,
    /// The driver itself.
    Misc,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: cannot {action} a cgroup: {source}; the program must run as root of the node", path = .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Another error, without the PID in the cgroup's name: the same failure has the same words each time.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Hierarchy(#[from] crate::hierarchy::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
    #[error("GPU {gpu}: the limit of cgroup {cgroup} cannot be taken back: {code}; check the GPU with nvidia-smi on the node", cgroup = .cgroup.display())]
    Clear { gpu: String, cgroup: PathBuf, code: Code },
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dmem => "dmem",
            Self::Misc => "misc",
        }
    }
}

/// Sets and takes back a limit on a GPU, in a new cgroup.
pub(crate) fn probe(hierarchy: &Hierarchy, driver: &impl Driver, gpu: &str) -> Result<Way, Error> {
    remove_former(hierarchy);
    let name = format!("{NAME}{}", std::process::id());
    in_cgroup(hierarchy, driver, gpu, &name)
        .map_err(|error| Error::Failed(error.to_string().replace(&name, NAME.trim_end_matches('-'))))
}

fn in_cgroup(hierarchy: &Hierarchy, driver: &impl Driver, gpu: &str, name: &str) -> Result<Way, Error> {
    let leaf = Leaf {
        path: format!("/{name}"),
        pod: None,
    };
    let folder = hierarchy.folder(&leaf.path);
    let failed = |action| {
        let path = folder.clone();
        move |source| Error::Io { action, path, source }
    };
    fs::create_dir(&folder).map_err(failed("make"))?;
    let found = try_limit(hierarchy, driver, &leaf, gpu);
    fs::remove_dir(&folder).map_err(failed("remove"))?;
    found
}

fn try_limit(hierarchy: &Hierarchy, driver: &impl Driver, leaf: &Leaf, gpu: &str) -> Result<Way, Error> {
    hierarchy.enable_controllers(&leaf.path)?;
    let folder = hierarchy.folder(&leaf.path);
    let limit = Limit {
        cgroup: leaf.path.clone(),
        gpu: gpu.to_owned(),
        bytes: Some(LIMIT),
    };
    let applied = apply::apply(driver, &[limit], |cgroup| hierarchy.folder(cgroup));
    // The kernel's file has the limit only if the kernel keeps it.
    let in_kernel = fs::read_to_string(folder.join("dmem.max")).unwrap_or_default();
    let in_kernel = in_kernel.split_whitespace().any(|word| word == LIMIT.to_string());
    // Also after a failure: a limit that was set and not read back is still there.
    let cleared = driver.set(gpu, &folder, NO_LIMIT);
    applied?;
    cleared.map_err(|code| Error::Clear {
        gpu: gpu.to_owned(),
        cgroup: folder,
        code,
    })?;
    Ok(if in_kernel { Way::Dmem } else { Way::Misc })
}

/// Removes the cgroups of probes that were killed.
fn remove_former(hierarchy: &Hierarchy) {
    for entry in fs::read_dir(hierarchy.folder("/")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if pid.is_some_and(|pid| !hierarchy.has_process(pid)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
