//! Scans the GPUs periodically: the first scan publishes them, later ones update their health.
//!
//! A GPU that falls off the bus stays published, because a pod may use it. One whose memory size changes
//! keeps its published size; a new one is added. After a restart of the plugin this holds for the GPUs on
//! which the checkpoint has shares. While the driver does not respond everything stays published and is
//! unhealthy. A node that never had a driver idles, which is not a failure: the DaemonSet runs on such nodes
//! too.
//!
//! Every scan makes a report of health with the time of that scan, and nothing else does: if scans end, kubelet finds the
//! last report stale after 30 s.

mod scanner;

use crate::config::Config;
use crate::contexts::Contexts;
use crate::health::Report;
use crate::inventory::{Gpu, Gpus, Inventory, List};
use crate::metrics::Metrics;
use crate::node::SharedNode;
use crate::publish::Wanted;
use crate::ready::Readiness;
use crate::slice::slices;
use scanner::{Measurer, ScanFailure, Scanner};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// The part's name in [`Readiness`].
pub const PART: &str = "gpus";
const SCAN_EVERY: Duration = Duration::from_secs(10);

/// The receivers of a scan's result.
pub struct ScanOutputs {
    pub node: SharedNode,
    pub wanted: watch::Sender<Wanted>,
    pub reports: watch::Sender<Report>,
    pub readiness: Readiness,
    pub metrics: Metrics,
    /// Becomes true when the first scan has ended.
    pub scanned: watch::Sender<bool>,
}

/// State kept between scans.
#[derive(Default)]
struct Known {
    /// The published GPUs. Before the first successful scan: the GPUs on which the checkpoint has shares.
    gpus: Vec<Gpu>,
    published: bool,
    /// The reasons that were logged already, one for each GPU that could not be read.
    left_out: Vec<String>,
}

/// Scans for ever.
pub async fn run<G: Gpus>(gpus: G, contexts: Contexts, config: Config, outputs: ScanOutputs) {
    let mut scanner = Scanner::new(gpus);
    let mut measurer = Measurer::new(contexts);
    let mut known = Known {
        gpus: outputs.node.read(|node| node.held_gpus()).await.unwrap_or_default(),
        ..Known::default()
    };
    loop {
        let mut seen = scanner.scan().await;
        if let Ok(list) = &mut seen {
            // Before the GPUs are published: each claim on them finds what a context takes.
            match measurer.measure(&list.gpus).await {
                Some(sizes) => outputs.node.lock().set_contexts(sizes),
                None if !known.published => {
                    tokio::time::sleep(SCAN_EVERY).await;
                    continue;
                }
                None => list
                    .gpus
                    .retain(|gpu| known.gpus.iter().any(|old| old.uuid == gpu.uuid)),
            }
        }
        let is_late = matches!(seen, Err(ScanFailure::Late(_)));
        apply(&mut known, seen, &config, &outputs);
        if !is_late {
            outputs.scanned.send_replace(true);
        }
        tokio::time::sleep(SCAN_EVERY).await;
    }
}

/// Applies a scan: publishes the GPUs, reports the readiness, and reports the health of each GPU.
fn apply(known: &mut Known, seen: Result<List, ScanFailure>, config: &Config, outputs: &ScanOutputs) {
    match &seen {
        Ok(seen) => {
            if outputs.readiness.set(PART, Ok(())) {
                tracing::info!(count = seen.gpus.len(), "the driver lists GPUs");
            }
            publish(known, seen, config, outputs);
        }
        Err(ScanFailure::NoDriver(reason)) if known.gpus.is_empty() => {
            if outputs.readiness.idle(PART, reason.clone()) {
                tracing::info!(
                    "nothing to do on this node: {reason}; scanning every {} s",
                    SCAN_EVERY.as_secs()
                );
            }
            outputs.wanted.send_if_modified(|wanted| {
                let changed = *wanted != Wanted::NoDriver;
                *wanted = Wanted::NoDriver;
                changed
            });
        }
        Err(ScanFailure::NoDriver(reason) | ScanFailure::Silent(reason) | ScanFailure::Late(reason)) => {
            if outputs.readiness.set(PART, Err(reason.clone())) {
                tracing::error!("no GPUs: {reason}; retrying every {} s", SCAN_EVERY.as_secs());
            }
        }
    }
    let seen = seen.map_err(ScanFailure::reason);
    if let (false, Err(reason)) = (known.published, &seen) {
        outputs.node.lock().set_inventory(Err(reason.clone()));
    }
    report_health(known, seen, config, outputs);
}

/// Publishes what a scan has changed, and gives the GPUs to the node, which prepares claims on them.
fn publish(known: &mut Known, seen: &List, config: &Config, outputs: &ScanOutputs) {
    for reason in seen.left_out.iter().filter(|reason| !known.left_out.contains(reason)) {
        tracing::warn!("a GPU is left out: {reason}");
    }
    known.left_out.clone_from(&seen.left_out);
    let merged = merge(&known.gpus, &seen.gpus);
    if merged == known.gpus && known.published {
        return;
    }
    known.gpus = merged;
    known.published = true;
    let inventory = Inventory::new(known.gpus.clone());
    outputs.metrics.gpus.set(known.gpus.len() as i64);
    let devices = slices(&inventory, config.shares);
    outputs.wanted.send_replace(Wanted::Slices(devices));
    outputs.node.lock().set_inventory(Ok(inventory));
}

/// Reports the health of every published GPU to kubelet; one that the scan did not find is unhealthy.
fn report_health(known: &Known, seen: Result<List, String>, config: &Config, outputs: &ScanOutputs) {
    let uuids = seen.map(|seen| seen.gpus.into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>());
    let inventory = Inventory::new(known.gpus.clone());
    let uuids = uuids.as_deref().map_err(Clone::clone);
    let report = Report::new(config.pool(), &inventory, uuids, SystemTime::now());
    outputs.reports.send_replace(report);
}

/// Merges the published GPUs with those of a scan.
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
    use crate::inventory::{self, tests::gpu};
    use crate::node::tests::{Rig, claim};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

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

    /// The receivers, and what a scan sent to them.
    struct Scanned {
        rig: Rig,
        outputs: ScanOutputs,
        published: watch::Receiver<Wanted>,
        health: watch::Receiver<Report>,
    }

    fn list(gpus: &[Gpu]) -> List {
        List {
            gpus: gpus.to_vec(),
            left_out: Vec::new(),
        }
    }

    fn scan() -> Scanned {
        scanned_on(Rig::new(false))
    }

    fn scanned_on(rig: Rig) -> Scanned {
        let (wanted, published) = watch::channel(Wanted::Unknown);
        let (reports, health) = watch::channel(Report::default());
        let outputs = ScanOutputs {
            node: SharedNode::new(rig.open()),
            wanted,
            reports,
            readiness: Readiness::new(&[PART]),
            metrics: Metrics::default(),
            scanned: watch::channel(false).0,
        };
        Scanned {
            rig,
            outputs,
            published,
            health,
        }
    }

    #[test]
    fn a_silent_driver_is_told_and_publishes_nothing_until_it_speaks() {
        let Scanned {
            rig,
            outputs,
            published,
            health,
        } = scan();
        let silent = |reason: &str| Err(ScanFailure::Silent(reason.into()));
        let (config, mut known) = (rig.config(), Known::default());
        apply(&mut known, silent("does not load"), &config, &outputs);
        assert!(!outputs.readiness.status().0 && outputs.readiness.status().1.contains("does not load"));
        assert!(*published.borrow() == Wanted::Unknown && health.borrow().devices.is_empty());
        apply(&mut known, Ok(list(&[gpu(0)])), &config, &outputs);
        assert!(outputs.readiness.status().0);
        let slices = slices(&Inventory::new(vec![gpu(0)]), config.shares);
        assert_eq!(*published.borrow(), Wanted::Slices(slices.clone()));
        for blind in [ScanFailure::Silent("gone".into()), ScanFailure::NoDriver("gone".into())] {
            apply(&mut known, Err(blind), &config, &outputs);
            assert!(!outputs.readiness.status().0);
            assert_eq!(*published.borrow(), Wanted::Slices(slices.clone()), "still published");
            assert!(health.borrow().devices.values().all(|ailment| ailment.contains("gone")));
        }
    }

    #[test]
    fn a_node_without_a_driver_is_ready_and_waits_for_one() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        let (config, mut known) = (rig.config(), Known::default());
        apply(
            &mut known,
            Err(ScanFailure::NoDriver("none here".into())),
            &config,
            &outputs,
        );
        assert!(outputs.readiness.status().0 && outputs.readiness.status().1.contains("none here"));
        assert_eq!(*published.borrow(), Wanted::NoDriver);
        apply(&mut known, Ok(list(&[gpu(0)])), &config, &outputs);
        assert!(matches!(&*published.borrow(), Wanted::Slices(all) if all.len() == 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_is_held_outlives_a_restart_without_it() {
        /// NVML with one GPU of two, whose memory size is smaller than before.
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
        let mut before = rig.open();
        let held = before.prepare(&before.locked(), &[claim("u1", &[("s1", 20, 25)])]);
        assert!(held[0].is_ok());
        let mut scan = scanned_on(rig);
        scan.outputs.node.lock().set_inventory(Err("just started".into()));
        let node = scan.outputs.node.clone();
        let running = tokio::spawn(run(OneLost, Contexts::unknown(), scan.rig.config(), scan.outputs));
        scan.published.changed().await.expect("a first scan");
        let shrunk = Gpu {
            memory: 1 << 30,
            ..gpu(1)
        };
        let both = Inventory::new(vec![gpu(0), shrunk]);
        assert_eq!(*scan.published.borrow(), Wanted::Slices(slices(&both, 64)));
        scan.health.changed().await.expect("a report");
        let report = scan.health.borrow().clone();
        assert!(report.devices["gpu-3f8a1c20"].contains("not in the driver's list"));
        assert_eq!(report.devices["gpu-3f8a1c21"], "");
        let mut node = node.lock();
        let locked = node.locked();
        let again = node.prepare(&locked, &[claim("u1", &[("s1", 20, 25)])]);
        assert!(again[0].is_ok(), "{again:?}");
        running.abort();
    }

    /// NVML with one GPU, that answers as often as something was sent, and else hangs. Counts the questions.
    struct Hangs {
        answers: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
        asked: Arc<AtomicU32>,
    }

    impl Gpus for Hangs {
        fn list(&self) -> Result<List, inventory::Error> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            match self.answers.lock().expect("lock").recv() {
                Ok(()) => Ok(list(&[gpu(0)])),
                Err(_) => Err(inventory::Error::NoGpu),
            }
        }
    }

    /// Lets this much of the paused time pass. Tokio does not skip it by itself while a thread hangs.
    async fn pass(seconds: u64) {
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    /// Lets time pass until a thread has done something, in real time.
    async fn until(condition: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
            std::thread::sleep(Duration::from_millis(1));
            pass(1).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_hangs_is_unhealthy_within_30_s_and_is_asked_anew_when_it_answers() {
        let (answer, answers) = std::sync::mpsc::channel();
        let asked = Arc::new(AtomicU32::new(0));
        let hangs = Hangs {
            answers: std::sync::Mutex::new(answers),
            asked: asked.clone(),
        };
        let mut scan = scan();
        let running = tokio::spawn(run(hangs, Contexts::unknown(), scan.rig.config(), scan.outputs));
        let ailment = |health: &watch::Receiver<Report>| {
            let devices = health.borrow().devices.clone();
            devices
                .get("gpu-3f8a1c20")
                .cloned()
                .unwrap_or_else(|| "not told".into())
        };
        answer.send(()).expect("heard");
        until(|| ailment(&scan.health).is_empty()).await;
        // It hangs from the second scan on.
        pass(29).await;
        assert!(
            ailment(&scan.health).contains("NVML has not answered for 15 s"),
            "{}",
            ailment(&scan.health)
        );
        // And goes on being told: kubelet forgets a report after 30 s.
        scan.health.borrow_and_update();
        pass(29).await;
        assert!(scan.health.has_changed().expect("a sender"));
        assert!(asked.load(Ordering::SeqCst) <= 2, "one question at a time");
        // What the hanging call says in the end is old, so it is asked anew.
        answer.send(()).expect("heard");
        until(|| asked.load(Ordering::SeqCst) == 3).await;
        assert!(
            ailment(&scan.health).contains("NVML has not answered"),
            "{}",
            ailment(&scan.health)
        );
        answer.send(()).expect("heard");
        until(|| ailment(&scan.health).is_empty()).await;
        running.abort();
    }
}
