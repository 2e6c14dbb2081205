//! What the plugin lists of GPUs with faults, on the software GPU. `make dist` builds it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use vgpu_kubelet_plugin::inventory::nvml::NvmlGpus;
use vgpu_kubelet_plugin::inventory::{Ailment, Gpus as _, List};

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
    let nvml = NvmlGpus::new(folder);
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
    let asking = std::thread::spawn(move || sender.send(nvml.list()));
    let silence = answers.recv_timeout(Duration::from_millis(200));
    assert_eq!(silence, Err(mpsc::RecvTimeoutError::Timeout));
    control(&state, "");
    assert_eq!(answers.recv_timeout(PATIENCE).expect("an answer"), Ok(well));
    asking.join().expect("no panic").expect("heard");
}
