//! Limits apply to the right GPU: whichever call allocates, however CUDA_VISIBLE_DEVICES orders and names the GPUs, and
//! whichever of them NVML lists first.

mod support;

use support::caller::Caller;
use support::{Bench, GIB, MIB, lines, number};

/// Two GPUs with a share each, of 2 and of 3 GiB.
fn two() -> Bench {
    let bench = Bench::with_profile("context_cost = 10MiB\nnvml_pids = host\n");
    bench.share("zero", 0, 0, 2 * GIB);
    bench.share("one", 1, 1, 3 * GIB);
    bench
}

/// A client that makes single calls, with this CUDA_VISIBLE_DEVICES.
fn caller(bench: &Bench, visible: Option<&str>) -> Caller {
    let mut like = bench.client(&[]);
    if let Some(visible) = visible {
        like.env("CUDA_VISIBLE_DEVICES", visible);
    }
    Caller::like(&like)
}

/// The charges on both GPUs, which must equal what each has in use.
fn charged(bench: &Bench, truth: &mut Caller) -> [u64; 2] {
    let charged = ["zero", "one"].map(|share| bench.usage(share).charged);
    assert_eq!(
        charged,
        [truth.used(0), truth.used(1)],
        "charged, and used by the GPUs' own accounts"
    );
    charged
}

/// Every way to allocate on device `own`, while the context of `other` is current wherever the call allows it: calls
/// that allocate 64 MiB, and calls that free them.
fn ways(own: usize, other: usize) -> [[Vec<String>; 2]; 8] {
    let place = 1 | (own as u64) << 32;
    let [here, there] = [own, other].map(|which| format!("cuCtxSetCurrent @{}", 9100 + which));
    let of_pool = "cuMemAllocFromPoolAsync >1 64MiB @3 0";
    let freed = "cuMemFreeAsync @1 0; cuStreamSynchronize 0";
    let default = format!("cuDeviceGetDefaultMemPool >3 {own}");
    let (pool, trimmed) = (
        format!("{freed}; cuMemPoolDestroy @3"),
        format!("{freed}; cuMemPoolTrimTo @3 0"),
    );
    [
        (format!("{here}; cuMemAlloc_v2 >1 64MiB; {there}"), "cuMemFree_v2 @1"),
        (
            format!("{here}; cuMemAllocPitch_v2 >1 >2 64KiB 1024 4; {there}"),
            "cuMemFree_v2 @1",
        ),
        (
            format!("{here}; cuMemAllocManaged >1 64MiB 1; {there}"),
            "cuMemFree_v2 @1",
        ),
        (
            format!("{here}; cuArrayCreate_v2 >1 [2048,2048,0x400000020]"),
            "cuArrayDestroy @1",
        ),
        (
            format!("{there}; cuMemCreate >1 64MiB [1,{place},0,0] 0"),
            "cuMemRelease @1",
        ),
        (
            format!("{there}; cuMemPoolCreate >3 [1,{place},0,0,0,0,0,0,0,0,0]; {of_pool}"),
            &pool,
        ),
        (format!("{there}; {default}; {of_pool}"), &trimmed),
        (format!("{here}; cuMemAllocAsync >1 64MiB 0; {default}"), &trimmed),
    ]
    .map(|(have, give)| [have.as_str(), give].map(|calls| calls.split("; ").map(String::from).collect()))
}

#[test]
fn core_319_every_way_to_memory_is_charged_to_its_own_gpu() {
    let bench = two();
    let mut truth = bench.caller(false);
    let by_uuid = format!("{},{}", bench.gpu(1), &bench.gpu(0)[..14]);
    for (visible, order) in [
        (None, vec![0, 1]),
        (Some("1,0"), vec![1, 0]),
        (Some(by_uuid.as_str()), vec![1, 0]),
        (Some("1"), vec![1]),
        (Some("0,7,1"), vec![0]),
    ] {
        let mut client = caller(&bench, visible);
        client.ok("cuInit 0");
        for device in 0..order.len() {
            client.ok(&format!("cuDevicePrimaryCtxRetain >{} {device}", 9100 + device));
        }
        let idle = charged(&bench, &mut truth);
        for (gpu, idle) in idle.iter().enumerate() {
            assert_eq!(
                *idle,
                if order.contains(&gpu) { 10 * MIB } else { 0 },
                "contexts, {visible:?}"
            );
        }
        for (device, gpu) in order.iter().enumerate() {
            let other = (device + 1) % order.len();
            for [have, give] in ways(device, other) {
                have.iter().for_each(|call| client.ok(call));
                let mut expected = idle;
                expected[*gpu] += 64 * MIB;
                assert_eq!(charged(&bench, &mut truth), expected, "{visible:?} {have:?}");
                give.iter().for_each(|call| client.ok(call));
                assert_eq!(charged(&bench, &mut truth), idle, "{visible:?} {give:?}");
            }
            // Both the current context and the device show this GPU's limit.
            client.ok(&format!("cuCtxSetCurrent @{}", 9100 + device));
            let limit = [2 * GIB, 3 * GIB][*gpu];
            client.ok("cuMemGetInfo_v2 >4 >5");
            assert_eq!([client.get(4), client.get(5)], [limit - 10 * MIB, limit]);
            client.ok(&format!("cuDeviceTotalMem_v2 >4 {device}"));
            assert_eq!(client.get(4), limit);
            client.gives(&format!("cuMemAlloc_v2 >1 {limit}"), 2);
            client.gives(
                &format!("cuMemCreate >1 {limit} [1,{},0,0] 0", 1 | (device as u64) << 32),
                2,
            );
            // No variable changes NVML's order.
            let used = number(&client.say(&format!("look {gpu}")), 0);
            assert_eq!(used, 10 * MIB, "{visible:?}");
        }
        client.kill();
    }
}

#[test]
fn a_context_of_another_device_is_charged_there() {
    let bench = two();
    let mut truth = bench.caller(false);
    let mut client = caller(&bench, Some("1,0"));
    client.ok("cuInit 0");
    client.ok("cuCtxCreate_v2 >1 0 1");
    assert_eq!(charged(&bench, &mut truth), [10 * MIB, 0]);
    client.ok("cuMemAlloc_v2 >2 4MiB");
    client.ok("cuCtxCreate_v2 >3 0 0");
    assert_eq!(charged(&bench, &mut truth), [14 * MIB, 10 * MIB]);
    client.ok("cuMemAlloc_v2 >4 8MiB");
    client.ok("cuMemFree_v2 @2");
    assert_eq!(
        charged(&bench, &mut truth),
        [10 * MIB, 18 * MIB],
        "freed while another's context is current"
    );
    client.ok("cuCtxDestroy_v2 @1");
    assert_eq!(charged(&bench, &mut truth), [0, 18 * MIB]);
    client.kill();
}

#[test]
fn an_allocation_that_shares_cannot_hold_together_takes_of_none() {
    let bench = Bench::new();
    bench.share("first", 0, 0, 3 * GIB);
    bench.share("second", 1, 0, 5 * GIB);
    let mut client = bench.serving(&["init"]);
    assert_eq!([client.ask("alloc:4GiB"), client.ask("alloc:5GiB")], ["0", "2"]);
    assert_eq!(
        [bench.usage("first").charged, bench.usage("second").charged],
        [3 * GIB, GIB]
    );
    assert_eq!([client.ask("managed:4GiB"), client.ask("alloc:2MiB")], ["0", "2"]);
    // If the driver refuses what the shares would allow, both parts are released.
    let bench = Bench::with_profile("fail.cuMemAlloc = 2\n");
    bench.share("first", 0, 0, GIB);
    bench.share("second", 1, 0, GIB);
    let shown = bench.run(&["init", "alloc:2GiB", "info"]);
    assert_eq!(shown[1..], ["alloc 2", &format!("info 0 {0} {0}", 2 * GIB)]);
}

#[test]
fn a_split_allocation_finds_the_dead_of_every_share() {
    let bench = Bench::new();
    bench.share("first", 0, 0, GIB);
    bench.share("second", 1, 0, GIB);
    let mut waiting = bench.serving(&["init"]);
    bench.death_with("2GiB");
    assert_eq!(waiting.ask("alloc:2GiB"), "0");
}

/// Returns the GPUs whose UUIDs CUDA shows, or cuInit's error.
fn seen(bench: &Bench, visible: &str) -> Result<Vec<usize>, String> {
    let output = bench
        .client(&["cuinit", "devices", "getenv:CUDA_VISIBLE_DEVICES"])
        .env("CUDA_VISIBLE_DEVICES", visible)
        .output()
        .expect("a client");
    assert!(output.stderr.is_empty(), "{output:?}");
    let shown = lines(&output);
    assert_eq!(
        shown[2],
        format!("getenv Some({visible:?})"),
        "the program's value stays"
    );
    if shown[0] != "cuinit 0" {
        return Err(shown[0].clone());
    }
    let words: Vec<&str> = shown[1].split(' ').collect();
    let count: usize = words[2].parse().expect("a count");
    let hex = |gpu: usize| bench.gpu(gpu).trim_start_matches("GPU-").replace('-', "");
    let place = |index: usize| {
        (0..3)
            .find(|gpu| hex(*gpu) == words[4 + 3 * index])
            .expect("a GPU of the bench")
    };
    Ok((0..count).map(place).collect())
}

#[test]
fn visible_devices_are_read_as_cuda_reads_them() {
    let bench = Bench::with_profile("gpus = 3\n");
    // The order of the shares does not matter. The middle GPU has none.
    bench.share("b", 0, 2, GIB);
    bench.share("a", 1, 0, GIB);
    let uuid = |gpu: usize| bench.gpu(gpu).to_owned();
    let none = || Err("cuinit 100".to_owned());
    for (value, expected) in [
        ("0,1".to_owned(), Ok(vec![0, 2])),
        ("1,0".into(), Ok(vec![2, 0])),
        (" 1 ".into(), Ok(vec![2])),
        (format!("{},0", uuid(2)), Ok(vec![2, 0])),
        (uuid(2)[..10].to_lowercase(), Ok(vec![2])),
        (format!("0,{}", uuid(1)), Ok(vec![0])),
        (uuid(1), none()),
        ("2".into(), none()),
        ("0,-1,1".into(), Ok(vec![0])),
        ("0,x,1".into(), Ok(vec![0])),
        ("0,,1".into(), Ok(vec![0])),
        ("0,0".into(), none()),
        (format!("0,{}", uuid(0)), none()),
        ("-1".into(), none()),
        ("nonsense".into(), none()),
        ("1,2,0".into(), Ok(vec![2])),
        ("".into(), none()),
        ("GPU-".into(), none()),
    ] {
        assert_eq!(seen(&bench, &value), expected, "{value:?}");
    }
    // Only the driver can choose instances, so they are left to it.
    assert_eq!(seen(&bench, "MIG-11111111-2222-3333-4444-555555555555"), none());
}

/// For an instance of a GPU in MIG mode, only the second version of CUDA's function has the UUID, and NVML lists it below
/// its GPU, beside which there is another one.
#[test]
fn a_share_of_an_instance_is_the_only_device_of_cuda_and_nvml() {
    let bench = Bench::of_instances("mig = 0: 3g.40gb@0, 1g.10gb@4\n");
    let instance = bench.gpu(0).to_owned();
    let digits = instance.replacen("MIG-", "", 1);
    bench.share("share", 0, 0, GIB);
    let over = format!("alloc:{}", GIB + 1);
    for visible in [None, Some("0"), Some(instance.as_str())] {
        let mut client = bench.client(&["init:0", "devices", "memory", &over, "alloc:1048576", "memory"]);
        client.envs(visible.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        let said = lines(&client.output().expect("a client"));
        let expected = format!("devices 0 1 0 {} {GIB} ", digits.replace('-', ""));
        assert!(said[1].starts_with(&expected), "{visible:?}: {said:?}");
        assert_eq!(said[2], format!("memory 0 1 {instance} {GIB} 0"), "{visible:?}");
        assert_eq!(said[3..5], ["alloc 2", "alloc 0"], "{visible:?}");
        assert_eq!(
            said[5],
            format!("memory 0 1 {instance} {GIB} {}", 2 * MIB),
            "{visible:?}"
        );
    }
}
