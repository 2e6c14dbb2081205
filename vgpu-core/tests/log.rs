//! Tests the log of the library (`VGPU_LOG`), the ring of calls beside it and the counters of a report: what they
//! contain, and that failures to write them never harm the program.

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::hang::HangGuard;
use support::{Bench, GIB, MIB, lines, until};
use vgpu_abi::limits::{ComputePolicy, Limits};
use vgpu_abi::log::{Counter, Counts, LOG_VARIABLE, REPORT_VARIABLE, Ring, Wait, report_image};

/// A bench with one share of 1 GiB, and a folder for its log.
struct Scene {
    bench: Bench,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new(profile: &str) -> Self {
        let bench = Bench::of_share(profile, GIB);
        Self {
            bench,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client whose log is `log` at this level.
    fn client(&self, level: &str, steps: &[&str]) -> Command {
        let mut command = self.bench.client(steps);
        command.env(LOG_VARIABLE, format!("{}:{level}", self.path("log").display()));
        command
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).expect("a log")
    }

    fn rings(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder").flatten();
        let paths = entries.map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "ring"))
            .collect()
    }

    fn ring(&self) -> Ring {
        let rings = self.rings();
        assert_eq!(rings.len(), 1, "{rings:?}");
        read(&rings[0])
    }
}

fn read(ring: &Path) -> Ring {
    Ring::parse(&std::fs::read(ring).expect("a ring")).expect("a ring")
}

/// Runs a client that must succeed and print nothing on stderr. Returns its lines.
#[track_caller]
fn silent(mut command: Command) -> Vec<String> {
    let output = command.output().expect("a client");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    lines(&output)
}

/// Returns the only line on stderr of a client that succeeded.
#[track_caller]
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.lines().count() == 1, "{output:?}");
    assert_eq!(lines(output)[..2], ["init 0", "alloc 0"], "{output:?}");
    said
}

/// Returns the event of a line and its values. Before the event, every line has the time, the process and thread, and
/// the level.
fn event(line: &str) -> (&str, &str) {
    let (head, rest) = line.split_at(line.match_indices(' ').nth(2).expect("three words").0);
    let words: Vec<&str> = head.split(' ').collect();
    let (seconds, micros) = words[0].split_once('.').expect("a time");
    let (pid, thread) = words[1].split_once('/').expect("two numbers");
    assert!(micros.len() == 6 && seconds.len() >= 10, "{line}");
    assert!(pid.parse::<u32>().is_ok() && thread.parse::<u32>().is_ok(), "{line}");
    assert!(["error", "info", "debug"].contains(&words[2]), "{line}");
    rest[1..].split_once(' ').unwrap_or((&rest[1..], ""))
}

/// The values of the first line with this event.
#[track_caller]
fn values<'a>(log: &'a str, name: &str) -> &'a str {
    let found = log.lines().map(event).find(|(event, _)| *event == name);
    found.unwrap_or_else(|| panic!("no {name} in\n{log}")).1
}

#[test]
fn the_log_says_what_was_found_measured_and_refused() {
    let scene = Scene::new("context_cost = 100MiB\n");
    let did = silent(scene.client("info", &["init", "alloc:300MiB", "alloc:900MiB", "free:0"]));
    assert_eq!(did, ["init 0", "alloc 0", "alloc 2", "free 0"]);
    let log = scene.log();
    let gpu = scene.bench.gpu(0);
    assert!(values(&log, "start").starts_with("version="), "{log}");
    assert!(values(&log, "driver").contains("soft-gpu/libcuda.so.1"), "{log}");
    let share = values(&log, "share");
    assert!(
        share.starts_with(&format!("name=share gpu={gpu} memory={GIB} ")),
        "{share}"
    );
    assert!(values(&log, "pid").starts_with("learned="), "{log}");
    let measured = values(&log, "measured");
    let expected = format!(
        "gpu={gpu} ahead={0} held={0} else=0 overhead={0}..{0} lists=2 us=",
        100 * MIB
    );
    assert!(measured.starts_with(&expected), "{measured}");
    let refused = values(&log, "refused");
    let expected = format!(
        "gpu={gpu} bytes={} charged={} limit={GIB} by=limit",
        900 * MIB,
        400 * MIB
    );
    assert_eq!(refused, expected);
    assert!(!log.contains(" debug "), "{log}");
    let mode = std::fs::metadata(scene.path("log"))
        .expect("a log")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "other users learn nothing");

    let ring = scene.ring();
    let calls: Vec<_> = ring
        .calls
        .iter()
        .map(|call| (call.function.as_str(), call.end.expect("an end")))
        .map(|(function, end)| (function, end.result, end.charged))
        .collect();
    let tail = [
        ("cuMemAlloc_v2", 0, 400 * MIB),
        ("cuMemAlloc_v2", 2, 400 * MIB),
        ("cuMemFree_v2", 0, 100 * MIB),
    ];
    assert!(calls.ends_with(&tail), "{calls:?}");
    assert_eq!(calls[0].0, "cuInit", "{calls:?}");
    let counts = &ring.counts;
    let of = [
        Counter::Processes,
        Counter::Refusals,
        Counter::RefusedBytes,
        Counter::Measurements,
        Counter::LostLines,
    ];
    assert_eq!(of.map(|counter| counts.get(counter)), [1, 1, 900 * MIB, 1, 0]);
}

#[test]
fn without_the_variable_there_is_no_file_and_errors_alone_are_few_lines() {
    let scene = Scene::new("");
    let steps = ["init", "alloc:900MiB", "alloc:900MiB"];
    assert_eq!(silent(scene.bench.client(&steps))[2], "alloc 2");
    assert_eq!(std::fs::read_dir(scene.folder.path()).expect("a folder").count(), 0);
    silent(scene.client("error", &steps));
    let log = scene.log();
    assert_eq!(log.lines().count(), 2, "{log}");
    values(&log, "refused");
}

#[test]
fn a_log_that_cannot_be_opened_is_one_line_and_no_harm() {
    let _guard = HangGuard::new("logs that cannot be opened", Duration::from_secs(60));
    let scene = Scene::new("");
    std::fs::create_dir(scene.path("folder")).expect("a folder");
    std::fs::write(scene.path("file"), "mine").expect("a file");
    symlink(scene.path("file"), scene.path("link")).expect("a link");
    let made = Command::new("mkfifo").arg(scene.path("fifo")).status();
    assert!(made.expect("mkfifo").success());
    let fifo = std::fs::metadata(scene.path("fifo")).expect("a FIFO");
    assert!(fifo.file_type().is_fifo());
    for (name, says) in [
        ("missing/log", "No such file"),
        ("folder", "Is a directory"),
        ("link", "symbolic link"),
        ("fifo", "No such device"),
        ("log:verbose", "level \"verbose\" is none of"),
        ("../../../../../../../../dev/full", "not a regular file"),
    ] {
        let mut command = scene.bench.client(&["init", "alloc:3MiB", "free:0"]);
        command.env(LOG_VARIABLE, scene.path(name));
        let said = complaint(&command.output().expect("a client"));
        assert!(said.contains(says) && said.contains("VGPU_LOG="), "{name}: {said}");
    }
    assert_eq!(std::fs::read(scene.path("file")).expect("a file"), b"mine");
    assert!(scene.rings().is_empty());
}

/// The kernel kills a process that writes beyond its file size limit.
#[test]
fn a_limit_of_file_sizes_ends_no_program() {
    let scene = Scene::new("");
    let limited = |bytes: &str| {
        let client = scene.client("info", &["init", "alloc:3MiB", "free:0"]);
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--fsize={bytes}"))
            .arg(client.get_program())
            .args(client.get_args());
        command.envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.output().expect("prlimit")
    };
    let said = complaint(&limited("4096"));
    assert!(said.contains(".ring: file too large"), "{said}");
    assert!(values(&scene.log(), "measured").contains("lists=2"));
    assert!(complaint(&limited("10")).contains("file too large"));
}

/// The disk is full when the ring is created, or fills up later.
#[test]
fn a_full_disk_ends_no_program() {
    const SCRIPT: &str = "mount -t tmpfs -o size=$1 none \"$2\" && shift 2 && exec \"$@\"";
    let may_mount = Command::new("unshare")
        .args(["--mount", "true"])
        .stderr(Stdio::null())
        .status();
    if !may_mount.is_ok_and(|status| status.success()) {
        return vgpu_skip::skip("a_full_disk_ends_no_program", "needs the right to mount");
    }
    let scene = Scene::new("");
    // This folder is on another disk.
    let outside = tempfile::tempdir().expect("a folder");
    let report = outside.path().join("report");
    std::fs::write(&report, report_image()).expect("a report");
    let run = |size: &str, steps: &[&str]| {
        let mut client = scene.client("debug", steps);
        client.env(REPORT_VARIABLE, &report);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", SCRIPT, "sh", size])
            .arg(scene.folder.path());
        command.arg(client.get_program()).args(client.get_args());
        command.envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.output().expect("unshare")
    };
    let said = complaint(&run("64k", &["init", "alloc:3MiB", "free:0"]));
    assert!(said.contains(".ring: No space left"), "{said}");
    // There is space for the ring and the first page of lines, but not for 2,000 refusals.
    let many = ["init", "alloc:3MiB"]
        .into_iter()
        .chain(std::iter::repeat_n("alloc:2GiB", 2000));
    let output = run("344k", &many.collect::<Vec<_>>());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(lines(&output).iter().filter(|line| *line == "alloc 2").count(), 2000);
    let counts = Counts::parse(&std::fs::read(&report).expect("a report")).expect("a report");
    assert!(counts.get(Counter::LostLines) > 100, "{counts:?}");
}

#[test]
fn processes_and_fork_children_write_whole_lines_and_rings_of_their_own() {
    let scene = Scene::new("");
    let steps = ["init fork init alloc:2GiB closefrom alloc:2GiB alloc:2GiB"];
    let clients: Vec<_> = (0..6)
        .map(|_| {
            scene
                .client("debug", &steps)
                .stdout(Stdio::null())
                .spawn()
                .expect("a client")
        })
        .collect();
    for mut client in clients {
        assert!(client.wait().expect("its end").success());
    }
    let log = scene.log();
    let refusals = log.lines().map(event).filter(|(event, _)| *event == "refused").count();
    assert_eq!(refusals, 6 * 3, "also after all descriptors were closed\n{log}");
    let rings = scene.rings();
    assert_eq!(rings.len(), 12);
    let mut refused = Vec::new();
    for path in rings {
        let ring = read(&path);
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert_eq!(name, format!("log.{}.ring", ring.pid));
        assert_eq!(ring.calls[0].function, "cuInit", "{name}");
        refused.push(ring.counts.get(Counter::Refusals));
        let calls = ring
            .calls
            .iter()
            .filter(|call| call.end.is_some_and(|end| end.result == 2));
        assert_eq!(calls.count() as u64, ring.counts.get(Counter::Refusals), "{name}");
    }
    refused.sort_unstable();
    // As with CUDA, the driver does not work in a child of a process that has used it.
    assert_eq!(refused, [0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn the_ring_of_a_killed_process_has_the_call_that_hangs() {
    let _guard = HangGuard::new("a call that hangs", Duration::from_secs(120));
    let scene = Scene::new("context_cost = 100MiB\ncontext_time = 60s\n");
    let mut client = scene
        .client("info", &["init"])
        .stdout(Stdio::null())
        .spawn()
        .expect("a client");
    let running = || {
        // The last line may not be complete yet.
        let ring = scene
            .rings()
            .first()
            .and_then(|ring| Ring::parse(&std::fs::read(ring).ok()?).ok());
        let calls = ring.map(|ring| ring.calls).unwrap_or_default();
        calls
            .last()
            .is_some_and(|call| call.function == "cuDevicePrimaryCtxRetain")
    };
    until(running);
    client.kill().expect("it runs");
    client.wait().expect("its end");
    let ring = scene.ring();
    let last = ring.calls.last().expect("a call");
    assert_eq!((last.function.as_str(), last.end), ("cuDevicePrimaryCtxRetain", None));
    assert_eq!(ring.calls[0].end.map(|end| end.result), Some(0));
}

#[test]
fn the_log_says_why_nothing_is_measured_and_what_stderr_says() {
    let scene = Scene::new("context_cost = 100MiB\nnvml_pids = none\n");
    silent(scene.client("info", &["init"]));
    let log = scene.log();
    let unmeasured = values(&log, "unmeasured");
    assert!(unmeasured.contains(&format!("ahead={}", 100 * MIB)), "{unmeasured}");
    assert!(
        unmeasured.contains("reason=\"the lists do not show this process"),
        "{unmeasured}"
    );

    std::fs::write(scene.bench.directory("share").join("limits"), "nonsense").expect("limits");
    let output = scene.client("error", &["cuinit"]).output().expect("a client");
    assert_eq!(lines(&output), ["cuinit 800"]);
    let said = String::from_utf8(output.stderr).expect("text");
    let log = scene.log();
    let text = values(&log, "said").trim_start_matches("text=").trim_matches('"');
    assert_eq!(said.trim_start_matches("vgpu: ").trim_end(), text.replace("\\\"", "\""));
}

#[test]
fn a_report_counts_waits_and_refusals_of_all_processes() {
    let scene = Scene::new("");
    scene.bench.limit_time(20);
    let report = scene.path("report");
    std::fs::write(&report, report_image()).expect("a report");
    for _ in 0..2 {
        let mut command = scene.client("debug", &["init", "alloc:2GiB", "work:500,600,0"]);
        command.env(REPORT_VARIABLE, &report);
        silent(command);
    }
    let counts = Counts::parse(&std::fs::read(&report).expect("a report")).expect("a report");
    assert_eq!(
        [Counter::Processes, Counter::Refusals].map(|counter| counts.get(counter)),
        [2, 2]
    );
    let (waits, ns) = counts.waits(Wait::Budget);
    assert!(waits > 10 && ns > 300_000_000, "{waits} waits, {ns} ns");
    let log = scene.log();
    let waited = log.lines().map(event).filter(|(event, _)| *event == "wait");
    assert!(
        waited
            .filter(|(_, values)| values.starts_with("reason=budget us="))
            .count()
            > 10
    );
    let launches = read(&scene.rings()[0]).calls.into_iter();
    assert!(
        launches
            .filter(|call| call.function.starts_with("cuLaunchKernel"))
            .count()
            > 10
    );
}

#[test]
fn launches_of_a_share_without_a_limit_of_time_are_recorded_too() {
    let scene = Scene::new("");
    let unlimited = |limits: &mut Limits| limits.compute_policy = ComputePolicy::Unlimited;
    scene.bench.share_with(GIB, unlimited);
    silent(scene.client("info", &["init", "work:500,50,1"]));
    let calls = scene.ring().calls;
    for name in ["cuLaunchKernel", "cuCtxSynchronize"] {
        assert!(
            calls.iter().any(|call| call.function.starts_with(name)),
            "{name}: {calls:?}"
        );
    }
}

#[test]
fn a_report_that_is_none_is_one_line_and_no_harm() {
    let scene = Scene::new("");
    std::fs::write(scene.path("short"), [0; 100]).expect("a file");
    std::fs::write(scene.path("other"), [1; 4096]).expect("a file");
    for name in ["missing", "short", "other"] {
        let mut command = scene.bench.client(&["init", "alloc:3MiB", "free:0"]);
        command.env(REPORT_VARIABLE, scene.path(name));
        let said = complaint(&command.output().expect("a client"));
        assert!(
            said.contains("VGPU_REPORT=") && said.contains("left out of the report"),
            "{name}: {said}"
        );
    }
    assert_eq!(std::fs::metadata(scene.path("other")).expect("a file").size(), 4096);
    assert_eq!(std::fs::read(scene.path("other")).expect("a file"), [1; 4096]);
}
