//! SIGKILL at every instruction: ptrace leads a client through every call that changes the ledger, and stops it at each
//! instruction of libvgpu.so and at the entry and exit of each system call.
//!
//! After a SIGKILL, other processes see only the ledgers and the software GPU's state. Everything else of a process
//! ends with it, including its locks. So the files at each stop are compared with those of the stop before, and each
//! new state is kept. Once all clients are dead, each kept state is restored twice, for new processes to find:
//!
//! ```text
//!  victim              stop k: as at stop k - 1? ─ no ──► kept; no more used than charged, no more than the limit
//!  new process         [alloc, free: the next writer] ──► allocates the whole share ──► granted: all was released
//!  client without shim the software GPU's own account ──► equals the ledger
//! ```
//!
//! Real kills are tested too, at a sample of the stops while a neighbour lives, each in a process of its own:
//!
//! ```text
//!  neighbour (lives)   its own allocation succeeds while the victim is stopped at stop k
//!  victim              stop k ──► SIGKILL
//!  neighbour           allocates the whole share ──► granted: everything of the victim was released
//! ```
//!
//! If the victim imports memory of the neighbour, the neighbour frees it before it allocates the whole share.
//!
//! The sample has stops next to changes and others. VGPU_EVERY_INSTRUCTION=1 kills at all stops, up to VGPU_MOST_STOPS
//! (default 6000) in one call; in longer calls at every n-th.
//!
//! If ptrace is not permitted, the test is skipped and this is logged.

use crate::support::chance::{Chance, setting};
use crate::support::hang::HangGuard;
use crate::support::serve::Serving;
use crate::support::trace::{At, Traced};
use crate::support::truth::Truth;
use crate::support::{Bench, GIB, MIB, dist};
use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use vgpu_abi::ledger::SIZE;
use vgpu_abi::paths::SHIM_FILE;

/// The charge for the first context until it is measured. It differs from the size, so that calls about contexts change
/// the ledger.
const RESERVE: u64 = 64 * MIB;

/// A call to be interrupted.
struct Case {
    symbol: &'static str,
    before: Vec<&'static str>,
    call: &'static str,
    /// Just before the call, another process of the share dies while it has half of the share.
    beside_the_dead: bool,
    /// The neighbour has exported memory, and the victim knows its name from the start.
    of_the_neighbour: bool,
    /// The neighbour frees this memory just before the call.
    freed: bool,
    /// The number of shares, with 1 GiB together.
    shares: u64,
}

/// Reads one case a line: symbol, the steps before the call, the call.
fn cases(table: &'static str) -> impl Iterator<Item = Case> {
    table.lines().map(|line| {
        let mut columns = line.split('|').map(str::trim);
        let mut column = || columns.next().expect("three columns");
        Case {
            symbol: column(),
            before: column().split_whitespace().collect(),
            call: column(),
            beside_the_dead: false,
            of_the_neighbour: false,
            freed: false,
            shares: 1,
        }
    })
}

/// The length of the software GPU's state that is compared: enough for the processes of this test.
const STATE_SIZE: usize = 256 << 10;

/// A mapped file, and its content at the last comparison.
struct View {
    at: *const u8,
    size: usize,
    seen: Vec<u8>,
}

/// The files as a kill at this stop, or at any later stop before the next change, would leave them.
struct Left {
    stop: usize,
    ledgers: Vec<Vec<u8>>,
    state: Vec<u8>,
}

/// The stops of a call.
struct Survey {
    stops: usize,
    /// The stops just before and after a change.
    telling: BTreeSet<usize>,
    left: Vec<Left>,
}

impl View {
    #[allow(unsafe_code)]
    fn new(path: &Path, size: usize) -> Self {
        let file = std::fs::File::open(path).expect("a file");
        let (rights, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of at least that size, which nobody truncates.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let mut view = Self {
            at: at.cast_const().cast(),
            size,
            seen: Vec::new(),
        };
        view.changed();
        view
    }

    #[allow(unsafe_code)]
    fn changed(&mut self) -> bool {
        // SAFETY: the mapping of `new` lives as long as this, and its writers are stopped.
        let now = unsafe { std::slice::from_raw_parts(self.at, self.size) };
        let changed = self.seen != now;
        if changed {
            self.seen = now.to_vec();
        }
        changed
    }
}

impl Drop for View {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.size) };
    }
}

struct Stage {
    bench: Bench,
    neighbour: Serving,
    /// The name of the neighbour's exported memory.
    name: Option<String>,
    truth: Truth,
    shares: Vec<String>,
}

impl Stage {
    fn new(case: &Case) -> Self {
        let bench = Bench::new();
        let shares: Vec<String> = (0..case.shares).map(|index| format!("share-{index}")).collect();
        for (order, share) in shares.iter().enumerate() {
            let mut limits = bench.limits(share, order as u32, 0, GIB / case.shares);
            limits.context_reserve = Some(RESERVE);
            bench.put(&limits);
        }
        let truth = Truth::new(&bench);
        let neighbour = bench.serving(&["init"]);
        Self {
            bench,
            neighbour,
            name: None,
            truth,
            shares,
        }
    }

    /// Lets the neighbour allocate and export what the victim needs.
    fn export(&mut self, case: &Case) {
        if case.of_the_neighbour && self.name.is_none() {
            assert_eq!(self.neighbour.ask("alloc:64MiB"), "0");
            assert_eq!(self.neighbour.ask("export:0"), "0");
            self.name = Some(self.neighbour.ask("name"));
        }
    }

    /// Lets the neighbour free that memory.
    fn unmake(&mut self) {
        if self.name.take().is_some() {
            assert_eq!(self.neighbour.ask("free:0"), "0");
        }
    }

    fn charged(&self) -> u64 {
        charged(&self.bench, &self.shares)
    }

    fn views(&self) -> Vec<View> {
        let ledgers = self
            .shares
            .iter()
            .map(|share| View::new(&self.bench.ledger(share), SIZE));
        let state = View::new(&self.bench.state(), STATE_SIZE);
        ledgers.chain([state]).collect()
    }

    /// Starts a client and runs it to the first instruction of the call.
    fn victim(&mut self, case: &Case) -> std::io::Result<Traced> {
        self.export(case);
        let named = self.name.as_ref().map(|name| format!("named:{name}"));
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let steps = [&named[..], &case.before, &["here", case.call]].concat();
        let mut victim = Traced::start(self.bench.client(&steps))?;
        victim.run_to_here();
        if case.beside_the_dead {
            self.bench.death_with("512MiB");
        }
        if case.freed {
            self.unmake();
        }
        victim.run_into(&dist().join(SHIM_FILE), case.symbol);
        Ok(victim)
    }

    /// Steps a victim through the call.
    fn survey(&mut self, case: &Case) -> std::io::Result<Survey> {
        let mut victim = self.victim(case)?;
        let mut views = self.views();
        let (mut stops, mut telling) = (0, BTreeSet::from([0]));
        let mut left = vec![self.keep(case, 0, &views)];
        loop {
            let at = victim.advance();
            stops += 1;
            let changed = views.iter_mut().filter_map(|view| view.changed().then_some(())).count();
            if at != At::Instruction || changed > 0 {
                telling.extend([stops - 1, stops]);
            }
            if changed > 0 {
                left.push(self.keep(case, stops, &views));
            }
            if at == At::End {
                return Ok(Survey { stops, telling, left });
            }
        }
    }

    /// The state at the victim's present stop.
    fn keep(&mut self, case: &Case, stop: usize, views: &[View]) -> Left {
        self.sound(&format!("{} at stop {stop}", case.symbol));
        let (state, ledgers) = views.split_last().expect("a view of each");
        Left {
            stop,
            ledgers: ledgers.iter().map(|view| view.seen.clone()).collect(),
            state: state.seen.clone(),
        }
    }

    /// Checks that no more is used than charged, and no more charged than the limit.
    fn sound(&mut self, name: &str) {
        let (used, charged) = (self.truth.used(), self.charged());
        assert!(
            used <= charged && charged <= GIB,
            "{name}: {used} used, {charged} charged"
        );
    }

    /// Kills a victim at stop `stop` and checks the state afterwards.
    fn kill_at(&mut self, case: &Case, stop: usize) {
        let name = format!("{} at stop {stop}", case.symbol);
        let mut victim = self.victim(case).expect("the survey could");
        for _ in 0..stop {
            if victim.advance() == At::End {
                break;
            }
        }
        self.sound(&name);
        // The next writer overwrites the total that the victim may have written last.
        if stop.is_multiple_of(2) {
            assert_eq!(
                self.neighbour.ask("alloc:2MiB"),
                "0",
                "{name}: a neighbour allocates meanwhile"
            );
            assert_eq!(self.neighbour.ask("free:0"), "0", "{name}");
        }
        victim.kill();
        // The neighbour still has its own memory. After freeing it, it can have the whole share.
        self.sound(&name);
        self.unmake();
        all_is_back(&self.bench, &self.shares, &mut self.neighbour, &mut self.truth, &name);
    }

    /// Ends all clients, and restores each state for new processes to find.
    fn find_all(self, case: &Case, left: &[Left]) {
        let Self {
            bench,
            shares,
            neighbour,
            truth,
            name: _,
        } = self;
        drop((neighbour, truth));
        for one in left {
            for write_first in [false, true] {
                let name = format!("{} as left at stop {}, {write_first}", case.symbol, one.stop);
                one.put_in_place(&bench, &shares);
                let mut truth = Truth::new(&bench);
                let mut newcomer = Serving::heard(bench.client(&["init", "serve"]));
                newcomer.did(&["init"]);
                // The next writer overwrites the total that the victim may have written last.
                if write_first {
                    let granted = newcomer.ask("alloc:2MiB");
                    assert_eq!(granted, "0", "{name}");
                    assert_eq!(newcomer.ask("free:0"), "0", "{name}");
                }
                all_is_back(&bench, &shares, &mut newcomer, &mut truth, &name);
                // A damaged ledger would have been reported.
                assert_eq!(newcomer.said(), "", "{name}");
            }
        }
    }
}

impl Left {
    fn put_in_place(&self, bench: &Bench, shares: &[String]) {
        for (share, ledger) in shares.iter().zip(&self.ledgers) {
            std::fs::write(bench.ledger(share), ledger).expect("a ledger");
        }
        let state = std::fs::File::options()
            .write(true)
            .open(bench.state())
            .expect("the state");
        state.write_all_at(&self.state, 0).expect("the state");
    }
}

fn charged(bench: &Bench, shares: &[String]) -> u64 {
    shares.iter().map(|share| bench.usage(share).charged).sum()
}

/// Checks that `client` can have the whole share, and that all accounts show this while it does and afterwards.
fn all_is_back(bench: &Bench, shares: &[String], client: &mut Serving, truth: &mut Truth, name: &str) {
    assert_eq!(client.ask("alloc:1GiB"), "0", "{name}: not all came back");
    assert_eq!([truth.used(), charged(bench, shares)], [GIB; 2], "{name}");
    assert_eq!(client.ask("free:0"), "0", "{name}");
    // A process killed in a reap may have released memory of a dead process without recording that. Reading the figures
    // finishes this.
    assert!(client.ask("info").starts_with("0 "), "{name}");
    assert_eq!([truth.used(), charged(bench, shares)], [0; 2], "{name}");
    // A process whose allocation is refused checks everything that dead processes may have left.
    assert_ne!(client.ask("alloc:2GiB"), "0", "{name}");
    for share in shares {
        let usage = bench.usage(share);
        let sum: u64 = usage.processes.iter().map(|process| process.charged).sum();
        assert_eq!(sum, usage.charged, "{name}: the lanes of {share}");
    }
}

/// Tests every state that the stops of a call leave, and real kills at a sample of the stops.
fn kill_everywhere(case: &Case) {
    let _guard = HangGuard::new(case.symbol, Duration::from_secs(setting("VGPU_STEP_GUARD", 600)));
    let mut stage = Stage::new(case);
    let Survey { stops, telling, left } = match stage.survey(case) {
        Ok(found) => found,
        Err(error) => return vgpu_skip::skip(case.symbol, &format!("no right to ptrace a child: {error}")),
    };
    let every = setting("VGPU_EVERY_INSTRUCTION", 0) != 0;
    let most = if every { setting("VGPU_MOST_STOPS", 6000) } else { 4 };
    let stride = (stops as u64).div_ceil(most).max(1);
    let offset = Chance::new(None).below(stride);
    let sample = (offset..=stops as u64)
        .step_by(stride as usize)
        .map(|stop| stop as usize);
    let mut points: BTreeSet<usize> = sample.collect();
    let known = telling.len();
    // Fewer stops are tested, because most stops of cuInit are system calls of the loader and the driver.
    let thin = if every { 1 } else { known.div_ceil(8) };
    points.extend(telling.into_iter().skip(offset as usize % thin).step_by(thin));
    for stop in &points {
        stage.kill_at(case, *stop);
    }
    println!(
        "{}: all of {} states that its {stops} stops leave; killed at {} stops, every {stride}. from {offset}",
        case.call,
        left.len(),
        points.len()
    );
    stage.find_all(case, &left);
}

#[test]
fn the_first_call_and_contexts() {
    let table = "\
cuInit                       | open:cuda              | cuinit
cuDevicePrimaryCtxRetain     | cuinit                 | init
cuDevicePrimaryCtxRelease_v2 | init alloc:64MiB       | primary
cuCtxCreate_v2               | cuinit                 | ctx
cuCtxDestroy_v2              | cuinit ctx alloc:64MiB | ctxdestroy:0";
    cases(table).for_each(|case| kill_everywhere(&case));
}

#[test]
fn allocations_and_frees() {
    let table = "\
cuMemAlloc_v2 | init alloc:6MiB             | alloc:64MiB
cuMemFree_v2  | init alloc:6MiB alloc:64MiB | free:1
cuMemAlloc_v2 | init alloc:64MiB            | alloc:2GiB";
    cases(table).for_each(|case| kill_everywhere(&case));
}

#[test]
fn pools() {
    let table = "\
cuMemAllocAsync         | init                              | async:64MiB
cuMemFreeAsync          | init async:64MiB                  | freeasync:0
cuMemAllocFromPoolAsync | init pool from:6MiB               | from:64MiB
cuMemPoolDestroy        | init pool from:64MiB freeasync:0  | pooldestroy:0";
    cases(table).for_each(|case| kill_everywhere(&case));
}

#[test]
fn physical_memory_and_arrays() {
    let table = "\
cuMemCreate      | init              | create:64MiB
cuMemRelease     | init create:64MiB | release:0
cuArrayCreate_v2 | init              | array:64MiB
cuArrayDestroy   | init array:64MiB  | arrayfree:0";
    cases(table).for_each(|case| kill_everywhere(&case));
}

#[test]
fn a_reap() {
    let table = "\
cuMemAlloc_v2   | init | alloc:768MiB
cuMemGetInfo_v2 | init | info";
    for mut case in cases(table) {
        case.beside_the_dead = true;
        kill_everywhere(&case);
    }
}

#[test]
fn an_allocation_split_over_two_shares() {
    let table = "\
cuMemAlloc_v2 | init              | alloc:768MiB
cuMemFree_v2  | init alloc:768MiB | free:0";
    for mut case in cases(table) {
        case.shares = 2;
        kill_everywhere(&case);
    }
}

#[test]
fn what_processes_have_together() {
    let table = "\
cuIpcGetMemHandle     | init alloc:64MiB                        | export:0
cuIpcOpenMemHandle_v2 | init alloc:64MiB export:0               | import
cuMemFree_v2          | init alloc:64MiB export:0               | free:0
cuIpcCloseMemHandle   | init alloc:64MiB export:0 import free:0 | close";
    cases(table).for_each(|case| kill_everywhere(&case));
}

#[test]
fn what_another_process_made() {
    let table = "\
cuIpcOpenMemHandle_v2 | init        | import
cuIpcOpenMemHandle_v2 | init import | import
cuIpcCloseMemHandle   | init import | close
cuIpcCloseMemHandle   | init import | close";
    for (at, mut case) in cases(table).enumerate() {
        case.of_the_neighbour = true;
        case.freed = at == 3;
        kill_everywhere(&case);
    }
}
