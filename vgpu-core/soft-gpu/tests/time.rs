//! Several processes on one GPU's time. All durations are measured by the GPU's clock, which does not depend on the
//! speed of processes, so they are the same on a slow machine. Virtual time even stands still while processes compute.

mod common;

use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Client, Folder, on_gpus, program, succeeds};

/// Returns the time between two events around kernels: `COUNTxMICROSECONDS` of them.
fn timed(client: &mut Client, work: &str) -> u64 {
    elapsed(&client.say(&format!("timed:{work}")))
}

fn elapsed(answer: &str) -> u64 {
    let us = answer.strip_prefix("0 ").unwrap_or_else(|| panic!("{answer}"));
    us.parse().expect("microseconds")
}

/// Compares two durations. CUDA returns the time between events as a float in milliseconds.
#[track_caller]
fn about(us: u64, expected: u64, slack: u64) {
    assert!(us.abs_diff(expected) <= slack, "{us} us, expected {expected}");
}

const HOUR: &str = "3600000000";
const HOUR_US: u64 = 3_600_000_000;
/// How long work takes while another context has work too: 2 ms of each in turn, and two switches.
const fn beside_one(us: u64) -> u64 {
    us * 42 / 20
}
/// One turn of both contexts: an event may be anywhere in it.
const TURN: u64 = 4_200;

#[test]
fn kernels_last_as_long_as_their_names_say_and_a_full_queue_waits() {
    let state = Folder::new("named");
    let mut client = Client::ready(&state.0);
    about(timed(&mut client, "500"), 500, 1);
    about(timed(&mut client, "700x300"), 210_000, 20);
    about(timed(&mut client, "0x10"), 0, 0);
    // Three times the queue's length, so the first event's entry is reused.
    about(timed(&mut client, "100x3000"), 300_000, 50);
}

#[test]
fn two_processes_with_work_get_half_each_by_events_and_by_nvml() {
    let state = Folder::new("halves");
    let mut clients = [(); 2].map(|()| Client::ready(&state.0));
    assert_eq!(clients[1].say(&format!("spin:{HOUR}")), "0");
    about(timed(&mut clients[0], "2000x100"), beside_one(200_000), TURN);
    assert_eq!(clients[0].say(&format!("spin:{HOUR}")), "0");
    // Wait until the window contains only time in which both had work.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let line = clients[0].say("shares");
        let mut users: Vec<(u32, u64)> = line
            .trim_start_matches("0 ")
            .split(',')
            .filter_map(|user| user.split_once(':'))
            .map(|(pid, busy)| (pid.parse().expect("a PID"), busy.parse().expect("percent")))
            .collect();
        users.sort();
        let mut pids = clients.each_ref().map(Client::pid);
        pids.sort();
        if users.iter().map(|user| user.0).eq(pids) && users.iter().all(|user| (45..=50).contains(&user.1)) {
            break;
        }
        assert!(Instant::now() < end, "never half each: {line}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((90..=97).contains(&clients[0].look(0).busy), "the rest are switches");
}

#[test]
fn a_killed_process_leaves_the_gpu_to_others() {
    let state = Folder::new("killed");
    let mut survivor = Client::ready(&state.0);
    for look in [false, true] {
        let mut victim = Client::ready(&state.0);
        assert_eq!(victim.say(&format!("spin:{HOUR}")), "0");
        about(timed(&mut survivor, "2000x50"), beside_one(100_000), TURN);
        victim.kill();
        if look {
            survivor.look(0);
        } else {
            timed(&mut survivor, "2000x50"); // which takes longer than the survivor needs to see it
        }
        about(timed(&mut survivor, "2000x50"), 100_000, 20);
    }
}

#[test]
fn the_work_of_a_stopped_process_goes_on() {
    let state = Folder::new("stopped");
    let mut other = Client::ready(&state.0);
    let mut stopped = Client::ready(&state.0);
    assert_eq!(stopped.say("begin:2000x200"), "0");
    stopped.signal("STOP");
    // Longer than the stopped client's work, which ends while only the other client reads the time.
    timed(&mut other, "2000x500");
    about(timed(&mut other, "2000x50"), 100_000, 20);
    stopped.signal("CONT");
    let took = elapsed(&stopped.say("end"));
    assert!(
        (400_000..=beside_one(400_000) + TURN).contains(&took),
        "{took}: the time for which it was stopped counts"
    );
}

/// The process's clock is 28 hours ahead. The GPU's time must not be.
#[test]
fn a_process_in_a_time_namespace_shares_the_gpus_clock() {
    let ahead = ["--time", "--monotonic", "100000", "--fork", "--kill-child", "--"];
    if !succeeds("unshare", &[&ahead[..], &["true"]].concat()) {
        vgpu_skip::skip(
            "a_process_in_a_time_namespace_shares_the_gpus_clock",
            "needs root that may make time namespaces",
        );
        return;
    }
    let state = Folder::new("clock");
    let mut command = on_gpus("unshare", &state.0);
    command.args(ahead).arg(program()).arg("serve");
    let mut inside = Client::spawn(command).with_context();
    let mut outside = Client::ready(&state.0);
    let clocks = [&mut inside, &mut outside].map(|client| client.say("until:0").parse::<u64>().unwrap());
    assert!(clocks[0].abs_diff(clocks[1]) < 10_000_000_000_000, "{clocks:?}");
    for client in [&mut inside, &mut outside] {
        about(timed(client, "1000x20"), 20_000, 20);
    }
}

/// Clients that launch, wait and ask without a pause are stopped and killed at any instruction. Nobody waits for them.
#[test]
fn processes_stopped_and_killed_at_any_moment_hold_up_nobody() {
    let state = Folder::new("moments");
    let mut survivor = Client::ready(&state.0);
    for round in 0..40 {
        let mut busy = [(); 2].map(|()| {
            let mut client = Client::ready(&state.0);
            client.tell("rush");
            client
        });
        timed(&mut survivor, "100x20");
        std::thread::sleep(Duration::from_micros(round * 37));
        busy.iter_mut().for_each(|client| client.signal("STOP"));
        timed(&mut survivor, "100x20");
        busy.into_iter().for_each(Client::kill);
        survivor.look(0);
        about(timed(&mut survivor, "1000x5"), 5_000, 1);
    }
}

/// The same for clients whose kernels run at once in several streams.
#[test]
fn processes_with_many_streams_may_stop_and_die_at_any_moment() {
    let state = Folder::new("streams");
    std::fs::create_dir_all(&state.0).unwrap();
    let calls = state.0.join("calls");
    std::fs::write(&calls, many_streams()).unwrap();
    let mut survivor = Client::ready(&state.0);
    for round in 0..20 {
        let mut busy = [(); 2].map(|()| {
            let mut command = on_gpus(program(), &state.0);
            command.arg("calls").stdin(std::fs::File::open(&calls).unwrap());
            command.stdout(Stdio::null()).spawn().expect("the client starts")
        });
        timed(&mut survivor, "100x20");
        std::thread::sleep(Duration::from_micros(round * 37));
        for child in &busy {
            assert!(succeeds("kill", &["-s", "STOP", &child.id().to_string()]));
        }
        timed(&mut survivor, "100x20");
        for child in &mut busy {
            assert_eq!(child.try_wait().unwrap(), None, "it had more to do");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        survivor.look(0);
        about(timed(&mut survivor, "1000x5"), 5_000, 1);
    }
}

/// Calls for some seconds: kernels of several widths in eight streams, events, questions and waits.
fn many_streams() -> String {
    let mut text = String::from(
        r#"cuInit 0
cuDevicePrimaryCtxRetain >0 0
cuCtxSetCurrent @0
cuModuleLoadData >1 ".version\s8.0\n.target\ssm_90\n"
cuModuleGetFunction >2 @1 "time_20us_width_25"
cuModuleGetFunction >3 @1 "time_5us_width_60"
cuModuleGetFunction >4 @1 "time_5us"
cuEventCreate >5 0
"#,
    );
    for stream in 10..18 {
        text += &format!("cuStreamCreate >{stream} {}\n", stream % 2);
    }
    for number in 0..200_000 {
        let (stream, function) = (10 + number % 8, 2 + number % 3);
        text += &format!("cuLaunchCooperativeKernel @{function} 1 1 1 32 1 1 0 @{stream} []\n");
        text += match number % 50 {
            10 => "cuEventRecord @5 @12\n",
            11 => "cuStreamWaitEvent @13 @5 0\n",
            12..30 => "cuEventQuery @5\n",
            40 => "cuStreamSynchronize @14\n",
            49 => "cuCtxSynchronize\n",
            _ => "",
        };
    }
    text
}

/// Runs clients on GPUs with virtual time. They synchronise first, then run their steps. Returns each client's lines of
/// these steps.
fn in_virtual_time(state: &Folder, steps: &[&[&str]]) -> Vec<Vec<String>> {
    std::fs::create_dir_all(&state.0).unwrap();
    std::fs::write(state.0.join("profile"), "clock = virtual\n").unwrap();
    let mut clients: Vec<_> = steps
        .iter()
        .map(|steps| {
            let mut command = on_gpus(program(), &state.0);
            // From `until:0` on, virtual time waits for this thread, which counts as computing while it waits for a
            // line.
            command.args(["init:0", "until:0", "wait"]).args(*steps);
            let mut client = Client::spawn(command);
            assert_eq!(client.hear("init:0"), "0");
            client.hear("until:0");
            client
        })
        .collect();
    clients.iter_mut().for_each(|client| client.tell("go"));
    let clients = clients.into_iter().zip(steps);
    let lines = clients.map(|(mut client, steps)| {
        assert_eq!(client.hear("wait"), "go");
        let answered = steps.iter().filter(|step| **step != "kill");
        answered.map(|step| client.hear(step)).collect()
    });
    lines.collect()
}

/// A program with a context that makes the given driver calls in virtual time.
struct Caller {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

/// The caller's slots of the module, of an argument's memory, and of the events around a measurement.
const MODULE: u32 = 1;
const ARGUMENT: u32 = 2;
const START: u32 = 10;
const END: u32 = 11;

impl Caller {
    fn new(state: &Folder, profile: &str) -> Self {
        std::fs::create_dir_all(&state.0).unwrap();
        std::fs::write(state.0.join("profile"), format!("clock = virtual\n{profile}")).unwrap();
        let mut command = on_gpus(program(), &state.0);
        command.arg("calls").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the client starts");
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut caller = Self { child, lines };
        caller.all(&[
            "cuInit 0",
            "cuDevicePrimaryCtxRetain >0 0",
            "cuCtxSetCurrent @0",
            r#"cuModuleLoadData >1 ".version\s8.0\n.target\ssm_90\n""#,
            "cuMemAllocHost_v2 >2 64",
            "cuMemAllocHost_v2 >3 64",
            "cuMemAllocHost_v2 >4 64",
            "cuEventCreate >10 0",
            "cuEventCreate >11 0",
        ]);
        caller
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").expect("the client lives");
        self.lines.next().expect("an answer").expect("text")
    }

    /// Calls that succeed.
    #[track_caller]
    fn all(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.say(line), "0", "{line}");
        }
    }

    /// Puts streams of their own into slots.
    fn streams(&mut self, slots: std::ops::Range<u32>) {
        slots.for_each(|slot| self.all(&[&format!("cuStreamCreate >{slot} 1")]));
    }

    fn function(&mut self, slot: u32, name: &str) {
        self.all(&[&format!("cuModuleGetFunction >{slot} @{MODULE} \"{name}\"")]);
    }

    /// Launches the function of a slot into the stream of a slot, with the parameters that are listed.
    fn launch(&mut self, function: u32, stream: u32, parameters: &str) {
        self.all(&[&format!(
            "cuLaunchCooperativeKernel @{function} 1 1 1 32 1 1 0 @{stream} [{parameters}]"
        )]);
    }

    /// Writes a word into the memory of a slot.
    fn put(&mut self, slot: u32, value: &str) {
        self.all(&[&format!("cuMemcpy @{slot} [{value}] 8")]);
    }

    /// Sleeps until the GPUs' clock shows so many microseconds. Returns what it shows.
    fn clock(&mut self, us: u64) -> u64 {
        let shown = self.say(&format!("softGpuSleepUntil {us}000"));
        shown.parse::<u64>().expect("a short time, in nanoseconds") / 1_000
    }

    /// Microseconds between two events that have passed.
    fn between(&mut self, start: u32, end: u32) -> u64 {
        self.all(&["set 12 0", &format!("cuEventElapsedTime >12 @{start} @{end}")]);
        let bits: u64 = self.say("get 12").parse().expect("a number");
        (f32::from_bits(bits as u32) * 1000.0).round() as u64
    }

    /// Returns the microseconds until everything is done that `launches` queues.
    fn timed(&mut self, launches: impl FnOnce(&mut Self)) -> u64 {
        self.all(&["set 20 0"]);
        // A kernel that fills the GPU comes first, so that everything is queued before the GPU reaches it.
        self.function(21, "time_50000us");
        self.launch(21, 20, "");
        self.all(&[&format!("cuEventRecord @{START} 0")]);
        launches(self);
        self.all(&[
            "cuCtxSynchronize",
            &format!("cuEventRecord @{END} 0"),
            "cuCtxSynchronize",
        ]);
        self.between(START, END)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn kernels_of_two_streams_run_at_once_if_both_fit_on_the_gpu() {
    let state = Folder::new("width");
    let mut caller = Caller::new(&state, "");
    caller.streams(30..33);
    for (name, expected) in [
        ("time_1000us", 3_000),
        ("time_1000us_width_60", 3_000),
        ("time_1000us_width_50", 2_000),
        ("time_1000us_width_25", 1_000),
    ] {
        caller.function(22, name);
        let took = caller.timed(|caller| (30..33).for_each(|stream| caller.launch(22, stream, "")));
        assert_eq!(took, expected, "{name} in three streams");
        let took = caller.timed(|caller| (0..3).for_each(|_| caller.launch(22, 30, "")));
        assert_eq!(took, 3_000, "{name} in one stream");
        let took = caller.timed(|caller| (0..3).for_each(|_| caller.launch(22, 20, "")));
        assert_eq!(took, 3_000, "{name} in the default stream");
    }
}

/// Concurrent streams still obey explicit waits.
#[test]
fn events_order_streams_whose_kernels_could_run_at_once() {
    let state = Folder::new("order");
    let mut caller = Caller::new(&state, "");
    caller.streams(30..33);
    caller.function(22, "time_3000us_width_20");
    caller.function(23, "time_1000us_width_20");
    let took = caller.timed(|caller| {
        caller.all(&["cuEventCreate >13 0", "cuEventCreate >14 0"]);
        caller.launch(22, 30, "");
        caller.all(&["cuEventRecord @13 @30", "cuStreamWaitEvent @31 @13 0"]);
        caller.launch(23, 31, "");
        caller.all(&["cuEventRecord @14 @31", "cuStreamWaitEvent 0 @14 0"]);
        caller.launch(23, 20, "");
        caller.launch(23, 32, "");
        caller.all(&["cuEventRecord @13 @32", "cuStreamSynchronize @32"]);
    });
    assert_eq!(took, 5_000);
    // The third stream's kernel ran beside the first one's.
    assert_eq!(caller.between(START, 13), 1_000);
    assert_eq!(caller.between(START, 14), 4_000);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_also_in_its_events() {
    let state = Folder::new("default");
    let mut caller = Caller::new(&state, "");
    caller.all(&["cuStreamCreate >30 0"]);
    caller.streams(31..32);
    caller.function(22, "time_3000us_width_20");
    caller.function(23, "time_1000us_width_20");
    let took = caller.timed(|caller| {
        caller.all(&["cuEventCreate >13 0"]);
        caller.launch(22, 30, "");
        caller.launch(23, 31, "");
        // More queries than the queue has entries: a query queues nothing.
        for _ in 0..1_100 {
            assert_eq!(caller.say("cuStreamQuery 0"), "600");
        }
        caller.all(&["cuEventRecord @13 0", "cuEventSynchronize @13"]);
        assert_eq!(caller.say("cuStreamQuery @31"), "0");
    });
    assert_eq!(took, 3_000);
    assert_eq!(caller.between(START, 13), 3_000);
}

#[test]
fn a_kernels_arguments_say_how_long_it_takes() {
    let state = Folder::new("arguments");
    let mut caller = Caller::new(&state, "");
    caller.streams(30..32);
    caller.function(22, "time_by_argument");
    caller.function(23, "time_and_width_by_arguments");
    caller.function(24, "time_by_argument_width_50");
    for us in [700, 20, 0] {
        caller.put(ARGUMENT, &format!("{us}000"));
        let took = caller.timed(|caller| caller.launch(22, 30, "@2"));
        assert_eq!(took, us);
    }
    caller.put(ARGUMENT, "700000");
    for (width, expected) in [(51, 1_400), (50, 700)] {
        caller.put(3, &format!("{width}"));
        let took = caller.timed(|caller| (30..32).for_each(|stream| caller.launch(23, stream, "@2,@3")));
        assert_eq!(took, expected, "{width} %");
    }
    let took = caller.timed(|caller| (30..32).for_each(|stream| caller.launch(24, stream, "@2")));
    assert_eq!(took, 700);
    // All arguments in one buffer, passed through `extra`.
    caller.all(&["cuMemcpy @4 [300000,100] 16"]);
    let config = "0x100000001,0x2000000001,0x100000001,0";
    for list in ["1,@4,2,@3,0", "2,@3,1,@4,0"] {
        let took = caller.timed(|caller| {
            caller.all(&[
                &format!("cuLaunchKernelEx [{config},@30] @23 0 [{list}]"),
                &format!("cuLaunchKernelEx [{config},@31] @23 0 [{list}]"),
            ]);
        });
        assert_eq!(took, 600, "{list}");
    }
    for (wrong, why) in [
        ("@23 0 0", "no arguments"),
        ("@23 0 [2,@3,0]", "no buffer"),
        ("@22 [0] 0", "an argument without an address"),
    ] {
        let code = caller.say(&format!("cuLaunchKernelEx [{config},@30] {wrong}"));
        assert_eq!(code, "1", "{why}");
    }
    for (length, width) in [("3600000000001", 100), ("5", 0), ("5", 101)] {
        caller.put(ARGUMENT, length);
        caller.put(3, &width.to_string());
        let code = caller.say(&format!("cuLaunchKernelEx [{config},@30] @23 [@2,@3] 0"));
        assert_eq!(code, "1", "{length} ns, {width} %");
    }
}

#[test]
fn arguments_are_read_when_a_graph_is_made_and_when_it_is_changed() {
    let state = Folder::new("graphs");
    let mut caller = Caller::new(&state, "");
    caller.streams(30..31);
    caller.function(22, "time_by_argument");
    let launched = |caller: &mut Caller| caller.timed(|caller| caller.all(&["cuGraphLaunch @41 @30"]));
    // A capture.
    caller.put(ARGUMENT, "300000");
    caller.all(&["cuStreamBeginCapture_v2 @30 2"]);
    (0..2).for_each(|_| caller.launch(22, 30, "@2"));
    caller.all(&["cuStreamEndCapture @30 >40", "cuGraphInstantiateWithFlags >41 @40 0"]);
    caller.put(ARGUMENT, "100000");
    assert_eq!(launched(&mut caller), 600, "as it was captured");
    // Nodes. The list of addresses is in slot 3's memory.
    caller.put(3, "@2");
    let node = "[@22,0x100000001,0x2000000001,0x100000001,0,@3,0]";
    caller.all(&[
        "cuGraphCreate >40 0",
        &format!("cuGraphAddKernelNode_v2 >42 @40 0 0 {node}"),
        "cuGraphInstantiateWithFlags >41 @40 0",
    ]);
    assert_eq!(launched(&mut caller), 100);
    caller.put(ARGUMENT, "200000");
    caller.all(&[&format!("cuGraphExecKernelNodeSetParams_v2 @41 @42 {node}")]);
    assert_eq!(launched(&mut caller), 200);
    caller.put(ARGUMENT, "400000");
    caller.all(&[&format!("cuGraphKernelNodeSetParams_v2 @42 {node}")]);
    assert_eq!(
        launched(&mut caller),
        200,
        "the graph was changed, not what was made of it"
    );
    caller.all(&["cuGraphExecUpdate_v2 @41 @40 >43"]);
    assert_eq!(launched(&mut caller), 400);
    caller.all(&[&format!("cuGraphAddKernelNode_v2 >44 @40 0 0 {node}")]);
    assert_eq!(
        caller.say("cuGraphExecUpdate_v2 @41 @40 >43"),
        "910",
        "it has another node"
    );
    assert_eq!(launched(&mut caller), 400);
}

/// Ten kernels with events recorded between some of them.
#[test]
fn a_stream_stops_at_each_event_if_the_profile_says_so() {
    for (stop, each) in [("0ns", 0), ("2us", 2)] {
        let state = Folder::new(&format!("stop-{each}"));
        let mut caller = Caller::new(&state, &format!("event_stop = {stop}\n"));
        caller.all(&["cuEventCreate >13 0", "cuEventCreate >14 0"]);
        caller.streams(30..32);
        caller.function(22, "time_100us_width_50");
        for events in [1, 5] {
            let took = caller.timed(|caller| {
                for number in 0..10 {
                    caller.launch(22, 30, "");
                    // The other stream does not stop.
                    caller.launch(22, 31, "");
                    if number < events {
                        caller.all(&["cuEventRecord @13 @30"]);
                    }
                }
                caller.all(&[
                    "cuEventRecord @13 @30",
                    "cuEventRecord @14 @31",
                    "cuEventSynchronize @14",
                ]);
            });
            assert_eq!(caller.between(START, 13), 1_000 + events * each, "{stop}");
            assert_eq!(caller.between(START, 14), 1_000, "{stop}");
            assert_eq!(
                took,
                1_000 + (events + 1) * each,
                "it stops behind its last event as well"
            );
        }
    }
}

/// A context with an event between its kernels and one in an idle stream, beside another context.
#[test]
fn a_context_that_is_switched_out_tells_late_if_the_profile_says_so() {
    for (late, expected, idle) in [("no", "0", 2_700), ("yes", "600", 4_200)] {
        let state = Folder::new(&format!("late-{late}"));
        let mut caller = Caller::new(&state, &format!("late_events = {late}\n"));
        caller.all(&["cuEventCreate >13 0", "cuEventCreate >14 0", "cuEventCreate >15 0"]);
        caller.streams(30..32);
        caller.function(22, "time_1000us");
        caller.launch(22, 30, "");
        caller.all(&["cuCtxSynchronize", "cuCtxCreate_v2 >5 0 0"]);
        caller.all(&[&format!(
            "cuModuleLoadData >6 {}",
            r#"".version\s8.0\n.target\ssm_90\n""#
        )]);
        caller.all(&["cuModuleGetFunction >7 @6 \"time_20000us\"", "cuCtxSetCurrent @0"]);
        let begin = caller.clock(0);
        // The first context has a kernel of 1 ms, an event, and then 4 ms; the other one has 20 ms.
        caller.all(&[&format!("cuEventRecord @{START} @30")]);
        caller.launch(22, 30, "");
        caller.all(&["cuEventRecord @13 @30"]);
        (0..4).for_each(|_| caller.launch(22, 30, ""));
        caller.all(&["cuCtxSetCurrent @5"]);
        caller.launch(7, 20, "");
        caller.all(&["cuCtxSetCurrent @0"]);
        // Nobody has queried the event before the slice ended. The other context has the GPU from 2.1 to 4.1 ms.
        assert_eq!(caller.clock(begin + 2_700), begin + 2_700);
        assert_eq!(caller.say("cuEventQuery @13"), expected, "{late}");
        caller.all(&["cuEventRecord @14 @31"]);
        assert_eq!(caller.say("cuEventQuery @14"), expected, "{late}");
        caller.all(&["cuEventSynchronize @14"]);
        assert_eq!(caller.clock(0), begin + idle, "{late}: when the wait is over");
        assert_eq!(caller.between(START, 14), idle, "{late}: and when it passed");
        assert_eq!(caller.say("cuEventQuery @13"), "0");
        // An event that was reported as passed stays passed, also after the next slice.
        caller.clock(begin + 6_500);
        assert_eq!(caller.say("cuEventQuery @13"), "0");
        assert_eq!(caller.between(START, 13), 1_000, "it passed in time");
    }
}

#[test]
fn virtual_time_gives_the_same_figures_each_time() {
    let run = |name: &str| {
        let work = &["timed:700x300", "until:5000000000", "timed:5x2000", "timed:100"][..];
        // The clients do not start at the same moment: otherwise it would be random whose context comes first.
        let other = &["until:1001000000", "timed:9000x40", "until:5000100000", "timed:300x20"][..];
        let state = Folder::new(name);
        in_virtual_time(&state, &[work, other])
    };
    let first = run("virtual");
    // 210 and 360 ms of work.
    let (one, other) = (elapsed(&first[0][0]), elapsed(&first[1][1]));
    assert!((420_000..=beside_one(210_000) + TURN).contains(&one), "{first:?}");
    assert!((570_000..=beside_one(360_000)).contains(&other), "{first:?}");
    assert_eq!([&first[0][1], &first[1][2]], ["5000000000", "5000100000"]);
    for again in 0..3 {
        assert_eq!(run("virtual"), first, "run {again}");
    }
}

#[test]
fn virtual_time_passes_in_no_time_and_waits_for_no_dead_process() {
    let state = Folder::new("hour");
    let lines = in_virtual_time(
        &state,
        &[&[&format!("timed:{HOUR}"), "kill"], &[&format!("timed:{HOUR}x2")]],
    );
    // An hour beside the other process, and an hour alone, as exact as a float in milliseconds is.
    about(elapsed(&lines[1][0]), beside_one(HOUR_US) + HOUR_US, 1_000_000);
}
