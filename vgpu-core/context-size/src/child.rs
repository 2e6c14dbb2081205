//! The child process that measures: the program starts itself again with [`ARGUMENT`].
#![forbid(unsafe_code)]

use crate::{ContextSize, probe};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first argument of the child. The paths of the libraries and the UUID follow.
pub const ARGUMENT: &str = "measure-context";
/// How long a child may take. A driver without persistence mode takes seconds to start.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const BETWEEN: Duration = Duration::from_millis(5);
/// How long to wait for a killed child.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// How many bytes of the end of each output are usually kept: enough for a figure and for what went wrong. The rest is read
/// too, because a full pipe would stop the child.
pub const KEPT: usize = 64 << 10;
/// How many blocks of 4 KiB are read at once: the content of a full pipe, plus output that arrives during the read.
const MOST_PARTS: usize = 64;
/// The variables that the child inherits. Other variables may change the figure, which is kept, or load foreign code.
/// The last three belong to the software GPU. No LD_LIBRARY_PATH: the libraries are given by their paths.
const PASSED: [&str; 5] = ["PATH", "HOME", "SOFT_GPU_STATE", "SOFT_GPU_PROFILE", "XDG_RUNTIME_DIR"];
/// Prefix of the child's line: the driver may print other lines.
const MARK: &str = "vgpu-context ";

/// The GPU to be measured, and its driver.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
    pub uuid: String,
}

/// Measures in a child, which `command` starts: the caller's own program. The child gets the environment that `command`
/// sets, and those of the variables in [`PASSED`] that `command` does not set or remove.
///
/// # Errors
/// The reason why there is no figure, in one line.
pub fn ask(mut command: Command, gpu: &Gpu, patience: Duration) -> Result<ContextSize, String> {
    let variables = environment(&command);
    command
        .arg(ARGUMENT)
        .args([gpu.libcuda.as_os_str(), gpu.libnvidia_ml.as_os_str()])
        .arg(&gpu.uuid)
        .env_clear()
        .envs(variables);
    if gpu.uuid.starts_with("MIG-") {
        // Drivers before r570 give a process one instance, the first unless another is named.
        command.env("CUDA_VISIBLE_DEVICES", &gpu.uuid);
    }
    let Answer { status, stdout, stderr } = answer(command, patience, KEPT).map_err(|error| error.to_string())?;
    let figure = stdout.lines().find_map(|line| line.strip_prefix(MARK)?.parse().ok());
    figure.filter(|_| status.success()).ok_or_else(|| {
        let silent = || format!("the helper ended with {status}");
        stderr.lines().last().map_or_else(silent, str::to_owned)
    })
}

/// The end of a helper's output, and how it ended.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Why a helper has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    #[error("the helper cannot be started: {0}")]
    Start(io::Error),
    #[error("the helper has not answered for {} s", .0.as_secs())]
    Late(Duration),
    #[error("the helper cannot be waited for: {0}")]
    Wait(io::Error),
    #[error("the helper has ended and cannot be reaped")]
    Left,
}

/// Runs a helper that may hang in the driver: it is killed after `patience`, with all that it started. `kept`: how many bytes
/// of the end of each stream are returned.
///
/// # Errors
/// See [`NoAnswer`].
pub fn answer(mut command: Command, patience: Duration, kept: usize) -> Result<Answer, NoAnswer> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // In its own group, so that it can be killed with all that it starts.
        .process_group(0);
    let mut child = command.spawn().map_err(NoAnswer::Start)?;
    let mut stdout = Output::of(child.stdout.take(), kept);
    let mut stderr = Output::of(child.stderr.take(), kept);
    let group = Pid::from_child(&child);
    let has_ended = wait(group, Instant::now() + patience, || {
        stdout.read();
        stderr.read();
    });
    // The child is not reaped yet, so its PID still identifies this group.
    let _ = kill_process_group(group, Signal::KILL);
    let status = reap(child);
    // Everything the child wrote is in the pipes by now. A process that left the group may still hold them open, so
    // this does not wait for the end of the pipes.
    stdout.read();
    stderr.read();
    if !has_ended.map_err(NoAnswer::Wait)? {
        return Err(NoAnswer::Late(patience));
    }
    Ok(Answer {
        status: status.ok_or(NoAnswer::Left)?,
        stdout: stdout.text(),
        stderr: stderr.text(),
    })
}

/// The variables that `command` sets, and those in [`PASSED`] that `command` neither sets nor removes.
fn environment(command: &Command) -> Vec<(OsString, OsString)> {
    let set: Vec<_> = command.get_envs().collect();
    let is_mentioned = |name: &&str| set.iter().any(|(mentioned, _)| *mentioned == *name);
    let passed = PASSED.into_iter().filter(|name| !is_mentioned(name));
    let passed = passed.filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let set = set.iter();
    set.filter_map(|(name, value)| Some(((*name).to_owned(), value.as_ref()?.into())))
        .chain(passed)
        .collect()
}

/// Waits for the end of a child without reaping it, and calls `meanwhile` repeatedly. Returns false if it does not end
/// in time.
fn wait(child: Pid, until: Instant, mut meanwhile: impl FnMut()) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(child), options) {
            Ok(Some(_)) => return Ok(true),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        meanwhile();
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(BETWEEN);
    }
}

/// Reaps a killed child. A child that does not end, because it is in an uninterruptible call of the driver, is left,
/// and a later call reaps it. No thread does this, because it would take the SIGCHLD that `vgpu run` waits for.
fn reap(mut child: Child) -> Option<ExitStatus> {
    static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    if wait(Pid::from_child(&child), Instant::now() + AFTER_KILL, || ()).is_ok_and(|ended| ended) {
        return child.wait().ok();
    }
    left.push(child);
    None
}

/// The last bytes that a child wrote into a pipe.
struct Output<P> {
    pipe: Option<P>,
    kept: Vec<u8>,
    /// Bytes.
    most: usize,
}

// === impl Output ===

impl<P: Read + AsFd> Output<P> {
    fn of(pipe: Option<P>, most: usize) -> Self {
        let is_set = |pipe: &P| fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok();
        Self {
            pipe: pipe.filter(is_set),
            kept: Vec::new(),
            most,
        }
    }

    /// Reads what is in the pipe now. Bounded, because the child may write without end.
    fn read(&mut self) {
        let mut part = [0; 4096];
        for _ in 0..MOST_PARTS {
            match self.pipe.as_mut().map(|pipe| pipe.read(&mut part)) {
                Some(Ok(length @ 1..)) => self.kept.extend(&part[..length]),
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        let excess = self.kept.len().saturating_sub(self.most);
        self.kept.drain(..excess);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

/// The child: prints the figure.
#[must_use]
pub fn helper(arguments: &[OsString]) -> ExitCode {
    // In its own group it does not get the terminal's signals, so it must not outlive its parent.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let measured = match arguments {
        [libcuda, libnvidia_ml, uuid] => {
            let uuid = uuid.to_string_lossy();
            probe::measure(Path::new(libcuda), Path::new(libnvidia_ml), &uuid).map_err(|error| error.to_string())
        }
        _ => Err(format!("{ARGUMENT} LIBCUDA LIBNVIDIA_ML UUID")),
    };
    match measured {
        Ok(size) => {
            // The driver may have written an unfinished line.
            println!("\n{MARK}{size}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "VGPU_TEST_ALONE";

    const SEVEN: ContextSize = ContextSize { own: 7, unowned: 0 };

    fn shell(script: &str, patience: Duration) -> Result<ContextSize, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        ask(command, &gpu(), patience)
    }

    fn gpu() -> Gpu {
        Gpu {
            libcuda: "/c".into(),
            libnvidia_ml: "/m".into(),
            uuid: "GPU-1".into(),
        }
    }

    #[test]
    fn a_child_that_answers_anything_else_is_no_figure() {
        assert_eq!(shell("echo noise; echo vgpu-context 7+0", ANSWER_TIMEOUT), Ok(SEVEN));
        assert_eq!(
            shell("echo 7", ANSWER_TIMEOUT).unwrap_err(),
            "the helper ended with exit status: 0"
        );
        assert!(
            shell("echo vgpu-context 7+0; kill -9 $$", ANSWER_TIMEOUT).is_err(),
            "it crashed"
        );
        assert_eq!(shell("echo why >&2; exit 1", ANSWER_TIMEOUT).unwrap_err(), "why");
        for bad in ["-7+0", "7", "7+", "7+0+0"] {
            assert!(
                shell(&format!("echo vgpu-context {bad}"), ANSWER_TIMEOUT).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_child_gets_no_variable_that_changes_the_figure() {
        let folder = tempfile::tempdir().expect("a folder");
        let seen = folder.path().join("seen");
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("env > {}; echo vgpu-context 7+0", seen.display())])
            .env("SOFT_GPU_STATE", "/state")
            .env_remove("HOME");
        assert_eq!(ask(command, &gpu(), ANSWER_TIMEOUT), Ok(SEVEN));
        let seen = std::fs::read_to_string(seen).expect("text");
        let mut names: Vec<_> = seen.lines().filter_map(|line| line.split('=').next()).collect();
        // Variables that the shell sets, and one of the software GPU that this machine may have set.
        names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_", "XDG_RUNTIME_DIR", "SOFT_GPU_PROFILE"].contains(name));
        names.sort_unstable();
        assert_eq!(names, ["PATH", "SOFT_GPU_STATE"], "cargo sets many more");
        assert!(seen.contains("SOFT_GPU_STATE=/state"), "{seen}");
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let said = shell("echo vgpu-context 7+0; exec sleep 1000", Duration::ZERO).unwrap_err();
        assert!(said.contains("not answered"), "{said}");
    }

    #[test]
    fn a_child_that_writes_much_is_read_to_its_end() {
        let much = "head -c 204800 /dev/zero | tr '\\0' x";
        let script = format!("{much}; {much} >&2; echo; echo vgpu-context 7+0");
        assert_eq!(shell(&script, ANSWER_TIMEOUT), Ok(SEVEN));
        let script = format!("{much} >&2; echo; {much}; echo >&2; echo why >&2; exit 1");
        assert_eq!(shell(&script, ANSWER_TIMEOUT).unwrap_err(), "why");
    }

    #[test]
    fn what_a_child_leaves_does_not_hold_the_answer_up() {
        let start = Instant::now();
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; echo vgpu-context 7+0", own.display());
        assert_eq!(shell(&script, ANSWER_TIMEOUT), Ok(SEVEN));
        let pid = std::fs::read_to_string(own).expect("a number");
        let ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        while !ended() {
            assert!(start.elapsed() < ANSWER_TIMEOUT, "it is killed with its group");
            thread::sleep(BETWEEN);
        }
        let script = "setsid sleep 30 & sleep 0.2; echo why >&2; exit 1";
        assert_eq!(shell(script, ANSWER_TIMEOUT).unwrap_err(), "why");
        assert!(start.elapsed() < ANSWER_TIMEOUT, "nor what left the group");
    }

    #[test]
    fn a_child_that_cannot_be_killed_is_left() {
        let start = Instant::now();
        let child = Command::new("/bin/sleep").arg("3").spawn().expect("a child");
        let pid = child.id();
        assert!(reap(child).is_none());
        assert!(start.elapsed() < Duration::from_millis(2500));
        while Path::new(&format!("/proc/{pid}")).exists() {
            assert!(start.elapsed() < ANSWER_TIMEOUT, "a later call reaps it");
            assert_eq!(shell("echo vgpu-context 7+0", ANSWER_TIMEOUT), Ok(SEVEN));
        }
    }

    #[test]
    fn no_thread_is_left_that_could_take_a_signal_from_the_caller() {
        // In a separate process, because tests run as threads of one process.
        if std::env::var_os(ALONE).is_none() {
            let name = "child::tests::no_thread_is_left_that_could_take_a_signal_from_the_caller";
            let mut alone = Command::new("/proc/self/exe");
            let alone = alone.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1");
            assert!(alone.output().expect("it starts").status.success());
            return;
        }
        let threads = || std::fs::read_dir("/proc/self/task").expect("threads").count();
        let before = threads();
        assert_eq!(
            shell("setsid sleep 3 & echo vgpu-context 7+0", ANSWER_TIMEOUT),
            Ok(SEVEN)
        );
        assert_eq!(threads(), before);
    }
}
