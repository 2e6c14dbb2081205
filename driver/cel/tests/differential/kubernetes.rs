//! Kubernetes' own answers, from the program in e2e/cel-go.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use vgpu_cache::go;

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
    /// Nothing, with the reason, where it cannot be built.
    pub(crate) fn start() -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/cel-go");
        let program = match go::program(&source) {
            Ok(program) => program,
            Err(go::Error::Unavailable(why)) => return Err(why),
            Err(go::Error::Failed(why)) => panic!("{why}"),
        };
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
