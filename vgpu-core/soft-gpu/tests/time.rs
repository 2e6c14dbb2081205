//! Several processes on one GPU's time. All lengths are by the GPU's clock, which runs on whatever processes do, so
//! a slow machine changes none of them. With virtual time it does not even run on.

mod common;

use std::time::{Duration, Instant};

use common::{Client, Folder, on_gpus, program, succeeds};

/// So many times a kernel of so many microseconds takes, between two events.
fn timed(client: &mut Client, work: &str) -> u64 {
    elapsed(&client.say(&format!("timed:{work}")))
}

fn elapsed(answer: &str) -> u64 {
    let us = answer.strip_prefix("0 ").unwrap_or_else(|| panic!("{answer}"));
    us.parse().expect("microseconds")
}

/// Events are floats of milliseconds.
#[track_caller]
fn about(us: u64, expected: u64, slack: u64) {
    assert!(us.abs_diff(expected) <= slack, "{us} us, expected {expected}");
}

const HOUR: &str = "3600000000";
const HOUR_US: u64 = 3_600_000_000;
/// 2 ms of work, 2 ms of another context's, and two switches, for each 2 ms.
const fn beside_one(us: u64) -> u64 {
    us * 42 / 20
}
/// Where in a turn an event falls.
const TURN: u64 = 4_200;

#[test]
fn kernels_last_as_long_as_their_names_say_and_a_full_queue_waits() {
    let state = Folder::new("named");
    let mut client = Client::ready(&state.0);
    about(timed(&mut client, "500"), 500, 1);
    about(timed(&mut client, "700x300"), 210_000, 20);
    about(timed(&mut client, "0x10"), 0, 0);
    // Three times the queue's length: the first event's place is used again.
    about(timed(&mut client, "100x3000"), 300_000, 50);
}

#[test]
fn two_processes_with_work_get_half_each_by_events_and_by_nvml() {
    let state = Folder::new("halves");
    let mut clients = [(); 2].map(|()| Client::ready(&state.0));
    assert_eq!(clients[1].say(&format!("spin:{HOUR}")), "0");
    about(timed(&mut clients[0], "2000x100"), beside_one(200_000), TURN);
    assert_eq!(clients[0].say(&format!("spin:{HOUR}")), "0");
    // Until the window has nothing else.
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
    // More than the stopped one has to do: it ends while nobody but the other one looks.
    timed(&mut other, "2000x500");
    about(timed(&mut other, "2000x50"), 100_000, 20);
    stopped.signal("CONT");
    let took = elapsed(&stopped.say("end"));
    assert!(
        (400_000..=beside_one(400_000) + TURN).contains(&took),
        "{took}: the time for which it was stopped counts"
    );
}

/// Its clock is 28 hours ahead. The time of the GPU must not be.
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

/// Clients that meet on GPUs with virtual time and then do their steps: the lines of each from there on.
fn in_virtual_time(state: &Folder, steps: &[&[&str]]) -> Vec<Vec<String>> {
    std::fs::create_dir_all(&state.0).unwrap();
    std::fs::write(state.0.join("profile"), "clock = virtual\n").unwrap();
    let mut clients: Vec<_> = steps
        .iter()
        .map(|steps| {
            let mut command = on_gpus(program(), &state.0);
            // From `until:0` on time waits for this thread, which computes while it waits for a line.
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

#[test]
fn virtual_time_gives_the_same_figures_each_time() {
    let run = |name: &str| {
        let work = &["timed:700x300", "until:5000000000", "timed:5x2000", "timed:100"][..];
        // Not at the same moment: whose context comes first would be chance.
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
    // An hour beside the other one, and an hour alone, as floats of milliseconds tell.
    about(elapsed(&lines[1][0]), beside_one(HOUR_US) + HOUR_US, 1_000_000);
}
