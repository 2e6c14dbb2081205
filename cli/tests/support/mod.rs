//! A scene for tests of the program: a release whose libraries are stand-ins, and its own mount namespace
//! with its own /run and /tmp, so that the machine is not changed.
#![allow(unsafe_code)] // unshare, signal and kill, which std does not have.
#![allow(dead_code)] // Each test program uses its part.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use vgpu_abi::arbitration::{SLOTS, entry};
use vgpu_abi::paths::{ARBITRATION, NODE_PAGE};

const NOBODY: u32 = 65534;
const NEEDS_ROOT: &str = "needs a root that may make a mount namespace and become another user";

/// The environment and the user of a test's `vgpu`.
pub(crate) struct Scene {
    tmp: tempfile::TempDir,
    user: Option<u32>,
}

/// Runs `body` as an ordinary user: without root's mount namespace. Skipped as a container's root.
pub(crate) fn as_user<F: FnOnce(&Scene) + Send + 'static>(body: F) {
    heed_interrupts();
    if !is_root() {
        body(&Scene::new(None));
    } else if may_do_as_root() {
        on_own_machine(move || body(&Scene::new(Some(NOBODY))));
    } else {
        // The test's name, without an argument for it: `command::exit_status_is_commands::{{closure}}`.
        let name = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
        vgpu_skip::skip(name.rsplit("::").next().unwrap_or(name), NEEDS_ROOT);
    }
}

/// Runs `body` as root. Skips the test without root, or where root's rights are missing.
pub(crate) fn as_root(name: &str, body: impl FnOnce(&Scene) + Send + 'static) {
    heed_interrupts();
    if is_root() && may_do_as_root() {
        on_own_machine(move || body(&Scene::new(None)));
    } else {
        vgpu_skip::skip(name, NEEDS_ROOT);
    }
}

/// Returns true if root may make a mount namespace and become another user, which it may not in most containers.
pub(crate) fn may_do_as_root() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let mut both = Command::new("unshare");
        both.args([
            "--mount",
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "true",
        ]);
        both.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    })
}

/// A shell that starts the tests in the background makes them and their children ignore these two signals. A
/// script cannot trap a signal that was ignored when it started.
fn heed_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the default action is not ours to run.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid always succeeds.
    unsafe { libc::geteuid() == 0 }
}

fn on_own_machine(body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: a mount namespace of this thread's own; its children inherit it.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "unshare");
        let mut lines = vec![
            "mount --make-rprivate /".to_owned(),
            "mount -t tmpfs -o mode=0755,noexec run /run".into(),
            "mkdir /run/old && mount --rbind /tmp /run/old".into(),
            "mount -t tmpfs -o mode=1777 tmp /tmp".into(),
        ];
        // The clone of this repository may itself be in /tmp, so keep it visible there.
        for kept in [
            concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
            concat!(env!("CARGO_TARGET_TMPDIR"), "/.."),
        ] {
            let kept = fs::canonicalize(kept).expect("a folder of this build");
            if let Ok(below) = kept.strip_prefix("/tmp") {
                let (kept, below) = (kept.display(), below.display());
                lines.push(format!(
                    "mkdir -p '{kept}' && mount --rbind '/run/old/{below}' '{kept}'"
                ));
            }
        }
        lines.push("umount -l /run/old && rmdir /run/old".into());
        for line in &lines {
            let status = Command::new("sh").args(["-c", line]).status().expect(line);
            assert!(status.success(), "{line}");
        }
        body();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

// === impl Scene ===

impl Scene {
    fn new(user: Option<u32>) -> Self {
        let tmp = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let scene = Self { tmp, user };
        for (name, mode) in [("runtime", 0o700), ("state", 0o700)] {
            fs::create_dir(scene.path(name)).expect("mkdir");
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).expect("chmod");
            chown(scene.path(name), user, user).expect("chown");
        }
        scene.copy_release();
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    /// The folder of this scene's shares.
    pub(crate) fn run_dir(&self) -> PathBuf {
        if is_root() && self.user.is_none() {
            PathBuf::from("/run/vgpu-run")
        } else {
            self.path("runtime/vgpu-run")
        }
    }

    /// `vgpu ARGS...` with a bare environment.
    pub(crate) fn vgpu<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.vgpu_in("release", args)
    }

    /// Like [`Self::vgpu`], with the release in another folder of the scene.
    pub(crate) fn vgpu_in<S: AsRef<OsStr>>(&self, release: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.path(release).join("vgpu"));
        command.args(args).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.env("SOFT_GPU_STATE", self.path("state"));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// `vgpu run --soft-gpu FLAGS -- sh -c SCRIPT`.
    pub(crate) fn sh(&self, flags: &[&str], script: &str) -> Command {
        self.vgpu(
            ["run", "--soft-gpu"]
                .iter()
                .chain(flags)
                .chain(&["--", "sh", "-c", script]),
        )
    }

    /// `program` with the environment and the user of `vgpu`, which it starts.
    pub(crate) fn around(&self, vgpu: &Command, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(vgpu.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Names in the folder of shares, without its own files.
    pub(crate) fn shares(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run_dir()).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir() && entry.file_name() != ARBITRATION);
        folders
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Returns slot and weight of each entry in the first GPU's node page, none if there is no page.
    pub(crate) fn weights(&self) -> Vec<(usize, u32)> {
        let gpu = "GPU-00000000-0000-0000-0000-000000000001";
        let page = self.run_dir().join(ARBITRATION).join(gpu).join(NODE_PAGE);
        let Ok(page) = fs::read(page) else {
            return Vec::new();
        };
        let entries = (0..SLOTS).map(|slot| (slot, entry(&page, slot).expect("a page between two writes")));
        let weights = entries.map(|(slot, entry)| (slot, entry.weight));
        weights.filter(|(_, weight)| *weight > 0).collect()
    }

    /// Copies with cp: a file that this process writes could not be executed while another thread forks.
    fn copy_release(&self) {
        let status = Command::new("cp")
            .arg("-r")
            .arg(release())
            .arg(self.path("release"))
            .status();
        assert!(status.expect("cp").success(), "cp");
    }
}

// === The release ===

/// The program as built, and stand-ins for its libraries; built once for each test program.
fn release() -> &'static Path {
    static RELEASE: OnceLock<(tempfile::TempDir, Child)> = OnceLock::new();
    let (folder, _) = RELEASE.get_or_init(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        fs::create_dir(folder.path().join("soft-gpu")).expect("mkdir");
        fs::copy(env!("CARGO_BIN_EXE_vgpu"), folder.path().join("vgpu")).expect("copy");
        let empty = "int vgpu_stand_in;";
        library(&folder.path().join("libvgpu.so"), "int vgpu_stand_in_for_the_shim;");
        library(&folder.path().join("libvgpu-preload.so"), empty);
        library(&folder.path().join("soft-gpu/libcuda.so.1"), include_str!("cuda.c"));
        library(
            &folder.path().join("soft-gpu/libnvidia-ml.so.1"),
            include_str!("nvml.c"),
        );
        let remover = remove_at_exit(folder.path());
        (folder, remover)
    });
    folder.path()
}

/// Starts a shell that removes the folder when its input ends with this process: statics are not dropped.
fn remove_at_exit(folder: &Path) -> Child {
    let script = "cat >/dev/null; rm -rf \"$0\"";
    Command::new("setsid")
        .args(["sh", "-c", script])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh")
}

pub(crate) fn library(path: &Path, source: &str) {
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-O1", "-shared", "-fPIC", "-o"])
        .arg(path)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc");
    let mut input = cc.stdin.take().expect("a pipe");
    input.write_all(source.as_bytes()).expect("cc's input");
    drop(input);
    assert!(cc.wait().expect("cc").success(), "cc for {}", path.display());
}

// === Running ===

pub(crate) fn output(command: &mut Command) -> Output {
    command.output().expect("vgpu starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts success and returns stdout.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    stdout(&output)
}

/// Asserts exit status `code` and one line on stderr, and returns the line.
pub(crate) fn refused(command: &mut Command, code: i32) -> String {
    let output = output(command);
    let line = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(stdout(&output), "");
    line
}

/// A `vgpu run` in the background, whose COMMAND has printed `ready`.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .expect("vgpu starts");
        let mut seen = [0; 6];
        let read = child.stdout.as_mut().expect("a pipe").read_exact(&mut seen);
        assert!(
            read.is_ok() && &seen == b"ready\n",
            "COMMAND did not say ready: {seen:?}"
        );
        Self(child)
    }

    pub(crate) fn signal(&self, signal: i32) {
        signal_to(self.0.id(), signal);
    }

    /// Waits for the end; returns exit status and the rest of stdout.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        drop(self.0.stdin.take());
        self.0
            .stdout
            .take()
            .expect("a pipe")
            .read_to_string(&mut rest)
            .expect("stdout");
        (self.0.wait().expect("wait").code(), rest)
    }
}

pub(crate) fn signal_to(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).expect("a PID");
    // SAFETY: a signal to a process of this test.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill {pid}");
}

/// Waits until `what` is true.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
