//! Shares in instances of a GPU in MIG mode: limits, and what a tenant sees of its instance, of its GPU and of others.

#![allow(unsafe_code)] // kill(2).

mod support;

use support::caller::Caller;
use support::serve::Serving;
use support::{Bench, GIB, MIB, lines, until};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::{ComputePolicy, Priority};

const INVALID: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;

/// An instance with 9,984 MiB, and a larger one of another tenant beside it, of which CUDA gives a process both.
const TWO: &str = "gpus = 1\nmig = 0: 1g.10gb@4, 3g.40gb@0\ndriver_version = 570.86.15\n";
/// Id of the GPU instance of each.
const IDS: [u32; 2] = [11, 1];

/// An administrator's client.
fn admin(bench: &Bench) -> Serving {
    Serving::new(bench.bare(&["serve"]))
}

/// A caller under the shares, with the handle of the instance in slot 1 and that of its GPU in slot 2.
fn caller(bench: &Bench) -> Caller {
    let mut caller = bench.caller(true);
    caller.ok("nvmlInit_v2");
    caller.ok("nvmlDeviceGetHandleByIndex_v2 0 >1");
    caller.ok("nvmlDeviceGetDeviceHandleFromMigDeviceHandle @1 >2");
    caller
}

/// Total and used bytes of a device.
fn memory(caller: &mut Caller, device: &str) -> [u64; 2] {
    caller.ok(&format!("nvmlDeviceGetMemoryInfo {device} >5"));
    let words = words(caller, 5);
    [words[0], words[2]]
}

fn words(caller: &mut Caller, slot: u32) -> Vec<u64> {
    let raw = caller.say(&format!("raw {slot}"));
    raw.split(' ').filter_map(|word| word.parse().ok()).collect()
}

/// PID, bytes and ids of the instances of each process of a device.
fn processes(caller: &mut Caller, device: &str) -> Vec<(u32, u64, [u32; 2])> {
    caller.say("put 6 10");
    caller.ok(&format!("nvmlDeviceGetComputeRunningProcesses_v3 {device} >6 >5"));
    let count = caller.get(6) as usize & 0xffff_ffff;
    let entry = |words: &[u64]| (words[0] as u32, words[1], [words[2] as u32, (words[2] >> 32) as u32]);
    words(caller, 5).chunks_exact(3).take(count).map(entry).collect()
}

#[test]
fn two_shares_of_an_instance_have_their_own_memory_and_processes() {
    let one = Bench::of_instances(TWO);
    one.share("share", 0, 0, 2 * GIB);
    let other = Bench::on_gpu_of(&one, 3 * GIB);
    let mut clients = [&one, &other].map(|bench| bench.serving(&["init:0"]));
    for (client, gib) in clients.iter_mut().zip([2, 3]) {
        assert_eq!(client.ask("info"), format!("0 {0} {0}", gib * GIB));
        assert_eq!(client.ask(&format!("alloc:{gib}GiB")), "0", "its limit");
        assert_eq!(client.ask("alloc:2MiB"), "2", "and no more");
    }
    // The rest of the instance is nobody's: neither share gets it. A third one does, up to the instance's size.
    let third = Bench::on_gpu_of(&one, 9 * GIB);
    let rest = (9_984 - 5 * 1024) * MIB;
    let said = third.run(&["init:0", &format!("alloc:{}", rest + 1), &format!("alloc:{rest}")]);
    assert_eq!(said[1..], ["alloc 2", "alloc 0"]);

    for ((bench, client), gib) in [&one, &other].into_iter().zip(&clients).zip([2, 3]) {
        let mut caller = caller(bench);
        let own = vec![(client.pid(), gib * GIB, [IDS[0], 0])];
        for device in ["@1", "@2"] {
            assert_eq!(memory(&mut caller, device), [gib * GIB; 2], "{device}");
            assert_eq!(processes(&mut caller, device), own, "{device}");
        }
    }
}

#[test]
fn the_gpu_of_an_instance_shows_nothing_of_other_instances() {
    let bench = Bench::of_instances(TWO);
    bench.share("share", 0, 0, GIB);
    let neighbour = Bench::on_gpu_of(&bench, GIB);
    let mut limits = neighbour.limits("share", 0, 1, GIB);
    limits.order = 0;
    neighbour.put(&limits);
    let holding = neighbour.serving(&["init:0", "alloc:512MiB"]);
    let mut caller = caller(&bench);
    assert_eq!(memory(&mut caller, "@2"), [GIB, 0]);
    assert_eq!(processes(&mut caller, "@2"), []);
    caller.gives("nvmlDeviceGetUtilizationRates @2 >5", NOT_SUPPORTED);
    caller.gives("nvmlDeviceGetUtilizationRates @1 >5", NOT_SUPPORTED);
    // The instances of the GPU: this one alone. Counters: of this one alone.
    caller.ok("nvmlDeviceGetMigDeviceHandleByIndex @2 0 >5");
    assert_eq!(caller.get(5), caller.get(1));
    caller.gives("nvmlDeviceGetMigDeviceHandleByIndex @2 1 >5", NOT_FOUND);
    let mut sample = |id: u32| caller.call(&format!("nvmlGpmMigSampleGet @2 {id} 0"));
    assert_eq!(
        IDS.map(&mut sample),
        [NOT_SUPPORTED, NOT_FOUND],
        "the driver's answer, and the library's"
    );
    assert_eq!(caller.say("nvmlDeviceGetCount_v2 >5"), "0");
    assert_eq!(caller.get(5) & 0xffff_ffff, 1);
    caller.gives("nvmlDeviceGetHandleByIndex_v2 1 >5", INVALID);
    // All that programs need of the GPU is there.
    caller.ok("nvmlDeviceGetPciInfo_v3 @2 >5");
    caller.ok("nvmlDeviceGetPowerUsage @2 >5");
    holding.kill();
}

#[test]
fn visible_devices_name_instances() {
    let bench = Bench::of_instances(TWO);
    bench.share("a", 0, 0, GIB);
    bench.share("b", 1, 1, 2 * GIB);
    let digits = |at: usize| bench.gpu(at).replacen("MIG-", "", 1).replace('-', "");
    let [small, large] = [(0, GIB), (1, 2 * GIB)].map(|(at, bytes)| format!("0 {} {bytes}", digits(at)));
    let names = [0, 1].map(|at| bench.gpu(at).to_owned());
    for (value, expected) in [
        (None, format!("2 {small} {large}")),
        (Some("1".to_owned()), format!("1 {large}")),
        (Some(names[1].clone()), format!("1 {large}")),
        (
            Some(names[0][..12].to_lowercase().replacen("mig", "MIG", 1)),
            format!("1 {small}"),
        ),
        (Some(format!("{},{}", names[1], names[0])), format!("2 {large} {small}")),
    ] {
        let mut client = bench.client(&["cuinit", "devices"]);
        client.envs(value.as_ref().map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        let said = lines(&client.output().expect("a client"));
        assert!(
            said[1].starts_with(&format!("devices 0 {expected} ")),
            "{value:?}: {said:?}, not {expected}"
        );
    }
}

/// Drivers before r570 give a process the first instance unless another one is named.
#[test]
fn a_share_of_the_second_instance_is_found_by_an_older_driver() {
    let bench = Bench::of_instances("gpus = 1\nmig = 0: 1g.10gb@4\n");
    let second = admin(&bench).ask("migcreate:0:3g.40gb@0").replacen("0 ", "", 1);
    let mut limits = bench.limits("share", 0, 0, 20 * GIB);
    limits.gpu.clone_from(&second);
    bench.put(&limits);
    for value in ["0", &second] {
        let mut client = bench.client(&["init:0", "alloc:20GiB", "alloc:2MiB", "getenv:CUDA_VISIBLE_DEVICES"]);
        client.env("CUDA_VISIBLE_DEVICES", value);
        let said = lines(&client.output().expect("a client"));
        let kept = format!("getenv Some({value:?})");
        assert_eq!(said, ["init 0", "alloc 0", "alloc 2", &kept], "{value}");
    }
}

/// The values of handles are used again. A program that lists its devices gets the handle of its own instance.
#[test]
fn an_instance_that_was_made_again_is_found_again() {
    let bench = Bench::of_instances("gpus = 1\nmig = 0: 1g.10gb@4\n");
    bench.share("share", 0, 0, GIB);
    let (mut caller, mut admin) = (caller(&bench), admin(&bench));
    assert_eq!(memory(&mut caller, "@1"), [GIB, 0]);
    assert_eq!(admin.ask("migend:0:11"), "0");
    caller.gives("nvmlDeviceGetMemoryInfo @1 >5", NOT_FOUND);
    caller.ok("nvmlDeviceGetCount_v2 >5");
    assert_eq!(caller.get(5) & 0xffff_ffff, 0);
    // Another tenant's instance gets the handle.
    assert!(admin.ask("migcreate:0:1g.10gb@0").starts_with("0 MIG-"));
    caller.gives("nvmlDeviceGetHandleByIndex_v2 0 >5", INVALID);
    assert_eq!(admin.ask("migcreate:0:1g.10gb@4"), format!("0 {}", bench.gpu(0)));
    caller.ok("nvmlDeviceGetHandleByIndex_v2 0 >5");
    assert_ne!(caller.get(5), caller.get(1));
    assert_eq!(memory(&mut caller, "@5"), [GIB, 0]);
}

/// NVML measures no utilisation of an instance. The library counts a share's time itself.
#[test]
fn shares_of_an_instance_have_their_parts_of_its_time() {
    let holder = |slot: u8, cores: u32| Holder {
        slot,
        cores,
        compute_policy: ComputePolicy::Guaranteed,
        priority: Priority::Low,
        generation: u64::from(slot) + 1,
        ignored: false,
    };
    let holders = [holder(0, 20), holder(1, 40)];
    let first = Bench::of_instances("gpus = 1\nmig = 0: 1g.10gb@4\n");
    first.pages(&entries(&holders));
    let second = Bench::on_gpu_of(&first, GIB);
    second.arbitrates_with(&first);
    for (bench, holder) in [&first, &second].into_iter().zip(holders) {
        bench.share_with(GIB, |limits| {
            (limits.cores, limits.slot) = (holder.cores, Some(holder.slot));
            limits.compute_policy = holder.compute_policy;
        });
    }
    // 2 ms kernels for 3 s, in both at once.
    let mut clients = [&first, &second].map(|bench| bench.serving(&["init:0"]));
    for client in &mut clients {
        client.tell("work:2000,3000,4");
    }
    for (client, cores) in clients.iter_mut().zip([20, 40]) {
        let said = client.line();
        let numbers: Vec<u64> = said
            .split(' ')
            .skip(1)
            .map(|word| word.parse().expect("a number"))
            .collect();
        let [0, count, took] = numbers[..] else {
            panic!("{said}")
        };
        let percent = count * 2 * 100 / took;
        assert!((1..=cores + 8).contains(&percent), "{percent} % of {cores}: {said}");
    }
    // Each has a page that counts what it had.
    until(|| (0..2).all(|slot| first.counted(slot).charged > 0));
}
