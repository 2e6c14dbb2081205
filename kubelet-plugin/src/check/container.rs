//! Injects one share into a container without Kubernetes: makes the share's folder as Prepare does, and returns the CDI
//! spec, so that a runtime can start a container of it.
//!
//! It writes below the caller's folder only, and removes nothing: the caller deletes the folder, and ends the mount
//! namespace that it gave to this process. If this process is killed in between, the files so far stay, and a second
//! call with the same folder completes them. The share has no arbitration page, so only its memory is limited.

use crate::dra::checkpoint::{Entry, PreparedShare};
use crate::dra::claimdir::ClaimDirs;
use crate::dra::edits::{self, Inputs, Placed};
use crate::dra::share::{Role, Share};
use crate::driver::Root;
use crate::publish::inventory::Gpus;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use vgpu_abi::limits::{ComputePolicy, Priority};
use vgpu_api::config::{Capabilities, MemoryEnforcement};

const UID: &str = "f1257c00-0000-4000-8000-000000000001";
const SHARE: &str = "s1";

/// A container's share.
#[derive(Debug, Serialize)]
pub(super) struct Container {
    /// The CDI spec with one device.
    spec: Value,
    /// The share's folder on this machine, with its limits and its ledger.
    share: PathBuf,
}

/// The share, and where its files go.
pub(super) struct Wanted {
    pub(super) gpu: String,
    /// Bytes.
    pub(super) memory: u64,
    /// The folder with libvgpu.so, libvgpu-preload.so, vgpu-cdi-hook and vgpu-driver-limit.
    pub(super) library: PathBuf,
    /// Where the claim's folder is made.
    pub(super) folder: PathBuf,
}

pub(super) fn check(root: &Root, gpus: &impl Gpus, wanted: &Wanted, tmpfs: bool) -> Result<Container, String> {
    let driver = root.read().map_err(|error| error.to_string())?;
    let list = gpus.list().map_err(|error| error.to_string())?;
    let gpu = list.gpus.iter().find(|gpu| gpu.uuid == wanted.gpu);
    let gpu = gpu.ok_or_else(|| format!("--gpu {}: the driver lists no such GPU", wanted.gpu))?;
    let share = share(wanted);
    let nodes = root.gpu_nodes(gpu, share.driver_capabilities);
    let nodes = nodes.map_err(|error| error.to_string())?;
    let dirs = ClaimDirs::new(wanted.folder.join("claims"), tmpfs);
    let entry = Entry {
        namespace: String::new(),
        name: String::new(),
        library: String::new(),
        shares: vec![PreparedShare {
            share: share.clone(),
            slot: None,
        }],
        named_by: None,
        pods: Vec::new(),
        may_require_limit: false,
    };
    let made = dirs.ensure(UID, &entry, &|_| None);
    made.map_err(|error| error.to_string())?;
    let placed = Placed {
        share: &share,
        slot: None,
        nodes,
        reported: None,
    };
    let inputs = Inputs {
        claim_dir: &dirs.claim_path(UID),
        gpus_dir: Path::new("/nonexistent"), // without a slot nothing of it is mounted
        library: &wanted.library,
        driver: &driver,
        visible_devices: false,
        metadata: &[],
        driver_limit: None,
        alone: None,
        refused: None,
    };
    let spec = edits::spec(&inputs, UID, &[placed]).render();
    let spec = spec.map_err(|error| error.to_string())?;
    Ok(Container {
        spec: serde_json::from_slice(&spec).map_err(|error| error.to_string())?,
        share: dirs.share_path(UID, SHARE),
    })
}

fn share(wanted: &Wanted) -> Share {
    Share {
        name: SHARE.into(),
        role: Role::Share,
        request: "gpu".into(),
        device: "gpu".into(),
        share_id: Some(SHARE.into()),
        gpu: wanted.gpu.clone(),
        memory: wanted.memory,
        cores: 0,
        compute_policy: ComputePolicy::Unlimited,
        priority: Priority::Low,
        host_memory: 0,
        memory_enforcement: MemoryEnforcement::Prefer,
        report: None,
        driver_capabilities: Capabilities::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::{Listed, gpu};
    use std::fs;

    fn wanted(folder: &Path, uuid: &str) -> Wanted {
        Wanted {
            gpu: uuid.to_owned(),
            memory: 1 << 30,
            library: "/lib/vgpu".into(),
            folder: folder.to_path_buf(),
        }
    }

    #[test]
    fn the_spec_mounts_the_share_that_was_made() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(dir.path().join(name), "x").expect("written");
        }
        let root = Root {
            here: dir.path().to_path_buf(),
            host: dir.path().to_path_buf(),
            sys: "/sys".into(),
            proc: "/proc".into(),
            soft_gpu_state: Some("/state".into()),
        };
        let gpus = Listed(vec![gpu(0)]);
        let folder = dir.path().join("made");
        fs::create_dir(&folder).expect("a folder");
        let found = check(&root, &gpus, &wanted(&folder, &gpu(0).uuid), false).expect("a container");
        let limits = fs::read_to_string(found.share.join("limits")).expect("limits");
        assert!(
            limits.contains(&gpu(0).uuid) && limits.contains("1073741824"),
            "{limits}"
        );
        assert!(found.share.join("ledger").is_file());
        let text = found.spec.to_string();
        for part in [
            &*found.share.display().to_string(),
            "/lib/vgpu/vgpu-cdi-hook",
            "/dev/vgpu/s1/ledger",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let unknown = check(&root, &gpus, &wanted(&folder, "GPU-none"), false).expect_err("no such GPU");
        assert!(unknown.contains("GPU-none"), "{unknown}");
    }
}
