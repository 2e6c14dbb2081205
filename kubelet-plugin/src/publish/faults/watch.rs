//! Follows the faults that the samples show, publishes them, and keeps them in the store.
//!
//! Faults are published before they are written. While a write hangs, later faults are not noticed. Lost GPUs still are,
//! because the list of GPUs does not wait for this.

use super::{FaultStore, OpenFaults};
use crate::nvml::Reading;
use crate::nvml::sampler;
use crate::publish::inventory::{Fault, Faults};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// The faults, and where they outlive the plugin.
#[derive(Debug)]
pub struct Watcher {
    open_faults: OpenFaults,
    store: FaultStore,
    /// The GPUs that could be read.
    readable: BTreeSet<String>,
}

/// Applies each sample. `faults` already has those of former instances. `rescan` asks for an early list of the GPUs.
pub async fn run(
    mut watcher: Watcher,
    mut samples: sampler::Receiver,
    faults: watch::Sender<Faults>,
    rescan: Arc<Notify>,
) {
    while let Some(sample) = samples.next().await {
        let readings = sample.gpus.as_deref().map_err(String::as_str);
        let readings = readings.map(|gpus| gpus.iter().map(|gpu| gpu.faults.clone()).collect::<Vec<_>>());
        if watcher.apply(readings.as_deref().map_err(|why| *why), Instant::now()) {
            rescan.notify_one();
        }
        let found = watcher.faults();
        faults.send_if_modified(|known| {
            log(known, &found);
            let changed = *known != found;
            *known = found;
            changed
        });
        let written = tokio::task::spawn_blocking(move || {
            watcher.store.write(watcher.open_faults.kept());
            watcher
        });
        watcher = match written.await {
            Ok(watcher) => watcher,
            Err(error) => return tracing::error!("faults of GPUs are not followed any more: {error}"),
        };
    }
}

// === impl Watcher ===

impl Watcher {
    /// Starts with the faults of former instances.
    #[must_use]
    pub fn new(mut open_faults: OpenFaults, store: FaultStore) -> Self {
        open_faults.add(&store.read());
        Self {
            open_faults,
            store,
            readable: BTreeSet::new(),
        }
    }

    #[must_use]
    pub fn faults(&self) -> Faults {
        self.open_faults.faults()
    }

    /// Applies the readings. Returns true if a GPU that could be read cannot be read any more.
    fn apply(&mut self, readings: Result<&[Reading], &str>, now: Instant) -> bool {
        self.open_faults.apply(readings, now);
        let Ok(readings) = readings else { return false };
        let readable = readings.iter().filter(|reading| reading.failure().is_none());
        let readable: BTreeSet<String> = readable.map(|reading| reading.uuid.clone()).collect();
        let has_lost_one = !self.readable.is_subset(&readable);
        self.readable = readable;
        has_lost_one
    }
}

fn log(before: &Faults, after: &Faults) {
    let all = |faults: &Faults| -> Vec<(String, Fault)> {
        let of = |(uuid, faults): (&String, &Vec<Fault>)| -> Vec<_> {
            faults.iter().map(|fault| (uuid.clone(), fault.clone())).collect()
        };
        faults.iter().flat_map(of).collect()
    };
    let (before, after) = (all(before), all(after));
    for (uuid, fault) in after.iter().filter(|fault| !before.contains(fault)) {
        match fault.blocks {
            true => tracing::error!("no new claim gets this GPU: {}", fault.text(uuid)),
            false => tracing::info!("{}", fault.text(uuid)),
        }
    }
    let is_open = |uuid: &String, reason| {
        after
            .iter()
            .any(|(other, fault)| other == uuid && fault.reason == reason)
    };
    for (uuid, fault) in before.iter().filter(|(uuid, fault)| !is_open(uuid, fault.reason)) {
        tracing::info!("GPU {uuid} is well again: no {} any more", fault.reason.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::Asked;

    fn reading(xids: &[u64], fails: bool) -> Reading {
        let uncorrected = match fails {
            true => Asked::Failed("GPU is lost".into()),
            false => Asked::Is(0),
        };
        Reading {
            xids: xids.to_vec(),
            uncorrected,
            ..Reading::unsupported("GPU-0")
        }
    }

    fn watcher(folder: &std::path::Path) -> Watcher {
        let store = FaultStore::new(folder.join("faults.json"), "b".into());
        Watcher::new(OpenFaults::new([13].into()), store)
    }

    #[tokio::test]
    async fn faults_are_sent_when_they_change_kept_over_restarts_and_a_lost_gpu_has_the_gpus_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sender, samples) = sampler::channel();
        let (faults, mut known) = watch::channel(Faults::new());
        let rescan = Arc::new(Notify::new());
        let running = tokio::spawn(run(watcher(folder.path()), samples, faults, rescan.clone()));
        let send = |readings: Result<Vec<Reading>, String>| sender.send(sampler::tests::of_faults(readings));
        send(Ok(vec![reading(&[], false)]));
        send(Err("hangs".into()));
        send(Ok(vec![reading(&[48], true)]));
        known.changed().await.expect("a fault");
        assert_eq!(known.borrow_and_update()["GPU-0"][0].value, "48");
        rescan.notified().await;
        send(Ok(vec![reading(&[], true)]));
        send(Err("hangs".into()));
        drop(sender);
        running.await.expect("ended");
        assert!(!known.has_changed().unwrap_or(false), "nothing new");
        assert_eq!(
            watcher(folder.path()).faults(),
            *known.borrow(),
            "before the driver is asked"
        );
    }

    #[test]
    fn a_gpu_that_cannot_be_read_any_more_is_lost_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut watcher = watcher(folder.path());
        let mut apply = |fails| watcher.apply(Ok(&[reading(&[], fails)]), Instant::now());
        assert_eq!([apply(false), apply(true), apply(true)], [false, true, false]);
        assert!(!watcher.apply(Err("hangs"), Instant::now()));
    }
}
