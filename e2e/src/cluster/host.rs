//! What clusters change on the machine itself, and how it is given back: written down before the first cluster starts,
//! undone after the last one ends.
//!
//! ```text
//! up, all clusters locked ─► /var/lib/vgpu-e2e/before.json, if there is none ─► the cluster
//! end or sweep, all clusters locked, no cluster left ─► undo ─► remove the file, and the folder
//! ```
//! Two things are not in a namespace: the cgroup controllers that the root of cgroup v2 gives to its children (runc too
//! adds all that there are), and the AppArmor profile that containerd loads for its containers.
//!
//! How it fails: killed after the file was written and before anything changed, undoing finds nothing to do. Killed
//! while undoing, the file is still there, and the next sweep goes on. Another program that came to use a controller or
//! the profile meanwhile keeps it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cgroup;
use super::config::names;
use crate::layout;
use crate::lock::Lock;

/// The name that containerd gives to the profile of its containers.
const PROFILE: &str = "cri-containerd.apparmor.d";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const REMOVE_PROFILE: &str = "/sys/kernel/security/apparmor/.remove";

/// The machine before the first cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    root_controllers: Vec<String>,
    profile_loaded: bool,
}

fn file() -> PathBuf {
    Path::new(layout::STATE).join("before.json")
}

/// Writes down how the machine is, unless a cluster has changed it already.
pub(super) fn remember(_all: &Lock) -> Result<()> {
    let file = file();
    if file.exists() {
        return Ok(());
    }
    let before = Before {
        root_controllers: cgroup::root_controllers()?,
        profile_loaded: has_profile(&fs::read_to_string(PROFILES).unwrap_or_default()),
    };
    let json = serde_json::to_vec(&before).context("cannot encode the state of the machine")?;
    let new = file.with_extension("new");
    fs::write(&new, json).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}

/// Undoes the changes when no cluster is left.
pub(super) fn give_back(_all: &Lock) -> Result<()> {
    if !names().is_empty() {
        return Ok(());
    }
    let file = file();
    match fs::read(&file) {
        Ok(json) => {
            let before: Before =
                serde_json::from_slice(&json).with_context(|| format!("{} is damaged: remove it", file.display()))?;
            cgroup::restore_root_controllers(&before.root_controllers)?;
            if !before.profile_loaded {
                unload_profile()?;
            }
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
    let _ = fs::remove_file(file.with_extension("new"));
    let _ = fs::remove_dir(layout::STATE); // another `up` may have come to it meanwhile
    Ok(())
}

/// The lines are `NAME (MODE)`.
fn has_profile(profiles: &str) -> bool {
    profiles
        .lines()
        .any(|line| line.rsplit_once(" (").is_some_and(|(name, _)| name == PROFILE))
}

/// Removes containerd's profile, unless a process of somebody else's container is confined by it: removing it would
/// lift that confinement.
fn unload_profile() -> Result<()> {
    if !has_profile(&fs::read_to_string(PROFILES).unwrap_or_default()) {
        return Ok(());
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let confines = processes
        .map(|process| fs::read_to_string(process.path().join("attr/current")).unwrap_or_default())
        .any(|label| has_profile(label.trim_end_matches('\0')));
    if confines {
        return Ok(());
    }
    fs::write(REMOVE_PROFILE, PROFILE)
        .with_context(|| format!("cannot remove the AppArmor profile {PROFILE}: apparmor_parser -R does it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_found_by_its_whole_name() {
        assert!(has_profile(
            "man_groff (enforce)\ncri-containerd.apparmor.d (enforce)\n"
        ));
        assert!(has_profile("cri-containerd.apparmor.d (complain)"));
        assert!(!has_profile(
            "my-cri-containerd.apparmor.d (enforce)\ncri-containerd.apparmor.d//child (enforce)\n"
        ));
        assert!(!has_profile(""));
    }
}
