//! A client that makes any call of the driver's libraries.

use super::{Folder, on_gpus, program};
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A client that makes any call, line by line.
pub struct Calls(Child, std::io::BufReader<std::process::ChildStdout>);

impl Calls {
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .arg("calls")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let from = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        Self(child, from)
    }

    /// NVML's client, with the handle of GPU 0 in slot 1 and that of its first instance in slot 2.
    pub fn nvml(state: &Path) -> Self {
        let mut calls = Self::start(on_gpus(program(), state));
        assert_eq!(
            calls.all(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 >1"]),
            ["0", "0"]
        );
        calls.say("nvmlDeviceGetMigDeviceHandleByIndex @1 0 >2");
        calls
    }

    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.0.stdin.as_mut().expect("a pipe"), "{line}").expect("the client lives");
        let mut answer = String::new();
        self.1.read_line(&mut answer).expect("the client answers");
        answer.trim_end().to_owned()
    }

    pub fn all(&mut self, lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| self.say(line)).collect()
    }

    /// The value that a successful call wrote into slot 9.
    pub fn number(&mut self, call: &str) -> u64 {
        self.say("set 9 0");
        assert_eq!(self.say(&format!("{call} >9")), "0", "{call}");
        self.words(9)[0]
    }

    /// The words that a call wrote into a slot.
    pub fn words(&mut self, slot: u32) -> Vec<u64> {
        let raw = self.say(&format!("raw {slot}"));
        raw.split(' ').map(|word| word.parse().expect("a word")).collect()
    }

    /// The text that a call wrote into a slot.
    pub fn text(&mut self, call: &str, slot: u32) -> String {
        self.say(&format!("put {slot} 0 0 0 0 0 0 0 0"));
        assert_eq!(self.say(call), "0", "{call}");
        let bytes: Vec<u8> = self.words(slot).iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).expect("text")
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The folder of a state that begins with a profile.
pub fn state(name: &str, profile: &str) -> Folder {
    let state = Folder::new(name);
    std::fs::create_dir_all(&state.0).expect("a folder");
    std::fs::write(state.0.join("profile"), profile).expect("written");
    state
}

pub fn low(word: u64) -> u64 {
    word & 0xffff_ffff
}
