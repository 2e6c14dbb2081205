//! `vgpu-e2e guest` when it is refused or interrupted: it prints one line and leaves no process and no temporary file.
//!
//! mmdebstrap and qemu are replaced by stand-ins, because these tests are not about the boot itself: a stand-in leaves
//! a mark, starts a child as the real program does, and waits. `make guest` runs the real ones.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vgpu_e2e::patience;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vgpu-e2e");
/// For a quiet machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A simulated machine: a cache, and stand-ins that precede all other programs in PATH.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(machine.path("bin")).unwrap();
        fs::create_dir(machine.path("dist")).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a program that prints its name and then waits in a child, which has this folder in its arguments.
    fn waits(&self, name: &str) {
        let (mark, folder) = (self.path("reached"), self.folder.path().display().to_string());
        self.program(
            name,
            &format!("echo {name} >> {}\nsh -c 'sleep 600; :' {folder}\n:", mark.display()),
        );
    }

    /// Adds stand-ins for everything before the boot, and a qemu that runs without output.
    fn is_prepared(&self) {
        let make =
            "mkdir -p root/boot root/etc/sudoers.d root/usr/local/bin root/etc/systemd/system/multi-user.target.wants
            echo kernel > root/boot/vmlinuz-1; echo files > root/boot/initrd.img-1";
        self.program("mmdebstrap", make);
        self.program("chroot", ":");
        let mark = self.path("reached").display().to_string();
        let qemu = format!(
            "case \"$*\" in *-version*) echo stand-in; exit;; *'-accel kvm'*) exit 1;; esac
            echo boots > {mark}; exec tail -f {mark}"
        );
        self.program("qemu-system-x86_64", &qemu);
        for name in [
            "vgpu",
            "vgpu-kubelet-plugin",
            "vgpu-controller",
            "vgpu-cdi-hook",
            "vgpu-driver-limit",
            "vgpu-client",
            "libvgpu.so",
            "libvgpu-preload.so",
        ] {
            fs::write(self.path("dist").join(name), "").unwrap();
        }
        let small = self.path("dist");
        let built = serde_json::json!({
            "program": PROGRAM, "dist": small, "gpu": "Absent", "pause": PROGRAM, "owner": null, "time_factor": 1.0,
            "toolchain": {"kubernetes": "1.37.1", "containerd": "2.4.2", "folders": [], "cni": small, "runc": PROGRAM},
            "images": {"archives": [], "nvidia_smi": false}, "so_far": [0, {"secs": 0, "nanos": 0}],
        });
        fs::write(self.path("built.json"), built.to_string()).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn guest(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .arg("guest")
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("XDG_CACHE_HOME", self.folder.path())
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("VGPU_DIST", self.path("dist"))
            .env("VGPU_E2E_BUILT", self.path("built.json"))
            .env("VGPU_GUEST_MEMORY", "6Gi")
            .env_remove("DEBIAN")
            .env_remove("VGPU_GUEST_DISK")
            .env_remove("VGPU_GUEST_ONLY")
            .stdin(Stdio::null());
        command
    }

    /// Starts a guest and returns when it has reached a stand-in.
    fn start(&self) -> Child {
        let said = fs::File::create(self.path("said")).unwrap();
        let child = self.guest().stdout(Stdio::null()).stderr(said).spawn().unwrap();
        self.until("a stand-in is reached", || self.path("reached").exists());
        child
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let limit = patience::stretched(LIMIT);
        let end = Instant::now() + limit;
        while !done() {
            assert!(
                Instant::now() < end,
                "not within {limit:?}: {what}; left: {:?}; {}",
                self.left(),
                fs::read_to_string(self.path("said")).unwrap_or_default()
            );
            sleep(Duration::from_millis(20));
        }
    }

    /// Remaining processes and temporary files of a guest.
    fn left(&self) -> Vec<String> {
        let mine = self.folder.path().display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&mine) {
                found.push(format!("{}: {line}", entry.path().display()));
            }
        }
        if self.run_folder().exists() {
            found.push(self.run_folder().display().to_string());
        }
        found
    }

    fn run_folder(&self) -> PathBuf {
        self.path("dra-driver-vgpu/guest/run")
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Skips the test on machines that refuse a guest or its namespaces, which need root that may mount, or a user with
/// subordinate IDs.
fn can_run(test: &str) -> bool {
    let machine = Machine::new();
    machine.program("mmdebstrap", "exit 4");
    let refused = machine.guest().output().unwrap();
    if refused.status.code() == Some(3) {
        vgpu_skip::skip(test, stderr(&refused).trim());
        return false;
    }
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    let works = command
        .args(["--mount", "--pid", "--fork", "--mount-proc", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        vgpu_skip::skip(
            test,
            "this user can make no namespaces, or none with /etc/subuid's range",
        );
    }
    works
}

#[test]
fn bad_values_are_refused_by_name_value_and_remedy() {
    let machine = Machine::new();
    for (variable, value, said) in [
        (
            "VGPU_GUEST_MEMORY",
            "much",
            "VGPU_GUEST_MEMORY (or --memory) is \"much\", which is no size: give one such as 6Gi",
        ),
        (
            "VGPU_GUEST_MEMORY",
            "512Mi",
            "VGPU_GUEST_MEMORY (or --memory) is \"512Mi\", too small for a guest with a cluster: give 6Gi or more",
        ),
        (
            "VGPU_GUEST_DISK",
            "1Gi",
            "VGPU_GUEST_DISK (or --disk) is \"1Gi\", too small for a guest with a cluster: give 14Gi or more",
        ),
        (
            "DEBIAN",
            "11",
            "DEBIAN (or --debian) is \"11\", which this check does not know: give 12 or 13",
        ),
        (
            "VGPU_GUEST_ONLY",
            "all",
            "VGPU_GUEST_ONLY (or --only) is \"all\", which is no module that a guest tests: give one of machine, example, \
             driver_limit",
        ),
    ] {
        let output = machine.guest().env(variable, value).output().unwrap();
        assert_eq!(stderr(&output), format!("vgpu-e2e: {said}\n"));
        assert_eq!(output.status.code(), Some(1));
    }
    let output = machine.guest().args(["--tests", "/nowhere"]).output().unwrap();
    assert_eq!(
        stderr(&output),
        "vgpu-e2e: --tests /nowhere: no such file: build/e2e.sh guest builds it\n"
    );
    assert!(machine.left().is_empty(), "{:?}", machine.left());
}

#[test]
fn a_machine_without_the_memory_says_so_in_one_line_and_with_status_3() {
    let machine = Machine::new();
    let output = machine.guest().env("VGPU_GUEST_MEMORY", "1000Ti").output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.starts_with("vgpu-e2e: a guest with 1024000.0 GiB of memory does not fit: ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(said.ends_with("set VGPU_GUEST_MEMORY\n"), "{said}");
}

#[test]
fn a_failed_build_says_what_was_said_and_leaves_nothing() {
    if !can_run("a_failed_build_says_what_was_said_and_leaves_nothing") {
        return;
    }
    let machine = Machine::new();
    machine.program("mmdebstrap", "echo 'mmdebstrap: it broke' >&2; exit 4");
    let output = machine.guest().output().unwrap();
    let said = stderr(&output);
    assert!(
        said.contains("making the guest's file system: exit status: 4: mmdebstrap: it broke"),
        "{said}"
    );
    assert!(machine.left().is_empty(), "{:?}", machine.left());
}

#[test]
fn a_signal_in_the_build_leaves_nothing() {
    if !can_run("a_signal_in_the_build_leaves_nothing") {
        return;
    }
    for (kind, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let machine = Machine::new();
        machine.waits("mmdebstrap");
        let mut child = machine.start();
        assert!(machine.run_folder().exists());
        signal(&child, kind);
        assert_eq!(child.wait().unwrap().code(), Some(status));
        assert!(machine.left().is_empty(), "{:?}", machine.left());
    }
}

/// After the terminal was closed, nothing can be printed.
#[test]
fn a_signal_without_a_terminal_leaves_nothing() {
    if !can_run("a_signal_without_a_terminal_leaves_nothing") {
        return;
    }
    let machine = Machine::new();
    machine.waits("mmdebstrap");
    let (closed, stderr) = std::io::pipe().unwrap();
    let mut child = machine.guest().stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    machine.until("a stand-in is reached", || machine.path("reached").exists());
    drop(closed);
    signal(&child, Signal::HUP);
    assert_eq!(child.wait().unwrap().code(), Some(129));
    assert!(machine.left().is_empty(), "{:?}", machine.left());
}

#[test]
fn after_a_kill_in_the_build_the_processes_go_and_the_next_run_removes_the_files() {
    if !can_run("after_a_kill_in_the_build_the_processes_go_and_the_next_run_removes_the_files") {
        return;
    }
    let machine = Machine::new();
    machine.waits("mmdebstrap");
    let mut child = machine.start();
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let files = vec![machine.run_folder().display().to_string()];
    machine.until("the processes end", || machine.left() == files);
    fs::write(machine.run_folder().join("leftover"), "").unwrap();
    machine.program("mmdebstrap", "exit 4");
    machine.guest().output().unwrap();
    assert!(machine.left().is_empty(), "{:?}", machine.left());
}

#[test]
fn a_guest_that_boots_ends_with_its_run_and_a_second_run_waits() {
    if !can_run("a_guest_that_boots_ends_with_its_run_and_a_second_run_waits") {
        return;
    }
    let machine = Machine::new();
    machine.is_prepared();
    let mut first = machine.start();
    let mut second = machine
        .guest()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("another guest runs: waiting for its end"), "{line}");
    signal(&second, Signal::TERM);
    assert_eq!(second.wait().unwrap().code(), Some(143));

    signal(&first, Signal::INT);
    assert_eq!(first.wait().unwrap().code(), Some(130));
    assert!(machine.left().is_empty(), "{:?}", machine.left());

    fs::remove_file(machine.path("reached")).unwrap();
    let mut killed = machine.start();
    killed.kill().unwrap();
    assert_eq!(killed.wait().unwrap().signal(), Some(9));
    let files = vec![machine.run_folder().display().to_string()];
    machine.until("qemu ends", || machine.left() == files);
}
