//! Stops work in every way: kills it before each system call that changes something, and makes each such call fail, once
//! and from then on. Nothing is marked by hand: [`tracer`] sees the calls.
//!
//! ```text
//!  set the scene ─► a child process does the work, traced ─► killed, or its answer
//!       ├─ killed:  start ─► the machine is as before the work or as after it ─► kubelet's retry ─► as after it
//!       │           or: another instance, which ran all the time, answers the retry
//!       └─ answer:  Ok: a start finds it done. Err: as if it was killed
//! ```
//!
//! "The machine" is every file of the rig with its mode, its content and what is mounted.

mod sockets;
mod tracer;

use super::*;
use nix::libc;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use tracer::{Action, Call};

/// Tells the worker what to do: the operation, whether with mounts, and the rig's folder.
const WORK: &str = "VGPU_TRACED_WORK";
const WORKER: &str = "dra::node::tests::exhaustion::worker";
const REFUSED: i32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// On a GPU that has shares.
    Prepare,
    /// On a GPU that has no shares yet.
    PrepareFirst,
    /// Of a claim that has other results now.
    PrepareOther,
    Unprepare,
    /// A start that finds files that a crash left.
    Start,
    /// The first start of another release.
    Upgrade,
    /// Of a claim that is gone, and of a release that nothing uses.
    CleanUp,
    /// CDI files after the driver was replaced.
    Renew,
}

const ALL: [Work; 8] = [
    Work::Prepare,
    Work::PrepareFirst,
    Work::PrepareOther,
    Work::Unprepare,
    Work::Start,
    Work::Upgrade,
    Work::CleanUp,
    Work::Renew,
];

/// The part of the machine on which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// kubelet's folder and the releases of the library.
    Disk,
    Run,
    Cdi,
}

const TWO: [(&str, u64, u32); 2] = [("s1", 20, 25), ("s2", 10, 0)];

// === impl Work ===

impl Work {
    fn set(self, rig: &Rig) {
        let mut node = rig.open();
        if self != Work::PrepareFirst {
            super::prepare(&mut node, claim("other", &[("s0", 1, 10)])).expect("prepared");
        }
        match self {
            Work::Prepare | Work::PrepareFirst => {}
            Work::PrepareOther => drop(super::prepare(&mut node, claim("u1", &[("s9", 60, 0)])).expect("prepared")),
            _ => drop(super::prepare(&mut node, claim("u1", &TWO)).expect("prepared")),
        }
        drop(node);
        match self {
            Work::Start => {
                std::fs::create_dir_all(rig.path("run/claims/u7/s7")).expect("a folder");
                std::fs::write(rig.path("cdi/dra.vgpu-claim_u8.json"), "{}").expect("written");
                std::fs::write(rig.path("cdi/.dra.vgpu-claim_u1.json.7.tmp"), "{").expect("written");
                std::fs::remove_file(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("removed");
            }
            Work::Upgrade | Work::CleanUp => release(&rig.path("image"), "two"),
            Work::Renew => {
                let driver = rig.path("driver");
                std::fs::write(driver.join("libcuda.so.550.1"), "").expect("written");
                std::fs::remove_file(driver.join("libcuda.so.1")).expect("removed");
                std::os::unix::fs::symlink("libcuda.so.550.1", driver.join("libcuda.so.1")).expect("a link");
            }
            _ => {}
        }
    }

    /// Returns true if an instance that does the work exists before it.
    fn has_instance(self) -> bool {
        !matches!(self, Work::Start | Work::Upgrade | Work::Renew)
    }

    fn perform(self, rig: &Rig, node: Option<Node>) -> Result<(), Error> {
        let mut node = match node {
            Some(node) => node,
            None => rig.try_open()?,
        };
        match self {
            Work::Prepare | Work::PrepareFirst | Work::PrepareOther => {
                super::prepare(&mut node, claim("u1", &TWO)).map(drop)
            }
            Work::Unprepare => super::unprepare(&mut node, "u1"),
            Work::Start => Ok(()),
            Work::Upgrade => {
                super::prepare(&mut node, claim("u1", &TWO))?;
                node.remove_unused_releases(&node.locked());
                Ok(())
            }
            Work::CleanUp => {
                super::unprepare(&mut node, "u1")?;
                node.remove_unused_releases(&node.locked());
                Ok(())
            }
            Work::Renew => node.renew_cdi_files(&node.locked()).map(drop),
        }
    }
}

/// Not a test: the process that is traced. Without the variable it has nothing to do.
#[test]
fn worker() {
    let Some(work) = std::env::var_os(WORK) else {
        return;
    };
    let text = work.to_str().expect("UTF-8");
    let mut words = text.splitn(3, ' ');
    let mut word = || words.next().expect("three words");
    let (name, tmpfs) = (word(), word() == "true");
    let work = ALL.into_iter().find(|work| format!("{work:?}") == name).expect("known");
    let rig = Rig::at(Path::new(word()), tmpfs);
    let node = work.has_instance().then(|| rig.open());
    wait_for_the_tracer();
    end(work.perform(&rig, node));
}

/// How the traced work ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Killed,
    Done,
    Refused(String),
}

fn traced(work: Work, rig: &Rig, decide: impl FnMut(&Call) -> Action) -> Ended {
    let words = format!("{work:?} {} {}", rig.tmpfs, rig.path("").display());
    traced_worker(WORKER, WORK, &words, decide)
}

/// Runs the test `worker` of this program, which does its work because `variable` is set to `words`.
fn traced_worker(worker: &str, variable: &str, words: &str, decide: impl FnMut(&Call) -> Action) -> Ended {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", worker, "--nocapture"])
        .env("RUST_BACKTRACE", "0");
    command.env(variable, words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("a child");
    let (mut stdin, stderr) = (
        child.stdin.take().expect("a pipe"),
        child.stderr.take().expect("a pipe"),
    );
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let tid = lines.find_map(|line| line.strip_prefix("tid=").map(str::to_owned));
    let tid = tid.expect("the worker begins").parse().expect("a number");
    tracer::trace(&mut child, tid, || stdin.write_all(b".").expect("heard"), decide);
    let status = child.wait().expect("it ended");
    let said: Vec<String> = lines.collect();
    match status.code() {
        None => Ended::Killed,
        Some(0) => Ended::Done,
        Some(REFUSED) => Ended::Refused(said.join("\n")),
        Some(code) => panic!("{words}: the worker ended with {code}: {}", said.join("\n")),
    }
}

/// Tells the tracer that this worker is ready, and waits for the word to begin.
fn wait_for_the_tracer() {
    eprintln!("\ntid={}", rustix::thread::gettid().as_raw_nonzero());
    std::io::stdin().read_exact(&mut [0]).expect("the word to begin");
}

/// Ends this worker with the answer of its work.
fn end(done: Result<(), impl std::fmt::Display>) -> ! {
    match done {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("refused: {error}");
            std::process::exit(REFUSED);
        }
    }
}

type Machine = BTreeMap<String, String>;

/// Every file of the rig. The counter of the node pages is left out, because two runs may
/// differ in it.
fn machine(rig: &Rig) -> Machine {
    let mut all = Machine::new();
    let mut folders = vec![rig.path("")];
    let root = rig.path("").to_string_lossy().into_owned();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("listed").flatten() {
            let path = entry.path();
            let name = path.to_string_lossy().replacen(&root, "", 1);
            let found = path.symlink_metadata().expect("there");
            let content = if found.is_dir() {
                folders.push(path.clone());
                let parent = folder.metadata().expect("there");
                if found.dev() == parent.dev() { "folder" } else { "mount" }.to_owned()
            } else if found.is_symlink() {
                format!("{:?}", std::fs::read_link(&path))
            } else {
                let bytes = std::fs::read(&path).expect("read");
                let is_page = name.starts_with("run/gpus") && name.ends_with("/node");
                let bytes = if is_page { &bytes[8..] } else { &bytes[..] };
                match std::str::from_utf8(bytes) {
                    Ok(text) if !text.contains('\0') => text.replace(&root, "/RIG/"),
                    _ => format!("{} bytes, {:08x}", bytes.len(), vgpu_abi::checksum::crc32(bytes)),
                }
            };
            all.insert(name, format!("{:o} {content}", found.permissions().mode() & 0o7777));
        }
    }
    all
}

/// Lists the differences, for a message.
fn difference(found: &Machine, expected: &Machine) -> Vec<String> {
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differ = names.into_iter().filter(|name| found.get(*name) != expected.get(*name));
    differ
        .map(|name| {
            let [found, expected] = [found, expected].map(|machine| {
                let what: String = machine
                    .get(name)
                    .map_or("nothing", String::as_str)
                    .chars()
                    .take(90)
                    .collect();
                what
            });
            format!("{name}: {found:?}, expected {expected:?}")
        })
        .collect()
}

/// Returns the part of the machine that must be right directly after a start. Unused releases and a GPU's arbitration
/// directory are left out, because they may exist before they are needed.
fn at_once(work: Work, machine: &Machine) -> Machine {
    let is_early = |name: &str| {
        let is_first = work == Work::PrepareFirst;
        name.starts_with("store") || is_first && (name.starts_with("run/gpus") || name == "cdi")
    };
    let kept = machine.iter().filter(|(name, _)| !is_early(name));
    kept.map(|(name, what)| (name.clone(), what.clone())).collect()
}

/// The machine after a start, with the work not done and done.
struct Expected {
    /// `PrepareOther` has two such states: in the second one the former shares are unprepared.
    before: Vec<Machine>,
    after: Machine,
    calls: Vec<Call>,
}

impl Expected {
    fn of(work: Work, tmpfs: bool) -> Self {
        let rig = Rig::fast(tmpfs);
        work.set(&rig);
        drop(rig.open());
        let mut before = vec![at_once(work, &machine(&rig))];
        if work == Work::PrepareOther {
            super::unprepare(&mut rig.open(), "u1").expect("unprepared");
            drop(rig.open());
            before.push(at_once(work, &machine(&rig)));
        }
        let rig = Rig::fast(tmpfs);
        work.set(&rig);
        let mut calls = Vec::new();
        let ended = traced(work, &rig, |call| {
            calls.push(Call {
                path: call.path.replacen(&*rig.path("").to_string_lossy(), "", 1),
                ..call.clone()
            });
            Action::Go
        });
        assert_eq!(ended, Ended::Done, "{work:?}");
        drop(rig.open());
        Self {
            before,
            after: machine(&rig),
            calls,
        }
    }

    /// Checks that a start finds the work done or not begun, and that a retry does it.
    fn check(&self, work: Work, rig: &Rig, is_done: bool, at: &str) {
        let mut node = rig.open();
        assert_eq!(node.take_damages(), [""; 0], "{at}");
        drop(node);
        let found = at_once(work, &machine(rig));
        let after = at_once(work, &self.after);
        if is_done || !self.before.contains(&found) {
            assert!(found == after, "{at}: after a start: {:#?}", difference(&found, &after));
        }
        let node = work.has_instance().then(|| rig.open());
        work.perform(rig, node)
            .unwrap_or_else(|error| panic!("{at}: retried: {error}"));
        drop(rig.open());
        let found = machine(rig);
        assert!(
            found == self.after,
            "{at}: retried: {:#?}",
            difference(&found, &self.after)
        );
    }
}

fn place(call: &Call, rig: &Rig) -> Option<Place> {
    let below = call.path.strip_prefix(&*rig.path("").to_string_lossy())?;
    match below.split('/').next()? {
        "kubelet" | "store" => Some(Place::Disk),
        "run" => Some(Place::Run),
        "cdi" => Some(Place::Cdi),
        _ => None,
    }
}

/// Set to have each file of a GPU's arbitration directory tried, and not only some.
const EXHAUSTIVE: &str = "VGPU_EXHAUSTIVE";

/// The calls at which the work is stopped. A new arbitration directory has 64 slots that are made in the same way: without
/// `EXHAUSTIVE`, only the first two and the last are tried.
fn stops(calls: &[Call]) -> Vec<usize> {
    let is_alike = |call: &Call| {
        let slot = call.path.starts_with("run/gpus/").then(|| call.path.rsplit('/').next());
        let slot = slot.flatten().and_then(|name| name.parse::<u8>().ok());
        slot.is_some_and(|slot| (2..63).contains(&slot)) && std::env::var_os(EXHAUSTIVE).is_none()
    };
    (0..calls.len()).filter(|number| !is_alike(&calls[*number])).collect()
}

/// Kills the work before each call, and has another instance answer kubelet's retry where one runs.
fn killed_anywhere(work: Work, tmpfs: bool) -> usize {
    let expected = Expected::of(work, tmpfs);
    let stops = stops(&expected.calls);
    for with_another in [false, true] {
        if with_another && !work.has_instance() {
            continue;
        }
        for stop in stops.iter().copied() {
            let rig = Rig::fast(tmpfs);
            work.set(&rig);
            let another = with_another.then(|| rig.open());
            let mut number = 0;
            let ended = traced(work, &rig, |_| {
                number += 1;
                if number > stop { Action::Kill } else { Action::Go }
            });
            let call = &expected.calls[stop];
            let at = format!("{work:?} killed before call {stop}, {} {}", call.name, call.path);
            assert_eq!(ended, Ended::Killed, "{at}");
            if let Some(another) = another {
                work.perform(&rig, Some(another))
                    .unwrap_or_else(|error| panic!("{at}: another instance: {error}"));
                drop(rig.open());
                let found = machine(&rig);
                assert!(
                    found == expected.after,
                    "{at}: {:#?}",
                    difference(&found, &expected.after)
                );
            }
            expected.check(work, &rig, with_another, &at);
        }
    }
    stops.len()
}

/// Makes each call fail: once alone, and once together with all later calls in the same `Place`.
fn failing_anywhere(work: Work, tmpfs: bool) {
    let expected = Expected::of(work, tmpfs);
    for stop in stops(&expected.calls) {
        let call = &expected.calls[stop];
        for (errno, name, lasts) in [
            (libc::ENOSPC, "ENOSPC", false),
            (libc::ENOSPC, "ENOSPC", true),
            // A read-only file system stays read-only. EIO shows the effect of a single failed call.
            (libc::EROFS, "EROFS", true),
            (libc::EIO, "EIO", false),
        ] {
            // A call that allocates nothing does not fail on a full disk.
            if errno == libc::ENOSPC && !call.allocates {
                continue;
            }
            let rig = Rig::fast(tmpfs);
            work.set(&rig);
            let (mut number, mut broken) = (0, None);
            let ended = traced(work, &rig, |call| {
                number += 1;
                let is_broken = lasts && broken.is_some() && place(call, &rig) == broken;
                if number == stop + 1 {
                    broken = place(call, &rig);
                } else if !is_broken || (errno == libc::ENOSPC && !call.allocates) {
                    return Action::Go;
                }
                Action::Fail(errno)
            });
            let since = if lasts { "since" } else { "at" };
            let at = format!(
                "{work:?}, {name} {since} call {stop}, {} {}: {ended:?}",
                call.name, call.path
            );
            assert_ne!(ended, Ended::Killed, "{at}");
            let needs_no_disk = matches!(work, Work::Unprepare | Work::Start) && errno != libc::EIO;
            assert!(
                ended == Ended::Done || !(needs_no_disk && broken == Some(Place::Disk)),
                "a disk that is full or read-only must not matter: {at}"
            );
            let is_done = ended == Ended::Done && !matches!(work, Work::Start | Work::Renew | Work::Upgrade);
            expected.check(work, &rig, is_done, &at);
        }
    }
}

fn can_trace(check: &str) -> bool {
    // Where ptrace is forbidden, as in some containers.
    let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    let seized = nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty());
    child.kill().expect("killed");
    child.wait().expect("ended");
    match seized {
        Ok(()) => true,
        Err(errno) => {
            vgpu_skip::skip(check, &format!("a child process cannot be traced here: {errno}"));
            false
        }
    }
}

/// Tests one kind of work, with mounts as on a node if that is possible here.
fn exhausted(work: Work) {
    let name = format!("exhaustion of {work:?}");
    if !can_trace(&name) {
        return;
    }
    let tmpfs = crate::tmpfs::tests::can_mount(&format!("{name} with mounts"));
    let count = killed_anywhere(work, tmpfs);
    assert!(count > 3, "only {count} calls change something");
    failing_anywhere(work, tmpfs);
}

#[test]
fn prepare() {
    exhausted(Work::Prepare);
}

#[test]
fn the_first_prepare_on_a_gpu() {
    exhausted(Work::PrepareFirst);
}

#[test]
fn prepare_of_a_claim_that_was_allocated_again() {
    exhausted(Work::PrepareOther);
}

#[test]
fn unprepare() {
    exhausted(Work::Unprepare);
}

#[test]
fn start() {
    exhausted(Work::Start);
}

#[test]
fn upgrade() {
    exhausted(Work::Upgrade);
}

#[test]
fn clean_up() {
    exhausted(Work::CleanUp);
}

#[test]
fn renewal() {
    exhausted(Work::Renew);
}

#[test]
fn no_prepare_and_no_unprepare_waits_for_a_disk() {
    if !can_trace("no_prepare_and_no_unprepare_waits_for_a_disk") {
        return;
    }
    for work in [Work::Prepare, Work::PrepareFirst, Work::PrepareOther, Work::Unprepare] {
        let calls = Expected::of(work, false).calls;
        let syncs: Vec<_> = calls.iter().filter(|call| call.name.contains("sync")).collect();
        assert!(syncs.is_empty(), "{work:?}: {syncs:?}");
    }
    let installs = Expected::of(Work::Upgrade, false).calls;
    assert!(
        installs.iter().any(|call| call.name == "fsync"),
        "a release is synced, so syncs are seen"
    );
}
