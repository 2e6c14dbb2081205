//! Kubernetes' own allocator, from the program in e2e/allocator-go, asked line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use vgpu_cache::go;

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
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/allocator-go");
        let program = match go::program(&source) {
            Ok(program) => program,
            Err(go::Error::Unavailable(why)) => return Err(why),
            Err(go::Error::Failed(why)) => panic!("{why}"),
        };
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
