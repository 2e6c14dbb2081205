//! Kubernetes' own allocator, built from its Go module and asked line by line.
//!
//! The program is built once into the cache of the project's tools, under a name that is a digest of everything that
//! decides it; a folder under that name is complete, since it is renamed there at the end.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// What Kubernetes says.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) results: Option<serde_json::Value>,
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) timeout: bool,
}

/// The running program; it ends with the value.
pub(crate) struct Kubernetes {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Kubernetes {
    /// `Err` says why it cannot run here.
    pub(crate) fn start() -> Result<Self, String> {
        let program = build()?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let questions = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Ok(Self {
            child,
            questions,
            answers,
        })
    }

    pub(crate) fn ask(&mut self, case: &serde_json::Value) -> Answer {
        let mut line = serde_json::to_string(case).unwrap();
        line.push('\n');
        self.questions.write_all(line.as_bytes()).unwrap();
        self.questions.flush().unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{answer:?}: {e}"))
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn build() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/allocator-go");
    let go = |folder: &Path| {
        let mut go = Command::new("go");
        go.current_dir(folder).env("GOWORK", "off");
        go
    };
    let version = go(&source)
        .args(["env", "GOVERSION"])
        .output()
        .map_err(|e| format!("Go cannot be run ({e}); install Go >= 1.26"))?;
    if !version.status.success() {
        return Err(format!(
            "go env fails: {}",
            String::from_utf8_lossy(&version.stderr).trim()
        ));
    }
    let mut digest = Sha256::new();
    digest.update(&version.stdout);
    for file in ["go.mod", "go.sum", "main.go", "figures.go"] {
        digest.update(fs::read(source.join(file)).unwrap());
        digest.update([0]);
    }
    let key: String = digest
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let home = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let tools = home.join("dra-driver-vgpu/tools");
    let done = tools.join(format!("allocator-go-{key}"));
    let program = done.join("allocator-go");
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&tools).map_err(|e| format!("{}: {e}", tools.display()))?;
    let work = tempfile::tempdir_in(&tools).map_err(|e| format!("{}: {e}", tools.display()))?;
    let built = go(&source)
        .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"])
        .arg(work.path().join("allocator-go"))
        .arg(".")
        .output()
        .map_err(|e| format!("go build: {e}"))?;
    if !built.status.success() {
        return Err(format!(
            "go build fails: {}",
            String::from_utf8_lossy(&built.stderr).trim()
        ));
    }
    // Another test may have been quicker: its folder is as good.
    let _ = fs::rename(work.keep(), &done);
    Ok(program)
}
