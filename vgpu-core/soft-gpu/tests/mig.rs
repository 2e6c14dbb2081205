//! GPUs in MIG mode: instances as NVML, CUDA and the kernel's files show them.

mod common;

use common::calls::{Calls, low, state};
use common::{Client, Folder, on_gpus, program};

const NOT_SUPPORTED: &str = "3";
const NOT_FOUND: &str = "6";

#[test]
fn nvml_shows_instances_with_their_names_sizes_and_places() {
    let state = state("nvml", "mig = 0: 3g.40gb@4, 1g.10gb@0\n");
    let mut calls = Calls::nvml(&state.0);
    assert_eq!(calls.say("nvmlDeviceGetMigMode @1 >3 >4"), "0");
    assert_eq!(calls.all(&["get 3", "get 4"]), ["1", "1"]);
    assert_eq!(calls.number("nvmlDeviceGetMaxMigDeviceCount @1"), 7);
    assert_eq!(calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 2 >3"), NOT_FOUND);

    let is_instance = ["@1", "@2"].map(|device| calls.number(&format!("nvmlDeviceIsMigDeviceHandle {device}")));
    assert_eq!(is_instance, [0, 1]);
    let name = calls.text("nvmlDeviceGetName @2 >10 96", 10);
    assert_eq!(name, "Software GPU H100-80GB MIG 3g.40gb");
    let uuid = calls.text("nvmlDeviceGetUUID @2 >10 96", 10);
    assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{uuid}");
    let handles = [calls.words(1)[0], calls.words(2)[0]];
    assert_eq!(
        calls.number(&format!("nvmlDeviceGetHandleByUUID \"{uuid}\"")),
        handles[1]
    );
    assert_eq!(
        calls.number("nvmlDeviceGetDeviceHandleFromMigDeviceHandle @2"),
        handles[0]
    );

    // The second half of the GPU.
    assert_eq!(calls.number("nvmlDeviceGetGpuInstanceId @2"), 2);
    assert_eq!(calls.number("nvmlDeviceGetComputeInstanceId @2"), 0);
    assert_eq!(calls.say("nvmlDeviceGetGpuInstanceById @1 2 >3"), "0");
    assert_eq!(calls.say("nvmlGpuInstanceGetInfo @3 >4"), "0");
    let info = calls.words(4);
    let ids = [low(info[1]), info[1] >> 32, low(info[2]), info[2] >> 32];
    assert_eq!(ids, [2, 9, 4, 4], "id, profile, start, size");
    assert_eq!(calls.say("nvmlDeviceGetAttributes_v2 @2 >4"), "0");
    let attributes = calls.words(4);
    assert_eq!(
        (low(attributes[0]), attributes[4]),
        (60, 40_448),
        "multiprocessors, MiB"
    );
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), "0");
    assert_eq!(calls.words(4)[..3], [40_448 << 20, 40_448 << 20, 0]);
    for unanswered in [
        "nvmlDeviceGetUtilizationRates @2 >3",
        "nvmlDeviceGetUtilizationRates @1 >3",
        "nvmlDeviceGetPowerUsage @2 >3",
        "nvmlDeviceGetMinorNumber @2 >3",
    ] {
        assert_eq!(calls.say(unanswered), NOT_SUPPORTED, "{unanswered}");
    }
}

#[test]
fn nvml_lists_profiles_and_placements_whether_mig_is_on_or_not() {
    let state = state("profiles", "mig_product = a100-80gb\n");
    let mut calls = Calls::nvml(&state.0);
    assert_eq!(calls.number("nvmlDeviceGetMaxMigDeviceCount @1"), 0);
    assert_eq!(calls.say("nvmlDeviceGetGpuInstanceById @1 0 >3"), NOT_SUPPORTED);
    // 3 slices, of number 2.
    assert_eq!(calls.say("nvmlDeviceGetGpuInstanceProfileInfo @1 2 >4"), "0");
    let info = calls.words(4);
    assert_eq!((low(info[0]), low(info[1]), low(info[2]), info[5]), (9, 3, 42, 40_192));
    let placements = calls.number("nvmlDeviceGetGpuInstancePossiblePlacements_v2 @1 9 >4");
    let first = calls.words(4);
    assert_eq!(
        (placements, &first[..2]),
        (2, &[4 << 32, 4 | 4 << 32][..]),
        "start and size of each"
    );
    for (version, name_at) in [(0x0200_0098_u64, 56), (0x0300_0098, 48)] {
        calls.say(&format!("put 6 {version}"));
        assert_eq!(calls.say("nvmlDeviceGetGpuInstanceProfileInfoV @1 2 >6"), "0");
        let bytes: Vec<u8> = calls.words(6).iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(&bytes[name_at..name_at + 8], &b"MIG 3g.40gb"[..8]);
    }
    assert_eq!(
        calls.say("nvmlDeviceGetGpuInstanceProfileInfo @1 5 >4"),
        NOT_SUPPORTED,
        "8 slices"
    );
    assert_eq!(
        calls.say("nvmlDeviceGetGpuInstanceProfileInfo @1 18 >4"),
        "2",
        "the end"
    );
}

#[test]
fn a_process_in_an_instance_has_its_memory_and_its_multiprocessors_alone() {
    let state = state("cuda", "mig = 0: 3g.40gb@0, 1g.10gb@4\ncontext_cost = 0\n");
    let mut calls = Calls::nvml(&state.0);
    calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 1 >2");
    let uuid = calls.text("nvmlDeviceGetUUID @2 >10 96", 10);
    let mut command = common::client(&state.0);
    command.env("CUDA_VISIBLE_DEVICES", &uuid);
    let mut client = Client::spawn(command).with_context();
    let digits = uuid.trim_start_matches("MIG").replace('-', "");
    let memory = 9_984_u64 << 20;
    let devices = client.say("devices");
    assert!(devices.starts_with(&format!("0 1 0 {digits} {memory} ")), "{devices}");
    assert_eq!(client.say(&format!("alloc:{}", memory + 1)), "2");
    assert_eq!(client.say(&format!("alloc:{memory}")), "0");
    // NVML: the process is in the instance, and in its GPU, which has what its instances have.
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), "0");
    assert_eq!(calls.words(4)[..3], [memory, 0, memory]);
    for device in ["@1", "@2"] {
        calls.say("put 5 8");
        assert_eq!(
            calls.say(&format!("nvmlDeviceGetComputeRunningProcesses_v3 {device} >5 >4")),
            "0"
        );
        let process = calls.words(4);
        assert_eq!(low(process[0]), u64::from(client.pid()), "PID");
        assert_eq!(process[1..3], [memory, 11], "bytes, instances");
    }
}

/// Drivers before r570 give a process one instance, and then no GPU beside it.
#[test]
fn how_many_instances_a_process_gets_depends_on_the_driver() {
    for (version, visible, expected) in [
        ("550.163.01", None, 1),
        ("570.86.15", None, 3),
        ("570.86.15", Some("1,2"), 2),
        ("550.163.01", Some("1"), 0),
    ] {
        let profile = format!("mig = 0: 3g.40gb@0, 1g.10gb@4\ndriver_version = {version}\n");
        let state = state("several", &profile);
        let mut command = common::client(&state.0);
        command.envs(visible.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        let mut client = Client::spawn(command);
        let code = if expected == 0 { "100" } else { "0" };
        assert_eq!(client.say("cuinit"), code, "{version} {visible:?}");
        let devices = client.say("devices");
        assert!(
            devices.starts_with(&format!("0 {expected} ")) || expected == 0,
            "{version} {visible:?}: {devices}"
        );
    }
}

#[test]
fn a_process_uses_the_instances_whose_capability_nodes_it_has() {
    let state = state("caps", "mig = 1: 3g.40gb@0, 1g.10gb@4\n");
    Client::start(&state.0).say("cuinit");
    let access = state.0.join("proc/driver/nvidia/capabilities/gpu1/mig/gi11/access");
    assert_eq!(
        std::fs::read_to_string(access).expect("the kernel's file"),
        "DeviceFileMinor: 237\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    );
    let caps = Folder::new("caps-of-a-container");
    std::fs::create_dir_all(&caps.0).expect("a folder");
    let seen = |nodes: &[&str]| {
        for node in nodes {
            let from = state.0.join("dev/nvidia-caps").join(node);
            std::fs::copy(from, caps.0.join(node)).expect("a node");
        }
        let mut command = on_gpus(program(), &state.0);
        command.env("SOFT_GPU_CAPS", &caps.0);
        let mut calls = Calls::start(command);
        calls.all(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 >1"]);
        let instances =
            (0..2).filter(|index| calls.say(&format!("nvmlDeviceGetMigDeviceHandleByIndex @1 {index} >2")) == "0");
        let instances = instances.collect::<Vec<u32>>();
        (calls.number("nvmlDeviceGetCount_v2"), instances)
    };
    assert_eq!(seen(&[]), (2, vec![]));
    assert_eq!(
        seen(&["nvidia-cap237"]),
        (2, vec![]),
        "the compute instance's node is missing"
    );
    assert_eq!(seen(&["nvidia-cap238"]), (1, vec![1]));
}

#[test]
fn an_instance_that_is_gone_takes_its_handle_with_it() {
    let state = state("gone", "mig = 0: 3g.40gb@0, 1g.10gb@4\n");
    let mut calls = Calls::nvml(&state.0);
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), "0");
    std::fs::write(state.0.join("control"), "gone 0 1\n").expect("written");
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), NOT_FOUND);
    assert_eq!(calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 0 >3"), NOT_FOUND);
    assert_eq!(
        calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 1 >3"),
        "0",
        "the index of the other one stays"
    );
    assert_eq!(calls.say("nvmlDeviceGetGpuInstanceById @1 1 >3"), NOT_FOUND);
}
