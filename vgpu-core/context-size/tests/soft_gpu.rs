//! The measurement on the software GPU: exact for any list of NVML, also while other processes use the GPU, and no
//! figure if NVML shows nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_context_size::{ANSWER_TIMEOUT, ContextSize, Gpu, ask};

const MODES: [&str; 3] = ["own", "host", "none"];

struct Scene {
    folder: tempfile::TempDir,
    driver: PathBuf,
}

impl Scene {
    fn new(profile: &str) -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
        let dist = std::env::var_os("VGPU_DIST").map_or(own, PathBuf::from);
        let driver = dist
            .join("soft-gpu")
            .canonicalize()
            .expect("dist/soft-gpu: run `make dist`");
        for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            vgpu_built_from::assert_fresh(&driver.join(library));
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("profile"), profile).expect("a profile");
        Self { folder, driver }
    }

    fn ask(&self, uuid: &str) -> Result<ContextSize, String> {
        let tests = std::env::current_exe().expect("a path");
        let program = tests.ancestors().nth(2).expect("a folder").join("examples/measure");
        let mut command = Command::new(program);
        command.env("SOFT_GPU_STATE", self.folder.path());
        let gpu = Gpu {
            libcuda: self.driver.join("libcuda.so.1"),
            libnvidia_ml: self.driver.join("libnvidia-ml.so.1"),
            uuid: uuid.into(),
        };
        ask(command, &gpu, ANSWER_TIMEOUT)
    }

    /// Returns the UUID of the first GPU.
    fn uuid(&self) -> String {
        let mut client = Command::new(vgpu_built_from::program("gpu-client"));
        client
            .args(["cuinit", "devices"])
            .env("LD_LIBRARY_PATH", &self.driver)
            .env("SOFT_GPU_STATE", self.folder.path());
        let text = String::from_utf8(client.output().expect("a client").stdout).expect("text");
        let line = text.lines().find(|line| line.starts_with("devices 0")).expect("a line");
        let hex = line.split(' ').nth(4).expect("a UUID");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32]];
        format!("GPU-{}", parts.join("-"))
    }
}

#[test]
fn a_context_is_measured_in_every_mode_of_nvml() {
    for mode in MODES {
        let scene = Scene::new(&format!("context_cost = 518MiB\nnvml_pids = {mode}\n"));
        let uuid = scene.uuid();
        for _ in 0..2 {
            let size = ContextSize {
                own: 518 << 20,
                unowned: 0,
            };
            assert_eq!(scene.ask(&uuid), Ok(size), "{mode}");
        }
    }
}

/// Such memory is, for example, page tables and buffers of the driver. If NVML lists no processes, one figure includes
/// it.
#[test]
fn memory_of_a_context_that_belongs_to_no_process_is_measured_too() {
    for mode in MODES {
        let scene = Scene::new(&format!(
            "context_cost = 518MiB\ncontext_unowned = 64MiB\nnvml_pids = {mode}\n"
        ));
        let (own, unowned) = match mode {
            "none" => (582 << 20, 0),
            _ => (518 << 20, 64 << 20),
        };
        assert_eq!(scene.ask(&scene.uuid()), Ok(ContextSize { own, unowned }), "{mode}");
    }
}

#[test]
fn a_context_that_takes_nothing_is_known_to() {
    for mode in MODES {
        let scene = Scene::new(&format!("nvml_pids = {mode}\n"));
        assert_eq!(scene.ask(&scene.uuid()), Ok(ContextSize::default()), "{mode}");
    }
}

#[test]
fn a_context_is_measured_without_a_figure_of_the_gpus_memory_if_its_process_is_listed() {
    let own = 518 << 20;
    let scene = |pids| Scene::new(&format!("context_cost = {own}\nnvml_pids = {pids}\nunified = 0\n"));
    let listed = scene("own");
    assert_eq!(listed.ask(&listed.uuid()), Ok(ContextSize { own, unowned: 0 }));
    let hidden = scene("none");
    let said = hidden.ask(&hidden.uuid()).unwrap_err();
    assert!(said.contains("NVML"), "{said}");
}

#[test]
fn a_driver_that_fails_gives_no_figure() {
    let scene = Scene::new("context_cost = 518MiB\nfail.cuDevicePrimaryCtxRetain = 2\n");
    let said = scene.ask(&scene.uuid()).unwrap_err();
    assert!(
        said.contains("cuDevicePrimaryCtxRetain") && said.contains("answers 2"),
        "{said}"
    );
    let said = scene.ask("GPU-00000000-0000-0000-0000-000000000000").unwrap_err();
    assert!(!said.is_empty());
}

/// Below r570 CUDA gives a process one instance. The one that is asked for is the second.
#[test]
fn a_context_of_an_instance_is_measured_in_that_instance() {
    let scene = Scene::new("context_cost = 300MiB\ncontext_unowned = 20MiB\n");
    let mut client = Command::new(vgpu_built_from::program("gpu-client"));
    client
        .args(["migmode:0:1", "migcreate:0:3g.40gb@0", "migcreate:0:1g.10gb@4"])
        .env("LD_LIBRARY_PATH", &scene.driver)
        .env("SOFT_GPU_STATE", scene.folder.path())
        .env("SOFT_GPU_PROFILE", scene.folder.path().join("profile"));
    let said = String::from_utf8(client.output().expect("a client").stdout).expect("text");
    let uuid = said.trim_end().rsplit(' ').next().expect("a UUID");
    assert!(uuid.starts_with("MIG-"), "{said}");
    let size = scene.ask(uuid).expect("a figure");
    assert_eq!((size.own >> 20, size.unowned >> 20), (300, 20));
}
