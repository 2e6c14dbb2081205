//! What the plugin reads of processes, with a program in a process of its own on the software GPU. `make dist` builds both.

mod soft_gpu;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::compute::Utilisation as _;
use vgpu_kubelet_plugin::inventory::Gpus as _;
use vgpu_kubelet_plugin::nvml::Nvml;

/// The software GPU's state, by which it is found: a variable of the process, so the test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";
const NAME: &str = "a_busy_process_has_its_percent_and_an_idle_gpu_is_no_silence";
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the test, whatever becomes of it.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the answer is as expected.
fn until(nvml: &Nvml, gpu: &str, expected: impl Fn(Option<&BTreeMap<u32, f64>>) -> bool) {
    let start = Instant::now();
    loop {
        let answer = nvml.of(gpu);
        if expected(answer.as_ref()) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_busy_process_has_its_percent_and_an_idle_gpu_is_no_silence() {
    let folder = soft_gpu::folder();
    if std::env::var_os(STATE).is_none() {
        let state = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let status = child.args(["--exact", NAME]).env(STATE, state.path()).status();
        assert!(status.expect("a child").success());
        return;
    }
    let nvml = Nvml::new(Path::new(env!("CARGO_BIN_EXE_vgpu-kubelet-plugin")), &folder);
    let gpu = nvml.list().expect("GPUs").gpus.remove(0).uuid;
    assert_eq!(nvml.of(&gpu), None, "nothing is known before the first sample");
    assert_eq!(nvml.of("GPU-0"), None, "nor of a GPU that is none");
    let mut client = Command::new(vgpu_built_from::program("gpu-client"));
    client.args(["init", "rush"]).env("LD_LIBRARY_PATH", &folder);
    let client = Client(client.spawn().expect("a client"));
    let pid = client.0.id();
    until(&nvml, &gpu, |used| {
        used.is_some_and(|used| used.get(&pid).is_some_and(|percent| *percent > 0.0))
    });
    drop(client);
    until(&nvml, &gpu, |used| used.is_some_and(BTreeMap::is_empty));
}
