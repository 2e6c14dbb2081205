//! Removes what a cluster leaves on the host: its cgroup folders and its state folder. Works without its keeper.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cgroup;
use super::config::State;
use crate::lock::Lock;
use crate::{layout, patience};

/// Removes everything of one cluster, whose processes are gone or going.
pub(super) fn remove(state: &State) -> Result<()> {
    await_processes(&state.name())?;
    cgroup::remove(&state.name())?;
    fs::remove_dir_all(&state.0).with_context(|| format!("cannot remove {}", state.0.display()))
}

/// Init ends by itself when its keeper does, and its namespaces go with it.
fn await_processes(cluster: &str) -> Result<()> {
    let deadline = Instant::now() + patience::stretched(Duration::from_secs(10));
    while let Some(pid) = cgroup::processes(cluster)?.first() {
        if Instant::now() > deadline {
            bail!("process {pid} of cluster {cluster} does not end: look at it with ps");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes the leftovers of clusters whose keeper died. Those that run are left alone. Returns the names removed.
pub(super) fn sweep(_all: &Lock) -> Result<Vec<String>> {
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
