//! Ctrl-C and its like: the cluster of this program is taken down before the program ends.
//!
//! A signal kills the running commands, so the main thread sees them fail and reaches the end of `main`. There it waits
//! in [`wait_if_interrupted`]: otherwise the program would end before its cluster has. A cluster that would start after
//! the signal does not.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::shell;

/// Ends the cluster of that name.
type End = fn(&str) -> Result<()>;

/// The clusters that this program has started and not yet ended.
static OURS: Mutex<Vec<(String, End)>> = Mutex::new(Vec::new());
/// A signal asked this program to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// To be called before anything of the cluster is made. Fails after a signal.
pub(crate) fn started(name: &str, end: End) -> Result<()> {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    // With the list locked: the handler reads it after it has set the flag, so it finds this cluster, or this the flag.
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted: cluster {name} is not started");
    }
    ours.push((name.to_owned(), end));
    Ok(())
}

pub(crate) fn ended(name: &str) {
    OURS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|(other, _)| other != name);
}

/// Handles signals from now on: the first one ends running commands and our clusters, and then the program.
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

/// A line on stderr, if that is still open. `eprintln!` would panic after the terminal has gone, and what is left to be
/// removed would stay.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Calls `action` in a thread of its own with the first signal that asks this program to end.
pub(crate) fn on_signal(action: impl FnOnce(i32) + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            action(signal);
        }
    });
    Ok(())
}

/// Returns at once if no signal has come; after one it never returns, and the handler ends the program. To be called
/// before the program ends by itself.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        thread::park();
    }
}
