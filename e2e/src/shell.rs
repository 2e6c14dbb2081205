//! Runs other programs. Every error contains the command, its status and the end of its output.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};

/// The status and output of a command that has ended.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A command of a program and its arguments.
pub fn command<I, S>(program: impl AsRef<OsStr>, arguments: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command and returns its status and output, even if it failed.
pub fn capture(command: &mut Command) -> Result<Said> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn(command)?;
    let pid = child.id();
    let output = child.wait_with_output();
    ended(pid);
    let output = output.with_context(|| format!("cannot wait for {}", describe(command)))?;
    Ok(Said {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs the command and returns its standard output, or an error if it failed.
pub fn output(command: &mut Command) -> Result<String> {
    let said = capture(command)?;
    if said.status.success() {
        return Ok(said.stdout);
    }
    let words = if said.stderr.trim().is_empty() {
        &said.stdout
    } else {
        &said.stderr
    };
    bail!("{}: {}: {}", describe(command), said.status, tail(words, 12))
}

/// Runs the command for its effect.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs the command with its output in a file; an error contains the file's end.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let copy = file
        .try_clone()
        .with_context(|| format!("cannot open {}", log.display()))?;
    let mut child = spawn(command.stdout(file).stderr(copy))?;
    let status = child.wait();
    ended(child.id());
    let status = status.with_context(|| format!("cannot wait for {}", describe(command)))?;
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read_to_string(log).unwrap_or_default();
    Err(anyhow!(
        "{}: {status}, see {}: {}",
        describe(command),
        log.display(),
        tail(&text, 12)
    ))
}

/// Running commands, so that a signal can end them: a build may take minutes.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn spawn(command: &mut Command) -> Result<Child> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {}", describe(command)))?;
    running.push(child.id());
    Ok(child)
}

fn ended(pid: u32) {
    RUNNING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|other| *other != pid);
}

/// Ends every running command. Later commands are not stopped: the caller is about to exit.
pub fn end_all() {
    for pid in RUNNING.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

/// The command line as a person would type it, shortened.
fn describe(command: &Command) -> String {
    let mut line = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// The last `count` lines.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_its_status_and_what_it_said() {
        let error = run(&mut command("sh", ["-c", "echo it broke >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "sh -c echo it broke >&2; exit 3: exit status: 3: it broke");
    }

    #[test]
    fn only_the_end_of_long_output_is_shown() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
    }
}
