//! Runs of `vgpu`, and what they say.
#![allow(dead_code, reason = "each test program has the whole module")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The output of a command, and its exit status.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
}

impl Said {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Asserts the exit status.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Asserts that stderr has the words.
    #[track_caller]
    pub(crate) fn err_has(&self, words: &str) {
        assert!(self.err.contains(words), "{words}: {self:?}");
    }

    /// Asserts that stdout has the words.
    #[track_caller]
    pub(crate) fn out_has(&self, words: &str) {
        assert!(self.out.contains(words), "{words}: {self:?}");
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The printed objects.
    pub(crate) fn items(&self) -> Vec<Value> {
        self.json()["items"].as_array().unwrap().clone()
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            out: text(&output.stdout),
            err: text(&output.stderr),
            code: output.status.code(),
        }
    }
}

/// `vgpu WORDS...`, the words separated by blanks.
pub(crate) fn vgpu(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.args(words.split(' ')).stdin(Stdio::null());
    command
}

/// The same with files.
pub(crate) fn vgpu_on<P: AsRef<Path>>(words: &str, files: &[P]) -> Said {
    let mut command = vgpu(words);
    for file in files {
        command.arg("-f").arg(file.as_ref());
    }
    Said::of(&mut command)
}

/// A folder of files.
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}
