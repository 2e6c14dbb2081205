//! Contexts, limits of contexts and code are charged before the driver takes memory for them, whether NVML lists this
//! process by its own PID, by a PID of another namespace, or not at all.
//!
//! The software GPU takes the memory of a context or of a raised limit first, and then some time for the rest of the
//! call (`context_time`). A process that is stopped, killed or slow there holds the memory.

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::hang::HangGuard;
use support::serve::Serving;
use support::truth::Truth;
use support::{Bench, GIB, MIB, until};
use vgpu_abi::limits::ComputePolicy;

/// The values of the software GPU's `nvml_pids`: which PIDs NVML lists.
const MODES: [&str; 3] = ["own", "host", "none"];
const CONTEXT: u64 = 500 * MIB;

fn profile(mode: &str, time: &str) -> String {
    format!("context_cost = 500MiB\nmodule_cost = 6MiB\ncontext_time = {time}\nnvml_pids = {mode}\n")
}

fn bench(mode: &str, time: &str) -> Bench {
    Bench::with_profile(&profile(mode, time))
}

/// A bench with one share of `memory` bytes.
fn scene(mode: &str, time: &str, memory: u64) -> (Bench, Truth) {
    scene_of(&profile(mode, time), memory)
}

/// The same with another profile.
fn scene_of(profile: &str, memory: u64) -> (Bench, Truth) {
    let bench = Bench::of_share(profile, memory);
    let truth = Truth::new(&bench);
    (bench, truth)
}

/// The answers of clients that do the same step at once.
fn all(clients: &mut [Serving], step: &str) -> Vec<String> {
    clients.iter_mut().for_each(|client| client.tell(step));
    let answers = clients.iter_mut().map(|client| client.line());
    let name = step.split(':').next().unwrap_or_default();
    answers
        .map(|line| {
            line.strip_prefix(name)
                .unwrap_or_else(|| panic!("{step}: {line}"))
                .trim()
                .to_owned()
        })
        .collect()
}

/// Returns the bytes charged and used. Fails if more are used than charged.
#[track_caller]
fn covered(bench: &Bench, truth: &mut Truth, what: &str) -> (u64, u64) {
    let (charged, used) = (bench.usage("share").charged, truth.used());
    assert!(charged >= used, "{what}: {charged} charged, {used} used");
    (charged, used)
}

fn served(answers: &[String]) -> u64 {
    answers.iter().filter(|answer| *answer == "0").count() as u64
}

#[test]
fn a_heap_beyond_the_share_never_reaches_the_driver() {
    for mode in MODES {
        let bench = bench(mode, "1s");
        bench.share("share", 0, 0, 20 * GIB);
        let neighbours = Bench::on_gpu_of(&bench, 60 * GIB);
        let mut truth = Truth::new(&bench);
        let mut greedy = bench.serving(&["init"]);
        let mut neighbour = neighbours.serving(&["init"]);
        for _ in 0..5 {
            greedy.tell("heap:59GiB");
            assert_eq!(neighbour.ask("alloc:59GiB"), "0", "{mode}: inside its own limit");
            assert_eq!(greedy.line(), "heap 2", "{mode}");
            assert_eq!(neighbour.ask("free:0"), "0");
        }
        assert_eq!(truth.used(), 2 * CONTEXT, "{mode}");
        assert_eq!(bench.usage("share").charged, CONTEXT, "{mode}");
    }
}

#[test]
fn who_is_stopped_in_the_driver_has_it_charged() {
    for mode in MODES {
        let (bench, mut truth) = scene(mode, "300ms", 20 * GIB);
        let mut other = bench.serving(&["init"]);
        let mut stopped = bench.serving(&["init"]);
        stopped.tell("heap:18GiB");
        until(|| truth.used() > 18 * GIB);
        stopped.stop();
        covered(&bench, &mut truth, mode);
        assert_eq!(other.ask("alloc:2GiB"), "2", "{mode}: the share has 1 GiB left");
        stopped.kill();
        assert_eq!(other.ask("alloc:19GiB"), "0", "{mode}: it died");
        assert_eq!(bench.usage("share").charged, truth.used(), "{mode}");
        // The same while a context is created.
        assert_eq!(other.ask("free:0"), "0");
        let mut stopped = bench.serving(&["cuinit"]);
        stopped.tell("init");
        until(|| truth.used() == 2 * CONTEXT);
        stopped.stop();
        assert_eq!(bench.usage("share").charged, 2 * CONTEXT, "{mode}");
        stopped.kill();
    }
}

#[test]
fn processes_that_start_at_once_get_no_more_than_the_share() {
    for mode in MODES {
        let (bench, mut truth) = scene(mode, "200ms", 20 * GIB);
        let mut clients: Vec<Serving> = (0..4).map(|_| bench.serving(&["cuinit"])).collect();
        assert_eq!(served(&all(&mut clients, "init")), 4, "{mode}");
        assert_eq!(bench.usage("share").charged, 4 * CONTEXT, "{mode}");
        assert_eq!(served(&all(&mut clients, "heap:15GiB")), 1, "{mode}");
        assert!(covered(&bench, &mut truth, mode).0 <= 20 * GIB, "{mode}");
    }
}

#[test]
fn processes_that_retry_a_context_in_a_full_share_never_bring_it_over() {
    const LIMIT: u64 = 4 * CONTEXT + 100 * MIB;
    for mode in MODES {
        let bench = bench(mode, "20ms");
        bench.share("share", 0, 0, LIMIT);
        let neighbours = Bench::on_gpu_of(&bench, 81920 * MIB - LIMIT);
        let mut truth = Truth::new(&bench);
        let mut neighbour = neighbours.serving(&["init"]);
        assert_eq!(neighbour.ask("allocfree"), "0");
        let theirs = truth.used();
        let mut clients: Vec<Serving> = (0..20).map(|_| bench.serving(&["cuinit"])).collect();
        for _ in 0..3 {
            clients.iter_mut().for_each(|client| client.tell("init"));
            let end = Instant::now() + Duration::from_millis(100);
            while Instant::now() < end {
                let used = truth.used() - theirs;
                assert!(used <= LIMIT, "{mode}: {used} used");
            }
            let answers: Vec<String> = clients.iter_mut().map(Serving::line).collect();
            assert!(
                answers.iter().all(|answer| answer == "init 0" || answer == "init 2"),
                "{mode}: {answers:?}"
            );
            // The neighbour has a limit of its own, so it can allocate again what it has freed.
            assert_eq!(
                [neighbour.ask("free:0"), neighbour.ask("allocfree")],
                ["0", "0"],
                "{mode}"
            );
        }
        assert_eq!(truth.used() - theirs, 4 * CONTEXT, "{mode}");
        assert_eq!(bench.usage("share").charged, 4 * CONTEXT, "{mode}");
    }
}

/// The size of a context is unknown, because an old plugin wrote the limits or the measurement failed.
#[test]
fn contexts_of_unknown_size_are_reserved_for() {
    for mode in MODES {
        let bench = bench(mode, "100ms");
        // There is room for two contexts, both before and after they are measured.
        bench.share_with(1400 * MIB, |limits| limits.context_reserve = None);
        let mut truth = Truth::new(&bench);
        let mut clients: Vec<Serving> = (0..6).map(|_| bench.serving(&["cuinit"])).collect();
        let answers = all(&mut clients, "init");
        assert!(
            (1..=2).contains(&served(&answers)),
            "{mode}: {answers:?}, 600 MiB for each"
        );
        assert!(covered(&bench, &mut truth, mode).0 <= 1400 * MIB, "{mode}");
    }
}

/// Every kind of call in turn: at least as much is charged as is used, and nothing stays charged.
#[test]
fn what_is_charged_covers_what_is_used_and_goes_with_it() {
    for mode in MODES {
        let (bench, mut truth) = scene(mode, "0ns", 8 * GIB);
        let mut client = bench.serving(&["init"]);
        for round in 0..3 {
            for step in "ctx load heap:1GiB heap:8MiB heap:1GiB alloc:64MiB load unload:last free:0 \
                ctxdestroy:0 init load unload:last heap:64MiB heap:8MiB"
                .split(' ')
            {
                assert_eq!(client.ask(step), "0", "{mode}: {step}");
                let (charged, used) = covered(&bench, &mut truth, &format!("{mode}: {step} of round {round}"));
                if mode != "none" && step != "ctxdestroy:0" {
                    assert_eq!(charged, used, "{mode}: {step} of round {round}");
                }
            }
        }
        let charged = bench.usage("share").charged;
        assert!(charged <= CONTEXT + 200 * MIB, "{mode}: {charged} after three rounds");
        drop(client);
        until(|| bench.free() == 8 * GIB - CONTEXT);
    }
}

/// Many at once, whose PIDs are not those in NVML's list: each finds its own entry and is charged exactly.
#[test]
fn a_hundred_processes_that_start_at_once_are_all_measured() {
    for mode in ["own", "host"] {
        let (bench, mut truth) = scene(mode, "0ns", 60 * GIB);
        let log = bench.lib().with_file_name("log");
        let serving = || {
            Serving::new({
                let mut client = bench.client(&["cuinit", "serve"]);
                client.env("VGPU_LOG", &log);
                client
            })
        };
        let mut clients: Vec<Serving> = (0..100).map(|_| serving()).collect();
        clients
            .iter_mut()
            .for_each(|client| assert_eq!(client.line(), "cuinit 0"));
        let begun = Instant::now();
        assert_eq!(served(&all(&mut clients, "init")), 100, "{mode}");
        println!("{mode}: {} ms", begun.elapsed().as_millis());
        let said = std::fs::read_to_string(&log).expect("a log");
        let measured: Vec<&str> = said.lines().filter(|line| line.contains(" measured ")).collect();
        assert_eq!(measured.len(), 100, "{mode}");
        // Each process reads two or three lists, unless it waits too long for its turn on a busy machine.
        let lists = |line: &&str| -> Option<u32> { line.split(" lists=").nth(1)?.split(' ').next()?.parse().ok() };
        let sum: u32 = measured.iter().filter_map(lists).sum();
        assert!((200..=600).contains(&sum), "{mode}: {sum} lists of NVML");
        // Only a process that has found itself is charged exactly for a module.
        assert_eq!(served(&all(&mut clients, "load")), 100, "{mode}");
        assert_eq!(bench.usage("share").charged, truth.used(), "{mode}");
        assert_eq!(truth.used(), 100 * (CONTEXT + 6 * MIB), "{mode}");
    }
}

/// NVML probably does not list managed memory. With a driver that lists it, too much is charged.
#[test]
fn managed_memory_is_charged_beside_what_nvml_lists() {
    for (mode, listed) in [("own", "no"), ("host", "no"), ("own", "yes"), ("host", "yes")] {
        let profile = profile(mode, "0ns") + &format!("nvml_managed = {listed}\n");
        let (bench, mut truth) = scene_of(&profile, 8 * GIB);
        let mut client = bench.serving(&["init"]);
        for step in "load managed:700MiB load alloc:64MiB load managed:2GiB load free:0 load free:0 free:0 \
            unload:last"
            .split(' ')
        {
            assert_eq!(client.ask(step), "0", "{mode}, {listed}: {step}");
            let (charged, used) = covered(&bench, &mut truth, &format!("{mode}: {step}"));
            assert!(
                charged == used || listed == "yes",
                "{mode}: {step}: {charged} charged, {used} used"
            );
        }
    }
}

/// Such memory is, for example, page tables and buffers of the driver. The limits file says how much a context takes in
/// addition to NVML's figure of its process.
#[test]
fn memory_of_a_context_that_no_process_owns_is_charged_with_it() {
    const UNOWNED: u64 = 64 * MIB;
    for mode in MODES {
        let bench = Bench::with_profile(&format!(
            "context_cost = 500MiB\ncontext_unowned = 64MiB\nmodule_cost = 6MiB\nnvml_pids = {mode}\n"
        ));
        let limits = |memory| {
            let mut limits = bench.limits("share", 0, 0, memory);
            limits.context_unowned = UNOWNED;
            bench.put(&limits);
        };
        limits(CONTEXT + UNOWNED - 2 * MIB);
        assert_eq!(bench.run(&["init"]), ["init 2"], "{mode}: the context alone would fit");
        assert_eq!(bench.usage("share").charged, 0, "{mode}");

        limits(8 * GIB);
        let mut truth = Truth::new(&bench);
        let mut client = bench.serving(&["init"]);
        for round in 0..2 {
            for (step, contexts) in [("ctx", 2), ("load", 2), ("alloc:64MiB", 2), ("ctxdestroy:0", 1)] {
                assert_eq!(client.ask(step), "0", "{mode}: {step}");
                let (charged, used) = (bench.usage("share").charged, truth.used());
                assert!(
                    charged >= used && used >= contexts * (CONTEXT + UNOWNED),
                    "{mode}: {step} of round {round}: {charged} charged, {used} used"
                );
                if mode != "none" && step != "ctxdestroy:0" {
                    assert_eq!(charged, used, "{mode}: {step} of round {round}");
                }
            }
        }
        assert_eq!(client.ask("primary:0"), "0");
        assert_eq!(
            bench.usage("share").charged,
            truth.used(),
            "{mode}: after the last context"
        );
    }
}

/// If NVML lists imported memory for its importer too, more is charged than is used, never less.
#[test]
fn imports_that_nvml_lists_twice_are_never_charged_too_little() {
    for listed in ["no", "yes"] {
        let (bench, mut truth) = scene_of(
            &format!("context_cost = 500MiB\nmodule_cost = 6MiB\nnvml_imports = {listed}\n"),
            8 * GIB,
        );
        let mut maker = bench.serving(&["init", "alloc:512MiB", "export:0"]);
        let mut importer = bench.serving(&["init"]);
        assert_eq!(importer.ask(&format!("named:{}", maker.ask("name"))), "0");
        for step in ["import", "load", "unload:last", "load"] {
            assert_eq!(importer.ask(step), "0", "{listed}: {step}");
            let (charged, used) = covered(&bench, &mut truth, step);
            let most = used + if listed == "yes" { 512 * MIB } else { 0 };
            assert!(charged <= most, "{listed}: {step}: {charged} charged, {used} used");
        }
    }
}

/// The driver loads code at the first launch, which no call reports. It is charged while the program continues.
#[test]
fn code_that_is_loaded_at_its_first_launch_is_charged_while_the_program_runs() {
    for (cores, mode) in [(50, "own"), (50, "host"), (0, "own")] {
        let bench = Bench::with_profile(&format!(
            "context_cost = 500MiB\nmodule_cost = 6MiB\nfunction_cost = 32MiB\nnvml_pids = {mode}\n"
        ));
        let mut limits = bench.limits("share", 0, 0, 700 * MIB);
        limits.cores = cores;
        if cores == 0 {
            limits.compute_policy = ComputePolicy::Unlimited;
        }
        bench.put(&limits);
        let mut truth = Truth::new(&bench);
        let mut client = bench.serving(&["init", "load"]);
        assert_eq!(bench.usage("share").charged, truth.used(), "{mode}");
        for name in ["time_1us", "time_2us"] {
            assert_eq!(client.ask(&format!("first:{name}")), "0");
            assert_eq!(
                bench.usage("share").charged + 32 * MIB,
                truth.used(),
                "{mode}: {name}: nobody tells"
            );
            until(|| {
                // The library checks for growth during calls that are slow anyway: a wait if time is limited, else an
                // allocation.
                let moment: &[&str] = if cores > 0 {
                    &["sync"]
                } else {
                    &["alloc:2MiB", "free:0"]
                };
                moment.iter().for_each(|step| assert_eq!(client.ask(step), "0"));
                bench.usage("share").charged == truth.used()
            });
        }
        // 570 MiB are charged. Growth beyond the limit is charged as far as it fits, and nothing else is granted.
        assert_eq!(client.ask("alloc:110MiB"), "0");
        assert_eq!(client.ask("first:time_3us"), "0");
        until(|| {
            let answer = client.ask("alloc:2MiB");
            assert!(answer == "2" || client.ask("free:1") == "0", "{mode}: {answer}");
            answer == "2" && bench.usage("share").charged == 700 * MIB
        });
    }
}

/// Builds the tool of tool.c.
fn tool(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tool.c");
    let library = folder.join("tool.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl");
    // These tests could not be built without a linker.
    assert!(cc.status().expect("cc").success());
    library
}

/// A profiler's library calls the driver inside the driver's calls, in the same thread. The thread must not wait for a
/// lock that it holds itself.
#[test]
fn a_tool_that_calls_the_driver_within_its_calls_passes_and_is_charged() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = tool(folder.path());
    for mode in MODES {
        for (within, cores) in [
            ("cuDevicePrimaryCtxRetain", 0),
            ("cuCtxCreate_v2", 0),
            ("cuCtxSetLimit", 0),
            ("cuModuleLoadData", 0),
            ("cuModuleUnload", 0),
            ("cuCtxDestroy_v2", 0),
            ("cuEventRecord", 50),
            ("cuEventQuery", 50),
            ("cuLaunchKernel", 50),
            ("cuCtxSynchronize", 50),
            ("cuMemAlloc_v2", 0),
            ("cuMemPoolGetAttribute", 0),
            ("cuMemAllocAsync", 0),
            ("cuMemFreeAsync", 0),
        ] {
            // A thread that waits for a lock that it holds itself waits for at least 30 s.
            let _guard = HangGuard::new("a tool within calls", Duration::from_secs(25));
            let bench = bench(mode, "0ns");
            bench.share_with(8 * GIB, |limits| limits.cores = cores);
            let mut truth = Truth::new(&bench);
            let mut command = bench.client(&["serve"]);
            command
                .env("CUDA_INJECTION64_PATH", &tool)
                .env("TOOL_WITHIN", within)
                .stderr(File::create(folder.path().join("stderr")).expect("a file"));
            let mut client = Serving::new(command);
            for step in "init ctx load heap:1GiB async:8MiB alloc:64MiB freeasync:0 unload:last ctxdestroy:0 \
                init work:100,50,0"
                .split(' ')
            {
                let answer = client.ask(step);
                assert!(answer.starts_with('0'), "{mode}, within {within}: {step}: {answer}");
                covered(&bench, &mut truth, &format!("{mode}, within {within}: {step}"));
            }
            drop(client);
            let said = std::fs::read_to_string(folder.path().join("stderr")).expect("read");
            assert!(said.contains("cuInit within cuInit: 0\n"), "{said}");
            // All six calls inside it succeed at least once. Before there is a context, a wait fails, as on the bare
            // GPU.
            assert!(
                said.contains(&format!("within {within}: 0 0 0 0 0 0\n")),
                "within {within}: {said}"
            );
        }
    }
}

/// If the driver does not report what the library needs to know, allocations are refused.
#[test]
fn a_driver_that_does_not_tell_its_devices_gives_no_memory() {
    for fault in ["fail.cuDeviceGetCount = 999", "fail.cuDeviceGetUuid = 999"] {
        let bench = Bench::new();
        bench.share("share", 0, 0, GIB);
        // Only now, because the bench itself asks for the devices.
        let faulty = bench.with_faults(fault);
        let mut client = faulty.caller(true);
        client.call("cuInit 0");
        assert_ne!(client.call("cuDevicePrimaryCtxRetain >1 0"), 0, "{fault}");
        assert_ne!(client.call("cuCtxCreate_v2 >1 0 0"), 0, "{fault}");
        assert_ne!(client.call("cuMemAlloc_v2 >2 4GiB"), 0, "{fault}");
        assert_eq!(faulty.usage("share").charged, 0, "{fault}");
    }
}

/// Two GPUs, and the driver does not report on which of them a context is.
#[test]
fn a_context_of_which_the_driver_does_not_tell_the_gpu_gets_no_memory() {
    let bench = Bench::with_profile("fail.cuCtxGetDevice = 999 after 2\n");
    bench.share("zero", 0, 0, GIB);
    bench.share("one", 1, 1, GIB);
    let mut client = bench.caller(true);
    client.init();
    let codes: Vec<i32> = (0..4)
        .map(|slot| client.call(&format!("cuMemAlloc_v2 >{slot} 8MiB")))
        .collect();
    assert!(codes.contains(&2), "{codes:?}");
    let charged = bench.usage("zero").charged + bench.usage("one").charged;
    let granted = codes.iter().filter(|code| **code == 0).count() as u64;
    assert_eq!(charged, granted * 8 * MIB, "{codes:?}");
    assert_eq!(bench.caller(false).used(0), charged);
}
