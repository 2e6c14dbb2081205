//! Clients that take their steps one by one, limits on how long a test may hang, and numbers by chance.

use super::Bench;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// A client that goes on as it is told, by its step `serve` or `wait`; killed when dropped.
pub(crate) struct Serving {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Serving {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a client");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    /// One whose stderr is kept for `said`.
    pub(crate) fn heard(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Self::new(command)
    }

    /// The next line that it prints; empty: it ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim().into()
    }

    /// Its next lines say that it did these steps, each with the answer 0.
    #[track_caller]
    pub(crate) fn did(&mut self, steps: &[&str]) {
        for step in steps {
            assert_eq!(self.line(), format!("{} 0", name(step)), "{steps:?}");
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Has it do a step: its line without the step's name.
    pub(crate) fn ask(&mut self, step: &str) -> String {
        self.tell(step);
        let line = self.line();
        let answer = line.strip_prefix(name(step));
        answer.unwrap_or_else(|| panic!("{step}: {line:?}")).trim().into()
    }

    /// Lets it go on from its step `wait`.
    pub(crate) fn go_on(&mut self) {
        self.tell("on");
    }

    /// Bytes that it sees free.
    pub(crate) fn free(&mut self) -> u64 {
        super::number(&self.ask("info"), 1)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[allow(unsafe_code)]
    pub(crate) fn signal(&self, signal: libc::c_int) {
        let pid = self.pid().try_into().expect("a PID");
        // SAFETY: our own child, not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// SIGKILL, and the wait for its end.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Closes its stdin: how it ends.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Closes its stdin: what one that is `heard` said on stderr until its end, which is a good one.
    pub(crate) fn said(mut self) -> String {
        drop(self.child.stdin.take());
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut said).expect("text");
        let status = self.end();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A step without its value.
fn name(step: &str) -> &str {
    step.split(':').next().unwrap_or_default()
}

/// The software GPU's own account of the bench's first GPU.
pub(crate) struct Truth {
    client: Serving,
    idle: u64,
}

impl Truth {
    /// To be made while nobody uses the GPU.
    pub(crate) fn new(bench: &Bench) -> Self {
        let client = Serving::new(bench.bare(&["serve"]));
        let mut truth = Self { client, idle: 0 };
        truth.idle = truth.used();
        truth
    }

    /// Bytes in use.
    pub(crate) fn used(&mut self) -> u64 {
        // result, count, then UUID, total and used of each GPU
        super::number(&self.client.ask("memory"), 4) - self.idle
    }
}

/// Ends the test program when a test takes longer: a hang is a failure, not an endless run.
pub(crate) struct HangGuard(Arc<AtomicBool>);

impl HangGuard {
    pub(crate) fn new(what: &'static str, limit: Duration) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let end = Instant::now() + limit;
        let seen = Arc::clone(&done);
        std::thread::spawn(move || {
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(100));
                if seen.load(Ordering::Relaxed) {
                    return;
                }
            }
            eprintln!("{what}: still not done after {limit:?}: something hangs");
            std::process::abort();
        });
        Self(done)
    }
}

impl Drop for HangGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The guard of a test that takes seconds.
pub(crate) fn guard(what: &'static str) -> HangGuard {
    HangGuard::new(what, Duration::from_secs(300))
}

/// A small generator.
pub(crate) struct Chance(u64);

impl Chance {
    /// From `seed`, or from VGPU_SEED, or from the clock: then the seed is printed.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        static OF_RUN: OnceLock<u64> = OnceLock::new();
        let of_run = || {
            let given = std::env::var("VGPU_SEED").ok().and_then(|text| text.parse().ok());
            let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let seed = given.unwrap_or_else(|| clock().map_or(1, |now| now.as_nanos() as u64 >> 8));
            println!("VGPU_SEED={seed}");
            seed
        };
        Self(seed.unwrap_or_else(|| *OF_RUN.get_or_init(of_run)).wrapping_mul(2) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A number in the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}
