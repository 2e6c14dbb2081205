//! SIGKILL at any instruction: a client is led by ptrace through one call after the other that changes the
//! ledger, and killed after its k-th stop: an instruction of libvgpu.so, or the entry or end of a system call.
//!
//! ```text
//!  neighbour (lives)   ask ──► its own allocation goes through while the victim stands at stop k
//!  victim              stop k ──► SIGKILL
//!  neighbour           the whole share at once ──► granted: all that the victim held came back
//!  bare client         the software GPU's own account ──► what the ledger says, before and after
//! ```
//!
//! Where killing makes a difference is known: the state that a death leaves is the same at two stops
//! between which neither the ledger changed nor a system call was made. Stops beside such changes are
//! always tried, of the others a sample. VGPU_EVERY_INSTRUCTION=1 tries them all, as far as
//! VGPU_MOST_STOPS (default 6000) allows in one call: of longer ones every n-th.
//!
//! Without the right to ptrace this is skipped, and says so.

mod support;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;
use support::chance::{Chance, setting};
use support::hang::HangGuard;
use support::serve::{Serving, Truth};
use support::trace::{At, Traced};
use support::{Bench, GIB, MIB, dist};
use vgpu_abi::ledger::SIZE;
use vgpu_abi::paths::SHIM_FILE;

/// What the first context is charged until it is measured, so that calls about contexts change the ledger.
const RESERVE: u64 = 64 * MIB;

/// A call to be interrupted.
struct Case {
    symbol: &'static str,
    before: &'static [&'static str],
    call: &'static str,
    /// Another process of the share dies with half of it, just before the call.
    beside_the_dead: bool,
    /// Shares, of 1 GiB together.
    shares: u64,
}

const fn case(symbol: &'static str, before: &'static [&'static str], call: &'static str) -> Case {
    Case {
        symbol,
        before,
        call,
        beside_the_dead: false,
        shares: 1,
    }
}

/// A mapped ledger, and what it held when it was last looked at.
struct View {
    at: *const u8,
    seen: Vec<u8>,
}

impl View {
    #[allow(unsafe_code)]
    fn new(path: &Path) -> Self {
        let file = std::fs::File::open(path).expect("a ledger");
        let (rights, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of that size, which nobody cuts.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, rights, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let mut view = Self {
            at: at.cast_const().cast(),
            seen: Vec::new(),
        };
        view.changed();
        view
    }

    #[allow(unsafe_code)]
    fn changed(&mut self) -> bool {
        // SAFETY: the mapping of `new`, never unmapped while this lives; its writers stand still.
        let now = unsafe { std::slice::from_raw_parts(self.at, SIZE) };
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
        unsafe { libc::munmap(self.at.cast_mut().cast(), SIZE) };
    }
}

struct Stage {
    bench: Bench,
    neighbour: Serving,
    truth: Truth,
    shares: Vec<String>,
}

impl Stage {
    fn new(case: &Case) -> Self {
        let bench = Bench::new();
        let shares: Vec<String> = (0..case.shares).map(|index| format!("share-{index}")).collect();
        for (order, share) in shares.iter().enumerate() {
            let mut limits = bench.limits(share, order as u32, 0, GIB / case.shares);
            limits.context_reserve = RESERVE;
            bench.put(&limits);
        }
        let truth = Truth::new(&bench);
        let neighbour = bench.serving(&["init"]);
        Self {
            bench,
            neighbour,
            truth,
            shares,
        }
    }

    fn charged(&self) -> u64 {
        self.shares.iter().map(|share| self.bench.usage(share).charged).sum()
    }

    fn views(&self) -> Vec<View> {
        self.shares
            .iter()
            .map(|share| View::new(&self.bench.ledger(share)))
            .collect()
    }

    /// A client at the first instruction of the call.
    fn victim(&self, case: &Case) -> std::io::Result<Traced> {
        let steps = [case.before, &["here", case.call]].concat();
        let mut victim = Traced::start(self.bench.client(&steps))?;
        victim.run_to_here();
        if case.beside_the_dead {
            self.bench.death_with("512MiB");
        }
        victim.run_into(&dist().join(SHIM_FILE), case.symbol);
        Ok(victim)
    }

    /// Leads a victim to its end: how many stops there are, and those beside which something changes.
    fn survey(&self, case: &Case) -> std::io::Result<(usize, BTreeSet<usize>)> {
        let mut victim = self.victim(case)?;
        let (mut stops, mut telling, mut views) = (0, BTreeSet::from([0]), self.views());
        loop {
            let at = victim.advance();
            stops += 1;
            let changed = views.iter_mut().filter_map(|view| view.changed().then_some(())).count();
            if at != At::Instruction || changed > 0 {
                telling.extend([stops - 1, stops]);
            }
            if at == At::End {
                return Ok((stops, telling));
            }
        }
    }

    /// Kills a victim at stop `stop` and looks at what it leaves.
    fn kill_at(&mut self, case: &Case, stop: usize) {
        let name = format!("{} at stop {stop}", case.symbol);
        let mut victim = self.victim(case).expect("the survey could");
        for _ in 0..stop {
            if victim.advance() == At::End {
                break;
            }
        }
        let (used, charged) = (self.truth.used(), self.charged());
        assert!(
            used <= charged && charged <= GIB,
            "{name}: {used} used, {charged} charged"
        );
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
        assert_eq!(self.neighbour.ask("alloc:1GiB"), "0", "{name}: not all came back");
        assert_eq!([self.truth.used(), self.charged()], [GIB; 2], "{name}");
        assert_eq!(self.neighbour.ask("free:0"), "0", "{name}");
        // Who was killed in a reap had perhaps given back what the dead held, and not said so yet.
        assert!(self.neighbour.ask("info").starts_with("0 "), "{name}");
        assert_eq!([self.truth.used(), self.charged()], [0; 2], "{name}");
        for share in &self.shares {
            let usage = self.bench.usage(share);
            let sum: u64 = usage.processes.iter().map(|process| process.charged).sum();
            assert_eq!(sum, usage.charged, "{name}: the lanes of {share}");
        }
    }
}

/// Kills at every telling stop and at a sample of the others.
fn kill_everywhere(case: &Case) {
    let _guard = HangGuard::new(case.symbol, Duration::from_secs(setting("VGPU_STEP_GUARD", 600)));
    let mut stage = Stage::new(case);
    let (stops, telling) = match stage.survey(case) {
        Ok(found) => found,
        Err(error) => return vgpu_skip::skip(case.symbol, &format!("no right to ptrace a child: {error}")),
    };
    let every = setting("VGPU_EVERY_INSTRUCTION", 0) != 0;
    let most = if every { setting("VGPU_MOST_STOPS", 6000) } else { 12 };
    let stride = (stops as u64).div_ceil(most).max(1);
    let offset = Chance::new(None).below(stride);
    let sample = (offset..=stops as u64)
        .step_by(stride as usize)
        .map(|stop| stop as usize);
    let mut points: BTreeSet<usize> = sample.collect();
    let known = telling.len();
    // Most of cuInit's are the loader's and the driver's own system calls.
    let thin = if every { 1 } else { known.div_ceil(24) };
    points.extend(telling.into_iter().skip(offset as usize % thin).step_by(thin));
    for stop in &points {
        stage.kill_at(case, *stop);
    }
    println!(
        "{}: killed at {} of {stops} stops ({known} beside a change), every {stride}. from {offset}",
        case.call,
        points.len()
    );
}

#[test]
fn the_first_call_and_contexts() {
    kill_everywhere(&case("cuInit", &["open:cuda"], "cuinit"));
    kill_everywhere(&case("cuDevicePrimaryCtxRetain", &["cuinit"], "init"));
    kill_everywhere(&case(
        "cuDevicePrimaryCtxRelease_v2",
        &["init", "alloc:64MiB"],
        "primary",
    ));
    kill_everywhere(&case("cuCtxCreate_v2", &["cuinit"], "ctx"));
    kill_everywhere(&case(
        "cuCtxDestroy_v2",
        &["cuinit", "ctx", "alloc:64MiB"],
        "ctxdestroy:0",
    ));
}

#[test]
fn allocations_and_frees() {
    kill_everywhere(&case("cuMemAlloc_v2", &["init", "alloc:6MiB"], "alloc:64MiB"));
    kill_everywhere(&case("cuMemFree_v2", &["init", "alloc:6MiB", "alloc:64MiB"], "free:1"));
    kill_everywhere(&case("cuMemAlloc_v2", &["init", "alloc:64MiB"], "alloc:2GiB"));
}

#[test]
fn pools() {
    kill_everywhere(&case("cuMemAllocAsync", &["init"], "async:64MiB"));
    kill_everywhere(&case("cuMemFreeAsync", &["init", "async:64MiB"], "freeasync:0"));
    kill_everywhere(&case(
        "cuMemAllocFromPoolAsync",
        &["init", "pool", "from:6MiB"],
        "from:64MiB",
    ));
    kill_everywhere(&case(
        "cuMemPoolDestroy",
        &["init", "pool", "from:64MiB", "freeasync:0"],
        "pooldestroy:0",
    ));
}

#[test]
fn physical_memory_and_arrays() {
    kill_everywhere(&case("cuMemCreate", &["init"], "create:64MiB"));
    kill_everywhere(&case("cuMemRelease", &["init", "create:64MiB"], "release:0"));
    kill_everywhere(&case("cuArrayCreate_v2", &["init"], "array:64MiB"));
    kill_everywhere(&case("cuArrayDestroy", &["init", "array:64MiB"], "arrayfree:0"));
}

#[test]
fn a_reap() {
    kill_everywhere(&Case {
        beside_the_dead: true,
        ..case("cuMemAlloc_v2", &["init"], "alloc:768MiB")
    });
    kill_everywhere(&Case {
        beside_the_dead: true,
        ..case("cuMemGetInfo_v2", &["init"], "info")
    });
}

#[test]
fn an_allocation_split_over_two_shares() {
    kill_everywhere(&Case {
        shares: 2,
        ..case("cuMemAlloc_v2", &["init"], "alloc:768MiB")
    });
    kill_everywhere(&Case {
        shares: 2,
        ..case("cuMemFree_v2", &["init", "alloc:768MiB"], "free:0")
    });
}
