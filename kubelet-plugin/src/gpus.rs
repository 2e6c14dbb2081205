//! Looks at the GPUs now and then: the first look publishes them, later ones tell their health.
//!
//! A GPU that falls off stays published, for a pod may hold it, and one whose memory is read anew
//! keeps its published size; one that appears is added. A restart of the plugin keeps this for the
//! GPUs of which the checkpoint holds shares. While the driver is silent everything stays and is
//! unhealthy. A node that never showed a driver has nothing to do, which is no failure:
//! the DaemonSet runs on such nodes too.

use crate::config::Config;
use crate::health::Report;
use crate::inventory::{self, Gpu, Gpus, Inventory, List};
use crate::metrics::Metrics;
use crate::node::SharedNode;
use crate::publish::Wanted;
use crate::ready::Readiness;
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
    /// Becomes true with the end of the first look.
    pub looked: watch::Sender<bool>,
}

/// Why a look showed no GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blind {
    NoDriver(String),
    Silent(String),
}

// === impl Blind ===

impl Blind {
    fn reason(self) -> String {
        match self {
            Self::NoDriver(reason) | Self::Silent(reason) => reason,
        }
    }
}

/// What is known from one look to the next.
#[derive(Default)]
struct Known {
    /// What is published, or will be with the first look that shows GPUs.
    gpus: Vec<Gpu>,
    published: bool,
    left_out: Vec<String>,
}

/// Looks for ever.
pub async fn run<G: Gpus>(gpus: G, config: Config, tell: Tell) {
    let gpus = Arc::new(gpus);
    let mut known = Known {
        gpus: tell.node.lock().held_gpus(),
        ..Known::default()
    };
    loop {
        let looking = gpus.clone();
        // A driver may take seconds to answer, and kubelet is not to wait for that.
        let seen = tokio::task::spawn_blocking(move || looking.list()).await;
        let seen = match seen {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(error @ inventory::Error::NoLibrary(_))) => Err(Blind::NoDriver(error.to_string())),
            Ok(Err(error)) => Err(Blind::Silent(error.to_string())),
            Err(error) => Err(Blind::Silent(format!("the look at the GPUs ended early: {error}"))),
        };
        take(&mut known, seen, &config, &tell);
        tell.looked.send_replace(true);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn take(known: &mut Known, seen: Result<List, Blind>, config: &Config, tell: &Tell) {
    match &seen {
        Ok(seen) => {
            if tell.readiness.set(PART, Ok(())) {
                tracing::info!(count = seen.gpus.len(), "the driver lists GPUs");
            }
            for reason in seen.left_out.iter().filter(|reason| !known.left_out.contains(reason)) {
                tracing::warn!("a GPU is left out: {reason}");
            }
            known.left_out.clone_from(&seen.left_out);
            let merged = merge(&known.gpus, &seen.gpus);
            if merged != known.gpus || !known.published {
                known.gpus = merged;
                known.published = true;
                let inventory = Inventory::new(known.gpus.clone());
                tell.metrics.gpus.set(known.gpus.len() as i64);
                tell.wanted
                    .send_replace(Wanted::Slices(slices(&inventory, config.shares)));
                tell.node.lock().set_inventory(Ok(inventory));
            }
        }
        Err(Blind::NoDriver(reason)) if known.gpus.is_empty() => {
            if tell.readiness.idle(PART, reason.clone()) {
                tracing::info!(
                    "nothing to do on this node: {reason}; looking every {} s",
                    LOOK_EVERY.as_secs()
                );
            }
            tell.wanted.send_if_modified(|wanted| {
                let changed = *wanted != Wanted::NoDriver;
                *wanted = Wanted::NoDriver;
                changed
            });
        }
        Err(Blind::NoDriver(reason) | Blind::Silent(reason)) => {
            if tell.readiness.set(PART, Err(reason.clone())) {
                tracing::error!("no GPUs: {reason}; trying again every {} s", LOOK_EVERY.as_secs());
            }
        }
    }
    let seen = seen.map_err(Blind::reason);
    if let (false, Err(reason)) = (known.published, &seen) {
        tell.node.lock().set_inventory(Err(reason.clone()));
    }
    let uuids = seen.map(|seen| seen.gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>());
    let inventory = Inventory::new(known.gpus.clone());
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
    use crate::node::tests::{Rig, claim};

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

    /// What a look told.
    struct Told {
        rig: Rig,
        tell: Tell,
        published: watch::Receiver<Wanted>,
        health: watch::Receiver<Report>,
    }

    fn list(gpus: &[Gpu]) -> List {
        List {
            gpus: gpus.to_vec(),
            left_out: Vec::new(),
        }
    }

    fn told() -> Told {
        told_on(Rig::new(false))
    }

    fn told_on(rig: Rig) -> Told {
        let (wanted, published) = watch::channel(Wanted::Unknown);
        let (reports, health) = watch::channel(Report::default());
        let tell = Tell {
            node: SharedNode::new(rig.open()),
            wanted,
            reports,
            readiness: Readiness::new(&[PART]),
            metrics: Metrics::default(),
            looked: watch::channel(false).0,
        };
        Told {
            rig,
            tell,
            published,
            health,
        }
    }

    #[test]
    fn a_silent_driver_is_told_and_publishes_nothing_until_it_speaks() {
        let Told {
            rig,
            tell,
            published,
            health,
        } = told();
        let silent = |reason: &str| Err(Blind::Silent(reason.into()));
        let (config, mut known) = (rig.config(), Known::default());
        take(&mut known, silent("does not load"), &config, &tell);
        assert!(!tell.readiness.look().0 && tell.readiness.look().1.contains("does not load"));
        assert!(*published.borrow() == Wanted::Unknown && health.borrow().devices.is_empty());
        take(&mut known, Ok(list(&[gpu(0)])), &config, &tell);
        assert!(tell.readiness.look().0);
        let slices = slices(&Inventory::new(vec![gpu(0)]), config.shares);
        assert_eq!(*published.borrow(), Wanted::Slices(slices.clone()));
        for blind in [Blind::Silent("gone".into()), Blind::NoDriver("gone".into())] {
            take(&mut known, Err(blind), &config, &tell);
            assert!(!tell.readiness.look().0);
            assert_eq!(*published.borrow(), Wanted::Slices(slices.clone()), "still published");
            assert!(health.borrow().devices.values().all(|ailment| ailment.contains("gone")));
        }
    }

    #[test]
    fn a_node_without_a_driver_is_ready_and_waits_for_one() {
        let Told {
            rig, tell, published, ..
        } = told();
        let (config, mut known) = (rig.config(), Known::default());
        take(&mut known, Err(Blind::NoDriver("none here".into())), &config, &tell);
        assert!(tell.readiness.look().0 && tell.readiness.look().1.contains("none here"));
        assert_eq!(*published.borrow(), Wanted::NoDriver);
        take(&mut known, Ok(list(&[gpu(0)])), &config, &tell);
        assert!(matches!(&*published.borrow(), Wanted::Slices(all) if all.len() == 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_is_held_outlives_a_restart_without_it() {
        /// NVML with one GPU of two, whose memory is read smaller than before.
        struct OneLost;
        impl Gpus for OneLost {
            fn list(&self) -> Result<List, inventory::Error> {
                let shrunk = Gpu {
                    memory: 1 << 30,
                    ..gpu(1)
                };
                Ok(List {
                    gpus: vec![shrunk],
                    left_out: vec!["GPU 0: memory cannot be read: GPU is lost".into()],
                })
            }
        }
        let rig = Rig::new(false);
        let held = rig.open().prepare(&[claim("u1", &[("s1", 20, 25)])]);
        assert!(held[0].is_ok());
        let mut told = told_on(rig);
        told.tell.node.lock().set_inventory(Err("just started".into()));
        let node = told.tell.node.clone();
        let running = tokio::spawn(run(OneLost, told.rig.config(), told.tell));
        told.published.changed().await.expect("a first look");
        let shrunk = Gpu {
            memory: 1 << 30,
            ..gpu(1)
        };
        let both = Inventory::new(vec![gpu(0), shrunk]);
        assert_eq!(*told.published.borrow(), Wanted::Slices(slices(&both, 64)));
        told.health.changed().await.expect("a report");
        let report = told.health.borrow().clone();
        assert!(report.devices["gpu-3f8a1c20"].contains("not in the driver's list"));
        assert_eq!(report.devices["gpu-3f8a1c21"], "");
        let again = node.lock().prepare(&[claim("u1", &[("s1", 20, 25)])]);
        assert!(again[0].is_ok(), "{again:?}");
        running.abort();
    }
}
