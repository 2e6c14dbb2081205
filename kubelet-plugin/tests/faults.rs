//! What the plugin lists of GPUs with faults, on the software GPU. `make dist` builds it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::inventory::{Ailment, Gpus as _, List};
use vgpu_kubelet_plugin::nvml::Nvml;

/// The software GPU's state, by which it is found: a variable of the process, so the test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";
const NAME: &str = "faults_are_listed_while_they_last";
const PATIENCE: Duration = Duration::from_secs(60);

fn soft_gpu() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let folder = std::env::var_os("VGPU_DIST")
        .map_or(own, PathBuf::from)
        .join("soft-gpu");
    vgpu_built_from::assert_fresh(&folder.join("libnvidia-ml.so.1"));
    folder
}

/// Has the software GPU fail like this from now on.
fn control(state: &Path, faults: &str) {
    let new = state.join("control.new");
    std::fs::write(&new, faults).expect("written");
    std::fs::rename(new, state.join("control")).expect("in place");
}

/// What ails each GPU that is left out.
fn left_out(list: &List) -> Vec<&'static str> {
    let all = list.left_out.iter();
    all.map(|left| Ailment::missing(Some(left)).name()).collect()
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not yet");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Also if nobody has asked for its status.
fn has_ended(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn faults_are_listed_while_they_last() {
    let folder = soft_gpu();
    let Some(state) = std::env::var_os(STATE).map(PathBuf::from) else {
        let state = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let status = child.args(["--exact", NAME]).env(STATE, state.path()).status();
        assert!(status.expect("a child").success());
        return;
    };
    let nvml = Nvml::new(Path::new(env!("CARGO_BIN_EXE_vgpu-kubelet-plugin")), &folder);
    let well = nvml.list().expect("GPUs");
    assert_eq!((well.gpus.len(), well.left_out.len()), (2, 0));
    for (fault, name) in [("lost 1\n", "lost"), ("mig 1\n", "mig")] {
        control(&state, fault);
        let list = nvml.list().expect("the other GPU");
        assert_eq!((&list.gpus[..], left_out(&list)), (&well.gpus[..1], vec![name]));
    }
    control(&state, "lost 0\nmig 1\n");
    let list = nvml.list().expect("an answer");
    assert!(list.gpus.is_empty() && left_out(&list) == ["lost", "mig"]);
    control(&state, "hang\n");
    let (sender, answers) = mpsc::channel();
    let asking = {
        let nvml = nvml.clone();
        std::thread::spawn(move || sender.send(nvml.list()))
    };
    let silence = answers.recv_timeout(Duration::from_millis(200));
    assert_eq!(silence, Err(mpsc::RecvTimeoutError::Timeout));
    control(&state, "");
    assert_eq!(answers.recv_timeout(PATIENCE).expect("an answer"), Ok(well.clone()));
    asking.join().expect("no panic").expect("heard");
    // A child that hangs is ended at once when the driver is to be unloaded, and comes back by itself.
    control(&state, "hang\n");
    let asking = {
        let nvml = nvml.clone();
        std::thread::spawn(move || nvml.list())
    };
    let folder_of = |pid: u32| PathBuf::from(format!("/proc/{pid}"));
    let child = folder_of(nvml.child().expect("a child"));
    nvml.pause("an upgrade");
    assert!(asking.join().expect("no panic").is_err() && nvml.child().is_none());
    until(|| !child.exists());
    control(&state, "");
    nvml.resume();
    assert_eq!(nvml.list(), Ok(well.clone()));
    // One that dies is replaced, without a question that fails.
    let first = nvml.child().expect("a child");
    assert!(
        Command::new("kill")
            .args(["-9", &first.to_string()])
            .status()
            .expect("kill")
            .success()
    );
    assert_eq!(nvml.list(), Ok(well));
    let second = folder_of(nvml.child().expect("another child"));
    assert_ne!(second, folder_of(first));
    // It ends with the plugin, also while it hangs.
    control(&state, "hang\n");
    drop(nvml);
    until(|| has_ended(&second));
}
