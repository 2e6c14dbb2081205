//! Starts every part of the plugin, in this order:
//!
//! - The library is installed and the state of a former instance recovered before kubelet can reach the
//!   plugin. A full disk stops neither: claims are unprepared, and the library is installed when there is room.
//! - The DRA socket listens before the plugin registers with kubelet.
//! - Slices are published once kubelet has accepted this instance, and while it reaches it.
//! - Registration waits for the first scan of the GPUs: a Prepare before it would fail, and kubelet retries
//!   only after up to a minute.
//! - kubelet calls the instance that registered last. So one that can prepare nothing, because its library or its driver
//!   fails, or because it cannot read claims, does not register while another one serves. Alone it does: claims must be
//!   unprepared.
//!
//! At shutdown the registration socket is removed first. The slices stay: kubelet removes them if no instance
//! comes back.

use crate::api::Cluster;
use crate::api::Slices as _;
use crate::compute::Comparison;
use crate::config::{Config, Flags, OnBreach};
use crate::containers::Containers;
use crate::contexts::Contexts;
use crate::crash_points::NeverStop;
use crate::faults::{Conditions, Files, Watcher};
use crate::health::{Health, Report};
use crate::instance::Instance;
use crate::metrics::{Metrics, Sources, hami};
use crate::mount_users::{MountUsers as _, Processes};
use crate::node::lock::{LOCKED_WITHIN, LockFile};
use crate::node::{Living, Node, SharedNode};
use crate::nvml::Nvml;
use crate::publish::reached::{another_publishes, only_while_reached};
use crate::publish::taints::Taints;
use crate::publish::{Wanted, delay, plan::Owner};
use crate::ready::Readiness;
use crate::registration::{Registrar, keep_listening};
use crate::server::Service;
use crate::truth::{Observer, Proc, Truth};
use crate::waiting::{Keepers, NodeProcesses};
use crate::{
    api, background, claim_access, compute, connection, containers, driver_pause, faults, gpus, heap, http, keep,
    publish, records, registration, truth,
};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::{WatchStreamExt as _, watcher};
use std::future::Future;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use vgpu_api::DRIVER_NAME;
use vgpu_proto::dra::{v1, v1beta1};
use vgpu_proto::health;
use vgpu_proto::registration::registration_server::RegistrationServer;

/// Without one of these parts no claim can be prepared. Slices are none of them: only a registered instance writes those.
const NEEDED: [&str; 3] = [keep::LIBRARY, gpus::PART, claim_access::PART];
/// How often an instance that can prepare nothing looks if another one serves.
const TRIED_EVERY: Duration = Duration::from_secs(1);
/// How long registration waits for the first scan. Loading a driver takes seconds without persistence mode.
const FIRST_SCAN: Duration = Duration::from_secs(30);

/// Runs the plugin until a signal ends it.
///
/// # Errors
/// The plugin cannot start, or one of its servers fails.
pub fn run(flags: Flags) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let config = flags.validate()?;
    // One thread is enough because the work is short, and it leaves more of the node's memory to pods.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(config));
    // A scan of a driver that hangs never returns.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let lock = LockFile::open(&config.lock)?;
    let locked = lock.lock(Instant::now() + LOCKED_WITHIN).await?;
    let living: Living = {
        let processes = Processes::of_node();
        Box::new(move |shares| processes.living(shares))
    };
    let node = Node::open(config.clone(), lock, &locked, living, Box::new(NeverStop))?;
    let node = SharedNode::new(node);
    let _instance = Instance::start(&config.sockets, config.pod_uid.as_deref(), &locked)?;
    drop(locked);
    let [library, gpus, claims] = NEEDED;
    let readiness = Readiness::new(&[library, gpus, claims, publish::PART, registration::PART]);
    let metrics = Metrics::default();
    let (comparison, known) = (Comparison::default(), Truth::default());
    let server = kube::Config::infer().await;
    let client = connection::client(server.context("no configuration for the API server")?)?;
    let cluster = Cluster::new(client, config.node_name.clone());
    let (stop, stopped) = watch::channel(false);
    let (wanted, wants) = watch::channel(Wanted::Unknown);
    let (reports, reported) = watch::channel(Report::default());

    let processes = NodeProcesses::new(config.pod_uid.as_deref());
    let service = Arc::new(Service::new(
        node.clone(),
        cluster.clone(),
        processes.clone(),
        metrics.clone(),
        stopped.clone(),
    ));
    let dra = {
        let (path, health, stopped) = (config.dra_socket.clone(), Health::new(reported), stopped.clone());
        let serve = {
            let stopped = stopped.clone();
            move |listener| serve_dra(listener, service.clone(), health.clone(), until(stopped.clone()))
        };
        // kubelet's connection lives on, and a new one finds the new socket at the same path.
        async move { keep_listening(&path, stopped, serve, || {}).await }
    };
    let (reached, reaches) = watch::channel(false);
    let registrar = Registrar {
        dra_socket: config.dra_socket.clone(),
        readiness: readiness.clone(),
        reached,
    };
    let (forwarded, wants_of_reached) = watch::channel(Wanted::Unknown);
    let publisher_lock = LockFile::open(&config.publisher_lock)?;
    tokio::spawn(only_while_reached(wants, reaches, publisher_lock, forwarded));
    let (scanned, first_scan) = watch::channel(false);
    let registration = register(
        config.registration_sockets.clone(),
        registrar,
        first_scan,
        LockFile::open(&config.publisher_lock)?,
        stopped.clone(),
    );
    let listener = tokio::net::TcpListener::bind(config.http_address).await;
    let listener = listener.with_context(|| format!("--http-address {} cannot be used", config.http_address))?;
    let sources = Sources {
        node: node.clone(),
        comparison: comparison.clone(),
        truth: known.clone(),
        containers: Containers::default(),
        busy: compute::busy::Busy::default(),
    };
    let busy = sources.busy.clone();
    let names = containers::run(node.clone(), config.pod_resources.clone(), sources.containers.clone());
    tokio::spawn(names);
    let hami = config.hami_metrics.then(|| hami::registry(sources.clone()));
    let registries = [metrics.registry(sources)].into_iter().chain(hami).collect();
    let pages = http::router(readiness.clone(), registries);
    let http = axum::serve(listener, pages).with_graceful_shutdown(until(stopped));

    let nvml = Nvml::new(Path::new("/proc/self/exe"), &config.driver_root);
    let rescan = Arc::new(Notify::new());
    let own = watcher::Config::default().fields(&format!("metadata.name={}", config.node_name));
    let own_node = watcher(cluster.nodes(), own).default_backoff();
    tokio::spawn(driver_pause::run(own_node, nvml.clone(), rescan.clone()));
    let outputs = gpus::ScanOutputs {
        node: node.clone(),
        wanted,
        reports,
        readiness: readiness.clone(),
        metrics: metrics.clone(),
        scanned,
        rescan: rescan.clone(),
    };
    let [disk, run] = config.faults.clone();
    let files = Files::new(records::boot(&config.boot_id)?, disk, run);
    let conditions = Conditions::new(config.ignored_xids.clone());
    let watcher = Watcher::new(nvml.clone(), conditions, files);
    let (faults, known_faults) = watch::channel(watcher.faults());
    tokio::spawn(faults::run(watcher, faults, rescan));
    tokio::spawn(gpus::run(
        nvml.clone(),
        Contexts::of_node(&config),
        config.clone(),
        known_faults,
        outputs,
    ));
    if config.hami_metrics {
        tokio::spawn(compute::busy::watch(nvml.clone(), busy));
    }
    tokio::spawn(compute::compare::run(node.clone(), nvml.clone(), comparison.clone()));
    tokio::spawn(truth::observe(Observer {
        node: node.clone(),
        gpus: nvml,
        proc: Proc::of_node(config.pod_uid.as_deref()),
        comparison: comparison.clone(),
        truth: known.clone(),
        own_pod: config.pod_uid.clone(),
        kills: config.on_breach == OnBreach::Kill,
    }));
    let parts = NodeParts {
        node,
        processes,
        cluster,
        config,
        comparison,
        truth: known,
        readiness,
        metrics,
    };
    tokio::spawn(keep::library(parts.node.clone(), parts.readiness.clone()));
    tokio::spawn(keep::cdi_files(parts.node.clone()));
    tokio::spawn(heap::keep_small());
    let (claims, ready) = (parts.cluster.clone(), parts.readiness.clone());
    tokio::spawn(async move { claim_access::wait(&claims, &ready).await });
    tokio::spawn(with_node(parts, wants_of_reached));
    tokio::spawn(async move {
        end_signal().await;
        tracing::info!("stopping on a signal");
        stop.send_replace(true);
    });
    let dra = async { dra.await.context("the DRA server ended") };
    let http = async { http.await.context("the HTTP server ended") };
    tokio::try_join!(registration, dra, http)?;
    Ok(())
}

/// Registers with kubelet once the first scan of the GPUs has ended. If a part fails without which no claim can be
/// prepared, only when no other instance serves.
async fn register(
    sockets: [PathBuf; 2],
    registrar: Registrar,
    mut first_scan: watch::Receiver<bool>,
    publisher_lock: LockFile,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    tokio::select! {
        scanned = timeout(FIRST_SCAN, first_scan.wait_for(|scanned| *scanned)) => if scanned.is_err() {
            // Prepared claims must be unprepared even without a driver.
            tracing::error!("the driver has not answered for {} s; registering without GPUs", FIRST_SCAN.as_secs());
        },
        () = until(stopped.clone()) => return Ok(()),
    }
    while !registrar.readiness.has(&NEEDED) && another_publishes(&publisher_lock) {
        let why = "another instance serves, and this one can prepare nothing yet".to_owned();
        if registrar.readiness.set(registration::PART, Err(why)) {
            tracing::warn!("not registering while another instance serves: this one can prepare nothing yet");
        }
        tokio::select! {
            () = tokio::time::sleep(TRIED_EVERY) => {}
            () = until(stopped.clone()) => return Ok(()),
        }
    }
    let serve = |listener| serve_registration(listener, registrar.clone(), until(stopped.clone()));
    let socket = registration::name_in_turn(&sockets);
    let served = keep_listening(socket, stopped.clone(), serve, || registrar.lost());
    served.await.context("the registration server ended")
}

/// The parts that are started once the Node object's UID is known use these.
struct NodeParts {
    node: SharedNode,
    processes: NodeProcesses,
    cluster: Cluster,
    config: Config,
    comparison: Comparison,
    truth: Truth,
    readiness: Readiness,
    metrics: Metrics,
}

/// Starts the parts that need the Node object's UID: slices are owned by the Node, and events refer to it.
async fn with_node(parts: NodeParts, wants: watch::Receiver<Wanted>) {
    let taints = taints(&parts.config, &parts.readiness).await;
    let node_uid = node_uid(&parts.cluster, &parts.readiness).await;
    let node_object = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(parts.config.node_name.clone()),
        uid: Some(node_uid.clone()),
        ..ObjectReference::default()
    };
    let tell = truth::tell(
        parts.node.clone(),
        parts.cluster.clone(),
        parts.truth,
        node_object.clone(),
    );
    tokio::spawn(tell);
    let background = background::run(
        parts.node,
        parts.cluster.clone(),
        parts.metrics.clone(),
        parts.comparison,
        parts.processes,
        node_object,
    );
    tokio::spawn(background);
    let owner = Owner {
        node: parts.config.node_name.clone(),
        node_uid,
        pool: parts.config.pool(),
    };
    let own = format!("spec.driver={DRIVER_NAME},spec.nodeName={}", parts.config.node_name);
    let events = watcher(parts.cluster.slices(), watcher::Config::default().fields(&own)).default_backoff();
    publish::run(
        parts.cluster,
        events,
        taints,
        owner,
        wants,
        parts.readiness,
        parts.metrics,
    )
    .await;
    tracing::error!("the watch of ResourceSlices has ended; slices are not updated any more");
}

/// Reads and writes the record of who allocates, without which nothing may be published.
async fn taints(config: &Config, readiness: &Readiness) -> Taints {
    let mut failures = 0;
    loop {
        let mark = &config.allocator_mark;
        let error = match Taints::new(config.allocator, mark.clone()) {
            Ok(taints) => return taints,
            Err(error) => format!(
                "cannot read or write {}, which records who allocates: {error}",
                mark.display()
            ),
        };
        if readiness.set(publish::PART, Err(error.clone())) {
            tracing::error!("{error}; retrying");
        }
        tokio::time::sleep(delay(failures)).await;
        failures += 1;
    }
}

async fn node_uid(cluster: &Cluster, readiness: &Readiness) -> String {
    let mut failures = 0;
    loop {
        let error: api::Error = match cluster.node_uid().await {
            Ok(uid) => return uid,
            Err(error) => error,
        };
        if readiness.set(publish::PART, Err(format!("cannot read this node's object: {error}"))) {
            tracing::warn!("cannot read this node's object: {error}; retrying");
        }
        tokio::time::sleep(delay(failures)).await;
        failures += 1;
    }
}

/// Serves kubelet's DRA and health services.
pub async fn serve_dra<C: api::Claims, K: Keepers>(
    listener: UnixListener,
    service: Arc<Service<C, K>>,
    health_service: Health,
    until: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    use health::v1::dra_resource_health_server::DraResourceHealthServer as HealthV1;
    use health::v1alpha1::dra_resource_health_server::DraResourceHealthServer as HealthV1alpha1;
    Server::builder()
        .add_service(v1::dra_plugin_server::DraPluginServer::from_arc(service.clone()))
        .add_service(v1beta1::dra_plugin_server::DraPluginServer::from_arc(service))
        .add_service(HealthV1::new(health_service.clone()))
        .add_service(HealthV1alpha1::new(health_service))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), until)
        .await
}

/// Serves plugin registration.
pub async fn serve_registration(
    listener: UnixListener,
    registrar: Registrar,
    until: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    Server::builder()
        .add_service(RegistrationServer::new(registrar))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), until)
        .await
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, so nothing can request a shutdown any more.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn end_signal() {
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    match (terminate, interrupt) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        // Without handlers, the signals end the process by default.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if `condition` becomes true soon; the clock of these tests is paused and advances by
    /// itself.
    async fn soon(condition: impl Fn() -> bool) -> bool {
        for _ in 0..100 {
            if condition() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// An instance that is about to register.
    struct Registering {
        dir: tempfile::TempDir,
        readiness: Readiness,
        scanned: watch::Sender<bool>,
        stop: watch::Sender<bool>,
        task: tokio::task::JoinHandle<anyhow::Result<()>>,
    }

    impl Registering {
        fn begin() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let (scanned, first_scan) = watch::channel(false);
            let (stop, stopped) = watch::channel(false);
            let [library, gpus, claims] = NEEDED;
            let readiness = Readiness::new(&[library, gpus, claims, registration::PART]);
            let registrar = Registrar {
                dra_socket: dir.path().join("dra.sock"),
                readiness: readiness.clone(),
                reached: watch::channel(false).0,
            };
            let lock = Self::publisher(&dir);
            let task = tokio::spawn(register(
                ["reg.sock", "reg.2.sock"].map(|name| dir.path().join(name)),
                registrar,
                first_scan,
                lock,
                stopped,
            ));
            Self {
                dir,
                readiness,
                scanned,
                stop,
                task,
            }
        }

        fn publisher(dir: &tempfile::TempDir) -> LockFile {
            LockFile::open(&dir.path().join("publisher")).expect("a lock file")
        }

        fn is_registered(&self) -> bool {
            self.dir.path().join("reg.sock").exists()
        }

        async fn end(self) {
            self.stop.send_replace(true);
            self.task.await.expect("no panic").expect("ended well");
            assert!(
                !self.dir.path().join("reg.sock").exists(),
                "the invitation goes with the plugin"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_plugin_registers_after_the_first_scan_or_a_while() {
        for answers in [true, false] {
            let plugin = Registering::begin();
            assert!(!soon(|| plugin.is_registered()).await, "before the first scan");
            if answers {
                plugin.scanned.send_replace(true);
            } else {
                tokio::time::sleep(FIRST_SCAN).await;
            }
            assert!(soon(|| plugin.is_registered()).await, "after it");
            plugin.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_can_prepare_nothing_takes_no_calls_from_one_that_serves() {
        for missing in NEEDED {
            for old_one_ends in [true, false] {
                let plugin = Registering::begin();
                let old = Registering::publisher(&plugin.dir);
                let old = old.try_lock().expect("locked").expect("free");
                for part in NEEDED {
                    plugin.readiness.set(part, Ok(()));
                }
                plugin.readiness.set(missing, Err("does not work".into()));
                plugin.scanned.send_replace(true);
                tokio::time::sleep(2 * FIRST_SCAN).await;
                assert!(!plugin.is_registered(), "{}", plugin.readiness.status().1);
                assert!(plugin.readiness.status().1.contains("another instance serves"));
                if old_one_ends {
                    drop(old);
                    tokio::time::sleep(TRIED_EVERY).await;
                    assert!(soon(|| plugin.is_registered()).await, "claims must be unprepared");
                } else {
                    plugin.readiness.set(missing, Ok(()));
                    tokio::time::sleep(TRIED_EVERY).await;
                    assert!(soon(|| plugin.is_registered()).await, "it can prepare claims");
                }
                plugin.end().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_waits_for_another_one_ends_when_it_is_told() {
        let plugin = Registering::begin();
        let old = Registering::publisher(&plugin.dir);
        let _old = old.try_lock().expect("locked").expect("free");
        plugin.scanned.send_replace(true);
        assert!(!soon(|| plugin.is_registered()).await);
        plugin.end().await;
    }
}
