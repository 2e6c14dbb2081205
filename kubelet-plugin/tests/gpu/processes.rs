//! What the plugin reads of processes, with a program in a process of its own.

use crate::support::{Client, control, in_child, nvml, until};
use vgpu_kubelet_plugin::nvml::{GpuDriver as _, Used};
use vgpu_kubelet_plugin::publish::inventory::Gpus as _;

const GIB: u64 = 1 << 30;

#[test]
fn a_process_has_its_memory_while_it_lives() {
    let Some(state) = in_child("processes::a_process_has_its_memory_while_it_lives") else {
        return;
    };
    let nvml = nvml();
    let gpus = nvml.list().expect("GPUs").gpus;
    let becomes = |expected: &[(u32, Option<u64>)]| {
        let expected = Ok(expected.iter().copied().collect());
        until("another answer", || {
            nvml.sample(false).memory(&gpus[0].uuid) == expected
        });
    };
    becomes(&[]);
    assert!(nvml.sample(false).memory("GPU-0").is_err(), "of a GPU that is none");
    let client = Client::start(&["init", &format!("alloc:{}", 2 * GIB), "wait"]);
    becomes(&[(client.pid(), Some(2 * GIB))]);
    assert_eq!(
        nvml.sample(false).memory(&gpus[1].uuid),
        Ok([].into()),
        "of the other GPU"
    );
    // The driver gives wrong PIDs.
    control(&state, "pids wrong\n");
    becomes(&[(1, Some(2 * GIB))]);
    control(&state, "");
    becomes(&[(client.pid(), Some(2 * GIB))]);
    drop(client);
    becomes(&[]);
}

#[test]
fn a_busy_process_has_its_percent_and_an_idle_gpu_is_no_silence() {
    if in_child("processes::a_busy_process_has_its_percent_and_an_idle_gpu_is_no_silence").is_none() {
        return;
    }
    let nvml = nvml();
    let gpu = nvml.list().expect("GPUs").gpus.remove(0).uuid;
    let used = || nvml.sample(false).gpu(&gpu).and_then(|gpu| gpu.used.clone());
    assert_eq!(used(), None, "nothing is known before the first measurement");
    let client = Client::start(&["init", "rush"]);
    let percent = || used()?.get(&client.pid()).copied();
    until("the client is not busy", || {
        percent().is_some_and(|percent| percent > 0.0)
    });
    drop(client);
    until("the client is still busy", || {
        used().as_ref().is_some_and(Used::is_empty)
    });
}
