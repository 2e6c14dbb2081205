//! Command lines of vgpu-driver-limit, and a run of it on the node.
//!
//! The container runtime runs hooks with the node's mounts, cgroups and loader. A plugin in a pod has others, so it has the
//! program enter those of the node's first process before it runs a command.
//!
//! How it fails: a run that hangs in the driver is killed after its time, with all that it started. Without the node's PID
//! namespace (`plugin.hostPID: false`) the first process is the plugin itself, so no command is run: the answer would
//! be that of the plugin's own cgroup.

use crate::driver;
use crate::text::printable;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vgpu_abi::paths::DRIVER_LIMIT_FILE;
use vgpu_context_size::child::{Answer, NoAnswer, answer};
use vgpu_node::driver_limit::REFUSED;

/// The namespaces that the program and the driver depend on.
const NAMESPACES: [&str; 2] = ["mnt", "cgroup"];

/// Bytes of each stream that are kept: more than the lines of a check of a full node.
const KEPT: usize = 4 << 20;
/// Lines in the log for one run, and letters of each.
const MOST_COMPLAINTS: usize = 20;
const LONGEST_COMPLAINT: usize = 600;

/// The driver to which vgpu-driver-limit speaks, with paths on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub nvml: PathBuf,
    /// The state folder of a software GPU.
    pub soft_gpu: Option<PathBuf>,
}

/// vgpu-driver-limit of an installed release.
#[derive(Clone, Debug)]
pub struct Program {
    /// The same path on the node and in this process.
    file: PathBuf,
    driver: Driver,
    /// Why this process sees no process of the node, if so. Process 1 is then not the node's.
    blind: Option<String>,
}

/// Why a run has no output.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file} {command}: {source}", file = .file.display())]
    NoAnswer {
        file: PathBuf,
        command: String,
        source: NoAnswer,
    },
    /// The program's own line: the answer is no.
    #[error("{0}")]
    Refused(String),
    /// The program's own line, or that it said nothing: nothing was found out.
    #[error("{0}")]
    Unanswered(String),
    /// This process sees no process of the node, for this reason.
    #[error("vgpu-driver-limit cannot run where hooks run: {0}")]
    Blind(String),
}

// === impl Driver ===

impl Driver {
    #[must_use]
    pub fn of(driver: &driver::Driver) -> Self {
        Self {
            nvml: driver.files.libnvidia_ml.clone(),
            soft_gpu: driver.soft_gpu_state.clone(),
        }
    }

    /// Arguments of the hook of containers that have a limit.
    #[must_use]
    pub fn set(&self, claim: &Path, records: &Path, is_required: bool) -> Vec<String> {
        let mut arguments = self.with("set", &[("--claim", claim), ("--records", records)]);
        arguments.extend(is_required.then(|| "--required".to_owned()));
        arguments
    }

    /// Arguments of the hook of containers without a limit, on these GPUs: it lifts the limit that their pod may have there.
    #[must_use]
    pub fn lift<'a>(&self, claim: &Path, records: &Path, gpus: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        with_gpus(self.with("lift", &[("--claim", claim), ("--records", records)]), gpus)
    }

    /// Arguments of a run that finds out who limits cgroups on these GPUs.
    #[must_use]
    pub fn probe<'a>(&self, gpus: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        with_gpus(self.with("probe", &[]), gpus)
    }

    /// Arguments of a run that compares limits with the records.
    #[must_use]
    pub fn check(&self, records: &Path) -> Vec<String> {
        self.with("check", &[("--records", records)])
    }

    fn with(&self, command: &str, paths: &[(&str, &Path)]) -> Vec<String> {
        let soft_gpu = self.soft_gpu.as_deref().map(|folder| ("--soft-gpu", folder));
        let paths = paths.iter().copied().chain([("--nvml", &*self.nvml)]).chain(soft_gpu);
        let options = paths.flat_map(|(option, path)| [option.to_owned(), path.to_string_lossy().into_owned()]);
        [command.to_owned()].into_iter().chain(options).collect()
    }
}

fn with_gpus<'a>(mut arguments: Vec<String>, gpus: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    for gpu in gpus {
        arguments.extend(["--gpu".to_owned(), gpu.to_owned()]);
    }
    arguments
}

// === impl Program ===

impl Program {
    /// The program in the folder of a release.
    #[must_use]
    pub fn of_release(folder: &Path, driver: Driver) -> Self {
        Self {
            file: folder.join(DRIVER_LIMIT_FILE),
            driver,
            blind: None,
        }
    }

    /// The same program, which refuses to run if this process sees no process of the node: then with the reason.
    #[must_use]
    pub fn unless_blind(self, blind: Option<&str>) -> Self {
        Self {
            blind: blind.map(str::to_owned),
            ..self
        }
    }

    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Runs the program where hooks run, and returns its standard output. Blocks for at most `patience` and a second.
    ///
    /// # Errors
    /// This process sees no process of the node; or the program cannot be started, does not end in time, or fails: then
    /// with its last line.
    pub fn run(&self, arguments: &[String], patience: Duration) -> Result<String, Error> {
        if let Some(why) = &self.blind {
            return Err(Error::Blind(why.clone()));
        }
        let mut command = Command::new(&self.file);
        // As runtimes run hooks.
        command.env_clear();
        if !is_in_the_nodes_namespaces() {
            command.args([OsStr::new("enter"), OsStr::new("1"), self.file.as_os_str()]);
        }
        command.args(arguments);
        let failed = |source| Error::NoAnswer {
            file: self.file.clone(),
            command: arguments.first().cloned().unwrap_or_default(),
            source,
        };
        let Answer { status, stdout, stderr } = answer(command, patience, KEPT).map_err(failed)?;
        if status.success() {
            for complaint in complaints(&stderr) {
                tracing::warn!("{complaint}");
            }
            return Ok(stdout);
        }
        let silent = || format!("{} ended with {status} and said nothing", self.file.display());
        let why = stderr.lines().last().map_or_else(silent, str::to_owned);
        // Any other status than these two is not the program's own, such as that of a loader: it was not heard either.
        Err(match status.code().map(u8::try_from) {
            Some(Ok(REFUSED)) => Error::Refused(why),
            _ => Error::Unanswered(why),
        })
    }
}

/// What a run that succeeded complains of, such as a record that is damaged: one line each, fit for the log.
fn complaints(stderr: &str) -> Vec<String> {
    let lines = stderr.lines().filter(|line| !line.trim().is_empty());
    lines
        .take(MOST_COMPLAINTS)
        .map(|line| printable(line, LONGEST_COMPLAINT))
        .collect()
}

/// Returns true if this process has the namespaces of the node's first process. False if that cannot be read: the program
/// then says why it cannot enter them.
fn is_in_the_nodes_namespaces() -> bool {
    NAMESPACES.iter().all(|name| {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
        of("1").is_some_and(|first| of("self") == Some(first))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A release whose program is a shell script, which gets the arguments behind `enter 1 FILE`, if it gets these.
    pub(crate) fn script(text: &str) -> (tempfile::TempDir, Program) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join(DRIVER_LIMIT_FILE);
        let text = format!("#!/bin/sh\nif [ \"$1\" = enter ]; then shift 3; fi\n{text}\n");
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("set");
        let program = Program::of_release(dir.path(), driver());
        (dir, program)
    }

    pub(crate) fn driver() -> Driver {
        Driver {
            nvml: "/d/libnvidia-ml.so.1".into(),
            soft_gpu: None,
        }
    }

    #[test]
    fn command_lines_are_those_of_the_program() {
        let (claim, records) = (Path::new("/c"), Path::new("/r"));
        let text = |arguments: Vec<String>| arguments.join(" ");
        let nvml = "--nvml /d/libnvidia-ml.so.1";
        assert_eq!(
            text(driver().set(claim, records, true)),
            format!("set --claim /c --records /r {nvml} --required")
        );
        let soft = Driver {
            soft_gpu: Some("/s".into()),
            ..driver()
        };
        assert_eq!(
            text(soft.set(claim, records, false)),
            format!("set --claim /c --records /r {nvml} --soft-gpu /s")
        );
        assert_eq!(
            text(driver().lift(claim, records, ["GPU-1", "GPU-2"])),
            format!("lift --claim /c --records /r {nvml} --gpu GPU-1 --gpu GPU-2")
        );
        assert_eq!(
            text(driver().probe(["GPU-1", "GPU-2"])),
            format!("probe {nvml} --gpu GPU-1 --gpu GPU-2")
        );
        assert_eq!(text(driver().check(records)), format!("check --records /r {nvml}"));
    }

    #[test]
    fn a_run_returns_the_output_or_the_last_line_of_what_is_wrong() {
        let arguments = driver().probe(["GPU-1"]);
        let (_dir, program) = script("echo \"$1 $5 $HOME\"");
        assert_eq!(program.run(&arguments, PATIENCE).expect("an answer"), "probe GPU-1 \n");
        let (_dir, program) = script("echo noise >&2; echo 'no cgroup v2' >&2; exit 1");
        let error = program.run(&arguments, PATIENCE).expect_err("it fails");
        assert!(
            matches!(&error, Error::Refused(why) if why == "no cgroup v2"),
            "{error:?}"
        );
        for end in ["exit 3", "exit 127", "kill -9 $$"] {
            let (_dir, program) = script(&format!("echo 'it hangs' >&2; {end}"));
            let error = program.run(&arguments, PATIENCE).expect_err("it fails");
            assert!(
                matches!(&error, Error::Unanswered(why) if why == "it hangs"),
                "{end}: {error:?}"
            );
        }
        let (_dir, program) = script("exec sleep 1000");
        let error = program
            .run(&arguments, Duration::from_millis(50))
            .expect_err("it hangs");
        assert!(
            error
                .to_string()
                .contains("vgpu-driver-limit probe: the helper has not answered"),
            "{error}"
        );
        let (_dir, program) = script("echo ran");
        let blind = program.unless_blind(Some("set plugin.hostPID: true"));
        for arguments in [&arguments, &driver().check(Path::new("/r"))] {
            let error = blind
                .run(arguments, PATIENCE)
                .expect_err("no view of the node")
                .to_string();
            assert!(error.ends_with("set plugin.hostPID: true"), "{error}");
        }
        let program = Program::of_release(Path::new("/none"), driver());
        let error = program.run(&arguments, PATIENCE).expect_err("no program").to_string();
        assert!(error.contains("/none/vgpu-driver-limit"), "{error}");
    }

    #[test]
    fn a_long_answer_is_whole_and_complaints_beside_it_are_fit_for_the_log() {
        let (_dir, program) = script("head -c 200000 /dev/zero | tr '\\0' x; echo damaged >&2");
        let said = program
            .run(&driver().check(Path::new("/r")), PATIENCE)
            .expect("an answer");
        assert_eq!(said.len(), 200_000);
        let long = "y".repeat(LONGEST_COMPLAINT + 1);
        let text = format!("\n/r/p.pod: line 2\u{1b}[31m\n{long}\n{}", "z\n".repeat(100));
        let found = complaints(&text);
        assert_eq!(
            (found[0].as_str(), found[1].len(), found.len()),
            ("/r/p.pod: line 2 [31m", LONGEST_COMPLAINT, MOST_COMPLAINTS)
        );
    }
}
