//! A cluster: start, end, add and remove nodes, run commands, import images. The processes are shown in the
//! documentation of the crate (lib.rs).
//!
//! ```text
//! Cluster::up ─ lock over all clusters ─ sweep leftovers ─ state folder ─ spawn keeper ─► News::Ready
//! drop, or the death of this process ─► the socket closes ─► keeper: end the inits, remove cgroups, remove the state
//! ```

mod access;
mod certs;
pub(crate) mod cgroup;
mod components;
mod config;
mod containerd;
mod handle;
mod host;
mod init;
mod keeper;
mod mounts;
mod network;
mod protocol;
mod proxy;
mod undo;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use config::{Config, Gpu, Member, Node, SOFT_GPU_DRIVER, SOFT_GPU_STATE, State, check_name, names, parse_nodes};
pub use handle::NodeHandle;

use access::Access;

use crate::api::Api;
use crate::lock::Lock;
use crate::toolchain::Toolchain;
use crate::{interrupt, layout, patience};
use protocol::{News, Wish, messages, send};

/// A running cluster. Dropping it takes it down, unless `keep` was called.
#[derive(Debug)]
pub struct Cluster {
    state: State,
    config: Config,
    keeper: Option<(Child, UnixStream)>,
    api: OnceLock<Api>,
}

impl Cluster {
    /// Starts a cluster. The caller must be root.
    pub fn up(config: Config) -> Result<Self> {
        check_name(&config.name)?;
        let state = State::of(&config.name);
        let root = Path::new(layout::STATE);
        let all = Lock::wait_for_folder(root)?;
        undo::sweep(&all)?;
        ensure!(
            !state.0.exists(),
            "a cluster named {} is running: `make down` ends it, CLUSTER=NAME names another",
            config.name
        );
        // Do this first: if a signal arrives during the start, its handler removes the cluster after this lock is
        // released.
        interrupt::started(&config.name, |name| down(name).map(drop))?;
        host::remember(&all)?;
        fs::create_dir(&state.0).with_context(|| format!("cannot create {}", state.0.display()))?;
        let json = serde_json::to_vec_pretty(&config).context("cannot encode the configuration")?;
        fs::write(state.config(), json).context("cannot write the configuration")?;

        let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
        let log = state.0.join("keeper.log");
        let child = Command::new(&config.program)
            .arg("keeper")
            .arg(&state.0)
            .envs(patience::for_child())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?)
            .spawn()
            .context("cannot start the keeper")?;
        let mut news = messages::<News>(&ours)?;
        let mut cluster = Self {
            state,
            config,
            keeper: Some((child, ours)),
            api: OnceLock::new(),
        };
        // The keeper holds its own lock when it sends its first message. From then on no sweep removes the cluster.
        let mut heard = news.next();
        drop(all);
        loop {
            match heard {
                Some(News::Note(_)) => {}
                Some(News::Ready) => return Ok(cluster),
                Some(News::Failed(reason)) => {
                    cluster.wait();
                    bail!("the cluster did not come up: {reason}");
                }
                Some(News::Done) | None => {
                    cluster.wait();
                    bail!("the cluster's keeper ended before the cluster was up");
                }
            }
            heard = news.next();
        }
    }

    /// A running cluster that another program started.
    pub fn attach(name: &str) -> Result<Self> {
        check_name(name)?;
        let state = State::of(name);
        // A dead cluster's files contain PIDs that may belong to other processes by now.
        ensure!(
            is_running(&state)? && state.member(Member::ControlPlane).init().exists(),
            "no cluster named {name} is running: `build/e2e.sh up` starts one"
        );
        let config = state.load()?;
        Ok(Self {
            state,
            config,
            keeper: None,
            api: OnceLock::new(),
        })
    }

    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.kubeconfig()
    }

    /// The connection to the cluster's API server, created at its first use.
    pub(crate) fn api(&self) -> Result<&Api> {
        if let Some(api) = self.api.get() {
            return Ok(api);
        }
        let api = Api::of(&self.state)?;
        Ok(self.api.get_or_init(|| api))
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    #[must_use]
    pub fn toolchain(&self) -> &Toolchain {
        &self.config.toolchain
    }

    /// A command inside the control plane's namespaces, as root. It sees the processes of all nodes.
    #[must_use]
    pub fn inside(&self, command: &[&str]) -> Command {
        self.inside_member(Member::ControlPlane, command)
    }

    /// A command inside a member's namespaces, as root.
    #[must_use]
    pub fn inside_member(&self, member: Member, command: &[&str]) -> Command {
        access::inside(&self.state, &self.config, member, command)
    }

    /// A node of the cluster, running or not.
    #[must_use]
    pub fn node(&self, node: Node) -> NodeHandle<'_> {
        NodeHandle::new(self.access(), node)
    }

    /// The running nodes.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeHandle<'_>> {
        let all = Node::all().map(|node| self.node(node));
        all.filter(NodeHandle::runs).collect()
    }

    /// Imports an OCI archive into containerd on every node.
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.nodes().iter().try_for_each(|node| node.import(archive))
    }

    /// The PID of a component of the control plane, in the control plane's namespace.
    pub fn pid_of(&self, component: &str) -> Result<i32> {
        access::pid_of(&self.state, Member::ControlPlane, component)
    }

    /// A path of the control plane, as a path on the host. Its /proc has the processes of all nodes.
    pub fn path_inside(&self, path: &str) -> Result<PathBuf> {
        access::path_inside(&self.state, Member::ControlPlane, path)
    }

    /// Stops a component of the control plane (SIGTERM, or SIGKILL) and waits until it was started again.
    pub fn restart(&self, component: &str, kill: bool) -> Result<()> {
        self.access().restart(Member::ControlPlane, component, kill)
    }

    /// Kills a component of the control plane, which is then not started again.
    pub fn stop(&self, component: &str) -> Result<()> {
        self.access().stop(Member::ControlPlane, component)
    }

    /// Starts a component of the control plane that was stopped.
    pub fn resume(&self, component: &str) -> Result<()> {
        self.access().resume(Member::ControlPlane, component)
    }

    fn access(&self) -> Access<'_> {
        Access {
            state: &self.state,
            config: &self.config,
            keeper: self.keeper.as_ref().map(|(_, socket)| socket),
        }
    }

    /// Lets the cluster outlive this program.
    pub fn keep(mut self) -> Result<()> {
        if let Some((_, socket)) = self.keeper.take() {
            send(&socket, &Wish::Keep)?;
            interrupt::ended(&self.config.name);
        }
        Ok(())
    }

    /// Removes the cluster. Returns an error if that failed.
    pub fn down(mut self) -> Result<()> {
        match self.keeper.take() {
            Some((mut child, socket)) => {
                let done = finish(&mut child, &socket);
                interrupt::ended(&self.config.name);
                done
            }
            None => down(&self.config.name).map(drop),
        }
    }

    fn wait(&mut self) {
        if let Some((mut child, socket)) = self.keeper.take() {
            let _ = finish(&mut child, &socket);
            interrupt::ended(&self.config.name);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Asks the keeper to end, and waits until the cluster is removed.
fn finish(child: &mut Child, socket: &UnixStream) -> Result<()> {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let last = messages::<News>(socket)?.last();
    child.wait().context("cannot wait for the keeper")?;
    match last {
        Some(News::Done) => Ok(()),
        Some(News::Failed(reason)) => bail!("{reason}"),
        _ => bail!("the cluster's keeper was killed before it removed the cluster: `make down` removes the rest"),
    }
}

/// Stops the cluster with that name if it runs, and removes leftovers of dead clusters. Returns the removed names.
pub fn down(name: &str) -> Result<Vec<String>> {
    check_name(name)?;
    if !Path::new(layout::STATE).exists() {
        return Ok(Vec::new());
    }
    let state = State::of(name);
    let mut removed = Vec::new();
    let deadline = Instant::now() + patience::stretched(Duration::from_secs(30));
    let mut asked = None;
    while ask_keeper_to_end(&state, &mut asked)? {
        ensure!(
            Instant::now() <= deadline,
            "the keeper of {name} (process {}) does not end: see {}",
            asked.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            state.0.join("keeper.log").display()
        );
        std::thread::sleep(Duration::from_millis(50));
        if removed.is_empty() {
            removed.push(name.to_owned());
        }
    }
    removed.extend(sweep()?);
    removed.sort();
    removed.dedup();
    Ok(removed)
}

/// Returns true if a keeper runs for this cluster. Takes the lock over all clusters. Otherwise this could mistake a
/// sweep for a keeper, and a starting keeper could mistake this check for one.
fn is_running(state: &State) -> Result<bool> {
    let root = Path::new(layout::STATE);
    if !root.exists() {
        return Ok(false);
    }
    let _all = Lock::wait_for_folder(root)?;
    Ok(Lock::is_held(&state.lock()))
}

/// Asks the keeper of a running cluster to end it. Returns false if the cluster has no keeper any more. A keeper that
/// has just started has not yet written its PID or entered its cgroup; a later call asks it. `asked` is the PID of the
/// keeper that was already asked.
///
/// Holds the lock over all clusters, so that nobody starts or sweeps this one meanwhile, and the process that holds
/// the cluster's lock is its keeper.
fn ask_keeper_to_end(state: &State, asked: &mut Option<u32>) -> Result<bool> {
    let _all = Lock::wait_for_folder(Path::new(layout::STATE))?;
    if !Lock::is_held(&state.lock()) {
        return Ok(false);
    }
    let file = state.keeper();
    let text = fs::read_to_string(&file).unwrap_or_default();
    if text.is_empty() {
        return Ok(true);
    }
    let pid: u32 = text
        .trim()
        .parse()
        .with_context(|| format!("{} holds no process id: end the keeper by hand", file.display()))?;
    if asked.is_some() {
        return Ok(*asked == Some(pid)); // another PID belongs to a new cluster with that name
    }
    if cgroup::processes(&state.name())?.contains(&pid)
        && let Some(process) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
    {
        rustix::process::kill_process(process, rustix::process::Signal::TERM).context("cannot signal the keeper")?;
        *asked = Some(pid);
    }
    Ok(true)
}

/// Removes the leftovers of dead clusters.
pub fn sweep() -> Result<Vec<String>> {
    if !Path::new(layout::STATE).exists() {
        return Ok(Vec::new());
    }
    let all = Lock::wait_for_folder(Path::new(layout::STATE))?;
    let removed = undo::sweep(&all)?;
    host::give_back(&all)?;
    Ok(removed)
}

/// Entry point of the keeper process.
pub fn run_keeper(state: PathBuf) -> Result<()> {
    keeper::run(State(state))
}

/// Entry point of an init process.
pub fn run_init(state: PathBuf, member: Member) -> Result<()> {
    init::run(&State(state), member)
}
