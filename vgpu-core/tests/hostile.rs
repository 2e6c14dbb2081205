//! A ledger that is deleted, replaced, truncated or overwritten while it is in use. The processes of that claim may
//! fail to allocate; nothing crashes or hangs, and frees succeed.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use support::chance::{Chance, setting};
use support::serve::Serving;
use support::{Bench, GIB, lines, number};
use vgpu_abi::ledger::object::OBJECTS;
use vgpu_abi::ledger::refusal::BY_LIMIT_AT;
use vgpu_abi::ledger::{self, FIRST_LANE_AT, FIRST_OBJECT_AT, LANES, LINE, OBJECTS_USED_AT, SIZE};

/// A client that has done `steps`.
fn ready(bench: &Bench, steps: &[&str]) -> Serving {
    let mut client = Serving::heard(bench.client(&[steps, &["serve"]].concat()));
    client.did(steps);
    client
}

#[test]
fn a_deleted_ledger_goes_on_for_those_who_have_it() {
    let bench = Bench::with_share(GIB);
    let mut client = ready(&bench, &["init", "alloc:512MiB"]);
    fs::remove_file(bench.ledger("share")).expect("a ledger");
    assert_eq!(client.ask("alloc:1GiB"), "2");
    assert_eq!(client.ask("alloc:512MiB"), "0");
    assert_eq!(client.ask("storm:200").parse::<u64>().map(drop), Ok(()));
    assert_eq!([client.ask("free:0"), client.ask("free:0")], ["0", "0"]);
    assert_eq!(number(&client.ask("info"), 1), GIB);
    assert_eq!(client.said(), "");
    assert!(bench.refusal().contains("share/ledger: No such file"));
}

#[test]
fn a_replaced_ledger_does_not_make_living_neighbours_look_dead() {
    let bench = Bench::with_share(GIB);
    let mut first = ready(&bench, &["init", "alloc:512MiB"]);
    let mut second = ready(&bench, &["init", "alloc:256MiB"]);
    let path = bench.ledger("share");
    let fresh = path.with_extension("new");
    fs::write(&fresh, ledger::image(&bench.limits("share", 0, 0, GIB))).expect("a ledger");
    fs::rename(&fresh, &path).expect("a ledger");
    // Nobody holds a lock on the new file.
    assert_eq!(
        second.ask("alloc:512MiB"),
        "2",
        "what the first holds is not given away"
    );
    assert_eq!(number(&second.ask("info"), 1), GIB / 4);
    assert_eq!(number(&first.ask("memory"), 4), GIB * 3 / 4);
    assert_eq!(first.ask("free:0"), "0");
    assert_eq!(second.ask("alloc:512MiB"), "0");
    assert_eq!([first.said(), second.said()], ["", ""]);
}

#[test]
fn a_program_that_changes_its_root_leaves_neighbours_alone() {
    let bench = Bench::with_share(GIB);
    let mut neighbour = ready(&bench, &["init", "alloc:512MiB"]);
    let mut client = ready(&bench, &["init"]);
    let root = tempfile::tempdir().expect("a folder");
    let answer = client.ask(&format!("chroot:{}", root.path().display()));
    if answer != "0" {
        return vgpu_skip::skip(
            "a_program_that_changes_its_root_leaves_neighbours_alone",
            "chroot needs root",
        );
    }
    assert_eq!([client.ask("alloc:1GiB"), client.ask("alloc:512MiB")], ["2", "0"]);
    assert_eq!(neighbour.ask("alloc:2MiB"), "2");
    assert_eq!([client.ask("free:0"), neighbour.ask("free:0")], ["0", "0"]);
    assert_eq!([client.said(), neighbour.said()], ["", ""]);
}

#[test]
fn garbage_of_any_kind_is_refused_at_open() {
    let bench = Bench::with_share(GIB);
    let (path, mut chance) = (bench.ledger("share"), Chance::new(None));
    let good = fs::read(&path).expect("a ledger");
    for round in 0..40 {
        let mut bytes = good.clone();
        // The constant line and the seal are checked at open. Other bytes change while a ledger is in use.
        let constant = [0..28, SIZE - 8..SIZE];
        let places: Vec<usize> = constant.into_iter().flatten().collect();
        for _ in 0..=chance.below(4) {
            bytes[places[chance.below(places.len() as u64) as usize]] ^= 1 << chance.below(8);
        }
        bytes.truncate(if round % 4 == 0 {
            chance.below(SIZE as u64) as usize
        } else {
            SIZE
        });
        if bytes != good {
            fs::write(&path, &bytes).expect("a ledger");
            let said = bench.refusal();
            assert!(said.contains("share/ledger"), "{said}");
        }
    }
    fs::remove_file(&path).expect("a ledger");
    fs::create_dir(&path).expect("a folder");
    assert!(bench.refusal().contains("share/ledger"));
    fs::remove_dir(&path).expect("a folder");
    let fifo = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(fifo.is_ok_and(|status| status.success()));
    assert!(
        bench.refusal().contains("share/ledger"),
        "a FIFO, which nobody else has open"
    );
    fs::remove_file(&path).expect("a FIFO");
    fs::write(&path, good).expect("a ledger");
    assert_eq!(bench.free(), GIB);
}

/// Returns the offset of a word of the ledger: of one that a running process uses, or of any.
fn word(chance: &mut Chance) -> usize {
    match chance.below(8) {
        0 => LINE + 8 * chance.below(2) as usize,
        4 => FIRST_OBJECT_AT + chance.below(32 * LINE as u64 / 8) as usize * 8,
        5 => FIRST_OBJECT_AT + chance.below(OBJECTS as u64) as usize * LINE + 8 * chance.below(4) as usize,
        6 => OBJECTS_USED_AT,
        7 => BY_LIMIT_AT + 8 * chance.below((FIRST_LANE_AT - BY_LIMIT_AT) as u64 / 8) as usize,
        1 => FIRST_LANE_AT + 8 * chance.below(8) as usize,
        2 => FIRST_LANE_AT + chance.below(LANES as u64) as usize * LINE + 8 * chance.below(8) as usize,
        _ => 8 * chance.below(SIZE as u64 / 8) as usize,
    }
}

fn value(chance: &mut Chance) -> u64 {
    match chance.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << chance.below(64),
        3 => chance.below(16),
        4 => chance.below(2 * GIB),
        _ => chance.next(),
    }
}

/// Checks that the client still gets figures, and reports at most that the ledger is damaged.
fn unharmed(mut client: Serving, round: u64) {
    assert!(["0", "2"].contains(&client.ask("alloc:2MiB").as_str()), "round {round}");
    for look in ["info", "memory", "running"] {
        assert!(client.ask(look).starts_with("0 "), "round {round}");
    }
    let said = client.said();
    assert!(said.lines().count() <= 1, "round {round}: {said}");
    assert!(said.is_empty() || said.contains("damaged"), "round {round}: {said}");
}

/// Writes a random value, and waits a moment.
fn damage(file: &fs::File, at: usize, chance: &mut Chance) {
    let value = value(chance).to_le_bytes();
    file.write_all_at(&value, at as u64).expect("damage");
    std::thread::sleep(Duration::from_micros(chance.below(400)));
}

#[test]
fn words_overwritten_while_it_is_used_cost_allocations_and_nothing_else() {
    let rounds = setting("VGPU_DAMAGE_ROUNDS", 24);
    for round in 0..rounds {
        // Every second round is the same in each run.
        let mut chance = Chance::new((round % 2 == 0).then_some(round));
        let bench = Bench::with_share(GIB);
        let file = bench.open_ledger("share");
        let mut clients: Vec<Serving> = (0..3)
            .map(|_| ready(&bench, &["listen", "init", "alloc:64MiB"]))
            .collect();
        let bytes = fs::read(bench.ledger("share")).expect("a ledger");
        let lanes = (0..LANES).map(|index| FIRST_LANE_AT + index * LINE);
        let lanes: Vec<usize> = lanes.filter(|at| bytes[*at] % 2 == 1).collect();
        clients.iter_mut().for_each(|client| client.tell("mixed:0"));
        for _ in 0..=chance.below(400) {
            let at = match chance.below(2) {
                0 => word(&mut chance),
                // A lane in use.
                _ => lanes[chance.below(lanes.len() as u64) as usize] + 8 * chance.below(8) as usize,
            };
            damage(&file, at, &mut chance);
        }
        for mut client in clients {
            client.signal(libc::SIGUSR1);
            assert!(client.line().starts_with("mixed "), "round {round}");
            client.ask("freekept");
            assert_eq!(client.ask("free:0"), "0", "round {round}: frees pass");
            unharmed(client, round);
        }
    }
}

/// The same for processes that share memory; some are killed.
#[test]
fn objects_overwritten_while_they_are_used_hang_and_crash_nobody() {
    for round in 0..setting("VGPU_DAMAGE_ROUNDS", 24) / 2 {
        let mut chance = Chance::new((round % 2 == 0).then_some(round));
        let bench = Bench::with_share(GIB);
        let board = bench.directory("share").join("board");
        fs::write(&board, [0; 64 * 64]).expect("a board");
        let exchange = format!("exchange:{}", board.display());
        let start = || {
            let mut client = ready(&bench, &["listen", "init"]);
            client.tell(&exchange);
            client
        };
        let mut clients: Vec<Serving> = (0..3).map(|_| start()).collect();
        let file = bench.open_ledger("share");
        for _ in 0..=chance.below(400) {
            let line = FIRST_OBJECT_AT + chance.below(40) as usize * LINE;
            let at = match chance.below(8) {
                0 => OBJECTS_USED_AT,
                1 => word(&mut chance),
                2 | 3 => line + 96 + 8 * chance.below(4) as usize,
                _ => line + 8 * chance.below(4) as usize,
            };
            damage(&file, at, &mut chance);
        }
        // One client is killed while it holds memory.
        clients.pop().expect("a client").kill();
        for mut client in clients {
            client.signal(libc::SIGUSR1);
            assert!(client.line().starts_with("exchange "), "round {round}");
            assert_eq!(
                [client.ask("close"), client.ask("unmake")],
                ["0", "0"],
                "round {round}: frees pass"
            );
            unharmed(client, round);
        }
    }
}

#[test]
fn a_cut_ledger_hurts_processes_of_its_claim_alone() {
    let bench = Bench::with_share(GIB);
    let neighbour = Bench::on_gpu_of(&bench, GIB);
    let mut other = ready(&neighbour, &["init", "alloc:512MiB"]);
    let mut client = ready(&bench, &["init", "alloc:512MiB"]);
    let file = bench.open_ledger("share");
    file.set_len(0).expect("cut");
    client.tell("alloc:2MiB");
    let status = client.end();
    assert!(status.success() || status.signal() == Some(libc::SIGBUS), "{status}");
    assert!(bench.refusal().contains("0 bytes"));
    // A client of another claim on the same GPU.
    assert_eq!([other.ask("alloc:1GiB"), other.ask("alloc:512MiB")], ["2", "0"]);
    assert_eq!([other.ask("free:0"), other.ask("free:0")], ["0", "0"]);
    assert_eq!(other.said(), "");
    assert_eq!(neighbour.free(), GIB);
    // The file is truncated in the middle of a storm, and extended again.
    for keep in [4096, 0, SIZE as u64 - 8] {
        neighbour.put(&neighbour.limits("share", 0, 0, GIB));
        let mut storm = ready(&neighbour, &["listen", "init"]);
        storm.tell("mixed:0");
        std::thread::sleep(Duration::from_millis(20));
        let file = neighbour.open_ledger("share");
        file.set_len(keep).expect("cut");
        file.set_len(SIZE as u64).expect("grown");
        std::thread::sleep(Duration::from_millis(20));
        storm.signal(libc::SIGUSR1);
        let status = storm.end();
        assert!(
            status.success() || status.signal() == Some(libc::SIGBUS),
            "{keep}: {status}"
        );
        assert!(neighbour.refusal().contains("not"), "{keep}: no seal any more");
    }
    // The first bench's GPU still works.
    bench.put(&bench.limits("share", 0, 0, GIB));
    assert_eq!(bench.free(), GIB);
    let output = bench.client(&["init", "allocfree"]).output().expect("a client");
    assert_eq!(lines(&output), ["init 0", "allocfree 0"]);
}
