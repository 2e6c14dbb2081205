//! The memory of contexts, modules and limits is measured exactly while other threads of the process constantly
//! allocate and free.
//!
//! After each measured call the whole client is stopped: whatever its threads are doing, at least as much is charged as
//! the software GPU's own account shows. Then its other threads pause between two calls, and both are equal.

mod support;

use std::time::{Duration, Instant};
use support::serve::Serving;
use support::truth::Truth;
use support::{Bench, GIB};

/// The sizes of a context and of a module in these tests.
const COSTS: &str = "context_cost = 10MiB\nmodule_cost = 6MiB\n";
/// Which PIDs NVML lists: those of this namespace, those of another one, or none.
const MODES: [&str; 3] = ["own", "host", "none"];
/// Calls that are measured, each undone by a later one.
const CALLS: [&str; 11] = [
    "load",
    "ctx",
    "load",
    "unload:1",
    "ctxdestroy:0",
    "init", // The destroyed context was current.
    "load",
    "unload:1",
    "unload:0",
    "heap:40MiB",
    "heap:8MiB",
];

struct Measured {
    bench: Bench,
    truth: Truth,
    /// The process that exports the memory that the client imports, so that none of it is the client's own.
    _maker: Serving,
    client: Serving,
    /// NVML shows this process, so its charge is exact.
    is_seen: bool,
}

impl Measured {
    fn new(threads: u32, mode: &str) -> Self {
        let bench = Bench::of_share(&format!("{COSTS}nvml_pids = {mode}\n"), 8 * GIB);
        let truth = Truth::new(&bench);
        let mut maker = bench.serving(&["init"]);
        assert_eq!([maker.ask("alloc:2GiB"), maker.ask("export:0")], ["0", "0"]);
        let named = format!("named:{}", maker.ask("name"));
        let client = bench.serving(&[&named, "init", "import", &format!("crowd:{threads}")]);
        Self {
            bench,
            truth,
            _maker: maker,
            client,
            is_seen: mode != "none",
        }
    }

    /// Returns the bytes charged, and those used by the GPU's account.
    fn both(&mut self) -> [u64; 2] {
        [self.bench.usage("share").charged, self.truth.used()]
    }

    fn not_less(&mut self, what: &str) {
        self.client.stop();
        let [charged, used] = self.both();
        self.client.signal(libc::SIGCONT);
        assert!(charged >= used, "{what}: {charged} charged, {used} used");
    }

    /// Checks that the charge equals the use, in at least one of the next readings. Until then too much may be charged,
    /// because on a busy machine another thread may stay in its call for longer than a measurement waits.
    fn same(&mut self, what: &str) {
        if !self.is_seen {
            return self.not_less(what);
        }
        for look in 0.. {
            assert_eq!(self.client.ask("pause"), "0");
            // After pools have shrunk, the charge falls when a program asks for free memory.
            assert!(self.client.ask("info").starts_with("0 "));
            let [charged, used] = self.both();
            assert_eq!(self.client.ask("resume"), "0");
            if charged == used {
                return;
            }
            assert!(
                charged > used && look < 50,
                "{what}: {charged} charged, {used} used, look {look}"
            );
            assert_eq!(self.client.ask("load"), "0");
            assert_eq!(self.client.ask("unload:last"), "0");
        }
    }
}

/// Makes the calls in turn for a few seconds, each through `around`.
fn rounds(one: &mut Measured, mut around: impl FnMut(&mut Measured, &str, u32)) {
    let end = Instant::now() + Duration::from_secs(4);
    for round in 0.. {
        for call in CALLS {
            around(one, call, round);
        }
        if Instant::now() > end {
            return;
        }
    }
}

#[test]
fn what_a_call_took_is_charged_exactly_while_other_threads_allocate() {
    for mode in MODES {
        let mut one = Measured::new(4, mode);
        rounds(&mut one, |one, call, round| {
            assert_eq!(one.client.ask(call), "0", "{mode}: {call}");
            let what = format!("{mode}: after {call} of round {round}");
            one.not_less(&what);
            if call != "ctxdestroy:0" {
                one.same(&what);
            }
        });
    }
}

/// A thread is stopped anywhere, even inside the driver. What its call allocates is unknown, and is charged until the
/// next measurement.
#[test]
fn a_thread_that_stands_still_in_a_call_hides_nothing() {
    for mode in MODES {
        let mut one = Measured::new(3, mode);
        rounds(&mut one, |one, call, round| {
            let what = format!("{mode}: after {call} of round {round}");
            assert_eq!(one.client.ask(&format!("stall:{round}")), "0");
            assert_eq!(one.client.ask(call), "0", "{mode}: {call}");
            one.not_less(&what);
            assert_eq!(one.client.ask("unstall"), "0");
            one.not_less(&what);
            if call != "ctxdestroy:0" {
                one.same(&what);
            }
        });
    }
}
