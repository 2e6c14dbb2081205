//! Starts every part of the plugin, in this order:
//!
//! - The library is installed and the state of a former instance recovered before kubelet can reach the
//!   plugin. A full disk stops neither: claims are unprepared, and the library is installed when there is room.
//! - The DRA socket listens before the plugin registers with kubelet.
//! - Slices are published once kubelet has accepted this instance, and only while kubelet can reach it.
//! - The node's labels are read first, because they say if claims make instances. An API server that is silent delays the
//!   start by at most 10 s.
//! - Registration waits for the first scan of the GPUs: a Prepare before it would fail, and kubelet retries
//!   only after up to a minute.
//! - kubelet calls the instance that registered last. So an instance that can prepare nothing, because its library or its
//!   driver fails, or because it cannot read claims, does not register while another one works. Alone it does: claims must
//!   be unprepared.
//!
//! A label that says another value later ends the plugin, and kubelet starts it again (`node_labels::mig_dynamic`).
//!
//! At shutdown the registration socket is removed first. The slices stay: kubelet removes them if no instance
//! comes back.

use crate::api::{self, Cluster};
use crate::config::{Config, Flags, MigDynamic};
use crate::dra::health::{Health, Report};
use crate::dra::instance::Instance;
use crate::dra::mount_users::MountUsers;
use crate::dra::node::{LOCKED_WITHIN, Living, LockFile, Node, SharedNode, lock_until};
use crate::dra::registration::{KubeletFolders, Registrar, keep_listening};
use crate::dra::server::Service;
use crate::dra::{claim_access, keep, registration};
use crate::enforcement::Processes;
use crate::metrics::{Metrics, Sources, hami};
use crate::node_labels::{driver_pause, mig_dynamic};
use crate::nvml::Nvml;
use crate::publish::gpus;
use crate::publish::publish_gate::Holding;
use crate::ready::Readiness;
use crate::work::{self, TaskInputs};
use crate::{connection, heap, http, node_labels, publish};
use anyhow::Context as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use std::future::Future;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use vgpu_proto::dra::{v1, v1beta1};
use vgpu_proto::health;
use vgpu_proto::registration::registration_server::RegistrationServer;

/// Without one of these parts no claim can be prepared. Slices are not among them: only a registered instance writes slices.
const NEEDED: [&str; 3] = [keep::LIBRARY, gpus::PART, claim_access::PART];
/// How often an instance that can prepare nothing checks whether another one works.
const TRIED_EVERY: Duration = Duration::from_secs(1);
/// How long the end for a changed label may take. kubelet gives a pod that it ends 30 s.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
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

async fn serve(mut config: Config) -> anyhow::Result<()> {
    let (cluster, labels) = connect(&config.node_name).await?;
    let follower = mig_dynamic::Follower::start(&mut config, labels.clone()).await;
    let processes = Processes::of_node(Some(&config.pod_uid));
    let (program, sizes) = (Path::new("/proc/self/exe"), &config.memory_sizes);
    let nvml = Nvml::with_instances(program, &config.driver_root, sizes, &config.calls_lock);
    let (mut node, _instance) = recover(&config, &processes).await?;
    let boot = boot(&config.boot_id)?;
    if config.mig_dynamic != MigDynamic::Off {
        node.make_instances_with(Arc::new(nvml.clone()), boot.clone());
    }
    let node = SharedNode::new(node);
    let [library, gpus, claims] = NEEDED;
    let readiness = Readiness::new(&[library, gpus, claims, publish::PART, registration::PART]);
    let metrics = Metrics::default();
    let (stop, stopped) = watch::channel(false);
    let (reports, reported) = watch::channel(Report::default());
    let (scanned, first_scan) = watch::channel(false);

    let (claims, users) = (cluster.clone(), processes.clone());
    let service = Service::new(node.clone(), claims, users, metrics.clone(), stopped.clone());
    let dra = dra(&config.dra_socket, service, Health::new(reported), stopped.clone());
    let registrar = Registrar::new(config.dra_socket.clone(), readiness.clone());
    let reached = registrar.reached.subscribe();
    let folders = KubeletFolders::of(&config);
    let holding = Holding::begin(LockFile::open(&config.publisher_lock)?);
    let (work, works) = watch::channel(holding.works());
    tokio::spawn(holding.keep(work));
    let sockets = config.registration_sockets.clone();
    let registration = register(sockets, registrar, folders, first_scan, works.clone(), stopped.clone());
    let listener = tokio::net::TcpListener::bind(config.http_address).await;
    let listener = listener.with_context(|| format!("--http-address {} cannot be used", config.http_address))?;
    let parts = TaskInputs {
        processes,
        cluster,
        nvml,
        config: config.clone(),
        boot,
        sources: Sources {
            readiness: readiness.clone(),
            ..Sources::new(node.clone())
        },
        node,
        readiness,
        metrics,
        reached,
        reports,
        scanned,
        rescan: Arc::default(),
        setting: follower.said(),
    };
    let http = axum::serve(listener, pages(&parts)).with_graceful_shutdown(until(stopped));
    start_tasks(&parts, labels, stop.clone());
    let work = tokio::spawn(work::run(parts, works));
    let http = async { http.await.context("the HTTP server ended") };
    tokio::select! {
        served = async { tokio::try_join!(registration, dra, http) } => served.map(drop),
        () = end_on_change(follower, stop) => Ok(()),
        ended = work => anyhow::bail!("{}; kubelet starts the plugin again", ended.unwrap_or_else(|error| error.to_string())),
    }
}

/// Ends the plugin once the node's label says another value than the one with which it started.
async fn end_on_change(follower: mig_dynamic::Follower, stop: watch::Sender<bool>) {
    let why = follower.run().await;
    tracing::info!("stopping: {why}; kubelet starts the plugin again");
    stop.send_replace(true);
    tokio::time::sleep(ENDS_WITHIN).await;
    let seconds = ENDS_WITHIN.as_secs();
    tracing::warn!("connections are still open after {seconds} s; ending all the same");
}

/// Recovers the state of a former instance, and says that this one lives.
async fn recover(config: &Config, processes: &Processes) -> anyhow::Result<(Node, Instance)> {
    let lock = LockFile::open(&config.lock)?;
    let locked = lock_until(&lock, Instant::now() + LOCKED_WITHIN).await?;
    let processes = processes.clone();
    let living: Living = Box::new(move |shares| processes.living(shares));
    let node = Node::open(config.clone(), lock, &locked, living)?;
    let instance = Instance::start(&config.sockets, &config.pod_uid, &locked)?;
    Ok((node, instance))
}

/// Serves kubelet's calls.
async fn dra(
    socket: &Path,
    service: Service<Cluster, Processes>,
    health: Health,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let service = Arc::new(service);
    let serve = |listener| serve_dra(listener, service.clone(), health.clone(), until(stopped.clone()));
    // kubelet's connection lives on, and a new one finds the new socket at the same path.
    let served = keep_listening(socket, stopped.clone(), serve, || {}).await;
    served.context("the DRA server ended")
}

/// /healthz, /readyz and /metrics.
fn pages(parts: &TaskInputs) -> axum::Router {
    let sources = parts.sources.clone();
    let hami = parts.config.hami_metrics.then(|| hami::registry(sources.clone()));
    let registries = [parts.metrics.registry(sources)].into_iter().chain(hami).collect();
    http::router(parts.readiness.clone(), registries)
}

/// The API server, and the labels of this node's object, which are followed from now on.
async fn connect(node: &str) -> anyhow::Result<(Cluster, node_labels::Seen)> {
    let server = kube::Config::infer().await;
    let client = connection::client(server.context("no configuration for the API server")?)?;
    let cluster = Cluster::new(client, node.to_owned());
    let own = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let events = watcher(cluster.nodes(), own).default_backoff();
    let (labels, seen) = watch::channel(None);
    tokio::spawn(node_labels::follow(events, labels));
    Ok((cluster, seen))
}

/// Starts the tasks that run until the plugin ends, beside the servers and the tasks of `work`.
fn start_tasks(parts: &TaskInputs, labels: node_labels::Seen, stop: watch::Sender<bool>) {
    let (cluster, readiness) = (parts.cluster.clone(), parts.readiness.clone());
    // First, so that the driver is not asked before the pause is known.
    tokio::spawn(driver_pause::run(labels, parts.nvml.clone(), parts.rescan.clone()));
    tokio::spawn(keep::run(parts.node.clone(), readiness.clone()));
    tokio::spawn(heap::keep_small());
    tokio::spawn(async move { claim_access::wait(&cluster, &readiness).await });
    tokio::spawn(async move {
        end_signal().await;
        tracing::info!("stopping on a signal");
        stop.send_replace(true);
    });
}

/// Reads which boot of the machine this is.
fn boot(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{} does not say which boot this is", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Registers with kubelet once the first scan of the GPUs has ended. While one of the parts in [`NEEDED`] fails,
/// registers only if no other instance works.
async fn register(
    sockets: [PathBuf; 2],
    registrar: Registrar,
    folders: KubeletFolders,
    mut first_scan: watch::Receiver<bool>,
    works: watch::Receiver<bool>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    tokio::select! {
        scanned = timeout(FIRST_SCAN, first_scan.wait_for(|scanned| *scanned)) => if scanned.is_err() {
            // Prepared claims must be unprepared even without a driver.
            tracing::error!("the driver has not answered for {} s; registering without GPUs", FIRST_SCAN.as_secs());
        },
        () = until(stopped.clone()) => return Ok(()),
    }
    while !registrar.readiness.has(&NEEDED) && !*works.borrow() {
        let why = "another instance works, and this one can prepare nothing yet".to_owned();
        if registrar.readiness.set(registration::PART, Err(why)) {
            tracing::warn!("not registering while another instance works: this one can prepare nothing yet");
        }
        tokio::select! {
            () = tokio::time::sleep(TRIED_EVERY) => {}
            () = until(stopped.clone()) => return Ok(()),
        }
    }
    let serve = |listener| serve_registration(listener, registrar.clone(), until(stopped.clone()));
    let socket = registration::name_in_turn(&sockets);
    let watched = registration::watch_calls(registrar.clone(), folders, socket.to_owned());
    let served = keep_listening(socket, stopped.clone(), serve, || registrar.lost());
    tokio::select! {
        served = served => served.context("the registration server ended"),
        () = watched => Ok(()),
    }
}

/// Serves kubelet's DRA and health services.
pub async fn serve_dra<C: api::Claims, K: MountUsers>(
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
    use crate::dra::node::tests::Rig;
    use crate::node_labels::tests::{Events, node};
    use kube::runtime::watcher::Event;

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
        works: watch::Sender<bool>,
        task: tokio::task::JoinHandle<anyhow::Result<()>>,
    }

    impl Registering {
        fn begin() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let (scanned, first_scan) = watch::channel(false);
            let (stop, stopped) = watch::channel(false);
            let [library, gpus, claims] = NEEDED;
            let readiness = Readiness::new(&[library, gpus, claims, registration::PART]);
            let registrar = Registrar::new(dir.path().join("dra.sock"), readiness.clone());
            let folders = KubeletFolders {
                root: dir.path().to_owned(),
                node: None,
            };
            let (works, working) = watch::channel(true);
            let task = tokio::spawn(register(
                ["reg.sock", "reg.2.sock"].map(|name| dir.path().join(name)),
                registrar,
                folders,
                first_scan,
                working,
                stopped,
            ));
            Self {
                dir,
                readiness,
                scanned,
                stop,
                works,
                task,
            }
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
                plugin.works.send_replace(false);
                for part in NEEDED {
                    plugin.readiness.set(part, Ok(()));
                }
                plugin.readiness.set(missing, Err("does not work".into()));
                plugin.scanned.send_replace(true);
                tokio::time::sleep(2 * FIRST_SCAN).await;
                assert!(!plugin.is_registered(), "{}", plugin.readiness.status().1);
                assert!(plugin.readiness.status().1.contains("another instance works"));
                if old_one_ends {
                    plugin.works.send_replace(true);
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
    async fn a_label_of_the_node_says_the_value_at_the_start_and_another_one_later_stops_the_plugin() {
        let rig = Rig::new(false);
        let (events, mut config) = (Events::new(), rig.config());
        let labelled = |value| node(&[("dra.vgpu/mig-dynamic", value)]);
        events.send(Ok(Event::InitApply(labelled("instances"))));
        assert_eq!(config.mig_dynamic, MigDynamic::Off, "the chart's");
        let follower = mig_dynamic::Follower::start(&mut config, events.seen.clone()).await;
        assert_eq!(config.mig_dynamic, MigDynamic::Instances);
        let (stop, mut stopped) = watch::channel(false);
        let ending = tokio::spawn(end_on_change(follower, stop));
        events.send(Ok(Event::Apply(labelled("instances"))));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!*stopped.borrow());
        events.send(Ok(Event::Apply(labelled("off"))));
        stopped.wait_for(|stopped| *stopped).await.expect("it is told");
        assert!(!ending.is_finished(), "the servers end first");
        ending.await.expect("it does not wait for them without end");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_waits_for_another_one_ends_when_it_is_told() {
        let plugin = Registering::begin();
        plugin.works.send_replace(false);
        plugin.scanned.send_replace(true);
        assert!(!soon(|| plugin.is_registered()).await);
        plugin.end().await;
    }
}
