//! `vgpu run --report` and `vgpu log`, with the release's library on the software GPU, as an ordinary user and as root.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{Scene, as_root, as_user, is_root, may_do_as_root};

/// The output folder of `make dist`.
fn dist() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    std::env::var_os("VGPU_DIST").map_or(workspace, PathBuf::from)
}

/// The program of this build with the release's libraries, and the client beside it.
fn prepare(scene: &Scene) {
    let client = vgpu_built_from::program("gpu-client");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_vgpu"));
    for (from, to) in [(dist(), "dist"), (program, "dist/vgpu"), (client, "client")] {
        let status = Command::new("cp").arg("-rL").arg(from).arg(scene.path(to)).status();
        assert!(status.unwrap().success());
    }
}

fn client(scene: &Scene, flags: &[&str], args: &[&str]) -> Command {
    let client = scene.path("client").display().to_string();
    let all = ["run", "--soft-gpu", "--memory", "1Gi"]
        .iter()
        .chain(flags)
        .chain(&["--"]);
    let all: Vec<_> = all.copied().chain([&*client]).chain(args.iter().copied()).collect();
    scene.vgpu_in("dist", all)
}

fn both(body: impl Fn(&Scene) + Copy + Send + 'static) {
    as_user(body);
    if is_root() && may_do_as_root() {
        as_root("report", body);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(mut command: Command) -> Output {
    command.output().expect("vgpu")
}

#[test]
fn a_report_follows_the_command() {
    both(|scene| {
        prepare(scene);
        let steps = ["init", "alloc:2GiB", "fork", "init", "alloc:2GiB"];
        let output = run(client(scene, &["--report"], &steps));
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "vgpu run: report processes=2", "{said}");
        assert_eq!(
            lines[1],
            format!("vgpu run: report refusals=2 bytes={}", 4_u64 << 30),
            "{said}"
        );
        assert!(lines[2].starts_with("vgpu run: report measurements="), "{said}");
        assert_eq!(
            lines[3], "vgpu run: report failed-events=0 lost-lines=0 long-waits=0",
            "{said}"
        );
        let waits = lines[4..]
            .iter()
            .filter(|line| line.starts_with("vgpu run: report waits reason="));
        assert_eq!((waits.count(), lines.len()), (6, 10), "{said}");
        assert!(scene.shares().is_empty(), "and nothing is left");
        let output = run(client(scene, &[], &steps));
        assert!(output.stderr.is_empty(), "{output:?}");
    });
}

#[test]
fn a_command_that_changes_its_report_is_told_so_and_its_status_stays() {
    both(|scene| {
        let mut command = scene.sh(&["--report"], "echo 0123456789 > \"$VGPU_REPORT\"; exit 3");
        let output = command.output().expect("vgpu");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(
            text(&output.stderr),
            "vgpu run: report damaged: COMMAND has changed its file\n"
        );
        let output = scene.sh(&["--report"], "kill -9 $$").output().expect("vgpu");
        assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
        assert!(
            text(&output.stderr).starts_with("vgpu run: report processes=0\n"),
            "{output:?}"
        );
    });
}

#[test]
fn a_ring_is_printed_and_what_is_none_is_one_line() {
    both(|scene| {
        prepare(scene);
        let log = scene.path("runtime/log");
        let mut command = client(scene, &[], &["init", "alloc:2GiB"]);
        assert!(command.env("VGPU_LOG", &log).output().expect("vgpu").status.success());
        let entries = std::fs::read_dir(scene.path("runtime")).expect("a folder").flatten();
        let mut paths = entries.map(|entry| entry.path());
        let ring = paths.find(|path| path.extension().is_some_and(|end| end == "ring"));
        let ring = ring.expect("a ring").display().to_string();
        let output = run(scene.vgpu_in("dist", ["log", &ring]));
        let said = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(
            said.starts_with("process=") && said.contains("\nreport refusals=1 "),
            "{said}"
        );
        let last: Vec<&str> = said.lines().last().expect("calls").split(' ').collect();
        assert_eq!((last[3], last[4], last.len()), ("cuMemAlloc_v2", "2", 7), "{said}");
        for (file, says) in [
            (log.display().to_string(), "does not begin with `vgpuring`"),
            ("/none".into(), "No such file"),
        ] {
            let output = run(scene.vgpu_in("dist", ["log", &file]));
            let said = text(&output.stderr);
            assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
            assert!(
                said.starts_with(&format!("vgpu log: {file}: ")) && said.contains(says),
                "{said}"
            );
        }
    });
}
