//! Applies the lists of the GPUs: the first one publishes them, later ones update their health.
//!
//! [`published`] says what happens to a GPU that is lost, is switched to MIG mode or back, or whose driver does not answer.
//! A GPU whose memory size changes keeps its published size. After a restart, that holds only for GPUs on which claims
//! have shares. A node without a GPU and a driver idles, which is not a failure: the DaemonSet runs on such nodes too.
//! A node with GPUs but without a driver for them is a failure, which [`no_driver`] detects.
//!
//! Every scan makes a report of health with the time of that scan. Faults of GPUs that are listed come from `faults`, and
//! change the last report without making it younger: if scans end, kubelet finds it stale after 30 s.

mod dynamic;
mod measurer;
mod no_driver;
mod published;

pub(crate) use no_driver::BEGIN as NO_DRIVER;

use crate::config::Config;
use crate::dra::checkpoint::InUse;
use crate::dra::health::Report;
use crate::dra::node::SharedNode;
use crate::driver_limit::probe::Prober;
use crate::metrics::Metrics;
use crate::nvml::sampler;
use crate::publish::Wanted;
use crate::publish::contexts::Contexts;
use crate::publish::inventory::{Error, Faults, Gpu, Inventory, LeftOut, List};
use crate::publish::slice::slices;
use crate::ready::Readiness;
use dynamic::DynamicGpus;
use measurer::Measurer;
use published::Published;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use tokio::sync::watch;
use vgpu_context_size::ContextSize;
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::gpus;

/// The part's name in [`Readiness`].
pub const PART: &str = "gpus";

/// The receivers of a scan's result.
pub struct ScanOutputs {
    pub node: SharedNode,
    pub wanted: watch::Sender<Wanted>,
    pub reports: watch::Sender<Report>,
    pub readiness: Readiness,
    pub metrics: Metrics,
    /// Becomes true when the first scan has ended.
    pub scanned: watch::Sender<bool>,
    /// True while another instance works and this node publishes nothing. A missing driver is then nothing new, and an
    /// unready pod would only block the rolling update on other nodes.
    pub is_beside_idle: Arc<AtomicBool>,
}

/// State kept between scans.
struct Scans {
    gpus: Published,
    dynamic: DynamicGpus,
    /// The size of a context on each GPU, by UUID.
    contexts: BTreeMap<String, ContextSize>,
    faults: Faults,
    /// Why a setting of the node does not hold.
    setting: Option<String>,
    /// The time of the last scan.
    scanned: SystemTime,
    /// True once the driver has answered a scan.
    has_listed: bool,
    /// What was published last; None before the first scan that the driver answered.
    last: Option<Inventory>,
    /// The reasons that were logged already, one for each GPU that could not be read.
    left_out: Vec<LeftOut>,
    /// The contradictions that were logged already.
    contradictions: Vec<String>,
}

/// Applies lists and faults. `faults` are those of GPUs that are listed. `setting`: why a setting of the node does not hold.
pub(crate) async fn run(
    mut samples: sampler::Receiver,
    contexts: Contexts,
    prober: Prober,
    config: Config,
    mut faults: watch::Receiver<Faults>,
    mut setting: watch::Receiver<Option<String>>,
    outputs: ScanOutputs,
) {
    let mut measurer = Measurer::new(contexts, prober);
    let mut scans = Scans::new(outputs.node.gpus_in_use());
    scans.dynamic = DynamicGpus::new(config.mig_dynamic).with_held(&outputs.node.gpus_in_use());
    scans.faults = faults.borrow_and_update().clone();
    scans.setting = setting.borrow_and_update().clone();
    loop {
        tokio::select! {
            sample = samples.next() => match sample {
                Some(sample) => if let Some(list) = sample.list.clone() {
                    scans.scan(list, &mut measurer, &config, &outputs).await;
                },
                None => return,
            },
            Ok(()) = faults.changed() => {
                scans.faults = faults.borrow_and_update().clone();
                scans.show(&config, &outputs);
            }
            Ok(()) = setting.changed() => {
                scans.setting = setting.borrow_and_update().clone();
                scans.show(&config, &outputs);
            }
        }
    }
}

// === impl Scans ===

impl Scans {
    fn new(in_use: Vec<InUse>) -> Self {
        Self {
            gpus: Published::new(in_use),
            dynamic: DynamicGpus::default(),
            contexts: BTreeMap::new(),
            faults: Faults::new(),
            setting: None,
            scanned: SystemTime::UNIX_EPOCH,
            has_listed: false,
            last: None,
            left_out: Vec::new(),
            contradictions: Vec::new(),
        }
    }

    async fn scan(
        &mut self,
        mut seen: Result<List, Error>,
        measurer: &mut Measurer,
        config: &Config,
        outputs: &ScanOutputs,
    ) {
        if let Err(error) = &seen {
            self.dynamic.note_silence(&error.to_string());
        }
        if let Ok(list) = &mut seen {
            // Before the GPUs are published, so that each claim on them finds the size of a context and who limits it.
            match measurer.measure(&list.gpus).await {
                Some(mut measured) => {
                    self.note_contexts(measured.contexts);
                    outputs.node.set_contexts(self.contexts.clone());
                    for gpu in &mut list.gpus {
                        gpu.driver_limit = measured.driver_limits.remove(&gpu.uuid);
                    }
                }
                None if self.last.is_none() => return want(outputs, Wanted::Silent),
                None => list
                    .gpus
                    .retain(|gpu| self.gpus.has(&gpu.uuid) || self.dynamic.has(&gpu.uuid)),
            }
            let surveyed = self.divide(list, outputs).await;
            if let Some(why) = surveyed.err().filter(|_| self.last.is_none()) {
                // Without instances that claims made, an administrator's would look like none, and the other way round.
                outputs.readiness.set(PART, Err(why));
                return want(outputs, Wanted::Silent);
            }
            add_instances(list);
        }
        let is_late = matches!(seen, Err(Error::Late(_)));
        // A driver that is slow is not being replaced.
        if seen.is_err() && !is_late {
            measurer.note_failed_list();
        }
        self.apply(seen, config, outputs);
        if !is_late {
            outputs.scanned.send_replace(true);
        }
    }

    /// Takes new sizes of contexts over. Those of GPUs that are in MIG mode for a while stay.
    fn note_contexts(&mut self, measured: BTreeMap<String, ContextSize>) {
        self.contexts.retain(|uuid, _| self.dynamic.has(uuid));
        self.contexts.extend(measured);
    }

    /// Leaves the GPUs that claims divide to their own pools.
    async fn divide(&mut self, list: &mut List, outputs: &ScanOutputs) -> Result<(), String> {
        let is_published = |uuid: &str| self.gpus.has(uuid);
        let surveyed = self.dynamic.scan(list, &outputs.node, is_published).await;
        self.gpus.forget(|uuid| self.dynamic.switches(uuid));
        surveyed
    }

    /// Applies a scan: publishes the GPUs, reports the readiness, and reports the health of each GPU.
    fn apply(&mut self, seen: Result<List, Error>, config: &Config, outputs: &ScanOutputs) {
        let mut in_use = outputs.node.gpus_in_use();
        for one in &mut in_use {
            // A record that was rebuilt does not name the device.
            one.is_dynamic |= self.dynamic.switches(&one.gpu.uuid);
        }
        self.report_readiness(&seen, config, outputs);
        let seen = seen.map_err(|error| error.to_string());
        let now = std::time::Instant::now();
        self.gpus.apply(seen.as_ref().map_err(String::as_str), &in_use, now);
        match seen {
            Ok(list) => {
                self.log(list.left_out, list.contradictions);
                self.has_listed = true;
            }
            // Before the first list, a failure publishes nothing.
            Err(reason) if !self.has_listed => outputs.node.set_inventory(Err(reason)),
            Err(_) => {}
        }
        self.scanned = SystemTime::now();
        self.show(config, outputs);
    }

    /// Publishes what is known, and reports the health of each GPU.
    fn show(&mut self, config: &Config, outputs: &ScanOutputs) {
        if self.has_listed {
            self.publish(config, outputs);
        }
        let report = Report::new(config.pools(), &self.inventory(), self.scanned);
        outputs.reports.send_replace(report);
    }

    fn inventory(&self) -> Inventory {
        let (dynamic, unavailable) = self.dynamic.published();
        let mut inventory = self.gpus.inventory().with_dynamic(dynamic, unavailable);
        let mut remarks = inventory.remarks().clone();
        remarks.left_out.extend(self.dynamic.remarks());
        remarks.settings.extend(self.setting.clone());
        inventory = inventory.with_remarks(remarks);
        inventory.with_faults(&self.faults)
    }

    fn report_readiness(&self, seen: &Result<List, Error>, config: &Config, outputs: &ScanOutputs) {
        let unusable = match seen {
            Err(Error::NoLibrary { missing, .. }) => no_driver::reason(config, missing),
            _ => None,
        };
        let reason = match seen {
            Err(reason @ Error::NoLibrary { .. }) if self.gpus.is_empty() && self.dynamic.is_empty() => {
                want(outputs, Wanted::NoDriver);
                if unusable.is_none() || outputs.is_beside_idle.load(Ordering::Relaxed) {
                    if outputs.readiness.idle(PART, reason.to_string()) {
                        tracing::info!("nothing to do on this node: {reason}; looking again every few seconds");
                    }
                    return;
                }
                unusable
            }
            Err(error) => {
                // Once GPUs were listed, they are published with a taint on each.
                if !self.has_listed {
                    want(outputs, Wanted::Silent);
                }
                if let Error::Paused(why) = error {
                    // Whoever set the label is replacing the driver, and does not need this pod to be unready.
                    outputs.readiness.pause(PART, why.clone());
                    return;
                }
                unusable.or_else(|| Some(error.to_string()))
            }
            Ok(_) if !self.dynamic.is_empty() => self.dynamic.silent().next(),
            Ok(list) => list.why_empty().map(|why| why.to_string()),
        };
        match reason {
            None => {
                if outputs.readiness.set(PART, Ok(())) {
                    tracing::info!("the driver lists GPUs");
                }
            }
            Some(reason) => {
                if outputs.readiness.set(PART, Err(reason.clone())) {
                    tracing::error!(
                        "the node is not ready: {reason}; GPUs that this names take no new claims; retrying every few seconds"
                    );
                }
            }
        }
    }

    fn log(&mut self, left_out: Vec<LeftOut>, contradictions: Vec<String>) {
        let is_switched = |left: &LeftOut| left.uuid.as_ref().is_some_and(|uuid| self.dynamic.switches(uuid));
        let is_new = |left: &&LeftOut| !self.left_out.contains(left) && !is_switched(left);
        for left in left_out.iter().filter(is_new) {
            tracing::warn!("a GPU is left out: {}", left.why);
        }
        self.left_out = left_out;
        for said in contradictions.iter().filter(|said| !self.contradictions.contains(said)) {
            tracing::warn!("NVLinks that contradict each other: {said}");
        }
        self.contradictions = contradictions;
    }

    /// Publishes the GPUs if a scan changed them, and gives them to the node, which prepares claims on them.
    fn publish(&mut self, config: &Config, outputs: &ScanOutputs) {
        let inventory = self.inventory();
        if self.last.as_ref() == Some(&inventory) {
            return;
        }
        self.last = Some(inventory.clone());
        let whole = inventory.by_index().into_iter().filter(|(_, gpu)| gpu.mig.is_none());
        outputs.metrics.gpus.set(whole.count() as i64);
        let devices = slices(&inventory, config.sharing());
        // First the node: turns that begin from now on refuse new claims on unavailable GPUs.
        outputs.node.set_inventory(Ok(inventory));
        want(outputs, Wanted::Slices(devices));
    }
}

/// Adds the instances of GPUs in MIG mode to those that are published. Neither contexts nor limits are asked of them: a default
/// is reserved for each context, and the driver limits no cgroup there.
fn add_instances(list: &mut List) {
    for instance in mem::take(&mut list.instances) {
        // Without its place nobody can tell whether another one has replaced it.
        if instance.mig.as_ref().is_some_and(|mig| mig.placement.is_none()) {
            list.left_out.push(LeftOut {
                uuid: Some(instance.uuid.clone()),
                why: gpus::Error::Field {
                    index: instance.index,
                    field: format!("placement of instance {}", instance.uuid).into(),
                    reason: "the driver does not say it to this process".into(),
                },
            });
            continue;
        }
        list.gpus.push(Gpu {
            driver_limit: Some(DriverLimit::None("its GPU is in MIG mode".into())),
            ..instance
        });
    }
}

fn want(outputs: &ScanOutputs, new: Wanted) {
    outputs.wanted.send_if_modified(|wanted| {
        let changed = *wanted != new;
        *wanted = new;
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MigDynamic;
    use crate::dra::node::tests::instances::{Machine, part, start_switching};
    use crate::dra::node::tests::{Rig, claim};
    use crate::dra::share::ClaimId;
    use crate::nvml::Sample;
    use crate::publish::inventory::{Fault, Reason, Unavailable, tests::gpu};
    use crate::publish::slice::tests::WHOLE;
    use k8s_openapi::api::resource::v1::{Device, ResourceClaim};

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
            ..List::default()
        }
    }

    fn no_driver(missing: &str) -> Error {
        Error::NoLibrary {
            root: "/".into(),
            missing: missing.into(),
        }
    }

    /// The taint of each published device.
    fn taints(published: &watch::Receiver<Wanted>) -> Vec<Option<String>> {
        let Wanted::Slices(slices) = published.borrow().clone() else {
            return Vec::new();
        };
        let taint = |device: &Device| Some(device.taints.as_ref()?.first()?.key.clone());
        crate::publish::slice::devices(&slices).map(taint).collect()
    }

    async fn prepare(node: &SharedNode, claim: (ClaimId, ResourceClaim)) -> Result<(), String> {
        let answer = node.turn(move |node, locked| node.prepare(locked, &[claim]).0.remove(0));
        let answer = answer.await.expect("a turn");
        answer.map(|_| ()).map_err(|error| error.to_string())
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
            is_beside_idle: Arc::default(),
        };
        Scanned {
            rig,
            outputs,
            published,
            health,
        }
    }

    #[tokio::test]
    async fn a_silent_driver_is_told_and_publishes_nothing_until_it_speaks() {
        let Scanned {
            rig,
            outputs,
            published,
            health,
        } = scan();
        let silent = |reason: &str| Err(Error::Silent(reason.into()));
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.apply(silent("does not load"), &config, &outputs);
        assert!(!outputs.readiness.status().0 && outputs.readiness.status().1.contains("does not load"));
        assert!(*published.borrow() == Wanted::Silent && health.borrow().devices.is_empty());
        scans.apply(Ok(list(&[gpu(0)])), &config, &outputs);
        assert!(outputs.readiness.status().0);
        let well = slices(&Inventory::new(vec![gpu(0)]), config.sharing());
        assert_eq!(*published.borrow(), Wanted::Slices(well.clone()));
        for blind in [Error::Silent("gone".into()), no_driver("gone")] {
            scans.apply(Err(blind), &config, &outputs);
            assert!(!outputs.readiness.status().0);
            assert_eq!(
                taints(&published),
                [Some("dra.vgpu/silent".to_owned()), None],
                "still published"
            );
            assert!(health.borrow().devices.values().all(|why| why.contains("gone")));
            let error = prepare(&outputs.node, claim("u1", &[("s1", 20, 25)]))
                .await
                .expect_err("a silent driver");
            assert!(
                error.contains("gpu-3f8a1c20 takes no new claims") && error.contains("gone"),
                "{error}"
            );
        }
        scans.apply(Ok(list(&[gpu(0)])), &config, &outputs);
        assert_eq!(*published.borrow(), Wanted::Slices(well));
        assert_eq!(prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await, Ok(()));
    }

    #[tokio::test]
    async fn a_lost_gpu_keeps_its_claims_and_gets_no_new_ones() {
        let Scanned {
            rig,
            outputs,
            published,
            health,
        } = scan();
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.apply(Ok(list(&[gpu(0), gpu(1)])), &config, &outputs);
        assert_eq!(prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await, Ok(()));
        let divided = gpus::Error::Mig {
            uuid: gpu(0).uuid,
            instances: Vec::new(),
        };
        for (why, name, text) in [
            (divided, "dra.vgpu/mig", "is in MIG mode"),
            (gpus::Error::NoGpu, "dra.vgpu/lost", "not in the driver's list"),
        ] {
            let lost = List {
                gpus: vec![gpu(1)],
                left_out: vec![LeftOut {
                    uuid: Some(gpu(0).uuid),
                    why,
                }],
                ..List::default()
            };
            scans.apply(Ok(lost), &config, &outputs);
            assert!(outputs.readiness.status().0, "the other one works");
            assert_eq!(taints(&published), [Some(name.to_owned()), None, None, None]);
            assert!(health.borrow().devices["gpu-3f8a1c20"].contains(text));
            assert_eq!(
                prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await,
                Ok(()),
                "prepared before"
            );
            let error = prepare(&outputs.node, claim("u2", &[("s2", 20, 25)]))
                .await
                .expect_err("a new claim");
            assert!(
                error.contains("gpu-3f8a1c20 takes no new claims") && error.contains(text),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn a_fault_is_told_between_scans_and_refuses_no_claim_that_was_allocated() {
        let Scanned {
            rig,
            outputs,
            published,
            health,
        } = scan();
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        let fault = |reason, value: &str, blocks| Fault {
            reason,
            value: value.into(),
            blocks,
        };
        let told = fault(Reason::Xid, "13", false);
        scans.faults = Faults::from([(gpu(0).uuid, vec![told.clone()])]);
        scans.show(&config, &outputs);
        assert_eq!(*published.borrow(), Wanted::Unknown, "not listed yet");
        scans.apply(Ok(list(&[gpu(0), gpu(1)])), &config, &outputs);
        assert_eq!(taints(&published)[0].as_deref(), Some("dra.vgpu/xid"));
        let seen = health.borrow().clone();
        assert!(
            seen.devices.values().all(String::is_empty),
            "what does not count is no trouble"
        );
        let blocks = fault(Reason::Remap, "failed", true);
        scans.faults = Faults::from([(gpu(0).uuid, vec![told, blocks])]);
        scans.show(&config, &outputs);
        let Wanted::Slices(slices) = published.borrow().clone() else {
            panic!("no slices");
        };
        let found = slices[0].devices[0].taints.iter().flatten();
        let found: Vec<_> = found
            .map(|taint| (&*taint.key, taint.value.as_deref(), &*taint.effect))
            .collect();
        assert_eq!(
            found,
            [
                ("dra.vgpu/xid", Some("13"), "None"),
                ("dra.vgpu/remap", Some("failed"), "NoSchedule")
            ]
        );
        let now = health.borrow().clone();
        assert!(now.devices["gpu-3f8a1c20"].contains("could not remap") && now.devices["gpu-3f8a1c21"].is_empty());
        assert_eq!(now.seen, seen.seen, "not younger than the scan");
        assert_eq!(prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await, Ok(()));
        // A lost GPU keeps its faults.
        scans.apply(Ok(list(&[gpu(1)])), &config, &outputs);
        assert_eq!(taints(&published)[0].as_deref(), Some("dra.vgpu/lost"));
        assert!(prepare(&outputs.node, claim("u2", &[("s2", 20, 25)])).await.is_err());
        let text = health.borrow().devices["gpu-3f8a1c20"].clone();
        assert!(
            text.contains("not in the driver's list") && text.contains("could not remap"),
            "{text}"
        );
    }

    /// The node begins to switch MIG modes while a claim has GPU 0.
    #[tokio::test]
    async fn a_gpu_moves_to_the_pool_of_its_instances_when_its_claims_have_ended_and_is_in_one_pool_at_a_time() {
        let (machine, rig) = (Machine::default(), Rig::new(false));
        machine.switch(false);
        let mut scanned = scanned_on(rig);
        scanned.outputs.node = SharedNode::new(start_switching(&scanned.rig, &machine));
        let (config, outputs) = (scanned.rig.config(), scanned.outputs);
        let held = prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await;
        assert_eq!(held, Ok(()));
        let mut scans = Scans::new(outputs.node.gpus_in_use());
        scans.dynamic = DynamicGpus::new(MigDynamic::Modes);
        let pools = |published: &watch::Receiver<Wanted>| -> Vec<(String, usize)> {
            let Wanted::Slices(slices) = published.borrow().clone() else {
                return Vec::new();
            };
            let all = slices.iter().filter(|slice| !slice.devices.is_empty());
            all.map(|slice| (slice.pool.clone(), slice.devices.len())).collect()
        };
        let own = |digits: &str| (format!("vgpu-mig-{digits}"), 26);
        for (claims, expected) in [
            (
                1,
                vec![("vgpu".to_owned(), 1), ("vgpu-monitor".into(), 1), own("3f8a1c21")],
            ),
            (0, vec![own("3f8a1c20"), own("3f8a1c21")]),
        ] {
            let mut seen = list(&[gpu(0), gpu(1)]);
            scans.divide(&mut seen, &outputs).await.expect("surveyed");
            scans.apply(Ok(seen), &config, &outputs);
            assert_eq!(pools(&scanned.published), expected, "{claims} claims");
            assert!(taints(&scanned.published).iter().all(Option::is_none));
            let gone = outputs
                .node
                .turn(|node, locked| node.unprepare(locked, &["u1"]).remove(0));
            gone.await.expect("a turn").expect("unprepared");
        }
        assert_eq!(outputs.metrics.gpus.get(), 2);
        let health = scanned.health.borrow().clone();
        assert!(health.devices.contains_key("gpu-3f8a1c20-undivided"));
        assert!(!health.devices.contains_key("gpu-3f8a1c20-undivided-monitor"));
        // A record that was rebuilt does not say that the claim has the GPU in that pool.
        let (id, rebuilt) = part("u2", 20);
        assert_eq!(prepare(&outputs.node, (id, rebuilt)).await, Ok(()));
        std::fs::write(scanned.rig.record("u2"), "{").expect("written");
        let mut seen = list(&[gpu(0), gpu(1)]);
        scans.divide(&mut seen, &outputs).await.expect("surveyed");
        scans.apply(Ok(seen), &config, &outputs);
        assert!(outputs.node.gpus_in_use().iter().any(|one| !one.is_dynamic));
        assert_eq!(pools(&scanned.published), [own("3f8a1c20"), own("3f8a1c21")]);
        // Its context was measured while it was whole.
        let size = ContextSize { own: 1, unowned: 0 };
        let measured = |index: u32| BTreeMap::from([(gpu(index).uuid, size)]);
        scans.note_contexts(measured(0));
        scans.note_contexts(measured(5));
        scans.note_contexts(BTreeMap::new());
        assert_eq!(scans.contexts.keys().collect::<Vec<_>>(), [&gpu(0).uuid]);
    }

    #[tokio::test]
    async fn a_node_whose_only_gpu_is_lost_is_not_ready_and_publishes_it_tainted() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.apply(Ok(list(&[gpu(0)])), &config, &outputs);
        scans.apply(Ok(list(&[])), &config, &outputs);
        assert_eq!(taints(&published), [Some("dra.vgpu/lost".to_owned()), None]);
        assert!(outputs.readiness.status().1.contains("lists no GPU"));
    }

    /// Lets claims make instances on a machine, which is returned.
    async fn makes_instances(node: &SharedNode) -> Machine {
        let machine = Machine::default();
        let driver = machine.clone();
        let makes = node.turn(move |node, _| node.make_instances_with(Arc::new(driver.clone()), driver.boot()));
        makes.await.expect("a turn");
        machine
    }

    #[tokio::test]
    async fn a_gpu_whose_instances_are_not_known_keeps_its_pool_and_the_node_is_not_ready_until_they_are() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        let machine = makes_instances(&outputs.node).await;
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.dynamic = DynamicGpus::new(MigDynamic::Instances);
        let mut measurer = Measurer::new(Contexts::unknown(), Prober::unknown());
        let seen = || {
            Ok(List {
                divided: vec![gpu(0)],
                ..list(&[gpu(1)])
            })
        };
        let kept = || -> Vec<String> {
            let Wanted::Slices(all) = &*published.borrow() else {
                panic!("nothing is published");
            };
            let kept = all.iter().filter(|slice| slice.is_kept);
            kept.map(|slice| slice.pool.clone()).collect()
        };
        machine.state().silence = Some("NVML hangs".into());
        scans.scan(seen(), &mut measurer, &config, &outputs).await;
        let (is_ready, why) = outputs.readiness.status();
        assert!(
            !is_ready && why.contains(&gpu(0).uuid) && why.contains("NVML hangs"),
            "{why}"
        );
        assert_eq!(
            (kept(), taints(&published)),
            (vec!["vgpu-mig-3f8a1c20".to_owned()], vec![None, None])
        );
        assert!(
            *outputs.scanned.borrow(),
            "it registers, so that claims can be unprepared"
        );
        machine.state().silence = None;
        scans.scan(seen(), &mut measurer, &config, &outputs).await;
        assert!(outputs.readiness.status().0 && kept().is_empty());
        assert_eq!(taints(&published), vec![None; 27]);
    }

    /// A file is where the records' folder should be.
    #[tokio::test]
    async fn without_records_of_instances_a_plugin_that_has_started_publishes_nothing_new() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        makes_instances(&outputs.node).await;
        std::fs::create_dir_all(rig.path("store")).expect("a folder");
        std::fs::write(rig.path("store/mig"), "").expect("written");
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.dynamic = DynamicGpus::new(MigDynamic::Instances);
        let mut measurer = Measurer::new(Contexts::unknown(), Prober::unknown());
        let divided = List {
            divided: vec![gpu(0)],
            ..List::default()
        };
        scans.scan(Ok(divided.clone()), &mut measurer, &config, &outputs).await;
        assert_eq!(*published.borrow(), Wanted::Silent);
        let (is_ready, why) = outputs.readiness.status();
        assert!(!is_ready && why.contains("store/mig"), "{why}");
        std::fs::remove_file(rig.path("store/mig")).expect("removed");
        scans.scan(Ok(divided), &mut measurer, &config, &outputs).await;
        assert!(outputs.readiness.status().0 && matches!(&*published.borrow(), Wanted::Slices(_)));
    }

    #[tokio::test]
    async fn a_node_without_a_driver_is_ready_and_waits_for_one() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        let (config, mut scans) = (rig.config(), Scans::new(Vec::new()));
        scans.apply(Err(no_driver("none here")), &config, &outputs);
        assert!(outputs.readiness.status().0 && outputs.readiness.status().1.contains("none here"));
        assert_eq!(*published.borrow(), Wanted::NoDriver);
        scans.apply(Ok(list(&[gpu(0)])), &config, &outputs);
        assert!(matches!(&*published.borrow(), Wanted::Slices(all) if all.len() == 2));
    }

    #[tokio::test]
    async fn gpus_without_a_driver_are_not_ready_but_beside_an_instance_that_has_none_either() {
        let Scanned {
            rig,
            outputs,
            published,
            ..
        } = scan();
        let config = Config {
            sys: rig.path("sys"),
            driver_root_host: "/run/nvidia/driver".into(),
            ..rig.config()
        };
        no_driver::tests::gpu(&config.sys, "0000:3b:00.0", Some("vfio-pci"));
        let mut scans = Scans::new(Vec::new());
        let missing = || Err(no_driver("libnvidia-ml.so.1 is nowhere"));
        scans.apply(missing(), &config, &outputs);
        assert!(outputs.readiness.status().0, "GPUs of virtual machines");

        no_driver::tests::gpu(&config.sys, "0000:86:00.0", Some("nouveau"));
        scans.apply(missing(), &config, &outputs);
        let (is_ready, status) = outputs.readiness.status();
        for part in ["0000:86:00.0", "nouveau", "/run/nvidia/driver", "nowhere", "driverRoot"] {
            assert!(!is_ready && status.contains(part), "{part}: {status}");
        }
        assert!(!status.contains("0000:3b"), "{status}");
        assert_eq!(*published.borrow(), Wanted::NoDriver);

        outputs.is_beside_idle.store(true, Ordering::Relaxed);
        scans.apply(missing(), &config, &outputs);
        assert!(outputs.readiness.status().0);
        outputs.is_beside_idle.store(false, Ordering::Relaxed);
        scans.apply(Err(Error::Paused("a label".into())), &config, &outputs);
        assert_eq!(outputs.readiness.status(), (true, "gpus: ok, paused: a label\n".into()));
        assert_eq!(*published.borrow(), Wanted::Silent);

        // A claim has a share of one, and the driver is gone.
        let mut scans = Scans::new(vec![InUse {
            gpu: gpu(0),
            has_shares: true,
            is_dynamic: false,
        }]);
        scans.apply(missing(), &config, &outputs);
        assert!(outputs.readiness.status().1.starts_with(&format!("gpus: {NO_DRIVER}")));
    }

    #[tokio::test]
    async fn a_turn_that_hangs_stops_no_scan() {
        let scanned = scan();
        let (outputs, published) = (&scanned.outputs, &scanned.published);
        let (config, mut scans) = (scanned.rig.config(), Scans::new(Vec::new()));
        scans.apply(Ok(list(&[gpu(0), gpu(1)])), &config, outputs);
        assert_eq!(prepare(&outputs.node, claim("u1", &[("s1", 20, 25)])).await, Ok(()));
        // As on a disk that does not answer.
        let (go_on, hangs) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let turn = {
            let node = outputs.node.clone();
            tokio::spawn(async move {
                let hung = node.turn(move |node, locked| {
                    begun.send(()).expect("a test");
                    hangs.recv().expect("an end");
                    node.prepare(locked, &[claim("u3", &[("s3", 20, 25)])])
                        .0
                        .remove(0)
                        .is_ok()
                });
                assert!(hung.await.expect("a turn"), "its GPU was well when it began");
            })
        };
        begins.await.expect("a turn");
        scans.apply(Ok(list(&[gpu(1)])), &config, outputs);
        assert_eq!(
            taints(published)[0].as_deref(),
            Some("dra.vgpu/lost"),
            "held, so still published"
        );
        assert!(scanned.health.borrow().devices["gpu-3f8a1c20"].contains("not in the driver's list"));
        go_on.send(()).expect("a turn");
        turn.await.expect("a turn");
        let error = prepare(&outputs.node, claim("u2", &[("s2", 20, 25)]))
            .await
            .expect_err("a lost GPU");
        assert!(error.contains("gpu-3f8a1c20 takes no new claims"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_is_held_outlives_a_restart_without_it() {
        let rig = Rig::new(false);
        let mut before = rig.open();
        let prepared = before.prepare(&before.locked(), &[claim("u1", &[("s1", 20, 25)])]).0;
        assert!(prepared[0].is_ok());
        let mut scan = scanned_on(rig);
        scan.outputs.node.set_inventory(Err("just started".into()));
        let node = scan.outputs.node.clone();
        let well = watch::channel(Faults::new()).1;
        let (sender, samples) = sampler::channel();
        let running = tokio::spawn(run(
            samples,
            Contexts::unknown(),
            Prober::unknown(),
            scan.rig.config(),
            well,
            watch::channel(None).1,
            scan.outputs,
        ));
        // One GPU of two, whose memory size is smaller than before.
        let shrunk = Gpu {
            memory: 1 << 30,
            ..gpu(1)
        };
        sender.send(Sample {
            list: Some(Ok(list(std::slice::from_ref(&shrunk)))),
            gpus: Ok(Vec::new()),
        });
        scan.published.changed().await.expect("a first scan");
        let lost = BTreeMap::from([(gpu(0).uuid, Unavailable::Lost(String::new()))]);
        let both = Inventory::with_unavailable(vec![gpu(0), shrunk], lost);
        assert_eq!(*scan.published.borrow(), Wanted::Slices(slices(&both, WHOLE)));
        scan.health.changed().await.expect("a report");
        let report = scan.health.borrow().clone();
        assert!(report.devices["gpu-3f8a1c20"].contains("not in the driver's list"));
        assert_eq!(report.devices["gpu-3f8a1c21"], "");
        assert_eq!(prepare(&node, claim("u1", &[("s1", 20, 25)])).await, Ok(()));
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_setting_that_does_not_hold_is_a_remark_until_it_does() {
        let scan = scan();
        let (node, mut health) = (scan.outputs.node.clone(), scan.health.clone());
        let (sender, samples) = sampler::channel();
        let (say, setting) = watch::channel(Some("the label is wrong".to_owned()));
        let well = watch::channel(Faults::new()).1;
        let (contexts, prober) = (Contexts::unknown(), Prober::unknown());
        let running = tokio::spawn(run(
            samples,
            contexts,
            prober,
            scan.rig.config(),
            well,
            setting,
            scan.outputs,
        ));
        sender.send(Sample {
            list: Some(Ok(list(&[gpu(0)]))),
            gpus: Ok(Vec::new()),
        });
        for expected in [vec!["the label is wrong".to_owned()], vec![]] {
            health.changed().await.expect("a report");
            let said = node.turn(|node, _| node.inventory().map(|inventory| inventory.remarks().settings.clone()));
            assert_eq!(said.await.expect("a turn"), Some(expected));
            say.send_replace(None);
        }
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_is_late_is_unhealthy_and_has_not_been_scanned() {
        let mut scan = scan();
        let (well, mut scanned) = (watch::channel(Faults::new()).1, scan.outputs.scanned.subscribe());
        let (sender, samples) = sampler::channel();
        let running = tokio::spawn(run(
            samples,
            Contexts::unknown(),
            Prober::unknown(),
            scan.rig.config(),
            well,
            watch::channel(None).1,
            scan.outputs,
        ));
        let mut health = async |list| {
            sender.send(Sample {
                list: Some(list),
                gpus: Ok(Vec::new()),
            });
            scan.health.changed().await.expect("a report");
            scan.health.borrow().devices.get("gpu-3f8a1c20").cloned()
        };
        assert_eq!(health(Err(Error::Late(15))).await, None);
        assert!(!*scanned.borrow_and_update(), "registration waits for it");
        assert_eq!(health(Ok(list(&[gpu(0)]))).await.as_deref(), Some(""));
        scanned.changed().await.expect("a first scan");
        let late = health(Err(Error::Late(15))).await.expect("a GPU");
        assert!(late.contains("NVML has not answered for 15 s"), "{late}");
        running.abort();
    }
}
