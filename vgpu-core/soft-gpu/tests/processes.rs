//! Several processes on the same GPUs: their memory, its release when they die, and which processes NVML lists.

mod common;

use std::time::{Duration, Instant};

use common::{Client, Folder, client, on_gpus, program, succeeds};

const GIB: u64 = 1 << 30;

#[test]
fn processes_share_a_gpu_and_nvml_names_them() {
    let state = Folder::new("share");
    let (mut one, mut two) = (Client::ready(&state.0), Client::ready(&state.0));
    assert_eq!(one.say(&format!("alloc:{}", 30 * GIB)), "0");
    assert_eq!(two.say(&format!("alloc:{}", 60 * GIB)), "2", "only 50 GiB are left");
    assert_eq!(two.say(&format!("alloc:{}", 50 * GIB)), "0", "to the last byte");
    assert_eq!(two.say("alloc:1"), "2");
    assert_eq!(one.say("info"), format!("0 0 {}", 80 * GIB));
    let view = two.look(0);
    assert_eq!((view.used, view.free), (80 * GIB, 0));
    assert_eq!(view.users[&one.pid()], 30 * GIB);
    assert_eq!(view.users[&two.pid()], 50 * GIB);
    assert!(two.look(1).users.is_empty(), "the other GPU is idle");
}

#[test]
fn what_a_killed_process_held_is_free_at_once() {
    let state = Folder::new("kill");
    let mut survivor = Client::ready(&state.0);
    for _ in 0..50 {
        let mut victim = Client::ready(&state.0);
        assert_eq!(victim.say(&format!("alloc:{}", 80 * GIB)), "0");
        victim.kill();
        assert_eq!(survivor.say(&format!("alloc:{}", 80 * GIB)), "0", "no wait, no retry");
        assert_eq!(survivor.say("free:0"), "0");
    }
    let view = survivor.look(0);
    assert_eq!((view.used, view.users.len()), (0, 1), "{view:?}");
}

#[test]
fn a_lock_outlives_closed_descriptors_and_dies_with_its_process_not_its_children() {
    let state = Folder::new("closefrom");
    let mut watcher = Client::ready(&state.0);
    let mut user = Client::ready(&state.0);
    assert_eq!(user.say(&format!("alloc:{GIB}")), "0");
    assert_eq!(user.say("closefrom"), "0");
    assert_eq!(watcher.look(0).used, GIB, "still alive");
    let orphan: i32 = user.say("sleeper").parse().unwrap();
    user.kill();
    let view = watcher.look(0);
    // The test has to kill the orphan, whatever the result.
    std::process::Command::new("kill")
        .arg(orphan.to_string())
        .status()
        .unwrap();
    assert_eq!(view.used, 0, "a fork child must not keep its parent's memory: {view:?}");
}

#[test]
fn a_forked_child_has_no_driver() {
    let state = Folder::new("fork");
    let mut client = Client::ready(&state.0);
    assert_eq!(client.say("forked"), "3");
    assert_eq!(client.say(&format!("alloc:{GIB}")), "0", "the parent goes on");
    assert_eq!(client.look(0).users.len(), 1);
}

/// Clients allocate and free as fast as they can and are killed at random; every picture adds up, none exceeds the
/// GPU, and in the end nothing is left.
#[test]
fn a_storm_of_kills_leaves_a_true_picture() {
    let state = Folder::new("storm");
    let said = state.0.with_extension("stderr");
    let _said_goes = Folder(said.clone());
    let mut watcher = client(&state.0);
    watcher.stderr(std::fs::File::create(&said).unwrap());
    let mut watcher = Client::spawn(watcher).with_context();
    let mut storm: Vec<Client> = Vec::new();
    let (mut looks, mut slowest) = (0, Duration::ZERO);
    for round in 0..60 {
        while storm.len() < 4 {
            let mut client = Client::ready(&state.0);
            assert_eq!(client.say("background:1"), "0");
            storm.push(client);
        }
        for _ in 0..5 {
            let began = Instant::now();
            let view = watcher.look(0);
            slowest = slowest.max(began.elapsed());
            looks += 1;
            assert!(view.used <= 80 * GIB, "round {round}: {view:?}");
            assert_eq!(view.used + view.free, 80 * GIB, "round {round}: {view:?}");
        }
        let victim = storm.remove(round % storm.len());
        let pid = victim.pid();
        victim.kill();
        assert!(!watcher.look(0).users.contains_key(&pid), "round {round}: a ghost");
    }
    storm.into_iter().for_each(Client::kill);
    let view = watcher.look(0);
    assert_eq!((view.used, view.users.len()), (0, 1), "{view:?}");
    assert_eq!(
        watcher.say(&format!("alloc:{}", 80 * GIB)),
        "0",
        "the whole GPU is free again"
    );
    // A read that finds no consistent moment falls back to each process's own figure, and writes this to stderr.
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(!said.contains("no one picture"), "{said}");
    println!("{looks} looks, slowest {slowest:?}");
}

/// The host sees host PIDs of processes in other PID namespaces; they see only themselves; memory counts everybody.
#[test]
fn pid_namespaces() {
    if !succeeds("unshare", &["--pid", "--fork", "--mount-proc", "true"]) {
        vgpu_skip::skip("pid_namespaces", "needs root that may make PID and mount namespaces");
        return;
    }
    let state = Folder::new("namespaces");
    let mut host = Client::ready(&state.0);
    assert_eq!(host.say(&format!("alloc:{GIB}")), "0");
    let mut inside: Vec<Client> = (0..2)
        .map(|_| {
            let mut command = on_gpus("unshare", &state.0);
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
            command.arg(program()).arg("serve");
            let mut client = Client::spawn(command).with_context();
            assert_eq!(client.say(&format!("alloc:{}", 2 * GIB)), "0");
            client
        })
        .collect();
    let view = host.look(0);
    assert_eq!(view.used, 5 * GIB);
    assert_eq!(view.users.len(), 3, "{view:?}");
    for (pid, bytes) in view.users.iter().filter(|(pid, _)| **pid != host.pid()) {
        assert_eq!(*bytes, 2 * GIB);
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("a host PID");
        assert_eq!(name.trim(), "gpu-client", "{pid}");
    }
    for client in &mut inside {
        let view = client.look(0);
        assert_eq!(view.used, 5 * GIB, "memory counts everybody");
        assert_eq!(
            view.users.into_iter().collect::<Vec<_>>(),
            [(1, 2 * GIB)],
            "but shows itself alone"
        );
    }
}

#[test]
fn utilisation_follows_launches() {
    let state = Folder::new("busy");
    let mut client = Client::ready(&state.0);
    assert_eq!(client.look(0).busy, 0);
    assert_eq!(client.say("launch:5000"), "0");
    becomes(&mut client, 90..=100);
    assert_eq!(client.say("call:cuCtxSynchronize"), "0");
    becomes(&mut client, 0..=0);
}

/// Waits until a client sees this utilisation of GPU 0.
fn becomes(client: &mut Client, busy: std::ops::RangeInclusive<u64>) {
    let end = Instant::now() + Duration::from_secs(60);
    while !busy.contains(&client.look(0).busy) {
        assert!(Instant::now() < end, "never {busy:?} %");
        std::thread::sleep(Duration::from_millis(20));
    }
}
