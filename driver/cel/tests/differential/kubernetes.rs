//! Kubernetes' own answers, from the program in e2e/cel-go: built once, kept outside the clone by what it is made of.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};

pub(crate) struct Kubernetes {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) compiles: bool,
    pub(crate) result: Option<bool>,
    pub(crate) cost: u64,
    pub(crate) error: String,
    /// It broke down over the question.
    pub(crate) panics: bool,
}

impl Answer {
    pub(crate) fn is_over_cost(&self) -> bool {
        self.error.contains("cost limit exceeded")
    }
}

impl Kubernetes {
    /// Nothing, with the reason, where no Go is.
    pub(crate) fn start() -> Result<Self, String> {
        let version = Command::new("go").args(["env", "GOVERSION"]).output();
        let version = match version {
            Ok(said) if said.status.success() => String::from_utf8_lossy(&said.stdout).trim().to_owned(),
            _ => return Err("Go is missing: install Go >= 1.21".to_owned()),
        };
        let program = build(&version)?;
        let mut process = Command::new(&program)
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let questions = process.stdin.take().expect("its input is a pipe");
        let answers = BufReader::new(process.stdout.take().expect("its output is a pipe"));
        Ok(Self {
            process,
            questions,
            answers,
        })
    }

    pub(crate) fn ask(&mut self, expression: &str, device: &Value) -> Answer {
        let question = serde_json::json!({"expression": expression, "device": device});
        writeln!(self.questions, "{question}").expect("the program takes questions");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the program answers");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{expression}: {line:?}: {e}"));
        Answer {
            compiles: said["compiles"].as_bool().unwrap_or(false),
            result: said["result"].as_bool(),
            cost: said["cost"].as_u64().unwrap_or(0),
            error: said["error"].as_str().unwrap_or("").to_owned(),
            panics: said["panics"].as_bool().unwrap_or(false),
        }
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        // It ends by itself with its input; a test that failed does not wait for that.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn build(version: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/cel-go");
    let mut hash = Sha256::new();
    for name in ["go.mod", "go.sum", "main.go"] {
        let file = source.join(name);
        hash.update(fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
        hash.update([0]);
    }
    hash.update(version);
    let key: String = hash
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let tools = cache()?.join("tools");
    fs::create_dir_all(&tools).unwrap_or_else(|e| panic!("{}: {e}", tools.display()));
    let done = tools.join(format!("cel-go-{key}"));
    if done.is_file() {
        return Ok(done);
    }
    let lock = tools.join(format!(".cel-go-{key}.lock"));
    let lock = File::create(&lock).unwrap_or_else(|e| panic!("{}: {e}", lock.display()));
    lock.lock().expect("a lock on a file in the cache");
    if done.is_file() {
        return Ok(done);
    }
    eprintln!("building e2e/cel-go: two minutes when nothing is cached");
    let new = tools.join(format!(".cel-go-{key}"));
    let built = Command::new("go")
        .current_dir(&source)
        .env("GOWORK", "off")
        .args([
            "build",
            "-p",
            "1",
            "-mod=readonly",
            "-trimpath",
            "-buildvcs=false",
            "-o",
        ])
        .arg(&new)
        .arg(".")
        .output()
        .expect("go runs");
    let said = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        let too_old = said.contains("requires go >=") || said.contains("toolchain not available");
        if too_old {
            return Err(format!(
                "{version} is too old: install Go >= 1.26, or Go >= 1.21 with GOTOOLCHAIN=auto"
            ));
        }
        panic!("go build of e2e/cel-go: {said}");
    }
    fs::rename(&new, &done).unwrap_or_else(|e| panic!("{}: {e}", done.display()));
    Ok(done)
}

fn cache() -> Result<PathBuf, String> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.filter(|base| base.is_absolute());
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let base = base.ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("dra-driver-vgpu"))
}
