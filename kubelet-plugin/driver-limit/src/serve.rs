//! Answers this program's questions to NVML, in a process of its own (see `remote`). A question is a line of words; the
//! answer is a line of numbers, or `failed` and NVML's code.

use std::{
    fmt,
    io::{self, BufRead, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use vgpu_node::lock_file::{LockFile, Locked};

use crate::{
    apply::{Driver, Found},
    arguments::Serve,
    code::Code,
    nvml::Nvml,
};

/// The first line, if NVML was loaded. Otherwise it says why not.
pub(crate) const READY: &str = "ready";
/// The first word of an answer with an error.
pub(crate) const FAILED: &str = "failed";

/// The longest wait for another process to end that has the lock.
const WAIT: Duration = Duration::from_secs(3);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);
/// The first line, if another process has the lock for longer than that.
pub(crate) const UNANSWERED: &str = "the driver has not answered an earlier question, and the process that asked still lives; check the \
                                     GPUs with nvidia-smi, and the kernel log of the node";

/// One call of [`Driver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question<'a> {
    Mig { gpu: &'a str },
    Total { gpu: &'a str },
    Set { gpu: &'a str, hard: u64, cgroup: &'a str },
    Get { gpu: &'a str, cgroup: &'a str },
    Processes { gpu: &'a str },
}

impl fmt::Display for Question<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mig { gpu } => write!(f, "mig {gpu}"),
            Self::Total { gpu } => write!(f, "total {gpu}"),
            Self::Set { gpu, hard, cgroup } => write!(f, "set {gpu} {hard} {cgroup}"),
            Self::Get { gpu, cgroup } => write!(f, "get {gpu} {cgroup}"),
            Self::Processes { gpu } => write!(f, "processes {gpu}"),
        }
    }
}

impl<'a> Question<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.split_once(' ')?;
        match name {
            "mig" => Some(Self::Mig { gpu: rest }),
            "total" => Some(Self::Total { gpu: rest }),
            "processes" => Some(Self::Processes { gpu: rest }),
            "get" => {
                let (gpu, cgroup) = rest.split_once(' ')?;
                Some(Self::Get { gpu, cgroup })
            }
            "set" => {
                let (gpu, rest) = rest.split_once(' ')?;
                let (hard, cgroup) = rest.split_once(' ')?;
                let hard = hard.parse().ok()?;
                Some(Self::Set { gpu, hard, cgroup })
            }
            _ => None,
        }
    }
}

/// Answers until standard input ends.
pub(crate) fn run(serve: &Serve, questions: impl BufRead, mut answers: impl Write) -> io::Result<()> {
    // As long as this process lives, also while it cannot be killed.
    let _lock = match serve
        .alone
        .as_deref()
        .map(|folder| lock(folder, WAIT / serve.hurry))
        .transpose()
    {
        Ok(lock) => lock,
        Err(why) => return writeln!(answers, "{why}"),
    };
    let nvml = match Nvml::load(&serve.nvml, serve.soft_gpu.as_deref()) {
        Ok(nvml) => nvml,
        Err(error) => return writeln!(answers, "{error}"),
    };
    writeln!(answers, "{READY}")?;
    for line in questions.lines() {
        let answer = answer(&nvml, &line?);
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

fn lock(folder: &Path, patience: Duration) -> Result<Locked, String> {
    let lock = LockFile::open(folder).map_err(|error| error.to_string())?;
    let until = Instant::now() + patience;
    loop {
        match lock.try_lock() {
            Ok(Some(locked)) => return Ok(locked),
            Ok(None) if Instant::now() >= until => return Err(UNANSWERED.to_owned()),
            Ok(None) => thread::sleep(BETWEEN_ATTEMPTS),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn answer(driver: &impl Driver, line: &str) -> String {
    let numbers = match Question::parse(line) {
        None => Err(Code::INVALID_ARGUMENT),
        Some(Question::Mig { gpu }) => driver.is_mig(gpu).map(|is_mig| vec![u64::from(is_mig)]),
        Some(Question::Total { gpu }) => driver.total(gpu).map(|total| vec![total]),
        Some(Question::Set { gpu, hard, cgroup }) => driver.set(gpu, Path::new(cgroup), hard).map(|()| Vec::new()),
        Some(Question::Get { gpu, cgroup }) => driver
            .get(gpu, Path::new(cgroup))
            .map(|Found { soft, hard, used }| vec![soft, hard, used]),
        Some(Question::Processes { gpu }) => driver
            .processes(gpu)
            .map(|pids| pids.into_iter().map(u64::from).collect()),
    };
    match numbers {
        Ok(numbers) => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
        Err(Code(code)) => format!("{FAILED} {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_reads_back_with_blanks_in_the_path_of_its_cgroup() {
        let (gpu, cgroup) = ("GPU-1", "/cgroups/a b/c 1");
        for question in [
            Question::Mig { gpu },
            Question::Total { gpu },
            Question::Set {
                gpu,
                hard: u64::MAX,
                cgroup,
            },
            Question::Get { gpu, cgroup },
            Question::Processes { gpu },
        ] {
            let line = question.to_string();
            assert_eq!(Question::parse(&line), Some(question), "{line}");
        }
        for line in ["", "mig", "set GPU-1", "set GPU-1 many /a", "get GPU-1", "reset GPU-1"] {
            assert_eq!(Question::parse(line), None, "{line}");
        }
    }
}
