//! Runs programs under a share: in a container, or as `vgpu run` of an ordinary user does.

use crate::dist;
use crate::share::Share;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use vgpu_abi::paths::{
    CONTAINER_DIR, CONTAINER_DRIVER_DIR, HOOK_FILE, LEDGER, PRELOAD_FILE, RUN_DIR_VARIABLE, SHIM_FILE, SHIM_NAMES,
};
use vgpu_cache::run;

/// A time limit that no program of these tests reaches, even on a machine that runs ten others.
const SECONDS: &str = "300";

/// The two ways in which limits are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Container,
    User,
}

/// Runs programs under a share.
#[derive(Debug)]
pub struct Place {
    pub share: Share,
    pub form: Form,
    // Dropped before `work`, the folder in which its namespace has mounts.
    holder: Option<Holder>,
    work: tempfile::TempDir,
}

/// The process that holds a container's namespaces, which end with it.
#[derive(Debug)]
struct Holder {
    child: Child,
    /// The PID of its first process in the machine's namespace.
    first: String,
}

impl Form {
    /// The folder in which a program under the share finds the real libraries.
    #[must_use]
    pub fn driver(self) -> PathBuf {
        match self {
            Self::Container => CONTAINER_DRIVER_DIR.into(),
            Self::User => dist("soft-gpu"),
        }
    }
}

/// Checks that this machine can create a container: namespaces and overlay mounts.
///
/// # Errors
/// The feature that this machine lacks.
pub fn possible() -> Result<(), String> {
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let script = "mount -t tmpfs vgpu-loading $1 && mkdir $1/upper $1/work $1/root && \
                  mount -t overlay -o lowerdir=/,upperdir=$1/upper,workdir=$1/work vgpu-loading $1/root";
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    match run(command.arg(work.path())) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "no container can be made here: {}",
            error.lines().last().unwrap_or_default()
        )),
    }
}

// === impl Place ===

impl Place {
    /// A place as `vgpu run` of an ordinary user creates it: with environment variables only.
    ///
    /// # Panics
    /// No folder can be created.
    #[must_use]
    pub fn user(share: Share) -> Self {
        let work = tempfile::tempdir().expect("a folder");
        for name in SHIM_NAMES {
            symlink(dist(SHIM_FILE), work.path().join(name)).expect("a link");
        }
        symlink(dist(PRELOAD_FILE), work.path().join(PRELOAD_FILE)).expect("a link");
        Self {
            share,
            form: Form::User,
            work,
            holder: None,
        }
    }

    /// A container of the image `root`, with the mounts of CDI, the hook and a PID namespace. The container sees the
    /// folders `visible` at the same paths.
    ///
    /// # Errors
    /// The feature that this machine lacks.
    pub fn container(mut share: Share, root: &Path, visible: &[&Path]) -> Result<Self, String> {
        let work = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new("unshare");
        command
            .args("--mount --pid --fork --kill-child --propagation private sh -euc".split(' '))
            .arg(include_str!("container.sh"))
            .arg("container.sh")
            .args([root, work.path(), &share.shares(), &share.state()])
            .args([dist(SHIM_FILE), dist(PRELOAD_FILE), dist("soft-gpu"), dist(HOOK_FILE)])
            .args(visible);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        let read = child
            .stdout
            .as_mut()
            .map(|out| BufReader::new(out).read_line(&mut line));
        if !matches!(read, Some(Ok(_))) || line.trim() != "ready" {
            let _ = child.kill();
            let mut said = String::new();
            let _ = child.stderr.as_mut().map(|err| err.read_to_string(&mut said));
            let _ = child.wait();
            return Err(format!("cannot make a container: {}", said.trim()));
        }
        let own = format!("/proc/{0}/task/{0}/children", child.id());
        let first = fs::read_to_string(own).unwrap_or_default().trim().to_owned();
        let ledger = Path::new(CONTAINER_DIR).join(crate::share::NAME).join(LEDGER);
        share.set_ledger(PathBuf::from(format!("/proc/{first}/root{}", ledger.display())));
        Ok(Self {
            share,
            form: Form::Container,
            work,
            holder: Some(Holder { child, first }),
        })
    }

    /// Returns the command of a program under the share, with a clean environment plus `environment`. Its
    /// LD_LIBRARY_PATH and LD_PRELOAD are put in front, as an image or a user's script does.
    #[must_use]
    pub fn command(&self, program: &Path, environment: &[(&str, &str)]) -> Command {
        let mut variables = vec![
            ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
            ("HOME".into(), "/tmp".into()),
        ];
        let mut command = Command::new("timeout");
        command.args(["-k", "5", SECONDS]);
        match &self.holder {
            Some(holder) => {
                command.args([
                    "nsenter",
                    "--target",
                    &holder.first,
                    "--mount",
                    "--pid",
                    "--root",
                    "--wd",
                    "--",
                ]);
                variables.push(("SOFT_GPU_STATE".into(), "/run/soft-gpu".into()));
                variables.push(("NVIDIA_VISIBLE_DEVICES".into(), "void".into()));
            }
            None => {
                let folder = self.work.path().display().to_string();
                variables.push(("LD_PRELOAD".into(), format!("{folder}/{PRELOAD_FILE}")));
                variables.push((RUN_DIR_VARIABLE.into(), self.share.shares().display().to_string()));
                variables.push(("SOFT_GPU_STATE".into(), self.share.state().display().to_string()));
                variables.push(("LD_LIBRARY_PATH".into(), folder));
            }
        }
        for (name, value) in environment {
            match variables.iter_mut().find(|(known, _)| known == name) {
                Some((_, old)) if ["LD_LIBRARY_PATH", "LD_PRELOAD"].contains(name) => *old = format!("{value}:{old}"),
                Some((_, old)) => (*value).clone_into(old),
                None => variables.push(((*name).to_owned(), (*value).to_owned())),
            }
        }
        // Set by the shell, so that the loader's variables do not affect nsenter.
        let quoted = |value: &str| format!("'{}'", value.replace('\'', r"'\''"));
        let exports: String = variables
            .iter()
            .map(|(name, value)| format!("{name}={} ", quoted(value)))
            .collect();
        command
            .args(["/bin/sh", "-c", &format!("export {exports}; exec \"$@\""), "sh"])
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// Returns the folder in which the loader finds the shim by its names.
    #[must_use]
    pub fn names(&self) -> PathBuf {
        match self.form {
            Form::Container => vgpu_abi::paths::CONTAINER_LIBRARY_DIRS[0].into(),
            Form::User => self.work.path().into(),
        }
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// The program failed; the error has all of its output.
    pub fn run(&self, program: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Result<String, String> {
        run(self.command(program, environment).args(arguments))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // By --kill-child this also kills the first process of the PID namespace, and so all processes in it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === Running ===

/// A program that prints a line and waits for the end of its input.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().expect("a program");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, out }
    }

    /// Returns its next line; empty at its end.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Lets it continue.
    pub fn go_on(&mut self) {
        if let Some(input) = self.child.stdin.as_mut() {
            let _ = input.write_all(b"on\n");
        }
    }

    /// Closes its input, waits for its end, and returns its stderr.
    ///
    /// # Errors
    /// It failed.
    pub fn end(mut self) -> Result<String, String> {
        drop(self.child.stdin.take());
        let mut said = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            let _ = err.read_to_string(&mut said);
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(said),
            status => Err(format!("{status:?}: {said}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
