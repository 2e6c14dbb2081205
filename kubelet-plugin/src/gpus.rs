//! Looks at the GPUs now and then: the first look publishes them, later ones tell their health.
//!
//! A GPU that falls off stays published, for a pod may hold it, and one whose memory is read anew
//! keeps its published size; one that appears is added. While the driver is silent everything
//! stays and is unhealthy.

use crate::config::Config;
use crate::health::Report;
use crate::inventory::{Gpu, Gpus, Inventory};
use crate::metrics::Metrics;
use crate::publish::Wanted;
use crate::ready::Readiness;
use crate::server::SharedNode;
use crate::slice::slices;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Of [`Readiness`].
pub const PART: &str = "gpus";
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Where looks are told.
pub struct Tell {
    pub node: SharedNode,
    pub wanted: watch::Sender<Wanted>,
    pub reports: watch::Sender<Report>,
    pub readiness: Readiness,
    pub metrics: Metrics,
}

/// Looks for ever.
pub async fn run<G: Gpus>(gpus: G, config: Config, tell: Tell) {
    let gpus = Arc::new(gpus);
    let mut known: Vec<Gpu> = Vec::new();
    loop {
        let looking = gpus.clone();
        // A driver may take seconds to answer, and kubelet is not to wait for that.
        let seen = tokio::task::spawn_blocking(move || looking.list()).await;
        let seen = match seen {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(format!("the look at the GPUs ended early: {error}")),
        };
        take(&mut known, seen, &config, &tell);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn take(known: &mut Vec<Gpu>, seen: Result<Vec<Gpu>, String>, config: &Config, tell: &Tell) {
    let state = seen.as_ref().map(drop).map_err(Clone::clone);
    if tell.readiness.set(PART, state) {
        match &seen {
            Ok(gpus) => tracing::info!(count = gpus.len(), "the driver lists GPUs"),
            Err(reason) => tracing::error!("no GPUs: {reason}; trying again every {} s", LOOK_EVERY.as_secs()),
        }
    }
    if let Ok(seen) = &seen {
        let merged = merge(known, seen);
        if merged != *known {
            *known = merged;
            let inventory = Inventory::new(known.clone());
            tell.metrics.gpus.set(known.len() as i64);
            tell.wanted.send_replace(Some(slices(&inventory, config.shares)));
            tell.node.lock().set_inventory(Ok(inventory));
        }
    }
    if let (true, Err(reason)) = (known.is_empty(), &seen) {
        tell.node.lock().set_inventory(Err(reason.clone()));
    }
    let uuids = seen.map(|seen| seen.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>());
    let inventory = Inventory::new(known.clone());
    let report = Report::new(config.pool(), &inventory, uuids.as_deref().map_err(Clone::clone));
    tell.reports.send_if_modified(|last| {
        let changed = *last != report;
        *last = report;
        changed
    });
}

/// What is published after a look.
fn merge(known: &[Gpu], seen: &[Gpu]) -> Vec<Gpu> {
    let mut merged: Vec<Gpu> = known
        .iter()
        .map(|old| match seen.iter().find(|gpu| gpu.uuid == old.uuid) {
            Some(gpu) => Gpu {
                memory: old.memory,
                ..gpu.clone()
            },
            None => old.clone(),
        })
        .collect();
    let new = seen.iter().filter(|gpu| !known.iter().any(|old| old.uuid == gpu.uuid));
    merged.extend(new.cloned());
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::gpu;
    use crate::node::tests::Rig;

    #[test]
    fn gpus_are_added_never_taken_away_and_never_resized() {
        let shrunk = Gpu {
            memory: 1,
            driver_version: "550.1".into(),
            ..gpu(0)
        };
        let merged = merge(&[gpu(0), gpu(1)], &[shrunk, gpu(2)]);
        assert_eq!(merged.len(), 3);
        assert_eq!(
            (merged[0].memory, merged[0].driver_version.as_str()),
            (gpu(0).memory, "550.1")
        );
        assert_eq!(merged[1], gpu(1));
    }

    #[test]
    fn a_silent_driver_is_told_and_publishes_nothing_until_it_speaks() {
        let rig = Rig::new(false);
        let (wanted, published) = watch::channel(None);
        let (reports, health) = watch::channel(Report::default());
        let tell = Tell {
            node: SharedNode::new(rig.open()),
            wanted,
            reports,
            readiness: Readiness::new(&[PART]),
            metrics: Metrics::default(),
        };
        let (config, mut known) = (rig.config(), Vec::new());
        take(&mut known, Err("no driver here".into()), &config, &tell);
        assert!(tell.readiness.look().1.contains("no driver here"));
        assert!(published.borrow().is_none() && health.borrow().devices.is_empty());
        take(&mut known, Ok(vec![gpu(0)]), &config, &tell);
        assert!(tell.readiness.look().0);
        assert_eq!(published.borrow().as_ref().map(Vec::len), Some(1));
        take(&mut known, Err("gone".into()), &config, &tell);
        assert!(!tell.readiness.look().0);
        assert!(published.borrow().is_some(), "still published");
        assert!(health.borrow().devices.values().all(|ailment| ailment.contains("gone")));
    }
}
