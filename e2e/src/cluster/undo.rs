//! Removes a cluster's cgroup folders and its state folder from the host. Works without its keeper.
//!
//! The lock over all clusters is held from the removal of the state folder until the machine's settings are restored:
//! the cluster's own lock is a file in that folder, and another program could otherwise start a cluster between the
//! two.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cgroup;
use super::config::{State, names};
use crate::lock::Lock;
use crate::{interrupt, patience};

/// Removes the cgroups of a cluster whose processes have ended or are ending.
pub(super) fn remove_cgroups(state: &State) -> Result<()> {
    await_processes(&state.name())?;
    cgroup::remove(&state.name())
}

/// Removes the files of a cluster, including its own lock.
pub(super) fn remove_files(state: &State, _all: &Lock) -> Result<()> {
    fs::remove_dir_all(&state.0).with_context(|| format!("cannot remove {}", state.0.display()))
}

/// Init ends by itself when its keeper does, and its namespaces end with it.
fn await_processes(cluster: &str) -> Result<()> {
    let deadline = Instant::now() + patience::stretched(Duration::from_secs(10));
    while let Some(pid) = cgroup::processes(cluster)?.first() {
        ensure!(
            Instant::now() <= deadline,
            "process {pid} of cluster {cluster} does not end: look at it with ps"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes the leftovers of clusters whose keeper died. Running clusters are not touched. A cluster that cannot be
/// removed is named on stderr and does not keep others from being removed. Returns the removed names.
pub(super) fn sweep(all: &Lock) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for name in names() {
        let state = State::of(&name);
        if let Some(_lock) = Lock::try_take(&state.lock())? {
            match remove_cgroups(&state).and_then(|()| remove_files(&state, all)) {
                Ok(()) => removed.push(name),
                Err(error) => interrupt::tell(&format!("the leftovers of cluster {name} stay: {error:#}")),
            }
        }
    }
    Ok(removed)
}
