//! `vgpu-kubelet-plugin check`, which `make gpu-check` reads, on the software GPU. gpu-check/tests compare its answers
//! with NVML's.

use crate::soft_gpu;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn check(driver_root: &Path, state: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-kubelet-plugin"));
    command.arg("check").arg("--driver-root").arg(driver_root);
    let output = command.args(arguments).env("SOFT_GPU_STATE", state).output();
    output.expect("the plugin's program")
}

fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_child_lists_the_gpus_and_is_replaced() {
    let (folder, state) = (soft_gpu::folder(), tempfile::tempdir().expect("a folder"));
    let found = answer(&check(&folder, state.path(), &["child"]));
    let child = |of: &str| found[of]["child"].as_u64().expect("a PID");
    assert_eq!(child("first"), child("again"));
    assert_ne!(child("replaced"), child("again"));
    for of in ["first", "again", "replaced"] {
        assert_eq!(found[of]["list"]["gpus"].as_array().map(Vec::len), Some(2));
        assert!(found[of]["seconds"].as_f64().expect("a time") > 0.0);
    }
    let resident = found["resident"].as_u64().expect("bytes");
    assert!(resident > 1 << 20 && resident < 1 << 30, "{resident}");
}

#[test]
fn gpus_have_configured_sizes_and_nvlinks() {
    let (folder, state) = (soft_gpu::folder(), tempfile::tempdir().expect("a folder"));
    let profile = "gpus = 6\nmemory = 8GiB\nunified = 5\nnvlink = 0-1, 2=3, 4>5\n";
    std::fs::write(state.path().join("profile"), profile).expect("a profile");
    let list = |flags: &[&str]| {
        let found = answer(&check(&folder, state.path(), &[flags, &["child"]].concat()));
        found["first"]["list"].clone()
    };
    let of = |list: &Value, field: &str| {
        let gpus = list["gpus"].as_array().into_iter().flatten();
        gpus.map(|gpu| gpu[field].clone()).collect::<Vec<_>>()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();

    let without = list(&[]);
    let uuids: Vec<String> = of(&without, "uuid").iter().map(text).collect();
    assert_eq!(uuids.len(), 5);
    let why = &without["left_out"][0]["why"]["NoMemoryFigure"];
    assert_eq!(why["product"], "Software GPU GB10", "{without}");
    let cliques: Vec<String> = of(&without, "nvlinkClique").iter().map(text).collect();
    let first = |one: usize, other: usize| uuids[one].clone().min(uuids[other].clone());
    let expected = [first(0, 1), first(0, 1), first(2, 3), first(2, 3), String::new()];
    assert_eq!(cliques, expected);
    assert_eq!(without["contradictions"], Value::Null);

    let sized = list(&["--gpu-memory", "Software GPU GB10=4Gi"]);
    assert_eq!(sized["left_out"], Value::Array(vec![]));
    let memory: Vec<u64> = of(&sized, "memory").iter().filter_map(Value::as_u64).collect();
    assert_eq!(memory, [8 << 30, 8 << 30, 8 << 30, 8 << 30, 8 << 30, 4_u64 << 30]);
    // NVML's own figure is not named: a claim's record would not be readable by the first release.
    assert_eq!(
        of(&sized, "memorySource")[4..],
        [Value::Null, Value::from("configured")]
    );
    let said = text(&sized["contradictions"][0]);
    assert!(
        said.contains(&uuids[4]) && said.contains("nvidia-smi nvlink --status"),
        "{said}"
    );
    assert_eq!(of(&sized, "nvlinkClique")[4..], [Value::Null, Value::Null]);
}

#[test]
fn the_software_gpu_is_injected_without_device_nodes() {
    let (folder, state) = (soft_gpu::folder(), tempfile::tempdir().expect("a folder"));
    let state_text = state.path().display().to_string();
    let found = answer(&check(
        &folder,
        state.path(),
        &["injection", "--soft-gpu-state", &state_text],
    ));
    assert_eq!(
        found["libcuda"].as_str().map(Path::new),
        Some(&*folder.join("libcuda.so.1"))
    );
    assert_eq!(
        (&found["nodes"], &found["missing"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
}

#[test]
fn without_a_driver_or_a_share_one_line_says_why() {
    let empty = tempfile::tempdir().expect("a folder");
    let share = empty.path().display().to_string();
    for (arguments, part) in [
        (&["child"][..], "--driver-root"),
        (&["injection"], "libcuda.so.1"),
        (&["processes", "--gpu", "GPU-1", "--share", &share], "limits"),
    ] {
        let output = check(empty.path(), empty.path(), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        assert!(error.contains(part) && error.trim_end().lines().count() == 1, "{error}");
    }
    let output = check(empty.path(), empty.path(), &["nonsense"]);
    assert_eq!(output.status.code(), Some(2));
}
