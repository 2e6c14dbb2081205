//! SIGKILLs at random moments, while 8 processes of 4 threads each allocate, export, import and free shared memory.
//!
//! No reader ever sees the share's sum above the limit. After each round the survivors pause and report the name and
//! size of each piece that they exported or imported and still have. The ledger has at least the sum of these, each
//! name once. That includes pieces of killed processes that only importers still have. (The software GPU's account ends
//! shared memory with its exporter.) After the others have closed their imports, the ledger and that account are equal.
//! After they have freed their exports, both are empty. The same holds if all processes are killed instead.
//!
//! VGPU_STORM_SECONDS: the minimum duration (default 20).

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::chance::{Chance, setting};
use support::hang::HangGuard;
use support::serve::Serving;
use support::truth::Truth;
use support::{Bench, GIB, GRANULE};

const PROCESSES: usize = 8;
/// Longer than the time within which the library does not check for dead processes again.
const LOOK_AGE: Duration = Duration::from_millis(300);
/// Kills between two comparisons.
const ROUND: u64 = 60;

fn storming(bench: &Bench, board: &std::path::Path) -> Serving {
    let exchange = format!("exchange:{}", board.display());
    Serving::new(bench.client(&["listen", "init", &exchange, "serve"]))
}

/// The bytes that the clients hold, with shared pieces counted once. A driver may reuse a name once the exporter has
/// freed its piece. So of two pieces with one name only the larger is counted, and the result is never too high.
fn distinct(clients: &mut [Serving]) -> u64 {
    let mut pieces: HashMap<String, u64> = HashMap::new();
    for client in clients {
        for piece in client.ask("had").split_whitespace() {
            let (name, bytes) = piece.split_once(':').expect("a name and its bytes");
            let bytes: u64 = bytes.parse().expect("a number");
            let largest = pieces.entry(name.into()).or_default();
            *largest = bytes.next_multiple_of(GRANULE).max(*largest);
        }
    }
    pieces.values().sum()
}

/// Stops every process, frees what it holds, and compares the figures meanwhile. Returns the number of imports.
fn compare(bench: &Bench, truth: &mut Truth, clients: &mut Vec<Serving>) -> u64 {
    for client in clients.iter_mut() {
        assert_eq!(client.line(), "listen 0");
        client.signal(libc::SIGUSR1);
    }
    let mut imported = 0;
    for client in clients.iter_mut() {
        assert_eq!(client.line(), "init 0");
        let line = client.line();
        let count = line.strip_prefix("exchange ").unwrap_or_else(|| panic!("{line}"));
        imported += count.parse::<u64>().expect("a number");
    }
    let mut look = |clients: &mut [Serving]| {
        // Reading the figures releases the memory of dead processes, unless the process did this very recently.
        std::thread::sleep(LOOK_AGE);
        clients
            .iter_mut()
            .for_each(|client| assert!(client.ask("info").starts_with("0 ")));
        let usage = bench.usage("share");
        let sum: u64 = usage.processes.iter().map(|process| process.charged).sum();
        assert_eq!(usage.charged, sum, "{usage:?}");
        (usage.charged, truth.used())
    };
    for left in [PROCESSES, PROCESSES / 2] {
        // Some processes are dropped, so their exports are held only by importers.
        clients.truncate(left);
        let had = distinct(clients);
        let (charged, used) = look(clients);
        assert!(
            charged >= used.max(had),
            "{charged} charged, {used} used, {had} had by {left} survivors"
        );
    }
    for client in clients.iter_mut() {
        assert_eq!(client.ask("close"), "0");
    }
    let (charged, used) = look(clients);
    assert_eq!(charged, used, "nothing is imported any more");
    for client in clients.iter_mut() {
        assert_eq!(client.ask("unmake"), "0");
    }
    assert_eq!(look(clients), (0, 0), "all was freed");
    imported
}

#[test]
fn a_storm_of_kills_leaves_an_exact_ledger_whoever_has_what_together() {
    let seconds = setting("VGPU_STORM_SECONDS", 20);
    let _guard = HangGuard::new("the exchange", Duration::from_secs(600 + 20 * seconds));
    let bench = Bench::with_share(GIB);
    let board = bench.directory("share").join("board");
    std::fs::write(&board, [0; 24 * 128]).expect("a board");
    let (mut truth, mut chance) = (Truth::new(&bench), Chance::new(None));
    let (start, mut killed, mut imported) = (Instant::now(), 0, 0);
    while start.elapsed().as_secs() < seconds {
        let mut clients: Vec<Serving> = (0..PROCESSES).map(|_| storming(&bench, &board)).collect();
        for _ in 0..ROUND {
            std::thread::sleep(Duration::from_micros(chance.below(30_000)));
            let charged = bench.usage("share").charged;
            assert!(charged <= GIB, "{charged} charged");
            let slot = chance.below(PROCESSES as u64) as usize;
            clients[slot] = storming(&bench, &board);
        }
        imported += compare(&bench, &mut truth, &mut clients);
        // Starts new processes and kills them all at once.
        let clients: Vec<Serving> = (0..PROCESSES).map(|_| storming(&bench, &board)).collect();
        std::thread::sleep(Duration::from_micros(chance.below(200_000)));
        clients.iter().for_each(|client| client.signal(libc::SIGKILL));
        drop(clients);
        killed += ROUND + PROCESSES as u64;
        assert_eq!(truth.used(), 0, "the driver gave all back");
        assert_eq!(bench.free(), GIB, "so did the next start");
        assert_eq!(bench.usage("share").charged, 0);
    }
    assert!(imported > 0, "nothing was imported");
    println!(
        "{killed} kills, {imported} imports by survivors in {:?}",
        start.elapsed()
    );
}
