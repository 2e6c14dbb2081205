//! What the plugin lists and reads of GPUs with faults, on the software GPU. `make dist` builds it.

mod soft_gpu;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::faults::{self, Asked, Conditions, Files, IGNORED_XIDS, Reading, Readings as _, Watcher};
use vgpu_kubelet_plugin::inventory::{Ailment, Faults, Gpus as _, List};
use vgpu_kubelet_plugin::nvml::Nvml;

/// The software GPU's state, by which it is found: a variable of the process, so each test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the state folder in the child; None in the process that has run the child.
fn in_child(test: &str) -> Option<PathBuf> {
    if let Some(state) = std::env::var_os(STATE) {
        return Some(state.into());
    }
    let state = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let status = child.args(["--exact", test]).env(STATE, state.path()).status();
    assert!(status.expect("a child").success());
    None
}

fn nvml(folder: &Path) -> Nvml {
    Nvml::new(Path::new(env!("CARGO_BIN_EXE_vgpu-kubelet-plugin")), folder)
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

fn until(mut condition: impl FnMut() -> bool) {
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
    let folder = soft_gpu::folder();
    let Some(state) = in_child("faults_are_listed_while_they_last") else {
        return;
    };
    let nvml = nvml(&folder);
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

/// Reads until XIDs are waited for. Returns the readings of both GPUs.
fn readings(nvml: &Nvml) -> [Reading; 2] {
    let mut found = Vec::new();
    until(|| {
        found = nvml.readings().expect("readings");
        found.iter().all(|reading| reading.events == Asked::Is(()))
    });
    found.try_into().expect("two GPUs")
}

#[test]
fn faults_of_gpus_are_read_and_xids_are_heard_once() {
    let folder = soft_gpu::folder();
    let Some(state) = in_child("faults_of_gpus_are_read_and_xids_are_heard_once") else {
        return;
    };
    let nvml = nvml(&folder);
    let well = |uuid: &str| Reading {
        uuid: uuid.to_owned(),
        xids: Vec::new(),
        events: Asked::Is(()),
        uncorrected: Asked::Is(0),
        remap_pending: Asked::Is(false),
        remap_failed: Asked::Is(false),
        action: Asked::Is(0),
    };
    // Of before anybody listened.
    control(&state, "xid 0 79\n");
    let [first, second] = readings(&nvml);
    assert_eq!((&first, &second), (&well(&first.uuid), &well(&second.uuid)));
    control(
        &state,
        "ecc 0 2\nremap 0 pending\naction 0 reset\nremap 1 failed\naction 1 9\n",
    );
    let expected = [
        Reading {
            uncorrected: Asked::Is(2),
            remap_pending: Asked::Is(true),
            action: Asked::Is(1),
            ..first.clone()
        },
        Reading {
            remap_failed: Asked::Is(true),
            action: Asked::Is(9),
            ..second.clone()
        },
    ];
    assert_eq!(readings(&nvml), expected);
    control(&state, "unsupported 0\nunreadable 1\n");
    let [old, unreadable] = readings(&nvml);
    assert_eq!(
        (&old.uncorrected, &old.action),
        (&Asked::NotSupported, &Asked::NotSupported)
    );
    assert!(old.failure().is_none() && unreadable.failure().is_some());
    assert!(matches!(unreadable.action, Asked::Failed(_)));
    let heard = |expected: [&[u64]; 2]| {
        let mut all = [Vec::new(), Vec::new()];
        until(|| {
            for (all, reading) in all.iter_mut().zip(nvml.readings().expect("readings")) {
                all.extend(reading.xids);
            }
            all == expected
        });
        let again = readings(&nvml);
        assert!(again.iter().all(|reading| reading.xids.is_empty()), "once: {again:?}");
    };
    control(&state, "xid 1 79\n");
    heard([&[], &[79]]);
    control(&state, "xid 1 79\nxid 0 13\nxid 0 48\n");
    heard([&[13, 48], &[]]);
    // A GPU that falls off the bus with its XID cannot be named any more; it is the one that cannot be read.
    control(&state, "lost 1\nxid 1 62\n");
    let mut found = Vec::new();
    until(|| {
        found = nvml.readings().expect("readings");
        found[1].xids == [62]
    });
    assert!(found[1].failure().is_some() && found[1].uuid == second.uuid && found[0].xids.is_empty());
    control(&state, "");
    assert_eq!(readings(&nvml), [first, second], "back");
    // The next child listens too.
    let child = nvml.child().expect("a child").to_string();
    assert!(
        Command::new("kill")
            .args(["-9", &child])
            .status()
            .expect("kill")
            .success()
    );
    readings(&nvml);
    control(&state, "xid 0 94\n");
    heard([&[94], &[]]);
}

#[test]
fn a_fault_is_known_after_a_restart_and_when_the_driver_hangs() {
    let folder = soft_gpu::folder();
    let Some(state) = in_child("a_fault_is_known_after_a_restart_and_when_the_driver_hangs") else {
        return;
    };
    let nvml = nvml(&folder);
    let watcher = || {
        let files = Files::new("boot".into(), state.join("disk.json"), state.join("run.json"));
        Watcher::new(nvml.clone(), Conditions::new(IGNORED_XIDS.into()), files)
    };
    let shown = |faults: &Faults| -> Vec<String> {
        let all = faults.values().flatten();
        all.map(|fault| format!("{}={}", fault.reason.name(), fault.value))
            .collect()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (faults, mut known) = tokio::sync::watch::channel(watcher().faults());
        let running = tokio::spawn(faults::run(watcher(), faults, std::sync::Arc::default()));
        let mut becomes = async |expected: &[&str]| {
            let reached = known.wait_for(|faults| shown(faults) == expected);
            let reached = tokio::time::timeout(PATIENCE, reached).await;
            assert!(reached.is_ok_and(|reached| reached.is_ok()), "not {expected:?}");
        };
        // They are written once they are told.
        let written = async |expected: &[&str]| {
            let until = Instant::now() + PATIENCE;
            while shown(&watcher().faults()) != expected && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(shown(&watcher().faults()), expected, "of the files");
        };
        readings(&nvml);
        control(&state, "xid 0 79\naction 0 reset\n");
        let start = Instant::now();
        becomes(&["xid=79", "recovery=reset"]).await;
        println!(
            "from the fault to what is published {:.1} s",
            start.elapsed().as_secs_f64()
        );
        written(&["xid=79", "recovery=reset"]).await;
        control(&state, "hang\n");
        assert_eq!(shown(&watcher().faults()), ["xid=79", "recovery=reset"], "of the files");
        control(&state, "");
        becomes(&[]).await;
        written(&[]).await;
        running.abort();
    });
}
