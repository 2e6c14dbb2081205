//! Removes what a cluster leaves on the host: its cgroup folders and its state folder. Works without its keeper.

use std::fs;
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

/// Init ends by itself when its keeper does, its namespaces go with it, and `unshare`, its parent, after it.
fn await_init(state: &State) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(pid) = init_of(state) {
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

/// A process that is, or started, that cluster's init. Found by its command line: a number may be a later process's.
fn init_of(state: &State) -> Option<String> {
    let wanted = [b"init", state.0.as_os_str().as_encoded_bytes()];
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.windows(2).any(|two| two == wanted)
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .next()
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
