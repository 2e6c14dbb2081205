//! What the plugin lists and reads of GPUs with faults.

use crate::support::{HAPPENS_WITHIN, control, in_child, nvml, until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use vgpu_kubelet_plugin::nvml::{Asked, GpuDriver as _, Nvml, Reading, sampler};
use vgpu_kubelet_plugin::publish::faults::{self, FaultStore, IGNORED_XIDS, OpenFaults, Watcher};
use vgpu_kubelet_plugin::publish::inventory::{Faults, Gpus as _, List, Unavailable};

/// Why each GPU that is left out is unavailable.
fn left_out(list: &List) -> Vec<&'static str> {
    let all = list.left_out.iter();
    all.map(|left| Unavailable::missing(Some(left)).name()).collect()
}

/// Returns true if the process has ended, also if nobody has asked for its status.
fn has_ended(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn faults_are_listed_while_they_last() {
    let Some(state) = in_child("faults::faults_are_listed_while_they_last") else {
        return;
    };
    let nvml = nvml();
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
    assert_eq!(
        answers.recv_timeout(HAPPENS_WITHIN).expect("an answer"),
        Ok(well.clone())
    );
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
    until("the child lives", || !child.exists());
    control(&state, "");
    nvml.resume();
    assert_eq!(nvml.list(), Ok(well.clone()));
    // A child that dies is replaced, and no question fails.
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
    // The child ends with the plugin, also while it hangs.
    control(&state, "hang\n");
    drop(nvml);
    until("the child lives", || has_ended(&second));
}

fn read(nvml: &Nvml) -> Vec<Reading> {
    let gpus = nvml.sample(false).gpus.expect("readings");
    gpus.into_iter().map(|gpu| gpu.faults).collect()
}

/// Reads until XIDs are waited for. Returns the readings of both GPUs.
fn readings(nvml: &Nvml) -> [Reading; 2] {
    let mut found = Vec::new();
    until("XIDs are not waited for", || {
        found = read(nvml);
        found.iter().all(|reading| reading.events == Asked::Is(()))
    });
    found.try_into().expect("two GPUs")
}

#[test]
fn faults_of_gpus_are_read_and_xids_are_heard_once() {
    let Some(state) = in_child("faults::faults_of_gpus_are_read_and_xids_are_heard_once") else {
        return;
    };
    let nvml = nvml();
    let well = |uuid: &str| Reading {
        uuid: uuid.to_owned(),
        xids: Vec::new(),
        events: Asked::Is(()),
        uncorrected: Asked::Is(0),
        remap_pending: Asked::Is(false),
        remap_failed: Asked::Is(false),
        action: Asked::Is(0),
    };
    // An XID from before anybody listened.
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
        until("XIDs are not heard", || {
            for (all, reading) in all.iter_mut().zip(read(&nvml)) {
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
    // NVML cannot name a GPU that fell off the bus, so its XID is given to the GPU that cannot be read.
    control(&state, "lost 1\nxid 1 62\n");
    let mut found = Vec::new();
    until("the XID is not heard", || {
        found = read(&nvml);
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
    let Some(state) = in_child("faults::a_fault_is_known_after_a_restart_and_when_the_driver_hangs") else {
        return;
    };
    let nvml = nvml();
    let watcher = || {
        let store = FaultStore::new(state.join("faults.json"), "boot".into());
        Watcher::new(OpenFaults::new(IGNORED_XIDS.into()), store)
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
        let (sender, samples) = sampler::channel();
        let running = [
            tokio::spawn(faults::run(watcher(), samples, faults, std::sync::Arc::default())),
            tokio::spawn(sampler::run(nvml.clone(), std::sync::Arc::default(), sender)),
        ];
        let mut becomes = async |expected: &[&str]| {
            let reached = known.wait_for(|faults| shown(faults) == expected);
            let reached = tokio::time::timeout(HAPPENS_WITHIN, reached).await;
            assert!(reached.is_ok_and(|reached| reached.is_ok()), "not {expected:?}");
        };
        // Faults are written after they were published.
        let written = async |expected: &[&str]| {
            let until = Instant::now() + HAPPENS_WITHIN;
            while shown(&watcher().faults()) != expected && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(shown(&watcher().faults()), expected, "of the file");
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
        assert_eq!(shown(&watcher().faults()), ["xid=79", "recovery=reset"], "of the file");
        control(&state, "");
        becomes(&[]).await;
        written(&[]).await;
        running.iter().for_each(tokio::task::JoinHandle::abort);
    });
}
