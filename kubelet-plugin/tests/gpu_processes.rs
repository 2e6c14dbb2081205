//! What the plugin reads of the memory of processes, with a program in a process of its own on the software GPU. `make
//! dist` builds both.

mod soft_gpu;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::inventory::Gpus as _;
use vgpu_kubelet_plugin::inventory::nvml::NvmlGpus;
use vgpu_kubelet_plugin::truth::{GpuProcesses as _, NvmlProcesses};

/// The software GPU's state, by which it is found: a variable of the process, so the test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";
const NAME: &str = "a_process_has_its_memory_while_it_lives";
const PATIENCE: Duration = Duration::from_secs(60);
const GIB: u64 = 1 << 30;

/// Ends with the test, whatever becomes of it.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_has_its_memory_while_it_lives() {
    let folder = soft_gpu::folder();
    if std::env::var_os(STATE).is_none() {
        let state = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let status = child.args(["--exact", NAME]).env(STATE, state.path()).status();
        assert!(status.expect("a child").success());
        return;
    }
    let gpus = NvmlGpus::new(folder.clone()).list().expect("GPUs").gpus;
    let nvml = NvmlProcesses::new(folder.clone());
    let until = |expected: &[(u32, Option<u64>)]| {
        let start = Instant::now();
        loop {
            let answer = nvml.of(&gpus[0].uuid).expect("an answer");
            if answer == expected.iter().copied().collect() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{answer:?} and not {expected:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until(&[]);
    assert!(nvml.of("GPU-0").is_err(), "of a GPU that is none");
    let mut client = Command::new(vgpu_built_from::program("gpu-client"));
    let bytes = format!("alloc:{}", 2 * GIB);
    client
        .args(["init", bytes.as_str(), "wait"])
        .env("LD_LIBRARY_PATH", &folder);
    let client = Client(client.stdin(std::process::Stdio::piped()).spawn().expect("a client"));
    until(&[(client.0.id(), Some(2 * GIB))]);
    assert_eq!(nvml.of(&gpus[1].uuid), Ok([].into()), "of the other GPU");
    // A driver that names it wrongly.
    let control = PathBuf::from(std::env::var_os(STATE).expect("set")).join("control");
    std::fs::write(&control, "pids wrong\n").expect("written");
    until(&[(1, Some(2 * GIB))]);
    std::fs::remove_file(&control).expect("removed");
    until(&[(client.0.id(), Some(2 * GIB))]);
    drop(client);
    until(&[]);
}
