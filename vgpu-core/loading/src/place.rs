//! Where a program runs under a share: in a container, or as an ordinary user's `vgpu run` lets it.

use crate::dist;
use crate::share::Share;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use vgpu_abi::paths::{CONTAINER_DRIVER_DIR, HOOK_FILE, PRELOAD_FILE, RUN_DIR_VARIABLE, SHIM_FILE, SHIM_NAMES};
use vgpu_cache::run;

/// No program of these tests takes as long, on a machine that is busy with ten others.
const SECONDS: &str = "300";

/// The two ways in which limits are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Container,
    User,
}

/// A share, and programs under it.
#[derive(Debug)]
pub struct Place {
    pub share: Share,
    pub form: Form,
    // Before the folder on which its namespace mounts.
    holder: Option<Holder>,
    work: tempfile::TempDir,
}

/// The process that keeps a container's namespaces; they end with it.
#[derive(Debug)]
struct Holder {
    child: Child,
    /// The first process in it, as the machine numbers it.
    first: String,
}

impl Form {
    /// Where a program under the share finds the real libraries.
    #[must_use]
    pub fn driver(self) -> PathBuf {
        match self {
            Self::Container => CONTAINER_DRIVER_DIR.into(),
            Self::User => dist("soft-gpu"),
        }
    }
}

/// Whether this machine can make a container: namespaces, and a file system laid over another.
///
/// # Errors
/// What it cannot do.
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
    /// As `vgpu run` of an ordinary user: nothing but the environment.
    ///
    /// # Panics
    /// No folder can be made.
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

    /// As a container of the image `root`: what CDI mounts, the hook, a PID namespace. `visible`: folders that
    /// the container sees at the same paths.
    ///
    /// # Errors
    /// What this machine cannot do.
    pub fn container(share: Share, root: &Path, visible: &[&Path]) -> Result<Self, String> {
        let work = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
                "sh",
                "-euc",
            ])
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
        Ok(Self {
            share,
            form: Form::Container,
            work,
            holder: Some(Holder { child, first }),
        })
    }

    /// A program under the share, with a clean environment. `environment` comes on top: of LD_LIBRARY_PATH
    /// what an image or a user's script puts in front.
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
                Some((_, old)) if *name == "LD_LIBRARY_PATH" => *old = format!("{value}:{old}"),
                Some((_, old)) => (*value).clone_into(old),
                None => variables.push(((*name).to_owned(), (*value).to_owned())),
            }
        }
        // By the shell: variables of the loader are none of nsenter's.
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

    /// The folder in which the loader finds the shim by its names.
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
    /// All that it said, if it failed.
    pub fn run(&self, program: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Result<String, String> {
        run(self.command(program, environment).args(arguments))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // With it, by --kill-child, the first process of the PID namespace and so all in it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === Running ===

/// A program that says a line and waits for the end of its input.
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

    /// Its next line; empty at its end.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Lets it go on.
    pub fn go_on(&mut self) {
        if let Some(input) = self.child.stdin.as_mut() {
            let _ = input.write_all(b"on\n");
        }
    }

    /// Ends its input, waits, and gives what it said on stderr.
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
