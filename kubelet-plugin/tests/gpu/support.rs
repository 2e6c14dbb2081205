//! The driver's child, clients and faults on the software GPU.

use crate::soft_gpu::folder;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::nvml::Nvml;

/// The software GPU's state, by which it is found: a variable of the process, so each test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";
pub(crate) const HAPPENS_WITHIN: Duration = Duration::from_secs(300);

/// Returns the state folder in the child; None in the process that has run the child.
pub(crate) fn in_child(test: &str) -> Option<PathBuf> {
    if let Some(state) = std::env::var_os(STATE) {
        return Some(state.into());
    }
    let state = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let status = child.args(["--exact", test]).env(STATE, state.path()).status();
    assert!(status.expect("a child").success());
    None
}

/// Makes the software GPU fail like this from now on.
pub(crate) fn control(state: &Path, faults: &str) {
    let new = state.join("control.new");
    std::fs::write(&new, faults).expect("written");
    std::fs::rename(new, state.join("control")).expect("in place");
}

pub(crate) fn nvml() -> Nvml {
    let sizes = vgpu_node::gpus::MemorySizes::default();
    let program = Path::new(env!("CARGO_BIN_EXE_vgpu-kubelet-plugin"));
    match std::env::var_os(STATE) {
        Some(state) => Nvml::with_instances(program, &folder(), &sizes, &Path::new(&state).join("calls")),
        None => Nvml::new(program, &folder(), &sizes),
    }
}

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HAPPENS_WITHIN, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program on the GPU, which ends with the test, whatever becomes of it.
pub(crate) struct Client(Child);

impl Client {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::with(arguments, None)
    }

    /// On an instance alone.
    pub(crate) fn on(uuid: &str, arguments: &[&str]) -> Self {
        Self::with(arguments, Some(("CUDA_VISIBLE_DEVICES", uuid)))
    }

    fn with(arguments: &[&str], variable: Option<(&str, &str)>) -> Self {
        let mut client = Command::new(vgpu_built_from::program("gpu-client"));
        client.args(arguments).env("LD_LIBRARY_PATH", folder()).envs(variable);
        Self(client.stdin(Stdio::piped()).spawn().expect("a client"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
