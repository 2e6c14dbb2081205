//! The work of an instance besides answering kubelet's calls. The instance with the publisher's lock
//! (`publish::publish_gate`) scans the GPUs, follows their faults, publishes slices, observes shares, and writes events
//! and status. The other instance of a rolling update only scans the GPUs, for its own calls and the health that it
//! reports.

use crate::api::{self, Cluster, Slices as _};
use crate::config::{Config, OnBreach};
use crate::dra::clean_up;
use crate::dra::health::Report;
use crate::dra::node::SharedNode;
use crate::driver_limit::probe::Prober;
use crate::enforcement::{self, Observer, Processes};
use crate::metrics::{Metrics, Sources};
use crate::node_labels::mig_dynamic;
use crate::nvml::{Nvml, sampler};
use crate::publish::contexts::Contexts;
use crate::publish::faults::{FaultStore, OpenFaults, Watcher};
use crate::publish::host_memory::HostMemory;
use crate::publish::inventory::Faults;
use crate::publish::publish_gate::Gate;
use crate::publish::taints::Taints;
use crate::publish::{Publisher, Wanted, plan::Owner};
use crate::publish::{faults, gpus};
use crate::ready::{Readiness, WAITING};
use crate::retry::until_done;
use crate::{containers, publish};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use vgpu_api::DRIVER_NAME;

/// Everything that the tasks use.
#[derive(Clone)]
pub(crate) struct TaskInputs {
    pub(crate) node: SharedNode,
    pub(crate) processes: Processes,
    pub(crate) cluster: Cluster,
    pub(crate) nvml: Nvml,
    pub(crate) config: Config,
    /// This boot of the machine.
    pub(crate) boot: String,
    pub(crate) sources: Sources,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
    /// True while kubelet has accepted this instance.
    pub(crate) reached: watch::Receiver<bool>,
    pub(crate) reports: watch::Sender<Report>,
    /// Becomes true when the first scan has ended.
    pub(crate) scanned: watch::Sender<bool>,
    /// Asks for a scan before its time.
    pub(crate) rescan: Arc<Notify>,
    pub(crate) setting: mig_dynamic::Said,
}

/// Works while `works` is true, and otherwise scans for this instance's own calls. Returns only if one of the tasks has
/// ended, and says which: otherwise the instance would seem to work without doing all of its work.
pub(crate) async fn run(parts: TaskInputs, mut works: watch::Receiver<bool>) -> String {
    loop {
        let working = *works.borrow_and_update();
        // Dropping the set ends its tasks.
        let mut tasks = match working {
            true => work(&parts),
            false => only_prepare(&parts),
        };
        let changed = tokio::select! {
            changed = works.wait_for(|works| *works != working) => changed.is_ok(),
            ended = first_end(&mut tasks) => return ended,
        };
        if !changed {
            return std::future::pending().await;
        }
        match working {
            true => {
                tracing::warn!("another instance of the plugin on this node works now; this one only prepares claims")
            }
            false => tracing::info!("no other instance of the plugin on this node works any more; this one does now"),
        }
    }
}

/// Tasks that end only with this set. Each returns a text that says which one has ended.
type Tasks = JoinSet<String>;

fn spawn(tasks: &mut Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        task.await;
        format!("{name} ended")
    });
}

/// Waits for a task that ends although it should not.
async fn first_end(tasks: &mut Tasks) -> String {
    match tasks.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => format!("a task of the plugin failed: {error}"),
        None => std::future::pending().await,
    }
}

fn only_prepare(parts: &TaskInputs) -> Tasks {
    let TaskInputs { config, .. } = parts;
    // This instance reports health to kubelet too, so it starts with the faults that the other instance has found.
    let known = Watcher::new(OpenFaults::new(config.ignored_xids.clone()), fault_store(parts)).faults();
    let (well, nowhere) = (watch::channel(known).1, watch::Sender::new(Wanted::Unknown));
    let (sender, samples) = sampler::channel();
    let mut tasks = JoinSet::new();
    let beside_idle = Arc::new(AtomicBool::new(false));
    let scanning = scan(parts, samples, well, nowhere, beside_idle.clone());
    spawn(&mut tasks, "scanning GPUs", scanning);
    let sampling = sampler::run(parts.nvml.clone(), parts.rescan.clone(), sender);
    spawn(&mut tasks, "sampling GPUs", sampling);
    let (cluster, readiness) = (parts.cluster.clone(), parts.readiness.clone());
    let trying = try_publishing(cluster, config.clone(), readiness, beside_idle);
    spawn(&mut tasks, "trying what publishing needs", trying);
    tasks
}

fn fault_store(parts: &TaskInputs) -> FaultStore {
    FaultStore::new(parts.config.faults.clone(), parts.boot.clone())
}

fn work(parts: &TaskInputs) -> Tasks {
    let TaskInputs { node, config, .. } = parts;
    // It may have been ready because another instance published. From now on it is ready once it has published itself.
    parts.readiness.set(publish::PART, Err(WAITING.into()));
    let mut tasks = JoinSet::new();
    let (sender, samples) = sampler::channel();
    let watcher = Watcher::new(OpenFaults::new(config.ignored_xids.clone()), fault_store(parts));
    // The first scan is published with the faults that a former instance found.
    let (faults, known_faults) = watch::channel(watcher.faults());
    let rescan = parts.rescan.clone();
    let following = faults::run(watcher, sender.subscribe(), faults, rescan.clone());
    spawn(&mut tasks, "following faults of GPUs", following);
    let (want, wanted) = watch::channel(Wanted::Unknown);
    let scanning = scan(parts, sender.subscribe(), known_faults, want, Arc::default());
    spawn(&mut tasks, "scanning GPUs", scanning);
    let Sources {
        observations,
        containers,
        ..
    } = parts.sources.clone();
    let asking = containers::run(node.clone(), config.pod_resources.clone(), containers);
    spawn(&mut tasks, "asking kubelet for containers", asking);
    let observer = Observer {
        node: node.clone(),
        processes: parts.processes.clone(),
        observations,
        own_pod: Some(config.pod_uid.clone()),
        kills: config.on_breach == OnBreach::Kill,
        driver_limits: Some(enforcement::question(
            node.clone(),
            parts.processes.clone(),
            config.driver_limits_dir.clone(),
        )),
    };
    spawn(&mut tasks, "observing shares", enforcement::observe(observer, samples));
    let sampling = sampler::run(parts.nvml.clone(), rescan, sender);
    spawn(&mut tasks, "sampling GPUs", sampling);
    tasks.spawn(with_node(parts.clone(), wanted));
    tasks
}

fn scan(
    parts: &TaskInputs,
    samples: sampler::Receiver,
    faults: watch::Receiver<Faults>,
    wanted: watch::Sender<Wanted>,
    is_beside_idle: Arc<AtomicBool>,
) -> impl Future<Output = ()> + use<> {
    let outputs = gpus::ScanOutputs {
        node: parts.node.clone(),
        wanted,
        reports: parts.reports.clone(),
        readiness: parts.readiness.clone(),
        metrics: parts.metrics.clone(),
        scanned: parts.scanned.clone(),
        is_beside_idle,
    };
    let contexts = Contexts::of_node(&parts.config);
    let (node, processes) = (parts.node.clone(), parts.processes.clone());
    let prober = Prober::new(Box::new(move || node.lock().driver_limit_program(processes.blind())));
    let (config, setting) = (parts.config.clone(), parts.setting.remark.clone());
    gpus::run(samples, contexts, prober, config, faults, setting, outputs)
}

/// The work that needs the Node object's UID: slices are owned by the Node, and events refer to it. Returns which part of it
/// ended.
async fn with_node(parts: TaskInputs, wanted: watch::Receiver<Wanted>) -> String {
    until_decided(parts.setting.is_decided.clone(), &parts.readiness).await;
    // Without the record of who allocates, nothing may be published.
    let taints = || async {
        let mark = &parts.config.allocator_mark;
        Taints::new(parts.config.allocator, mark.clone()).map_err(|error| {
            let mark = mark.display();
            format!("cannot read or write {mark}, which records who allocates: {error}")
        })
    };
    let taints = until_done(&parts.readiness, publish::PART, taints).await;
    let node_uid = || async {
        let uid = parts.cluster.node_uid().await;
        uid.map_err(|error| format!("cannot read this node's object: {error}"))
    };
    let node_uid = until_done(&parts.readiness, publish::PART, node_uid).await;
    let node_object = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(parts.config.node_name.clone()),
        uid: Some(node_uid.clone()),
        ..ObjectReference::default()
    };
    let report = enforcement::report_all(
        parts.sources,
        parts.cluster.clone(),
        parts.metrics.clone(),
        node_object.clone(),
    );
    let clean_up = clean_up::run(
        parts.node,
        parts.cluster.clone(),
        parts.metrics.clone(),
        parts.processes,
        node_object,
    );
    let owner = Owner {
        node: parts.config.node_name.clone(),
        node_uid,
        pools: parts.config.pools(),
    };
    let own = watcher::Config::default().fields(&own_slices(&parts.config));
    let events = watcher(parts.cluster.slices(), own).default_backoff();
    let gate = Gate {
        wanted,
        reached: parts.reached,
    };
    let publisher = Publisher::new(taints, HostMemory::new(parts.config.host_memory));
    let publish = publish::run(
        parts.cluster,
        events,
        publisher,
        owner,
        gate,
        parts.readiness,
        parts.metrics,
    );
    let mut tasks = JoinSet::new();
    spawn(&mut tasks, "reporting what was observed", report);
    spawn(&mut tasks, "cleaning up", clean_up);
    spawn(&mut tasks, "the watch of ResourceSlices", publish);
    first_end(&mut tasks).await
}

/// Waits until the labels of the node have been read: with another value of its label it may have other pools.
async fn until_decided(mut is_decided: watch::Receiver<bool>, readiness: &Readiness) {
    if *is_decided.borrow() {
        return;
    }
    let why = "the API server has not listed this node, whose labels say what to publish; check it, and nodes: list, watch in the \
               plugin's ClusterRole";
    readiness.set(publish::PART, Err(why.into()));
    if is_decided.wait_for(|is_decided| *is_decided).await.is_err() {
        // The plugin ends.
        std::future::pending().await
    }
}

/// Selects the slices that this driver publishes for this node.
fn own_slices(config: &Config) -> String {
    format!("spec.driver={DRIVER_NAME},spec.nodeName={}", config.node_name)
}

/// Checks, without writing, that this instance could publish, and sets the part ready once that succeeds. So a rolling
/// update stops at a release that could not publish, while the other instance still publishes. Sets `beside_idle` if
/// the other one publishes nothing.
async fn try_publishing(cluster: Cluster, config: Config, readiness: Readiness, beside_idle: Arc<AtomicBool>) {
    readiness.set(publish::PART, Err(WAITING.into()));
    let has_slices = || async {
        let found = can_publish(&cluster, &config).await;
        found.map_err(|error| format!("another instance publishes, and this one could not: {error}"))
    };
    let has_slices = until_done(&readiness, publish::PART, has_slices).await;
    beside_idle.store(!has_slices, Ordering::Relaxed);
    let why = "another instance of the plugin publishes, until it ends";
    readiness.idle(publish::PART, why.into());
    std::future::pending().await
}

/// Returns true if this node has slices already.
async fn can_publish(cluster: &Cluster, config: &Config) -> Result<bool, String> {
    let mark = &config.allocator_mark;
    Taints::check(mark.clone()).map_err(|error| {
        format!(
            "cannot read {}, which records who allocates: {error}; check the folder on the node",
            mark.display()
        )
    })?;
    let node_uid = cluster.node_uid().await;
    node_uid.map_err(|error| format!("cannot read this node's object: {error}; check the plugin's ClusterRole"))?;
    let own = ListParams::default().fields(&own_slices(config)).limit(1);
    let slices = cluster.slices().list(&own).await.map_err(api::Error::from);
    let slices =
        slices.map_err(|error| format!("cannot list ResourceSlices: {error}; check the plugin's ClusterRole"))?;
    Ok(!slices.items.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::Rig;
    use kube::client::Body;
    use std::time::Duration;

    /// An API server that forbids to read these objects.
    fn that_forbids(objects: &'static str) -> Cluster {
        let answer = move |request: http::Request<Body>| async move {
            let (code, text) = match request.uri().path().contains(objects) {
                true => (
                    403,
                    r#"{"status":"Failure","message":"forbidden","reason":"Forbidden","code":403}"#,
                ),
                false => (200, r#"{"metadata":{"name":"n1","uid":"u"},"items":[]}"#),
            };
            http::Response::builder()
                .status(code)
                .body(Body::from(text.as_bytes().to_vec()))
        };
        let client = kube::Client::new(tower::service_fn(answer), "d");
        Cluster::new(client, "n1".into())
    }

    #[tokio::test]
    async fn an_instance_that_could_not_publish_is_not_ready_beside_one_that_does() {
        let rig = Rig::new(false);
        for (forbidden, said) in [
            ("/nodes", "cannot read this node's object"),
            ("/resourceslices", "cannot list ResourceSlices"),
            ("nothing", "ok, nothing to do"),
        ] {
            let readiness = Readiness::new(&[publish::PART]);
            let beside_idle = Arc::<AtomicBool>::default();
            let server = that_forbids(forbidden);
            let trying = try_publishing(server, rig.config(), readiness.clone(), beside_idle.clone());
            let trying = tokio::spawn(trying);
            while readiness.status().1.contains("waiting") {
                tokio::task::yield_now().await;
            }
            let (is_ready, status) = readiness.status();
            assert!(status.contains(said), "{status}");
            assert_eq!(is_ready, forbidden == "nothing");
            assert_eq!(beside_idle.load(Ordering::Relaxed), is_ready, "the node has no slice");
            trying.abort();
        }
        let mut config = rig.config();
        std::fs::write(rig.path("file"), "").expect("written");
        config.allocator_mark = rig.path("file").join("mark");
        let error = can_publish(&that_forbids("nothing"), &config)
            .await
            .expect_err("no mark");
        assert!(error.contains("who allocates"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_published_before_the_labels_of_the_node_are_known() {
        let readiness = Readiness::new(&[publish::PART]);
        let (decide, is_decided) = watch::channel(false);
        let waiting = until_decided(is_decided.clone(), &readiness);
        let waited = tokio::time::timeout(Duration::from_secs(600), waiting).await;
        assert!(waited.is_err());
        let said = readiness.status().1;
        assert!(
            said.contains("has not listed this node") && said.contains("list, watch"),
            "{said}"
        );
        decide.send_replace(true);
        until_decided(is_decided.clone(), &readiness).await;
        drop(decide);
        until_decided(is_decided, &readiness).await;
    }

    #[tokio::test]
    async fn a_task_that_ends_is_named_while_others_go_on() {
        let mut tasks = JoinSet::new();
        spawn(&mut tasks, "publishing", std::future::pending());
        spawn(&mut tasks, "cleaning up", async {});
        assert_eq!(first_end(&mut tasks).await, "cleaning up ended");
        spawn(&mut tasks, "reporting", async { panic!("a mistake") });
        assert!(first_end(&mut tasks).await.contains("panic"));
    }
}
