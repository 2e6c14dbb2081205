//! Finds the built libraries and runs gpu-client against them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

pub mod calls;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The folder with libcuda.so.1 and libnvidia-ml.so.1.
pub fn libraries() -> PathBuf {
    let dist = std::env::var_os("VGPU_DIST").map(PathBuf::from);
    let dist = dist.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist"));
    let folder = dist.join("soft-gpu");
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        vgpu_built_from::assert_fresh(&folder.join(library));
    }
    folder
}

/// A path for a state folder or a file, which is removed when this value is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("soft-gpu-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0).or_else(|_| std::fs::remove_file(&self.0));
    }
}

/// Returns true if the command can be run here and succeeds. Used to test for permissions, because root lacks some in
/// containers.
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A client that reads its steps from stdin, on the software GPUs of a folder.
pub fn client(state: &Path) -> Command {
    let mut command = on_gpus(program(), state);
    command.arg("serve");
    command
}

pub fn program() -> PathBuf {
    vgpu_built_from::program("gpu-client")
}

/// A command that uses the software GPUs of a folder.
pub fn on_gpus(program: impl AsRef<std::ffi::OsStr>, state: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries()).env("SOFT_GPU_STATE", state);
    command
        .env_remove("SOFT_GPU_PROFILE")
        .env_remove("CUDA_VISIBLE_DEVICES");
    command
}

/// A running client.
pub struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    pub fn start(state: &Path) -> Self {
        Self::spawn(client(state))
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let (to, from) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self { child, to, from }
    }

    /// Starts a client and initialises it, with a context on GPU 0.
    pub fn ready(state: &Path) -> Self {
        Self::start(state).with_context()
    }

    pub fn with_context(mut self) -> Self {
        assert_eq!(self.say("init:0"), "0");
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes the client do a step, and returns its line without the step's name.
    pub fn say(&mut self, step: &str) -> String {
        self.tell(step);
        self.hear(step)
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the client lives");
    }

    /// Returns the next line without the step's name. The line must be about this step.
    pub fn hear(&mut self, step: &str) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the client answers");
        answer(&line, step).to_owned()
    }

    pub fn look(&mut self, gpu: usize) -> View {
        View::parse(&self.say(&format!("look:{gpu}")))
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        assert!(succeeds("kill", &["-s", name, &self.pid().to_string()]), "SIG{name}");
    }

    /// Kills the client, and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }
}

/// Returns a step's result from its line.
pub fn answer<'a>(line: &'a str, step: &str) -> &'a str {
    let name = step.split(':').next().unwrap_or_default();
    let answer = line.trim_end().strip_prefix(name);
    answer.unwrap_or_else(|| panic!("{step}: {line:?}")).trim_start()
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// NVML's figures of a GPU.
#[derive(Debug)]
pub struct View {
    pub used: u64,
    pub free: u64,
    pub busy: u64,
    pub users: HashMap<u32, u64>,
}

impl View {
    fn parse(line: &str) -> Self {
        let fields: HashMap<&str, &str> = line.split(' ').filter_map(|field| field.split_once('=')).collect();
        let number = |name: &str| fields[name].parse().unwrap_or_else(|_| panic!("{name} in {line}"));
        let users = fields["pids"].split(',').filter_map(|user| user.split_once(':'));
        let users = users
            .map(|(pid, bytes)| (pid.parse().unwrap(), bytes.parse().unwrap()))
            .collect();
        Self {
            used: number("used"),
            free: number("free"),
            busy: number("busy"),
            users,
        }
    }
}
