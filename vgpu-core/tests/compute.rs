//! GPU time of shares, through the library, on the software GPU, whose kernels last as long as they say.
//!
//! The tests run in real time on any machine. So bounds are wide, and there are upper bounds only for time that a share
//! must not get. docs/compute-accuracy.md has exact figures, from a simulation.

#![allow(unsafe_code)] // kill(2).

mod support;

use std::process::Output;
use std::time::{Duration, Instant};
use support::{Bench, GIB, lines};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::{ComputePolicy, Limits, Priority};

/// A share's part of the GPU's time.
#[derive(Clone, Copy)]
struct Part {
    cores: u32,
    policy: ComputePolicy,
    priority: Priority,
}

fn balanced(cores: u32) -> Part {
    Part {
        cores,
        policy: ComputePolicy::Balanced,
        priority: Priority::Low,
    }
}

fn guaranteed(cores: u32) -> Part {
    Part {
        policy: ComputePolicy::Guaranteed,
        ..balanced(cores)
    }
}

impl Part {
    fn holder(self, slot: u8) -> Holder {
        Holder {
            slot,
            cores: self.cores,
            compute_policy: self.policy,
            priority: self.priority,
            generation: u64::from(slot) + 1,
            ignored: false,
        }
    }

    fn limits(self, bench: &Bench, slot: Option<u8>) -> Limits {
        Limits {
            cores: self.cores,
            compute_policy: self.policy,
            priority: self.priority,
            slot,
            ..bench.limits("share", 0, 0, GIB)
        }
    }
}

/// Shares of one GPU that take turns: the nth has slot n.
fn shares(parts: &[Part]) -> Vec<Bench> {
    shares_of("", parts)
}

/// The same of a GPU with this profile.
fn shares_of(profile: &str, parts: &[Part]) -> Vec<Bench> {
    let first = Bench::with_profile(profile);
    let holders: Vec<Holder> = (0..).zip(parts).map(|(slot, part)| part.holder(slot)).collect();
    first.pages(&entries(&holders));
    first.put(&parts[0].limits(&first, Some(0)));
    let mut all = vec![first];
    for (slot, part) in (1..).zip(&parts[1..]) {
        let bench = Bench::on_gpu_of(&all[0], GIB);
        bench.arbitrates_with(&all[0]);
        bench.put(&part.limits(&bench, Some(slot)));
        all.push(bench);
    }
    all
}

/// Runs a step in each share at once. Returns the percentage of the GPU's time that each had, computed from its number
/// of kernels of `length` us.
fn percents(benches: &[Bench], steps: &[&str], length: u64) -> Vec<f64> {
    let running: Vec<_> = benches
        .iter()
        .zip(steps)
        .map(|(bench, step)| {
            bench
                .client(&["init", step])
                .stdout(std::process::Stdio::piped())
                .spawn()
        })
        .collect();
    let outputs = running
        .into_iter()
        .map(|one| one.expect("a client").wait_with_output().expect("its output"));
    outputs.map(|output| percent(&output, length)).collect()
}

fn percent(output: &Output, length: u64) -> f64 {
    let said = lines(output);
    let is_work = |line: &&String| {
        ["work ", "graph ", "streams ", "capture ", "lanes ", "shapes "]
            .iter()
            .any(|step| line.starts_with(step))
    };
    let line = said.iter().find(is_work);
    percent_of(line.unwrap_or_else(|| panic!("{said:?}, {output:?}")), length)
}

/// Returns the percentage of the GPU's time in a line of the client: its result, launches and ms.
fn percent_of(said: &str, length: u64) -> f64 {
    let [count, took] = counted(said);
    (count * length) as f64 / (took * 10) as f64
}

/// Returns the numbers after the result in a line of the client. The result must be success.
fn counted<const N: usize>(said: &str) -> [u64; N] {
    let numbers = said.split(' ').skip(1).map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().unwrap_or_else(|_| panic!("{said:?}"));
    assert_eq!(numbers[0], 0, "{said:?}");
    numbers[1..].try_into().unwrap_or_else(|_| panic!("{said:?}"))
}

fn one(bench: &Bench, step: &str, length: u64) -> f64 {
    percents(std::slice::from_ref(bench), &[step], length)[0]
}

/// Repeats a measurement until the percentage is above `least`, for at most a minute, because other work on the machine
/// may slow the client down.
fn at_least(least: f64, mut measure: impl FnMut() -> f64) {
    let (begun, mut found) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(60) {
        let percent = measure();
        if percent > least {
            return;
        }
        found.push(percent);
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("never above {least}: {found:?}");
}

#[test]
fn a_guaranteed_share_stays_at_its_cores() {
    for step in [
        "work:500,1500,0",
        "work:500,1500,4",
        "graph:500,1500,0",
        "streams:500,1500,7",
        "capture:500,1500,0",
    ] {
        at_least(20.0, || {
            let bench = shares(&[guaranteed(30)]).remove(0);
            let percent = one(&bench, step, 500);
            assert!(percent <= 34.0, "{step}: {percent}");
            if percent > 20.0 {
                let counted = bench.counted(0);
                let charged = Duration::from_nanos(counted.charged).as_millis();
                assert!((300..=520).contains(&charged), "{step}: {charged} ms of 1500");
                assert!(counted.throttled > 500_000_000, "{step}: {}", counted.throttled);
            }
            percent
        });
    }
}

#[test]
fn every_way_to_launch_is_measured_and_charged() {
    const PTX: &str = r#"".version\s8.0\n.target\ssm_90\n.entry\stime_3000us()\s{\sret;\s}\n""#;
    // CUlaunchConfig: grid and block, then the stream.
    const CONFIG: &str = "[0x100000001,0x2000000001,0x100000001,0,0,0,0]";
    let bench = shares(&[balanced(50)]).remove(0);
    let mut caller = bench.caller(true);
    caller.init();
    caller.ok(&format!("cuModuleLoadData >1 {PTX}"));
    caller.ok(r#"cuModuleGetFunction >2 @1 "time_3000us""#);
    caller.ok("cuStreamCreate >3 1");
    for launch in [
        "cuLaunchKernel @2 1 1 1 32 1 1 0 0 0".to_owned(),
        "cuLaunchKernel @2 1 1 1 32 1 1 0 @3 0".to_owned(),
        "cuLaunchKernel_ptsz @2 1 1 1 32 1 1 0 0 0".to_owned(),
        "cuLaunchCooperativeKernel @2 1 1 1 32 1 1 0 0 0".to_owned(),
        "cuLaunchCooperativeKernel_ptsz @2 1 1 1 32 1 1 0 @3 0".to_owned(),
        format!("cuLaunchKernelEx {CONFIG} @2 0 0"),
        format!("cuLaunchKernelEx_ptsz {CONFIG} @2 0 0"),
    ] {
        let before = bench.counted(0).charged;
        caller.ok(&launch);
        caller.ok("cuCtxSynchronize");
        let charged = (bench.counted(0).charged - before) / 1000;
        assert!((2_500..20_000).contains(&charged), "{launch}: {charged} us");
    }
    // A stream is being captured and the capture is never ended: launches in other streams are still charged.
    caller.ok("cuStreamCreate >4 1");
    caller.ok("cuStreamBeginCapture_v2 @4 2");
    let before = bench.counted(0).charged;
    caller.ok("cuLaunchKernel @2 1 1 1 32 1 1 0 0 0");
    caller.ok("cuCtxSynchronize");
    let charged = (bench.counted(0).charged - before) / 1000;
    assert!((2_500..20_000).contains(&charged), "beside a capture: {charged} us");
    caller.ok("cuStreamDestroy_v2 @4");
    // The software GPU does not have these calls, so the driver's error is returned.
    const NOT_SUPPORTED: i32 = 801;
    for launch in ["cuLaunch @2", "cuLaunchGrid @2 1 1", "cuLaunchGridAsync @2 1 1 0"] {
        assert_eq!(caller.call(launch), NOT_SUPPORTED, "{launch}");
    }
}

/// A stream stays on its GPU, whatever context is current. Once it is destroyed, another stream may get its handle.
#[test]
fn a_launch_is_charged_to_the_gpu_of_its_stream() {
    const PTX: &str = r#"".version\s8.0\n.target\ssm_90\n.entry\stime_3000us()\s{\sret;\s}\n""#;
    let bench = Bench::with_profile("gpus = 2\n");
    for (order, share) in [(0, "share"), (1, "second")] {
        let part = balanced(50);
        bench.pages_on(order, &entries(&[part.holder(0)]));
        let limits = bench.limits(share, order as u32, order, GIB);
        bench.put(&Limits {
            cores: part.cores,
            compute_policy: part.policy,
            slot: Some(0),
            ..limits
        });
    }
    let mut caller = bench.caller(true);
    caller.ok("cuInit 0");
    for (device, context, stream) in [(0, 1, 3), (1, 2, 4)] {
        caller.ok(&format!("cuDevicePrimaryCtxRetain >{context} {device}"));
        caller.ok(&format!("cuCtxSetCurrent @{context}"));
        caller.ok(&format!("cuStreamCreate >{stream} 1"));
    }
    // A kernel of a library, which belongs to no context.
    caller.ok(&format!("cuLibraryLoadData >5 {PTX} 0 0 0 0 0 0"));
    caller.ok(r#"cuLibraryGetKernel >6 @5 "time_3000us""#);
    let mut charged = |launch: &str, current: &str| {
        let before = [0, 1].map(|gpu| bench.counted_on(gpu, 0).charged);
        caller.ok(&format!("cuCtxSetCurrent {current}"));
        caller.ok(launch);
        for context in ["@1", "@2"] {
            caller.ok(&format!("cuCtxSetCurrent {context}"));
            caller.ok("cuCtxSynchronize");
        }
        [0, 1].map(|gpu| (bench.counted_on(gpu, 0).charged - before[gpu]) / 1_000_000 >= 2)
    };
    for current in ["@1", "@2", "0"] {
        for (stream, gpus) in [("@3", [true, false]), ("@4", [false, true])] {
            let launch = format!("cuLaunchKernel @6 1 1 1 32 1 1 0 {stream} 0");
            assert_eq!(charged(&launch, current), gpus, "{stream} while {current} is current");
        }
    }
    for (current, gpus) in [("@1", [true, false]), ("@2", [false, true])] {
        let launch = "cuLaunchKernel @6 1 1 1 32 1 1 0 0 0";
        assert_eq!(charged(launch, current), gpus, "the default stream of {current}");
    }
}

#[test]
fn a_balanced_share_has_all_that_nobody_wants() {
    let bench = shares(&[balanced(10)]).remove(0);
    at_least(70.0, || one(&bench, "work:500,1000,0", 500));
}

#[test]
fn shares_that_want_more_get_their_cores() {
    let benches = shares(&[balanced(30), balanced(70)]);
    let found = percents(&benches, &["work:500,3000,0", "work:500,3000,0"], 500);
    assert!((20.0..=40.0).contains(&found[0]), "{found:?}");
    assert!((55.0..=80.0).contains(&found[1]), "{found:?}");
}

#[test]
fn millions_of_tiny_launches_are_limited_too() {
    let bench = shares(&[guaranteed(30)]).remove(0);
    at_least(18.0, || {
        let percent = one(&bench, "work:10,1500,0", 10);
        assert!(percent <= 34.0, "{percent}");
        percent
    });
}

#[test]
fn without_pages_a_share_is_held_to_its_cores_and_says_so() {
    let bench = Bench::new();
    bench.put(&balanced(30).limits(&bench, Some(5)));
    let output = bench.client(&["init", "work:500,1000,0"]).output().expect("a client");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("share") && said.contains("30 % of the GPU's time"),
        "{said}"
    );
    let percent = percent(&output, 500);
    assert!((15.0..=36.0).contains(&percent), "{percent}");
}

/// Returns what a client prints on stderr while it is limited to 30 percent.
fn said_when_held_to_its_cores(mut client: std::process::Command) -> String {
    let output = client.output().expect("a client");
    let percent = percent(&output, 500);
    assert!((15.0..=36.0).contains(&percent), "{percent}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn where_nothing_can_be_known_of_others_a_share_is_held_to_its_cores() {
    const WORK: &str = "work:500,1000,0";
    let bench = shares(&[balanced(30)]).remove(0);
    let said = said_when_held_to_its_cores(bench.client(&["deny:process_vm_readv", "init", WORK]));
    assert!(said.contains("process_vm_readv is denied"), "{said}");

    // A time namespace has another clock.
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--time", "--monotonic", "100000", "--fork", "--"]);
    if !unshare.arg("true").output().is_ok_and(|output| output.status.success()) {
        vgpu_skip::skip(
            "a_share_in_a_time_namespace",
            "no time namespace can be made here by this user",
        );
        return;
    }
    let plain = bench.client(&["init", WORK]);
    let mut inside = std::process::Command::new("unshare");
    inside
        .args(["--time", "--monotonic", "100000", "--fork", "--"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = said_when_held_to_its_cores(inside);
    assert!(said.contains("a time namespace with another clock"), "{said}");
}

/// Events in many streams, and launches of shapes not seen before, must not slow down a share that is alone.
#[test]
fn a_share_that_is_alone_is_as_fast_as_without_a_limit() {
    for (step, length) in [
        ("lanes:4,200,100,400", 200),
        ("lanes:64,200,100,400", 200),
        ("lanes:8,400,25,400", 400),
        ("lanes:64,400,25,400", 400),
        ("shapes:1,20,400", 20),
        ("shapes:2000,20,400", 20),
    ] {
        at_least(80.0, || {
            let bench = shares(&[balanced(30)]).remove(0);
            let free = bench.bare(&["init", step]).output().expect("a client");
            one(&bench, step, length) / percent(&free, length) * 100.0
        });
    }
}

#[test]
fn many_streams_are_no_more_than_one() {
    // Once with a plain GPU, and once with events that stop their stream and that a switched-out context reports late.
    for profile in ["", "event_stop = 1500ns\nlate_events = yes\n"] {
        // The share that gets the smallest part of its cores decides.
        at_least(72.0, || {
            let benches = shares_of(profile, &[balanced(30), balanced(70)]);
            let found = percents(&benches, &["work:200,1500,0", "lanes:8,200,100,1500"], 200);
            f64::min(found[0] / 0.3, found[1] / 0.7)
        });
    }
}

/// A launch that looks like earlier short ones, but whose length is given by an argument.
#[test]
fn launches_that_are_suddenly_long_are_few_and_the_mean_holds() {
    const LENGTH: u64 = 20;
    let bench = shares(&[guaranteed(10)]).remove(0);
    let said = bench.run(&["init", "longer:20000,1500"]);
    let [launches, took, at_once] = counted(&said[1]);
    assert!(at_once <= 8, "{said:?}");
    // The last one was launched when the share had paid for the others.
    let most = took / 10 + 20 + LENGTH;
    assert!((launches - 1) * LENGTH <= most && launches >= 3, "{said:?}: {most}");
    let charged = bench.counted(0).charged / 1_000_000;
    assert!(
        (launches - 2) * LENGTH <= charged && charged <= (launches + 2) * LENGTH + 20,
        "{said:?}: {charged} ms"
    );
}

/// The first kernel's length is unknown, so the other threads wait for it. In the end one of them may launch, because
/// the first kernel may be waiting for it.
#[test]
fn of_many_threads_with_long_kernels_few_launch_at_once() {
    let bench = shares(&[guaranteed(90)]).remove(0);
    let output = bench.client(&["init", "threads:32,60000000,1600", "kill"]).output();
    let said = lines(&output.expect("a client"));
    let [launched, took] = counted(&said[1]);
    // One more is launched after 1.1 s, 2.2 s, 4.4 s: a second of GPU time at 90 %, doubled each time.
    let waits = (0..).take_while(|doubled| 1111 << doubled <= took).count() as u64;
    assert!((1..=1 + waits).contains(&launched), "{launched} in {took} ms");
}

/// Several processes at once, each of which launches one kernel and ends.
#[test]
fn short_processes_at_once_have_one_account() {
    const LENGTH: u64 = 1;
    let bench = shares(&[guaranteed(10)]).remove(0);
    let (start, time) = (Instant::now(), Duration::from_millis(1500));
    let work = || {
        let mut count = 0;
        while start.elapsed() < time {
            assert_eq!(
                bench.run(&["init", "spin:1000", "sync"]),
                ["init 0", "spin 0", "sync 0"]
            );
            count += 1;
        }
        count
    };
    let used: u64 = std::thread::scope(|threads| {
        let all: Vec<_> = (0..16).map(|_| threads.spawn(work)).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).sum::<u64>() * LENGTH
    });
    let took = start.elapsed().as_millis() as u64;
    assert!(used <= took / 10 * 5 / 4 + 20 + LENGTH, "{used} of {took} ms");
    let charged = bench.counted(0).charged / 1_000_000;
    assert!(charged >= used * 4 / 5, "{charged} of {used} ms");
}

/// There are more processes than cells in the share's page, and most have nothing in flight. Those that launch are charged
/// although they are killed before they have waited for their kernel.
#[test]
fn forty_processes_are_all_charged() {
    const LENGTH: u64 = 50;
    let bench = shares(&[guaranteed(20)]).remove(0);
    let _idle: Vec<_> = (0..32).map(|_| bench.serving(&["init", "spin:20", "sync"])).collect();
    let start = Instant::now();
    let mut working = Vec::new();
    while start.elapsed() < Duration::from_millis(1200) {
        let mut client = bench.client(&["init", "spin:50000", "idle:60", "kill"]);
        working.push(client.stdout(std::process::Stdio::piped()).spawn().expect("a client"));
        std::thread::sleep(Duration::from_millis(50));
    }
    working.iter_mut().for_each(|client| client.kill().expect("killed"));
    let took = start.elapsed().as_millis() as u64;
    let ended = working
        .into_iter()
        .map(|client| client.wait_with_output().expect("its output"));
    let launched = ended.filter(|output| lines(output).contains(&"spin 0".into())).count() as u64;
    assert!(
        (1..=took / 5 / LENGTH + 2).contains(&launched),
        "{launched} of 50 ms in {took} ms"
    );
    let charged = bench.counted(0).charged / 1_000_000;
    assert!(charged >= (launched - 1) * LENGTH, "{charged} of {launched} kernels");
}

#[test]
fn a_kernel_of_unknown_length_delays_the_next_process_for_what_it_took() {
    for (ends, most) in [
        (&["init", "spin:1000"][..], 300),
        (&["init", "spin:1000", "kill"], 2500),
    ] {
        let bench = shares(&[guaranteed(20)]).remove(0);
        bench.client(ends).output().expect("a client");
        // When the killed process died is unknown, so this pause is charged.
        std::thread::sleep(Duration::from_millis(200));
        let said = bench.run(&["init", "work:1000,1,1"]);
        let [_, took] = counted(&said[1]);
        assert!(took <= most, "{ends:?}: {took} ms");
    }
}

/// A context is destroyed, or a process ends, without a wait: the kernels that were running are charged, but not the
/// time after the last one.
#[test]
fn what_ends_without_a_wait_is_charged_for_its_work() {
    let ends = |context: &[&'static str], kernel, idle| {
        let begin = if context.is_empty() {
            &["init"][..]
        } else {
            &["cuinit", "ctx:0"]
        };
        [begin, &[kernel, idle], context].concat()
    };
    for part in [guaranteed(50), balanced(50)] {
        for context in [&[][..], &["ctxdestroy:0"]] {
            let bench = shares(&[part]).remove(0);
            for (kernel, idle, charged) in [("spin:100000", "idle:50", 45..=110), ("spin:1000", "idle:200", 0..=50)] {
                let before = bench.counted(0).charged;
                let steps = ends(context, kernel, idle);
                bench.run(&steps);
                let more = (bench.counted(0).charged - before) / 1_000_000;
                assert!(charged.contains(&more), "{steps:?}: {more} ms");
            }
        }
    }
}

#[test]
fn nothing_holds_an_unlimited_share_back() {
    let unlimited = Part {
        policy: ComputePolicy::Unlimited,
        ..balanced(10)
    };
    let bench = shares(&[unlimited]).remove(0);
    at_least(70.0, || one(&bench, "work:500,1000,0", 500));
    assert_eq!(bench.counted(0).charged, 0, "nobody measures it");
}

#[test]
fn processes_of_a_share_have_one_account() {
    let benches = shares(&[guaranteed(40)]);
    at_least(24.0, || {
        let running: Vec<_> = (0..4)
            .map(|_| {
                let mut client = benches[0].client(&["init", "work:500,1500,0"]);
                client.stdout(std::process::Stdio::piped()).spawn().expect("a client")
            })
            .collect();
        let outputs = running
            .into_iter()
            .map(|one| one.wait_with_output().expect("its output"));
        let sum = outputs.map(|output| percent(&output, 500)).sum();
        assert!(sum <= 48.0, "{sum}");
        sum
    });
}

/// The holder of a turn is killed or stopped: it keeps the GPU until the time in its page, and no longer.
#[test]
fn a_holder_that_dies_or_stops_delays_nobody_for_long() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        at_least(50.0, || {
            let benches = shares(&[balanced(50), balanced(50)]);
            let mut holder = benches[0]
                .client(&["init", "work:2000,60000,0"])
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("a client");
            std::thread::sleep(Duration::from_millis(700));
            let pid = libc::pid_t::try_from(holder.id()).expect("a PID");
            // SAFETY: a child of ours that was not waited for.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
            let percent = one(&benches[1], "work:500,1500,0", 500);
            holder.kill().expect("killed");
            holder.wait().expect("waited for");
            percent
        });
    }
}

/// If the GPU waits for a program's next launch, the program is not charged for that time.
#[test]
fn gaps_between_launches_are_not_charged() {
    const LENGTH: u64 = 20;
    const TIME: u64 = 1_000_000;
    // A sleep is at most this much longer than requested.
    const WAKE_UP: u64 = 100;
    for every in [400, 2000] {
        // Returns the highest allowed charge in percent of the real charge. On a busy machine events are seen late,
        // which increases the charge.
        at_least(100.0, || {
            let bench = shares(&[guaranteed(30)]).remove(0);
            let step = format!("sparse:{LENGTH},{},{every}", TIME / 1000);
            let output = bench.client(&["init", &step]).output().expect("a client");
            let launches = support::number(&lines(&output)[1], 2);
            let (used, charged) = (launches * LENGTH, bench.counted(0).charged / 1000);
            assert!(charged > used / 2, "{step}: {charged} us for {used}");
            // If the client's sleeps end late, the software GPU also sees its kernels end late.
            let late = TIME.saturating_sub(launches * (every + LENGTH + WAKE_UP));
            (3 * used + 20_000 + late) as f64 / charged as f64 * 100.0
        });
    }
}

#[test]
fn a_fork_child_has_its_part_of_the_account() {
    let bench = shares(&[guaranteed(30)]).remove(0);
    // The library is in use before the fork. The child runs the remaining steps first, then the parent does.
    let output = bench
        .client(&["rates", "fork", "init", "work:500,1000,0"])
        .output()
        .expect("a client");
    let said = lines(&output);
    let works: Vec<f64> = said
        .iter()
        .filter(|line| line.starts_with("work"))
        .map(|line| percent_of(line, 500))
        .collect();
    assert_eq!(works.len(), 2, "{said:?}");
    for percent in works {
        assert!((15.0..=36.0).contains(&percent), "{said:?}");
    }
}

#[test]
fn contexts_come_and_go_with_their_events() {
    let bench = shares(&[guaranteed(50)]).remove(0);
    let work = "work:100,150,0";
    let steps = format!("init {work} ctx {work} ctxdestroy:0 init {work} primary init {work}");
    let output = bench.client(&[&steps]).output().expect("a client");
    let said = lines(&output);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let works = said.iter().filter(|line| line.starts_with("work 0 ")).count();
    assert_eq!(works, 4, "{said:?}");
}

/// Tells a thread to end when this is dropped, also if the test panics.
struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A neighbour constantly writes arbitrary values to its page, truncates it and extends it again.
#[test]
fn a_neighbour_that_writes_anything_delays_nobody_for_long() {
    let benches = shares(&[balanced(50), balanced(50)]);
    let page = benches[0].arbitration().join("01");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _ends = Over(&is_over);
        threads.spawn(|| {
            let file = std::fs::OpenOptions::new().write(true).open(&page).expect("its page");
            let mut random = 1_u64;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let words: Vec<u8> = (0..512)
                    .flat_map(|_| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        [0, u64::MAX, random, random >> 20][(random >> 61) as usize % 4].to_le_bytes()
                    })
                    .collect();
                file.set_len(random % 2 * 4096).expect("cut");
                std::os::unix::fs::FileExt::write_all_at(&file, &words, 0).expect("written");
                std::thread::yield_now();
            }
        });
        at_least(20.0, || one(&benches[0], "work:500,2000,0", 500));
    });
}
