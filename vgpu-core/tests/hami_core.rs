//! The most frequent reports of HAMi-core's users, each as a test named after its issue: `core` is
//! github.com/Project-HAMi/HAMi-core, `hami` is github.com/Project-HAMi/HAMi.
//!
//! Reports about compute limiting have no tests here:
//!
//! | issue | reported |
//! |---|---|
//! | hami 1445 | work launched as CUDA graphs is not limited |
//! | core 37, 274, 314 | utilisation swings between nothing and all |
//! | core 142 | vLLM with tensor parallelism stalls under a core limit |
//! | hami 132, 737 | low priority is not held back while high priority works |

mod support;

use std::time::Duration;
use support::chance::Chance;
use support::serve::Serving;
use support::{Bench, GIB, GRANULE, dist, lines, number};

/// The lines of a client of the bare GPU.
fn bare(bench: &Bench, steps: &[&str]) -> Vec<String> {
    lines(&bench.bare(steps).output().expect("a client"))
}

/// A process that was killed while it held the region's lock left all others in an endless loop.
#[test]
fn core_86_a_process_killed_at_work_stops_nobody() {
    let (bench, mut chance) = (Bench::with_share(GIB), Chance::new(None));
    for _ in 0..40 {
        let storm = Serving::new(bench.client(&["init", "storm:0"]));
        std::thread::sleep(Duration::from_micros(chance.below(30_000)));
        drop(storm);
        assert_eq!(bench.run(&["init", "alloc:1GiB"]), ["init 0", "alloc 0"]);
    }
}

/// The same for the lock of the start.
#[test]
fn core_248_a_process_killed_in_its_start_stops_nobody() {
    let (bench, mut chance) = (Bench::with_share(GIB), Chance::new(None));
    for _ in 0..60 {
        let start = Serving::new(bench.client(&["init", "serve"]));
        std::thread::sleep(Duration::from_micros(chance.below(6_000)));
        drop(start);
    }
    assert_eq!(bench.run(&["init", "alloc:1GiB"]), ["init 0", "alloc 0"]);
}

/// cuMemCreate of host memory was charged to a random device.
#[test]
fn core_187_memory_created_on_the_host_is_booked_on_no_device() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "createhost:64MiB", "info", "create:1GiB", "release:1", "info"]);
    assert_eq!(shown[1], "createhost 0");
    assert_eq!(
        shown[1],
        bare(&bench, &["init", "createhost:64MiB"])[1],
        "as the driver says"
    );
    assert_eq!([number(&shown[2], 2), number(&shown[5], 2)], [GIB; 2]);
    // The same without a context, so that there is no current device at all.
    let shown = bench.run(&["cuinit", "createhost:64MiB", "create:64MiB", "init", "info"]);
    assert_eq!(shown[2], "create 0");
    assert_eq!(number(&shown[4], 2), GIB - (64 << 20));
}

/// NCCL, loaded by ctypes, hung in its first cuMemCreate.
#[test]
fn hami_2641_several_ranks_create_and_map_memory_at_once() {
    let bench = Bench::with_share(8 * GIB);
    let rank = || bench.client(&["open:nvml", "cuinit", "createhost:2MiB", "init", "mixed:300"]);
    let ranks: Vec<Serving> = (0..4).map(|_| Serving::new(rank())).collect();
    for rank in ranks {
        assert!(rank.end().success());
    }
    assert_eq!(bench.free(), 8 * GIB);
}

/// cuMemGetInfo crashed if a program passed a null pointer for one of the two numbers.
#[test]
fn core_333_either_place_of_meminfo_may_be_null() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "alloc:256MiB", "infofree", "infototal", "infonull"]);
    let free = format!("infofree 0 {}", GIB * 3 / 4);
    assert_eq!(shown[2..], [free, format!("infototal 0 {GIB}"), "infonull 0".into()]);
}

/// A pointer that the interposer had not seen allocated could not be freed: -1.
#[test]
fn core_321_pointers_of_others_are_the_drivers_to_free() {
    let bench = Bench::with_share(GIB);
    let steps = ["init", "alloc:256MiB", "freeunknown"];
    assert_eq!(bench.run(&steps)[2], bare(&bench, &steps)[2]);
}

/// The same for memory of cuMemAllocAsync that is freed by cuMemFree.
#[test]
fn core_257_memory_of_one_family_freed_by_another() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "async:512MiB", "free:0", "alloc:1GiB", "freeasync:0", "info"]);
    assert_eq!(shown[1..5], ["async 0", "free 0", "alloc 0", "freeasync 0 0"]);
    assert_eq!(number(&shown[5], 2), GIB);
}

/// An update replaced the library under running pods, which crashed.
#[test]
fn hami_753_a_replaced_library_file_leaves_running_programs_alone() {
    let bench = Bench::with_share(GIB);
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("libvgpu.so");
    std::fs::copy(dist().join("libvgpu.so"), &own).expect("a copy");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(&own, folder.path().join(name)).expect("a link");
    }
    let client = |steps: &[&str]| {
        let mut command = bench.client(steps);
        command.env("LD_LIBRARY_PATH", folder.path());
        command
    };
    let mut running = Serving::new(client(&["init alloc:256MiB serve"]));
    running.did(&["init alloc:256MiB"]);
    let new = folder.path().join("new");
    std::fs::copy(dist().join("libvgpu.so"), &new).expect("a copy");
    std::fs::rename(&new, &own).expect("replaced");
    let shown = lines(&client(&["init", "info", "alloc:1GiB"]).output().expect("a client"));
    assert_eq!(number(&shown[1], 2), GIB * 3 / 4, "both have one account");
    assert_eq!(shown[2], "alloc 2");
    assert!(
        running.ask("memory").starts_with("0 1 "),
        "functions that it had not called yet"
    );
    assert_eq!([running.ask("alloc:768MiB"), running.ask("free:0")], ["0", "0"]);
}

/// Programs started by ssh or with a clean environment were not limited.
#[test]
fn hami_2125_children_are_limited_and_a_lost_environment_refuses() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "alloc:256MiB", "exec:init,alloc:1GiB,alloc:2MiB"]);
    assert_eq!(shown[2..], ["init 0", "alloc 0", "alloc 2"]);
    // A container's limits do not need a variable (cli and e2e test that). Without either, allocations are refused.
    let mut command = bench.client(&["cuinit", "alloc:2MiB", "memory"]);
    command.env_clear().env("LD_LIBRARY_PATH", bench.lib());
    let output = command.output().expect("a client");
    assert_eq!(lines(&output), ["cuinit 800", "alloc 800", "memory 4"], "{output:?}");
}

/// Processes on different GPUs were added up against one GPU's limit, and usage was always shown on GPU 0.
#[test]
fn core_225_hami_320_processes_on_different_devices_do_not_add_up() {
    let bench = Bench::new();
    bench.share("first", 0, 0, 6 * GIB);
    bench.share("second", 1, 1, 6 * GIB);
    let on = |visible: &str| {
        let mut command = bench.client(&["init", "alloc:4GiB", "wait"]);
        command.env("CUDA_VISIBLE_DEVICES", visible);
        Serving::new(command)
    };
    let mut ranks = [on("1"), on("0")];
    for rank in &mut ranks {
        assert_eq!([rank.line(), rank.line()], ["init 0", "alloc 0"]);
    }
    // NVML shows each on its own GPU.
    let shown = bench.run(&["memory"]);
    assert_eq!([number(&shown[0], 5), number(&shown[0], 8)], [4 * GIB; 2], "{shown:?}");
    ranks.into_iter().for_each(Serving::kill);
}

/// In the second process cuMemGetInfo never changed.
#[test]
fn core_191_meminfo_of_a_second_process_follows_its_allocations() {
    let bench = Bench::with_share(8 * GIB);
    for process in 0..3 {
        let shown = bench.run(&["init", "info", "alloc:1GiB", "info"]);
        assert_eq!(
            [number(&shown[1], 2), number(&shown[3], 2)],
            [8 * GIB, 7 * GIB],
            "{process}"
        );
    }
}

/// More was released than had been charged: 17,592,186,044,134 MiB in use.
#[test]
fn hami_1181_usage_never_falls_below_nothing() {
    let bench = Bench::with_share(GIB);
    let mut client = bench.serving(&["init"]);
    for round in 0..30 {
        for step in "freeunknown async:64MiB free:0 mixed:100 freekept freeunknown".split(' ') {
            client.ask(step);
        }
        let used = number(&client.ask("memory"), 4);
        assert!(
            used <= GIB && bench.usage("share").charged <= GIB,
            "round {round}: {used}"
        );
    }
    assert!(client.ask("info").starts_with("0 "));
    assert_eq!(number(&client.ask("memory"), 4), 0);
    assert_eq!(client.ask("alloc:1GiB"), "0", "no false out of memory");
}

/// Asynchronous allocations and frees in a loop ran out of memory.
#[test]
fn core_96_async_allocations_and_frees_do_not_add_up() {
    let bench = Bench::with_share(GIB);
    let mut client = bench.serving(&["init"]);
    for size in ["600MiB", "100MiB", "1GiB", "2MiB"].into_iter().cycle().take(200) {
        assert_eq!(client.ask(&format!("async:{size}")), "0", "{size}");
        assert_eq!(client.ask("freeasync:0"), "0 0", "{size}");
    }
    assert_eq!(client.ask("alloc:1GiB"), "0");
}

/// With driver 570 a program hung in nvmlInitWithFlags.
#[test]
fn core_59_a_newer_driver_does_not_hang_the_start() {
    let bench = Bench::of_share("driver_version = 570.124.06\ncuda_version = 12.8\n", GIB);
    for order in [["memory", "init", "info"], ["init", "info", "memory"]] {
        let mut shown = bench.run(&order);
        shown.sort_unstable();
        let memory = format!("memory 0 1 {} {GIB} 0", bench.gpu(0));
        assert_eq!(
            shown,
            [format!("info 0 {GIB} {GIB}"), "init 0".into(), memory],
            "{order:?}"
        );
    }
}

/// nvidia-smi in the container showed no process.
#[test]
fn hami_1339_processes_are_shown_in_their_container() {
    let bench = Bench::with_share(GIB);
    let client = bench.serving(&["init", "alloc:256MiB"]);
    let shown = bench.run(&["running"]);
    let own = format!("{} {}", client.pid(), GIB / 4);
    assert_eq!(shown, [format!("running 0 {own} smi 0 {own}")]);
}

/// The library needed `_dl_sym` of one glibc version and would not load elsewhere.
#[test]
fn core_174_no_private_symbol_of_glibc_is_needed() {
    for file in ["libvgpu.so", "libvgpu-preload.so"] {
        let bytes = std::fs::read(dist().join(file)).expect("an artefact");
        let private = b"GLIBC_PRIVATE";
        assert!(bytes.starts_with(b"\x7fELF"), "{file}");
        assert!(!bytes.windows(private.len()).any(|part| part == private), "{file}");
    }
}

/// With hundreds of processes that start together, each waited a minute.
#[test]
fn hami_1662_hundreds_of_processes_start_together() {
    let bench = Bench::with_share(GIB);
    let mut crowd: Vec<Serving> = (0..200)
        .map(|_| Serving::new(bench.client(&["init", "alloc:2MiB", "serve"])))
        .collect();
    for client in &mut crowd {
        assert_eq!([client.line(), client.line()], ["init 0", "alloc 0"]);
    }
    let usage = bench.usage("share");
    assert_eq!((usage.charged, usage.processes.len()), (200 * GRANULE, 200));
    drop(crowd);
    assert_eq!(bench.free(), GIB);
}

/// The error for out of memory was one that CUDA does not have.
#[test]
fn core_55_out_of_memory_is_cudas_own_error_in_every_family() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "toomuch:2GiB", "info"]);
    assert_eq!(shown[1], "toomuch 2 2 2 2 2 2");
    assert_eq!(number(&shown[2], 2), GIB, "what failed is not charged");
}

/// A thread without a context was charged on a random device, and crashed.
#[test]
fn core_276_a_call_without_a_context_is_the_drivers_to_answer() {
    let bench = Bench::with_share(GIB);
    for steps in [
        ["cuinit", "alloc:2MiB"],
        ["cuinit", "async:2MiB"],
        ["cuinit", "array:2MiB"],
    ] {
        assert_eq!(bench.run(&steps), bare(&bench, &steps), "{steps:?}");
    }
}

/// For managed memory, one call returned that it is managed, and the other that it is not.
#[test]
fn core_281_attributes_of_managed_memory_are_the_drivers() {
    let bench = Bench::with_share(GIB);
    let steps = ["init", "managed:2MiB", "alloc:2MiB", "ismanaged:0", "ismanaged:1"];
    assert_eq!(bench.run(&steps), bare(&bench, &steps));
}

/// Below some limit cuMemGetInfo failed.
#[test]
fn hami_1370_a_small_limit_is_shown_as_it_is() {
    let bench = Bench::with_share(64 << 20);
    let shown = bench.run(&["init", "info", "allocfree", "info", "memory"]);
    assert_eq!(shown[1], format!("info 0 {0} {0}", 64 << 20));
    assert_eq!(shown[2..4], ["allocfree 0".into(), format!("info 0 0 {}", 64 << 20)]);
    assert_eq!([number(&shown[4], 4), number(&shown[4], 5)], [64 << 20; 2]);
}
