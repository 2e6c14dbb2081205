//! Registers the plugin with kubelet, and binds Unix sockets.
//!
//! kubelet watches a folder: it connects to every socket that appears there, asks for the plugin's name, and
//! reports back if it accepted the plugin. A stale socket of a former instance is removed before binding. At
//! the end, an instance removes only its own socket.
//!
//! After the machine's boot, kubelet finds the socket of an instance that was killed, and connects for ten seconds. It would
//! reach a successor at the same path, take it for the former plugin, and deregister it for a second when it hears that the
//! file is a new one; a pod whose claim is prepared in that second waits more than a minute. So a successor takes another name.
//!
//! kubelet calls a new socket within a second. If it does not, the folder is most likely not kubelet's: [`watch_calls`]
//! reports this, with the other folders in which it searched for kubelet's.
//!
//! A socket whose file is removed or replaced is bound again (`keep_listening`): existing connections live on, but
//! kubelet deregisters a plugin whose registration socket is gone, and cannot connect again.

use crate::config::{Config, POD_RESOURCES};
use crate::ready::Readiness;
use anyhow::Context as _;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};
use vgpu_api::{DRIVER_NAME, advice};
use vgpu_proto::registration::registration_server::Registration;
use vgpu_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// kubelet uses the first version that it supports.
const VERSIONS: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];
/// How long kubelet may take to call a new socket. Its own start takes some seconds.
const CALLED_WITHIN: Duration = Duration::from_secs(30);
/// kubelet's usual root folder, and those of k0s and MicroK8s.
const ROOTS: [&str; 3] = [
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
];
/// How often a socket's file is checked. kubelet deletes the slices of a plugin that it lost after 30 s.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);
/// The part's name in [`Readiness`].
pub const PART: &str = "registration";

/// Implements kubelet's registration service.
#[derive(Clone)]
pub struct Registrar {
    pub dra_socket: PathBuf,
    pub readiness: Readiness,
    /// True while kubelet has accepted this instance.
    pub reached: watch::Sender<bool>,
    /// True once kubelet has called the socket that is bound now.
    pub called: watch::Sender<bool>,
}

/// Where kubelet's folder is, and where to look for it.
#[derive(Clone, Debug)]
pub struct KubeletFolders {
    /// As the chart's `plugin.kubeletRoot` says.
    pub root: PathBuf,
    /// The node's own root folder, as this process sees it; None if it does not.
    pub node: Option<PathBuf>,
}

/// A listening socket. Dropping it removes its file, if that is still its own.
pub struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.called.send_replace(true);
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".into(),
            name: DRIVER_NAME.into(),
            endpoint: self.dra_socket.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if plugin_registered {
            tracing::info!("kubelet has registered the plugin");
            self.readiness.set(PART, Ok(()));
            self.reached.send_replace(true);
        } else {
            tracing::error!(error, "kubelet refuses the plugin");
            self.readiness
                .set(PART, Err(format!("kubelet refuses the plugin: {error}")));
            self.reached.send_replace(false);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

// === impl Registrar ===

impl Registrar {
    /// Returns the state before kubelet has called.
    #[must_use]
    pub fn new(dra_socket: PathBuf, readiness: Readiness) -> Self {
        Self {
            dra_socket,
            readiness,
            reached: watch::channel(false).0,
            called: watch::channel(false).0,
        }
    }

    /// Notes that kubelet has deregistered the plugin, or will do so.
    pub fn lost(&self) {
        self.reached.send_replace(false);
        self.called.send_replace(false);
        let why = "the registration socket was removed, and kubelet has not accepted its replacement yet";
        self.readiness.set(PART, Err(why.to_owned()));
    }
}

// === impl KubeletFolders ===

impl KubeletFolders {
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            root: config.kubelet_root.clone(),
            node: node_root(config),
        }
    }

    /// Why kubelet does not call `socket`, and what to do.
    fn not_called(&self, socket: &Path) -> String {
        let is_kubelets = |root: &Path| root.join(POD_RESOURCES).exists();
        let begin = format!(
            "kubelet has not called {} for {} s",
            socket.display(),
            CALLED_WITHIN.as_secs()
        );
        let root = self.root.display();
        if is_kubelets(&self.root) {
            return format!(
                "{begin}, although plugin.kubeletRoot {root} has kubelet's socket {POD_RESOURCES}; look at kubelet's log on the \
                 node. If kubelet was moved, {}",
                advice::KUBELET_ROOT
            );
        }
        let is_other = |other: &&&str| Path::new(other) != self.root;
        let others: Vec<&str> = ROOTS.iter().filter(is_other).copied().collect();
        let searched = others.join(", ");
        let found: Vec<&str> = match &self.node {
            Some(node) => {
                let is_there = |other: &&str| is_kubelets(&node.join(other.trim_start_matches('/')));
                others.into_iter().filter(is_there).collect()
            }
            None => Vec::new(),
        };
        let elsewhere = match (&self.node, found.as_slice()) {
            (_, [first, ..]) => format!("kubelet's folder on this node looks to be {first}"),
            (Some(_), []) => format!("it is in none of {searched} either"),
            (None, []) => format!("the plugin does not see the node's {searched}"),
        };
        format!(
            "{begin}: plugin.kubeletRoot {root} is not kubelet's folder, it has no {POD_RESOURCES}; {elsewhere}; {}",
            advice::KUBELET_ROOT
        )
    }
}

/// The node's root folder as this process sees it: the driver root if that is the node's root, else the root of the
/// node's first process, which is visible with `hostPID`. None if neither is.
fn node_root(config: &Config) -> Option<PathBuf> {
    if config.driver_root_host == Path::new("/") {
        return Some(config.driver_root.clone());
    }
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
    let first = Path::new("/proc/1/root");
    let is_another = identity(first).is_some_and(|of| Some(of) != identity(Path::new("/")));
    is_another.then(|| first.to_owned())
}

/// Says in the readiness why kubelet does not call, while it has not called the bound socket for a while.
pub async fn watch_calls(registrar: Registrar, folders: KubeletFolders, socket: PathBuf) {
    let mut called = registrar.called.subscribe();
    loop {
        if tokio::time::timeout(CALLED_WITHIN, called.wait_for(|called| *called))
            .await
            .is_err()
        {
            let why = folders.not_called(&socket);
            if registrar.readiness.set(PART, Err(why.clone())) {
                tracing::error!("{why}");
            }
            continue;
        }
        // The socket may be lost. `registrar` keeps the sender, so there is no error.
        let _ = called.wait_for(|called| !*called).await;
    }
}

// === impl Socket ===

impl Socket {
    /// Returns once the socket's file is gone or replaced.
    async fn lost(&self) {
        while self.is_own() {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
        }
    }

    fn is_own(&self) -> bool {
        let found = std::fs::metadata(&self.path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }

    /// Listens at `path`, after removing a file there.
    ///
    /// # Errors
    /// The folder cannot be created, or the socket cannot be bound.
    pub fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let found = std::fs::metadata(path)?;
        let socket = Self {
            path: path.to_path_buf(),
            identity: (found.dev(), found.ino()),
        };
        Ok((listener, socket))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own() {
            // A file that cannot be removed is stale, and the next instance removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the first name, or the second if a former instance left the first, and removes the one not taken.
#[must_use]
pub fn name_in_turn([first, second]: &[PathBuf; 2]) -> &Path {
    let is_left = first.exists() && !second.exists();
    let (taken, other) = if is_left { (second, first) } else { (first, second) };
    match std::fs::remove_file(other) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            // kubelet finds nobody there, and says so in its log.
            tracing::warn!(
                "cannot remove {} of an instance that has ended: {error}",
                other.display()
            );
        }
        _ => {}
    }
    taken
}

/// Serves at `path` until stopped. Whenever the socket's file is lost, calls `lost` and binds the path again. Servers
/// of former sockets keep their existing connections.
///
/// # Errors
/// The socket cannot be bound at first, or a server ended with an error.
pub async fn keep_listening<F>(
    path: &Path,
    stopped: watch::Receiver<bool>,
    serve: impl Fn(UnixListener) -> F,
    lost: impl Fn(),
) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
{
    let bind = || Socket::bind(path).with_context(|| format!("cannot listen at {}", path.display()));
    let mut servers = JoinSet::new();
    let mut socket = None;
    let (listener, first) = bind()?;
    servers.spawn(serve(listener));
    let _ = socket.insert(first);
    loop {
        let watched = async {
            match &socket {
                Some(socket) => socket.lost().await,
                None => tokio::time::sleep(LOOKED_AT_EVERY).await,
            }
        };
        let mut stopped = stopped.clone();
        tokio::select! {
            // The stop is checked first: a server that ends because of it is no error.
            biased;
            // An error means that the sender is gone, so nothing can request a shutdown any more.
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(ended) = servers.join_next() => {
                ended??;
                anyhow::bail!("the server at {} has ended", path.display());
            }
            () = watched => {}
        }
        lost();
        socket = match bind() {
            Ok((listener, bound)) => {
                tracing::warn!("the socket {} was lost, and is bound again", path.display());
                servers.spawn(serve(listener));
                Some(bound)
            }
            Err(error) => {
                tracing::error!("{error:#}; retrying");
                None
            }
        };
    }
    // First the file, so that kubelet makes no new connection.
    drop(socket);
    while let Some(ended) = servers.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::serve_registration;
    use tokio::net::UnixStream;
    use tonic::transport::Endpoint;
    use vgpu_proto::registration::registration_client::RegistrationClient;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_successors_is_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("sub/x.sock");
        let (_old_listener, old) = Socket::bind(&path).expect("bound");
        let (_new_listener, new) = Socket::bind(&path).expect("bound over the old one");
        drop(old);
        assert!(path.exists(), "the successor's");
        drop(new);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_successor_of_an_instance_that_was_killed_has_another_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let names = ["reg.sock", "reg.2.sock"].map(|name| dir.path().join(name));
        let [first, second] = &names;
        let left = || std::fs::read_dir(dir.path()).expect("listed").count();
        let bind_and_die = || {
            let taken = name_in_turn(&names);
            assert!(!taken.exists(), "nobody can connect before it is bound");
            std::mem::forget(Socket::bind(taken).expect("bound"));
            assert_eq!(left(), 1, "the former one's is gone");
            taken.to_owned()
        };
        assert_eq!(
            [(); 3].map(|()| bind_and_die()),
            [first, second, first].map(Clone::clone)
        );
        // The socket of the former instance could not be removed.
        std::mem::forget(Socket::bind(second).expect("bound"));
        assert_eq!(name_in_turn(&names), first);
        assert!(!second.exists());
    }

    /// Answers a kubelet that found the registration socket and accepts the plugin.
    async fn accept(path: &Path) {
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).expect("an endpoint");
        let mut client = RegistrationClient::new(endpoint.connect().await.expect("connected"));
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        client.notify_registration_status(status).await.expect("heard");
    }

    #[test]
    fn a_folder_that_is_not_kubelets_is_named_with_the_chart_value_and_where_kubelet_is() {
        let node = tempfile::tempdir().expect("a folder");
        let root = node.path().join("opt/kubelet");
        let mut folders = KubeletFolders {
            root: root.clone(),
            node: None,
        };
        let socket = root.join("plugins_registry/reg.sock");
        let mut said = |node: Option<&Path>| {
            folders.node = node.map(Path::to_owned);
            folders.not_called(&socket)
        };
        let kubelet = |root: &Path| {
            let socket = root.join(POD_RESOURCES);
            std::fs::create_dir_all(socket.parent().expect("a folder")).expect("made");
            std::fs::write(socket, "").expect("written");
        };
        let unseen = said(None);
        assert!(unseen.contains("does not see the node's /var/lib/kubelet"), "{unseen}");
        // The pod's own volume creates this folder, so its existence must not be taken for a kubelet.
        std::fs::create_dir_all(root.join("pod-resources")).expect("made");
        let nowhere = said(Some(node.path()));
        for part in [
            "plugin.kubeletRoot",
            "opt/kubelet is not kubelet's",
            "in none of",
            "/var/lib/k0s/kubelet",
            "reg.sock",
        ] {
            assert!(nowhere.contains(part), "{part}: {nowhere}");
        }
        kubelet(&node.path().join("var/snap/microk8s/common/var/lib/kubelet"));
        let elsewhere = said(Some(node.path()));
        let found = "looks to be /var/snap/microk8s/common/var/lib/kubelet; set the chart's plugin.kubeletRoot";
        assert!(elsewhere.contains(found), "{elsewhere}");
        kubelet(&root);
        let silent = said(Some(node.path()));
        assert!(
            silent.contains("kubelet's log") && !silent.contains("microk8s"),
            "{silent}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_never_calls_is_named_and_one_that_refuses_keeps_its_words() {
        let dir = tempfile::tempdir().expect("a folder");
        let readiness = Readiness::new(&[PART]);
        let registrar = Registrar::new(dir.path().join("dra.sock"), readiness.clone());
        let folders = KubeletFolders {
            root: dir.path().to_owned(),
            node: None,
        };
        let watching = tokio::spawn(watch_calls(registrar.clone(), folders, dir.path().join("reg.sock")));
        let status = || readiness.status().1;
        tokio::time::sleep(CALLED_WITHIN / 2).await;
        assert_eq!(status(), "registration: waiting\n");
        tokio::time::sleep(CALLED_WITHIN).await;
        assert!(status().contains("has not called"), "{}", status());

        registrar
            .get_info(Request::new(InfoRequest {}))
            .await
            .expect("an answer");
        let refused = RegistrationStatus {
            plugin_registered: false,
            error: "no such version".into(),
        };
        let heard = registrar.notify_registration_status(Request::new(refused)).await;
        heard.expect("heard");
        tokio::time::sleep(3 * CALLED_WITHIN).await;
        assert!(
            status().contains("kubelet refuses the plugin: no such version"),
            "{}",
            status()
        );

        // Its socket is bound again, and kubelet does not find it.
        registrar.lost();
        tokio::time::sleep(2 * CALLED_WITHIN).await;
        assert!(status().contains("has not called"), "{}", status());
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_removed_or_replaced_is_bound_again_and_kubelet_asked_anew() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("registry/reg.sock");
        let readiness = Readiness::new(&[PART]);
        let registrar = Registrar::new(dir.path().join("dra.sock"), readiness.clone());
        let mut reached = registrar.reached.subscribe();
        let (stop, stopped) = watch::channel(false);
        let listening = {
            let path = path.clone();
            tokio::spawn(async move {
                let serve = |listener| serve_registration(listener, registrar.clone(), std::future::pending());
                // The servers of this test end with it.
                keep_listening(&path, stopped, serve, || registrar.lost()).await
            })
        };
        let is_there = async || {
            while UnixStream::connect(&path).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        type Loss = fn(&Path);
        let losses: [Loss; 3] = [
            |path| std::fs::remove_file(path).expect("removed"),
            |path| std::fs::remove_dir_all(path.parent().expect("a folder")).expect("removed"),
            |path| {
                std::fs::remove_file(path).expect("removed");
                std::fs::write(path, "another's").expect("written");
            },
        ];
        for lose in losses {
            is_there().await;
            accept(&path).await;
            assert!(*reached.borrow_and_update() && readiness.status().0);
            lose(&path);
            reached.wait_for(|reached| !reached).await.expect("a sender");
            assert!(readiness.status().1.contains("was removed"), "{}", readiness.status().1);
        }
        is_there().await;
        assert!(!listening.is_finished());
        stop.send_replace(true);
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        listening.abort();
    }
}
