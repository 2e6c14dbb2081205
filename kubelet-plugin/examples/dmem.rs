//! `dmem ROOT`: writes below ROOT what build/dmem.sh needs of a node: the state of software GPUs whose limits the kernel
//! keeps, and for each of two claims its directory and the configuration of a container, with the edits of the claim's CDI
//! spec as the plugin writes it. In ROOT are the driver (`driver`) and the programs of a release already.
//! SOFT_GPU_STATE is ROOT/vgpu/soft-gpu.
//!
//! How it fails: with the first file that it cannot write, or with NVML's answer.

#[path = "../tests/packages/mod.rs"]
mod packages;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vgpu_abi::ledger;
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::{CONTAINER_DRIVER_DIR, LEDGER, LIBCUDA, LIBNVIDIA_ML, LIMITS, NODE_CLAIMS_DIR, NODE_GPUS_DIR};
use vgpu_api::config::MemoryEnforcement;
use vgpu_cdi::{ContainerEdits, HookName, Spec};
use vgpu_kubelet_plugin::dra::edits::{self, Inputs, Placed};
use vgpu_kubelet_plugin::dra::limit_hook::Command;
use vgpu_kubelet_plugin::dra::share::Share;
use vgpu_kubelet_plugin::driver::{Driver, Root};

/// GPUs as e2e/dmem/gpu_memory.c has them.
const PROFILE: &str =
    "gpus = 2\nmemory = 16GiB\nreserved = 0\nmemory_limits = dmem\npci = 0000:01:00.0, 0000:02:00.0\n";
const CLAIMS: [&str; 2] = [
    "5c0f3b9a-0000-4000-8000-000000000001",
    "5c0f3b9a-0000-4000-8000-000000000002",
];
/// Paths in the guest.
const SOFT_GPU: &str = "/run/soft-gpu";
const RECORDS: &str = "/run/vgpu/driver-limits";
const RELEASE: &str = "/var/lib/vgpu/release";

fn main() -> Result<()> {
    let root = PathBuf::from(std::env::args_os().nth(1).context("name the root")?);
    put(&root.join("vgpu/soft-gpu/profile"), PROFILE.as_bytes())?;
    let driver = Root {
        here: root.join("driver"),
        host: "/driver".into(),
        sys: "/sys".into(),
        proc: "/proc".into(),
        soft_gpu_state: Some(SOFT_GPU.into()),
    };
    let gpu = first_gpu(&root.join("driver").join(packages::LIBRARIES).join(LIBNVIDIA_ML))?;
    put(&root.join("vgpu/gpu"), gpu.as_bytes())?;
    let driver = driver.read()?;
    for (number, claim) in CLAIMS.iter().enumerate() {
        let share = Share {
            gpu: gpu.clone(),
            memory_enforcement: MemoryEnforcement::Require,
            ..packages::share()
        };
        put_share(&root.join("vgpu/claims").join(claim).join(&share.name), &share)?;
        let config = container(&cdi_spec(&driver, claim, &share));
        let file = root.join(format!("vgpu/claim-{}.json", number + 1));
        put(&file, &serde_json::to_vec_pretty(&config)?)?;
    }
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a path without a folder")?)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// The UUID of the first software GPU, whose state its NVML makes.
fn first_gpu(nvml: &Path) -> Result<String> {
    let nvml = nvml_wrapper::Nvml::builder().lib_path(nvml.as_os_str()).init()?;
    Ok(nvml.device_by_index(0)?.uuid()?)
}

fn put_share(folder: &Path, share: &Share) -> Result<()> {
    let driver = Path::new(CONTAINER_DRIVER_DIR);
    let limits = Limits::of_memory(
        share.name.as_str(),
        share.gpu.as_str(),
        share.memory,
        driver.join(LIBCUDA),
        driver.join(LIBNVIDIA_ML),
    );
    put(&folder.join(LIMITS), limits.render().as_bytes())?;
    put(&folder.join(LEDGER), &ledger::image(&limits))?;
    fs::set_permissions(folder.join(LEDGER), fs::Permissions::from_mode(0o666))?;
    Ok(())
}

fn cdi_spec(driver: &Driver, claim: &str, share: &Share) -> Spec {
    let claim_dir = Path::new(NODE_CLAIMS_DIR).join(claim);
    let inputs = Inputs {
        metadata: &[],
        claim_dir: &claim_dir,
        gpus_dir: Path::new(NODE_GPUS_DIR),
        library: Path::new(RELEASE),
        driver,
        visible_devices: false,
        driver_limit: Some((Command::Set { is_required: true }, Path::new(RECORDS))),
        alone: None,
        refused: None,
    };
    let placed = Placed {
        share,
        slot: None,
        nodes: Vec::new(),
        reported: None,
    };
    edits::spec(&inputs, claim, &[placed])
}

/// The configuration of a container with these edits, as a runtime applies them. e2e/dmem/tests.sh fills in the words
/// between `@`.
fn container(spec: &Spec) -> Value {
    let all = [&spec.container_edits, &spec.devices[0].container_edits];
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}),
        json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro", "nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev/gpu-memory", "type": "bind", "source": "/dev/gpu-memory", "options": ["bind"]}),
        json!({"destination": "/shared", "type": "bind", "source": "/run/shared", "options": ["bind"]}),
    ];
    mounts.extend(all.iter().flat_map(|edits| edits.mounts.iter()).map(|mount| {
        json!({
            "destination": mount.container_path,
            "type": mount.r#type.as_deref().unwrap_or("none"),
            "source": mount.host_path,
            "options": mount.options,
        })
    }));
    let env = all.iter().flat_map(|edits| edits.env.iter().cloned());
    let env: Vec<String> = ["PATH=/usr/bin".to_owned()].into_iter().chain(env).collect();
    json!({
        "ociVersion": "1.1.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "env": env,
            "args": ["/bin/sh", "/in-container.sh", "@COMMAND@"],
            "capabilities": {"bounding": [], "effective": [], "permitted": []},
        },
        "root": {"path": "/vgpu/image", "readonly": true},
        "mounts": mounts,
        "hooks": {
            "createRuntime": hooks(&all, HookName::CreateRuntime),
            "createContainer": hooks(&all, HookName::CreateContainer),
        },
        "linux": {
            "cgroupsPath": "@CGROUP@",
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "cgroup"}],
            "resources": {"devices": [{"allow": true, "access": "rwm"}]},
        },
    })
}

fn hooks(all: &[&ContainerEdits], name: HookName) -> Vec<Value> {
    let hooks = all.iter().flat_map(|edits| edits.hooks.iter());
    let hooks = hooks.filter(|hook| hook.hook_name == name);
    hooks
        .map(|hook| json!({"path": hook.path, "args": hook.args, "timeout": hook.timeout}))
        .collect()
}
