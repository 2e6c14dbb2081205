//! Removes what a cluster leaves on the host: its cgroup folders and its state folder. Works without its keeper.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cgroup;
use super::config::State;
use crate::layout;
use crate::lock::Lock;

/// Removes everything of one cluster, whose processes are gone or going.
pub(super) fn remove(state: &State) -> Result<()> {
    await_init(state)?;
    cgroup::remove(&state.name())?;
    fs::remove_dir_all(&state.0).with_context(|| format!("cannot remove {}", state.0.display()))?;
    let _ = fs::remove_dir(layout::STATE); // the last one out
    Ok(())
}

/// Init ends by itself when its keeper does; its namespaces go with it.
fn await_init(state: &State) -> Result<()> {
    let Ok(pid) = fs::read_to_string(state.init()) else {
        return Ok(());
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_init_of(&pid, state) {
        if Instant::now() > deadline {
            bail!(
                "process {pid}, the first of cluster {}, does not end: look at it with ps",
                state.name()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether this process id still is that cluster's init, and not a later process with the same number.
fn is_init_of(pid: &str, state: &State) -> bool {
    let line = fs::read(Path::new("/proc").join(pid.trim()).join("cmdline")).unwrap_or_default();
    let wanted = state.0.to_string_lossy();
    line.split(|byte| *byte == 0)
        .any(|argument| argument == wanted.as_bytes())
}

/// Removes the leftovers of clusters whose keeper died. Those that run are left alone. Gives the names removed.
pub(super) fn sweep(_held: &Lock) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(layout::STATE).into_iter().flatten().flatten() {
        let state = State(entry.path());
        if !state.0.is_dir() {
            continue;
        }
        if let Some(_lock) = Lock::try_take(&state.lock())? {
            remove(&state)?;
            removed.push(state.name());
        }
    }
    Ok(removed)
}
