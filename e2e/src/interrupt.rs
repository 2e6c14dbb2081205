//! Ctrl-C and similar signals: removes this program's cluster before the program ends.
//!
//! A signal kills the running commands, so the main thread sees them fail and reaches the end of `main`. There it
//! waits in [`wait_if_interrupted`]: otherwise the program would end before its cluster is removed. No cluster starts
//! after the signal.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::shell;

/// Removes the cluster with that name.
type End = fn(&str) -> Result<()>;

/// Clusters that this program has started and not yet removed.
static OURS: Mutex<Vec<(String, End)>> = Mutex::new(Vec::new());
/// A signal asked this program to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Call this before any part of the cluster is created. Fails after a signal.
pub(crate) fn started(name: &str, end: End) -> Result<()> {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    // Check with the list locked: the handler first sets the flag and then reads the list. So either the handler finds
    // this cluster, or this function sees the flag.
    ensure!(
        !INTERRUPTED.load(Ordering::SeqCst),
        "interrupted: cluster {name} is not started"
    );
    ours.push((name.to_owned(), end));
    Ok(())
}

pub(crate) fn ended(name: &str) {
    OURS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|(other, _)| other != name);
}

/// Starts to handle signals: the first one ends running commands and our clusters, and then the program.
pub fn handle() -> Result<()> {
    on_signal(|signal| {
        INTERRUPTED.store(true, Ordering::SeqCst);
        tell("\ninterrupted: leaving the machine as it was");
        shell::end_all();
        let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, end) in ours {
            if let Err(error) = end(&name) {
                tell(&format!("{name}: {error:#}"));
            }
        }
        std::process::exit(128 + signal);
    })
}

/// Prints a line on stderr if it is still open. `eprintln!` would panic if the terminal was closed, and the cleanup
/// would not finish.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Calls `action` in its own thread with the first signal that asks this program to end.
pub(crate) fn on_signal(action: impl FnOnce(i32) + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            action(signal);
        }
    });
    Ok(())
}

/// Returns at once if there was no signal. After a signal it never returns, and the handler ends the program. Call
/// this before the program ends by itself.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        thread::park();
    }
}
