//! Asks NVML in a child process. A call of NVML that hangs cannot be ended, so the program that waits for it must be another
//! one than the hook, which has to end.
//!
//! ```text
//!  hook: Remote ──── a line: a question ───► child: serve ──► nvml
//!               ◄─── a line: its answer ────
//! ```
//!
//! How it fails:
//! - A question without an answer in time: [`Code::HANGS`], at once for each later question.
//! - The child crashes: [`Code::ENDED`].
//! - A child cannot be killed while its call hangs in the kernel: each hook leaves one. Of `check` and `probe`, which run again
//!   and again, a next one refuses meanwhile, by a lock that the child has.
//! - The hook is killed: the child reads the end of its standard input and ends, once its call of NVML returns.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use crate::{
    apply::{Driver, Found},
    arguments::{ALONE, HURRY, NVML, Node, SERVE, SOFT_GPU},
    code::Code,
    serve::{FAILED, Question, READY, UNANSWERED},
};

/// The longest that one question may take.
const CALL: Duration = Duration::from_secs(5);

/// The longest wait for a child that was killed.
const ENDS: Duration = Duration::from_millis(200);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(2);

/// The program itself, also after its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{OWN_PROGRAM}: cannot be started for NVML: {0}; check the node's memory and its limit of processes")]
    Start(io::Error),
    /// The child's own words: NVML cannot be used.
    #[error("{0}")]
    Load(String),
    #[error("{UNANSWERED}")]
    Unanswered,
    #[error("{path}: {code} while it was loaded; check the driver with nvidia-smi on the node", path = .path.display())]
    Loading { path: PathBuf, code: Code },
}

impl Error {
    /// Returns true if the driver was not heard: a later attempt may have another result.
    pub(crate) fn is_no_answer(&self) -> bool {
        match self {
            Self::Start(_) | Self::Unanswered | Self::Loading { .. } => true,
            Self::Load(_) => false,
        }
    }
}

/// The driver, in a child process that ends with this value.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    to: ChildStdin,
    answers: Receiver<String>,
    /// No question is answered after this moment.
    until: Instant,
    /// The longest that one question may take.
    call: Duration,
    /// Why no question is answered any more.
    broken: Cell<Option<Code>>,
}

impl Remote {
    /// Starts the child, and waits until it has loaded NVML. `is_alone`: not beside another one that was started so. `loading`:
    /// until when. `until`: the end of all questions.
    pub(crate) fn load(node: &Node, is_alone: bool, loading: Instant, until: Instant) -> Result<Self, Error> {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg(SERVE).arg(NVML).arg(&node.nvml);
        if let Some(state) = &node.soft_gpu {
            command.arg(SOFT_GPU).arg(state);
        }
        command.arg(HURRY).arg(node.hurry.to_string());
        if is_alone {
            command.arg(ALONE).arg(&node.cgroups);
        }
        // Nothing of the runtime's: it waits until its pipes are closed, and a child that hangs would keep them open.
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(Error::Start)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Start(io::ErrorKind::BrokenPipe.into()));
        };
        let (sender, answers) = channel();
        let reader = thread::Builder::new().spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let remote = Self {
            child,
            to,
            answers,
            until,
            call: CALL / node.hurry,
            broken: Cell::new(None),
        };
        // Ends the child.
        reader.map_err(Error::Start)?;
        match remote.answer(loading) {
            Ok(line) if line == READY => Ok(remote),
            Ok(line) if line == UNANSWERED => Err(Error::Unanswered),
            Ok(line) => Err(Error::Load(line)),
            Err(code) => Err(Error::Loading {
                path: node.nvml.clone(),
                code,
            }),
        }
    }

    fn ask(&self, question: &Question<'_>) -> Result<Vec<u64>, Code> {
        if let Some(code) = self.broken.get() {
            return Err(code);
        }
        // Fails if the child has ended, which the missing answer says too.
        let _ = (&self.to).write_all(format!("{question}\n").as_bytes());
        let line = self.answer(self.until.min(Instant::now() + self.call))?;
        let mut words = line.split(' ').filter(|word| !word.is_empty()).peekable();
        let has_failed = words.next_if_eq(&FAILED).is_some();
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        match numbers {
            Some(numbers) if !has_failed => Ok(numbers),
            Some(numbers) => Err(numbers
                .first()
                .and_then(|code| i32::try_from(*code).ok())
                .map_or(Code::ENDED, Code)),
            None => Err(self.is_broken(Code::ENDED)),
        }
    }

    fn answer(&self, until: Instant) -> Result<String, Code> {
        let left = until.saturating_duration_since(Instant::now());
        self.answers.recv_timeout(left).map_err(|error| {
            self.is_broken(match error {
                RecvTimeoutError::Timeout => Code::HANGS,
                RecvTimeoutError::Disconnected => Code::ENDED,
            })
        })
    }

    fn is_broken(&self, code: Code) -> Code {
        self.broken.set(Some(code));
        code
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process that hangs in the kernel does not end. It is left to init, as this program ends soon.
        let until = Instant::now() + ENDS;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(BETWEEN_ATTEMPTS);
        }
    }
}

impl Driver for Remote {
    fn is_mig(&self, gpu: &str) -> Result<bool, Code> {
        let [is_mig] = numbers(self.ask(&Question::Mig { gpu })?)?;
        Ok(is_mig != 0)
    }

    fn total(&self, gpu: &str) -> Result<u64, Code> {
        let [total] = numbers(self.ask(&Question::Total { gpu })?)?;
        Ok(total)
    }

    fn set(&self, gpu: &str, cgroup: &Path, hard: u64) -> Result<(), Code> {
        let cgroup = text(cgroup)?;
        let [] = numbers(self.ask(&Question::Set { gpu, hard, cgroup })?)?;
        Ok(())
    }

    fn get(&self, gpu: &str, cgroup: &Path) -> Result<Found, Code> {
        let cgroup = text(cgroup)?;
        let [soft, hard, used] = numbers(self.ask(&Question::Get { gpu, cgroup })?)?;
        Ok(Found { soft, hard, used })
    }

    fn processes(&self, gpu: &str) -> Result<Vec<u32>, Code> {
        let pids = self.ask(&Question::Processes { gpu })?;
        Ok(pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect())
    }
}

fn numbers<const N: usize>(found: Vec<u64>) -> Result<[u64; N], Code> {
    found.try_into().map_err(|_| Code::ENDED)
}

/// A path is a part of a line. The kernel makes no cgroup with a line break in its name.
fn text(path: &Path) -> Result<&str, Code> {
    let text = path.to_str().filter(|text| !text.contains('\n'));
    text.ok_or(Code::INVALID_ARGUMENT)
}
