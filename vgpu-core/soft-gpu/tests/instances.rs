//! Instances that are made and ended while programs run.

mod common;

use common::calls::{Calls, low, state};
use common::{Client, Folder, on_gpus, program};
use std::path::Path;

const OK: &str = "0";
const INVALID: &str = "2";
const NOT_SUPPORTED: &str = "3";
const NO_PERMISSION: &str = "4";
const NOT_FOUND: &str = "6";
const RESET_REQUIRED: &str = "16";
const IN_USE: &str = "19";
const NO_ROOM: &str = "23";

/// An administrator of the GPUs of a folder.
fn admin(state: &Folder) -> Client {
    Client::start(&state.0)
}

fn control(state: &Folder, text: &str) {
    std::fs::write(state.0.join("control.new"), text).expect("written");
    std::fs::rename(state.0.join("control.new"), state.0.join("control")).expect("renamed");
}

fn uuid(said: &str) -> String {
    let uuid = said.strip_prefix("0 ").unwrap_or_else(|| panic!("{said}"));
    assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{said}");
    uuid.to_owned()
}

/// A program whose CUDA has one device, by its UUID.
fn program_on(state: &Path, uuid: &str) -> Client {
    let mut command = common::client(state);
    command.env("CUDA_VISIBLE_DEVICES", uuid);
    Client::spawn(command)
}

#[test]
fn an_instance_is_made_used_and_ended_for_all_processes() {
    let state = state("made", "");
    let (mut admin, mut other) = (admin(&state), Calls::nvml(&state.0));
    assert_eq!(admin.say("miggi:0:3g.40gb@4"), NOT_SUPPORTED, "the mode is off");
    assert_eq!(admin.say("migmode:0:1"), "0 0");
    assert_eq!(admin.say("miggi:0:3g.40gb@4"), "0 2");
    // Another process sees it by its profile alone, as it has no compute instance.
    assert_eq!(other.say("nvmlDeviceGetMigDeviceHandleByIndex @1 0 >2"), NOT_FOUND);
    assert_eq!(other.number("nvmlDeviceGetGpuInstanceRemainingCapacity @1 9"), 1);
    assert_eq!(other.say("nvmlDeviceGetGpuInstances @1 9 >3 >4"), OK);
    assert_eq!(other.say("get 4"), "1");
    let made = uuid(&admin.say("migci:0:2:2"));
    assert_eq!(admin.say("miglist:0"), "0 2:3g.40gb@4+0");
    assert_eq!(other.say("nvmlDeviceGetMigDeviceHandleByIndex @1 0 >2"), OK);
    assert_eq!(other.text("nvmlDeviceGetUUID @2 >10 96", 10), made);
    let access = state.0.join("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access");
    let node = state.0.join("dev/nvidia-caps/nvidia-cap22");
    assert!(access.is_file() && node.is_file());

    let mut client = program_on(&state.0, &made).with_context();
    assert_eq!(client.say("alloc:4096MiB"), OK);
    assert_eq!(admin.say("migend:0:2"), IN_USE);
    assert_eq!(other.say("nvmlDeviceGetMemoryInfo @2 >4"), OK, "it is still there");
    client.kill();
    let waiting = program_on(&state.0, &made);
    let mut waiting = waiting;
    assert_eq!(waiting.say("cuinit"), OK);
    assert_eq!(
        admin.say("migend:0:2"),
        OK,
        "a process without a context does not hold it"
    );
    assert_eq!(waiting.say("init"), "101");
    for gone in [
        "nvmlDeviceGetMemoryInfo @2 >4",
        "nvmlDeviceGetGpuInstanceById @1 2 >4",
        "nvmlGpuInstanceGetInfo @3 >4",
    ] {
        assert_eq!(other.say(gone), NOT_FOUND, "{gone}");
    }
    assert!(!access.exists() && !node.exists());

    // In the same place, the ids and the UUID come back. A process that knew the former instance has none of the next.
    assert_eq!(uuid(&admin.say("migcreate:0:3g.40gb@4")), made);
    assert_eq!(waiting.say("init"), "101");
    assert_eq!(program_on(&state.0, &made).say("init"), OK);
    assert_eq!(admin.say("migend:0:2"), OK);
    let of_two = uuid(&admin.say("migcreate:0:2g.20gb@4"));
    assert_eq!(admin.say("migend:0:5"), OK);
    assert_eq!(
        uuid(&admin.say("migcreate:0:1g.20gb@4")),
        of_two,
        "another profile in the same place"
    );
}

#[test]
fn only_what_fits_is_made() {
    let state = state("fits", "mig = 0: 4g.40gb@0, 1g.10gb+me@4\n");
    let mut admin = admin(&state);
    for (wanted, expected) in [
        ("3g.40gb@0", NO_ROOM),
        ("1g.10gb@4", NO_ROOM),
        ("1g.10gb+me@5", NO_ROOM),
        ("3g.40gb@2", INVALID),
        ("1g.10gb@6", "0 13"),
        ("7g.80gb@0", NO_ROOM),
    ] {
        assert_eq!(admin.say(&format!("miggi:0:{wanted}")), expected, "{wanted}");
    }
    assert_eq!(admin.say("miglist:0"), "0 13:1g.10gb@6 1:4g.40gb@0+0 11:1g.10gb+me@4+0");
    // Two compute instances share a GPU instance; a third one has no slices left.
    assert_eq!(admin.say("migend:0:1"), OK);
    assert_eq!(admin.say("miggi:0:4g.40gb@0"), "0 1");
    let halves = [uuid(&admin.say("migci:0:1:1")), uuid(&admin.say("migci:0:1:1"))];
    assert_ne!(halves[0], halves[1]);
    assert_eq!(admin.say("migci:0:1:0"), NO_ROOM);
    let mut calls = Calls::nvml(&state.0);
    calls.say(&format!("nvmlDeviceGetHandleByUUID \"{}\" >2", halves[1]));
    let name = calls.text("nvmlDeviceGetName @2 >10 96", 10);
    assert!(name.ends_with("MIG 2c.4g.40gb"), "{name}");
    assert_eq!(calls.number("nvmlDeviceGetComputeInstanceId @2"), 1);
    assert_eq!(calls.say("nvmlDeviceGetGpuInstanceById @1 1 >3"), OK);
    assert_eq!(
        calls.say("nvmlGpuInstanceDestroy @3"),
        IN_USE,
        "compute instances first"
    );
    assert_eq!(
        calls.say("nvmlGpuInstanceGetComputeInstanceProfileInfo @3 2 0 >4"),
        NOT_SUPPORTED,
        "no 3c of 4g"
    );
    assert_eq!(calls.say("nvmlGpuInstanceGetComputeInstanceProfileInfo @3 3 0 >4"), OK);
    let info = calls.words(4);
    assert_eq!(
        [low(info[0]), info[0] >> 32, low(info[1]), info[1] >> 32],
        [3, 4, 1, 64],
        "id, slices, most, SMs"
    );
    for (version, name_at) in [(0x0200_0088_u64, 40), (0x0300_008c, 40)] {
        calls.say(&format!("put 6 {version}"));
        assert_eq!(calls.say("nvmlGpuInstanceGetComputeInstanceProfileInfoV @3 1 0 >6"), OK);
        let bytes: Vec<u8> = calls.words(6).iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(&bytes[name_at..name_at + 10], b"MIG 2c.4g.");
    }
}

#[test]
fn a_program_on_the_whole_gpu_is_in_the_way_of_the_first_instance() {
    let state = state("busy", "");
    let (mut admin, client) = (admin(&state), Client::ready(&state.0));
    assert_eq!(admin.say("migmode:0:1"), "0 0");
    assert_eq!(admin.say("migcreate:0:1g.10gb@0"), IN_USE);
    client.kill();
    uuid(&admin.say("migcreate:0:1g.10gb@0"));
    assert_eq!(admin.say("migmode:0:0"), "19 0", "an instance is there");
    let (other, mut third) = (Client::ready(&state.0), Client::start(&state.0));
    assert_eq!(third.say("cuinit"), OK);
    drop(other);
    // The opposite of that belief: the mode itself is refused.
    assert_eq!(admin.say("migend:0:7"), OK);
    assert_eq!(admin.say("migmode:0:0"), "0 0");
    control(&state, "busy early\n");
    let client = Client::ready(&state.0);
    assert_eq!(admin.say("migmode:0:1"), "19 0");
    drop(client);
    assert_eq!(admin.say("migmode:0:1"), "0 0");
}

#[test]
fn only_the_owner_and_who_has_the_node_may_change_instances() {
    let state = state("rights", "mig = 0:\n");
    admin(&state).say("miglist:0");
    let caps = Folder::new("caps-of-a-tenant");
    std::fs::create_dir_all(&caps.0).expect("a folder");
    let mut command = common::client(&state.0);
    command.env("SOFT_GPU_CAPS", &caps.0);
    let mut tenant = Client::spawn(command);
    for step in ["migmode:0:0", "miggi:0:1g.10gb@0", "miglist:0"] {
        let said = tenant.say(step);
        assert_eq!(said.split(' ').next(), Some(NO_PERMISSION), "{step}: {said}");
    }
    std::fs::copy(state.0.join("dev/nvidia-caps/nvidia-cap1"), caps.0.join("nvidia-cap1")).expect("a node");
    assert_eq!(tenant.say("miggi:0:1g.10gb@0"), "0 7");
}

#[test]
fn an_ampere_gpu_changes_its_mode_at_a_reset_and_keeps_it() {
    let state = state("ampere", "gpus = 2\nmig_product = a100-80gb\n");
    let mut admin = admin(&state);
    let mut calls = Calls::nvml(&state.0);
    let mut mode = || {
        assert_eq!(calls.say("nvmlDeviceGetMigMode @1 >3 >4"), OK);
        calls.all(&["get 3", "get 4"])
    };
    assert_eq!(admin.say("migmode:0:1"), format!("0 {RESET_REQUIRED}"));
    assert_eq!(mode(), ["0", "1"]);
    assert_eq!(admin.say("miggi:0:1g.10gb@0"), NOT_SUPPORTED);
    control(&state, "reset 0 1\n");
    assert_eq!(mode(), ["1", "1"]);
    uuid(&admin.say("migcreate:0:1g.10gb@0"));
    control(&state, "reset 0 1\nreload 1\n");
    assert_eq!(mode(), ["1", "1"], "the mode is in the InfoROM");
    assert_eq!(admin.say("miglist:0"), OK, "no instance outlives a reload");
    uuid(&admin.say("migcreate:0:1g.10gb@0"));
    assert_eq!(admin.say("miglist:0"), "0 7:1g.10gb@0+0", "a reload is made once");
    // The opposite: the driver resets a GPU that nothing uses.
    control(&state, "resets 1\n");
    assert_eq!(admin.say("migmode:1:1"), "0 0");
}

#[test]
fn a_reload_ends_all_instances_and_the_modes_that_need_no_reset() {
    let state = state("reload", "gpus = 2\nmig = 0: 3g.40gb@0; 1: 1g.10gb@0\n");
    let mut calls = Calls::nvml(&state.0);
    let mut client = program_on(&state.0, &calls.text("nvmlDeviceGetUUID @2 >10 96", 10)).with_context();
    assert_eq!(client.say("alloc:2MiB"), OK);
    control(&state, "reload 1\n");
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), NOT_FOUND);
    assert_eq!(calls.number("nvmlDeviceGetMaxMigDeviceCount @1"), 0);
    assert!(!state.0.join("proc/driver/nvidia/capabilities/gpu1/mig/gi7").exists());
    // A new instance is not put where the memory of a program of before still is.
    let mut admin = admin(&state);
    assert_eq!(admin.say("migmode:0:1"), "0 0");
    uuid(&admin.say("migcreate:0:3g.40gb@0"));
    assert_eq!(calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 0 >2"), OK);
    assert_eq!(calls.say("nvmlDeviceGetMemoryInfo @2 >4"), OK);
    assert_eq!(calls.words(4)[2], 0, "bytes in use");
    // Only the GPU that is reset loses its instances.
    assert_eq!(admin.say("migmode:1:1"), "0 0");
    uuid(&admin.say("migcreate:1:1g.10gb@0"));
    control(&state, "reload 1\nreset 1 1\n");
    assert_eq!(admin.say("miglist:0"), "0 1:3g.40gb@0+0");
    assert_eq!(admin.say("miglist:1"), OK);
}

#[test]
fn faults_and_the_opposites_of_beliefs_are_lines_of_control() {
    let state = state("switches", "mig = 0: 3g.40gb@4\n");
    let mut admin = admin(&state);
    control(&state, "refuse 0 create 20\nrefuse 0 mode 999\nheld 0 2\n");
    assert_eq!(admin.say("miggi:0:1g.10gb@0"), "20");
    assert_eq!(admin.say("migmode:0:0"), "999 0");
    assert_eq!(admin.say("migend:0:2"), IN_USE, "by a client that no list shows");
    control(&state, "refuse 0 compute 23\n");
    assert_eq!(admin.say("migcreate:0:1g.10gb@0"), NO_ROOM);
    assert_eq!(
        admin.say("miglist:0"),
        "0 7:1g.10gb@0 2:3g.40gb@4+0",
        "the GPU instance is left"
    );
    control(&state, "refuse 0 destroy 19\n");
    assert_eq!(admin.say("migend:0:7"), IN_USE);
    control(&state, "");
    let before = uuid(&admin.say("migci:0:7:0"));
    assert_eq!(admin.say("migend:0:7"), OK);
    control(&state, "uuids new\nnodes manual\n");
    let node = state.0.join("dev/nvidia-caps/nvidia-cap66");
    assert_ne!(uuid(&admin.say("migcreate:0:1g.10gb@0")), before);
    assert!(!node.exists(), "nvidia-modprobe was not called");
    assert!(
        state
            .0
            .join("proc/driver/nvidia/capabilities/gpu0/mig/gi7/access")
            .exists()
    );
    // A GPU instance that is listed before it has a compute instance.
    control(&state, "bare listed\n");
    assert_eq!(admin.say("miggi:0:1g.10gb@1"), "0 8");
    let mut calls = Calls::nvml(&state.0);
    assert_eq!(calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 2 >2"), OK);
    assert_eq!(calls.number("nvmlDeviceGetComputeInstanceId @2"), u64::from(u32::MAX));
    let of_bare = calls.text("nvmlDeviceGetUUID @2 >10 96", 10);
    assert_eq!(
        program_on(&state.0, &of_bare).say("cuinit"),
        "100",
        "CUDA has none without a compute instance"
    );
    uuid(&admin.say("migci:0:8:0"));
    assert_eq!(calls.number("nvmlDeviceGetComputeInstanceId @2"), 0);
}

/// A process that is killed after the driver has made the instance, and before it has answered, leaves the instance.
#[test]
fn what_a_killed_process_has_made_is_there() {
    let state = state("killed", "mig = 0:\n");
    let (mut admin, mut victim) = (admin(&state), Client::start(&state.0));
    assert_eq!(victim.say("miglist:0"), OK);
    control(&state, "late 0 600000\n");
    victim.tell("migcreate:0:2g.20gb@2");
    while admin.say("miglist:0") == OK {
        std::thread::yield_now();
    }
    victim.kill();
    assert_eq!(
        admin.say("miglist:0"),
        "0 4:2g.20gb@2",
        "the killed one did not come to its compute instance"
    );
    control(&state, "slow 0 600000\n");
    let mut victim = Client::start(&state.0);
    victim.tell("migcreate:0:1g.10gb@0");
    victim.kill();
    assert_eq!(admin.say("miglist:0"), "0 4:2g.20gb@2");
    control(&state, "");
    assert_eq!(admin.say("migend:0:4"), OK);
}

#[test]
fn products_have_their_profiles() {
    for (product, wanted, slices) in [
        ("a30-24gb", "2g.12gb+me@2", 2),
        ("h100-80gb-pcie", "4g.40gb@0", 4),
        ("b200-180gb", "7g.180gb@0", 7),
        ("rtx-pro-6000-96gb", "1g.24gb-me@3", 1),
        ("rtx-pro-6000-96gb", "4g.96gb+gfx@0", 4),
    ] {
        let state = state(
            "products",
            &format!("memory = 192GiB\nmig_product = {product}\nmig = 0:\n"),
        );
        let mut admin = admin(&state);
        let made = uuid(&admin.say(&format!("migcreate:0:{wanted}")));
        let mut calls = Calls::start(on_gpus(program(), &state.0));
        calls.say("nvmlInit_v2");
        calls.say(&format!("nvmlDeviceGetHandleByUUID \"{made}\" >2"));
        assert_eq!(calls.say("nvmlDeviceGetAttributes_v2 @2 >4"), OK);
        assert_eq!(low(calls.words(4)[3]), slices, "{wanted}");
    }
    let state = state("none", "mig_product = none\n");
    assert_eq!(admin(&state).say("migmode:0:1"), format!("{NOT_SUPPORTED} 0"));
    assert_eq!(
        Calls::nvml(&state.0).say("nvmlDeviceGetMigMode @1 >3 >4"),
        NOT_SUPPORTED
    );
}
