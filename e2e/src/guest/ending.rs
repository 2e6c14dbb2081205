//! Ends a run early: by a signal, or by the death of this program.
//!
//! A signal kills the running children. The code that waits for them gets an error and unwinds, and its results are
//! removed by their own `Drop`, so there is only one way to end. A child that starts after the signal is also killed.

use std::io::Read;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{interrupt, shell};

/// The signal that asked for the end, or 0.
static ASKED: AtomicU8 = AtomicU8::new(0);
/// Children that nobody has waited for yet.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Starts to handle signals: after the first one, running children are killed until this program has ended.
pub(super) fn handle() -> Result<()> {
    interrupt::on_signal(|signal| {
        ASKED.store(u8::try_from(signal).unwrap_or(1), Ordering::SeqCst);
        interrupt::tell("\ninterrupted: the guest and its temporary files are removed");
        loop {
            shell::end_all();
            let children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
            for child in children.iter().filter_map(|number| pid(*number)) {
                let _ = kill_process(child, Signal::KILL);
            }
            drop(children);
            thread::sleep(Duration::from_millis(50));
        }
    })
}

/// The signal that asked for the end, if there was one.
pub(super) fn asked() -> Option<u8> {
    Some(ASKED.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Fails if a signal has asked for the end. For work that does not wait for a child.
pub(super) fn check() -> Result<()> {
    match asked() {
        Some(signal) => bail!("interrupted by signal {signal}"),
        None => Ok(()),
    }
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// A command that the kernel kills when this program dies.
///
/// The shell checks its parent after setpriv has requested the signal: if this program died in between, the signal
/// will not come, and nothing is started.
pub(super) fn tied(program: &str) -> Command {
    let mut command = shell::command("setpriv", ["--pdeathsig", "KILL", "--", "sh", "-c"]);
    command
        .args(["[ \"$PPID\" = \"$0\" ] && exec \"$@\""])
        .arg(std::process::id().to_string())
        .arg(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")); // mke2fs, for an ordinary user
    command
}

/// A running child. Dropping it kills it and waits for it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) child: Child,
    name: String,
}

impl Running {
    /// Starts a command of [`tied`].
    pub(super) fn start(command: &mut Command, name: &str) -> Result<Self> {
        check()?;
        // Held until the child is in the list, so that a signal in between does not miss it.
        let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        children.push(child.id());
        Ok(Self {
            child,
            name: name.to_owned(),
        })
    }

    /// Returns true once the child has ended. It can still be waited for.
    pub(super) fn has_ended(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let pid = pid(self.child.id()).with_context(|| format!("{} has no number", self.name))?;
        let ended = waitid(WaitId::Pid(pid), options).with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(ended.is_some())
    }

    /// Waits for the child's end.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        if let Some(pid) = pid(self.child.id()) {
            // Keeps the child's PID in use until it is off the list, so that no other process gets it before.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
        let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|pid| *pid != self.child.id());
        self.child
            .wait()
            .with_context(|| format!("cannot wait for {}", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.wait();
    }
}

/// Runs a command of [`tied`] until it and all its descendants have ended. An error contains the end of their output.
pub(super) fn run(mut command: Command, name: &str) -> Result<()> {
    // The first process may end before the others, which then die with its namespace. Each holds the pipe, so the pipe
    // closes when the last one has ended.
    let (mut reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let copy = writer.try_clone().context("cannot copy a pipe")?;
    let mut running = Running::start(command.stdout(writer).stderr(copy), name)?;
    drop(command);
    let mut said = Vec::new();
    let read = reader.read_to_end(&mut said);
    let status = running.wait()?;
    check()?;
    read.with_context(|| format!("cannot read what {name} says"))?;
    ensure!(
        status.success(),
        "{name}: {status}: {}",
        shell::tail(&String::from_utf8_lossy(&said), 15)
    );
    Ok(())
}
