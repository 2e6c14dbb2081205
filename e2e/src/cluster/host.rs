//! Changes that clusters make to the machine itself. Its state is saved before the first cluster starts and restored
//! after the last one ends.
//!
//! ```text
//! up, all clusters locked ─► /var/lib/vgpu-e2e/before.json, if there is none ─► the cluster
//! end or sweep, all clusters locked, no cluster left ─► undo ─► remove the file, and the folder
//! ```
//! Two things are not in a namespace: the cgroup controllers that the root of cgroup v2 enables for its children (runc
//! also enables all of them), and the AppArmor profile that containerd loads for its containers.
//!
//! How it fails: if the program is killed after the file was written and before anything changed, undoing finds nothing
//! to do. If it is killed while undoing, the file still exists, and the next sweep continues. A file from before a
//! reboot is ignored. So is a damaged one, with a warning. A controller or profile that another program has started to
//! use is kept.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cgroup;
use super::config::names;
use crate::lock::Lock;
use crate::{interrupt, layout};

/// The name of containerd's profile for its containers.
const PROFILE: &str = "cri-containerd.apparmor.d";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const REMOVE_PROFILE: &str = "/sys/kernel/security/apparmor/.remove";

/// The machine's state before the first cluster.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    /// The ID of the boot; a reboot has undone all changes.
    boot_id: String,
    root_controllers: Vec<String>,
    profile_loaded: bool,
}

fn file() -> PathBuf {
    Path::new(layout::STATE).join("before.json")
}

/// Writes before.json, unless a cluster of this boot has already done so.
pub(super) fn remember(_all: &Lock) -> Result<()> {
    let file = file();
    if read(&file).is_ok_and(|before| before.is_some()) {
        return Ok(());
    }
    let before = Before {
        boot_id: boot_id()?,
        root_controllers: cgroup::root_controllers()?,
        profile_loaded: has_profile(&fs::read_to_string(PROFILES).unwrap_or_default()),
    };
    let json = serde_json::to_vec(&before).context("cannot encode the state of the machine")?;
    let new = file.with_extension("new");
    fs::write(&new, json).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}

/// Undoes the changes if no cluster is left.
pub(super) fn give_back(_all: &Lock) -> Result<()> {
    if !names().is_empty() {
        return Ok(());
    }
    let file = file();
    if let Some(before) = read(&file)? {
        cgroup::restore_root_controllers(&before.root_controllers)?;
        if !before.profile_loaded {
            unload_profile()?;
        }
    }
    match fs::remove_file(&file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", file.display()));
        }
        _ => {}
    }
    let _ = fs::remove_file(file.with_extension("new"));
    let _ = fs::remove_dir(layout::STATE); // another `up` may already use it
    Ok(())
}

/// Reads before.json. Returns None if it is missing, damaged, or from before the last boot.
fn read(file: &Path) -> Result<Option<Before>> {
    let json = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let Ok(before) = serde_json::from_slice::<Before>(&json) else {
        interrupt::tell(&format!(
            "{} is damaged: controllers of the cgroup root, and the AppArmor profile {PROFILE}, may stay on",
            file.display()
        ));
        return Ok(None);
    };
    Ok((before.boot_id == boot_id()?).then_some(before))
}

fn boot_id() -> Result<String> {
    let file = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Ok(text.trim().to_owned())
}

/// Lines are `NAME (MODE)`.
fn has_profile(profiles: &str) -> bool {
    profiles
        .lines()
        .any(|line| line.rsplit_once(" (").is_some_and(|(name, _)| name == PROFILE))
}

/// Removes containerd's profile, unless it confines a process of somebody else's container: removing it would lift
/// that confinement.
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
    fn a_file_of_another_boot_or_a_damaged_one_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        assert!(read(&file).unwrap().is_none());
        let write = |boot_id: &str| {
            let before = Before {
                boot_id: boot_id.to_owned(),
                root_controllers: vec!["cpu".to_owned()],
                profile_loaded: true,
            };
            fs::write(&file, serde_json::to_vec(&before).unwrap()).unwrap();
        };
        write("of yesterday");
        assert!(read(&file).unwrap().is_none());
        write(&boot_id().unwrap());
        assert_eq!(read(&file).unwrap().unwrap().root_controllers, ["cpu"]);
        fs::write(&file, "{").unwrap();
        assert!(read(&file).unwrap().is_none());
    }

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
