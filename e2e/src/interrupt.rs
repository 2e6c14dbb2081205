//! Ctrl-C and its like: the cluster of this program is taken down before the program ends.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{cluster, shell};

/// The clusters that this program has started and not yet ended.
static OURS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn started(name: &str) {
    OURS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(name.to_owned());
}

pub(crate) fn ended(name: &str) {
    OURS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|other| other != name);
}

/// From now on a signal ends running commands and our clusters, and then the program.
pub fn handle() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\ninterrupted: leaving the machine as it was");
            shell::end_all();
            let names = OURS.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for name in names {
                if let Err(error) = cluster::down(&name) {
                    eprintln!("{name}: {error:#}");
                }
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
