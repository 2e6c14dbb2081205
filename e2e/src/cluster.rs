//! A cluster: up, down, nodes that come and go, commands on it, images into it. See the crate's picture for the processes.
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
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use config::{Config, Gpu, Member, Node, SOFT_GPU_DRIVER, SOFT_GPU_STATE, State, check_name, names, parse_nodes};
pub use handle::NodeHandle;

use access::Access;

use crate::lock::Lock;
use crate::toolchain::Toolchain;
use crate::{interrupt, layout, patience};
use protocol::{News, Wish, messages, send};

/// A running cluster. Dropping it takes it down, unless it was started with `keep` or `keep` was called.
#[derive(Debug)]
pub struct Cluster {
    state: State,
    config: Config,
    keeper: Option<(Child, UnixStream)>,
}

impl Cluster {
    /// Brings a cluster up. Only root can: the caller sees to that.
    pub fn up(config: Config) -> Result<Self> {
        check_name(&config.name)?;
        let state = State::of(&config.name);
        let root = Path::new(layout::STATE);
        let all = Lock::wait_for_folder(root)?;
        undo::sweep(&all)?;
        if state.0.exists() {
            bail!(
                "a cluster named {} is running: `make down` ends it, CLUSTER=NAME names another",
                config.name
            );
        }
        host::remember(&all)?;
        fs::create_dir(&state.0).with_context(|| format!("cannot create {}", state.0.display()))?;
        let json = serde_json::to_vec_pretty(&config).context("cannot encode the configuration")?;
        fs::write(state.config(), json).context("cannot write the configuration")?;

        interrupt::started(&config.name, |name| down(name).map(drop));
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
        };
        // The first news comes with the keeper's own lock, and from then on no sweep takes it for a leftover.
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

    /// A cluster that somebody brought up and kept.
    pub fn attach(name: &str) -> Result<Self> {
        check_name(name)?;
        let state = State::of(name);
        if !state.member(Member::ControlPlane).init().exists() {
            bail!("no cluster named {name} is running: `vgpu-e2e up` starts one");
        }
        let config = state.load()?;
        Ok(Self {
            state,
            config,
            keeper: None,
        })
    }

    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.kubeconfig()
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

    /// A command inside of the control plane's namespaces, as root. It sees the processes of all nodes.
    #[must_use]
    pub fn inside(&self, command: &[&str]) -> Command {
        self.inside_member(Member::ControlPlane, command)
    }

    /// A command inside of a member's namespaces, as root.
    #[must_use]
    pub fn inside_member(&self, member: Member, command: &[&str]) -> Command {
        access::inside(&self.state, &self.config, member, command)
    }

    /// One of its nodes, running or not.
    #[must_use]
    pub fn node(&self, node: Node) -> NodeHandle<'_> {
        NodeHandle::new(self.access(), node)
    }

    /// The nodes that run.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeHandle<'_>> {
        let all = Node::all().map(|node| self.node(node));
        all.filter(NodeHandle::runs).collect()
    }

    /// Imports an OCI archive into containerd on every node.
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.nodes().iter().try_for_each(|node| node.import(archive))
    }

    /// The process id of a component of the control plane, as that sees it.
    pub fn pid_of(&self, component: &str) -> Result<i32> {
        access::pid_of(&self.state, Member::ControlPlane, component)
    }

    /// Where a path of the control plane can be seen from the host. Its /proc has the processes of all nodes.
    pub fn path_inside(&self, path: &str) -> Result<PathBuf> {
        access::path_inside(&self.state, Member::ControlPlane, path)
    }

    /// Ends a component of the control plane (SIGTERM, or SIGKILL) and waits until it was started again.
    pub fn restart(&self, component: &str, kill: bool) -> Result<()> {
        self.access().restart(Member::ControlPlane, component, kill)
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

    /// Takes the cluster down and says what went wrong with that.
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

/// Tells the keeper that nobody wants the cluster any more, and waits until all of it is gone.
fn finish(child: &mut Child, socket: &UnixStream) -> Result<()> {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let last = messages::<News>(socket)?.last();
    child.wait().context("cannot wait for the keeper")?;
    match last {
        Some(News::Failed(reason)) => bail!("{reason}"),
        _ => Ok(()),
    }
}

/// Ends the cluster of that name, if one runs, and removes the leftovers of all that died. Gives the names removed.
pub fn down(name: &str) -> Result<Vec<String>> {
    check_name(name)?;
    if !Path::new(layout::STATE).exists() {
        return Ok(Vec::new());
    }
    let state = State::of(name);
    let mut removed = Vec::new();
    // Whoever starts a keeper holds the folder until the keeper holds its own lock: before that it cannot be seen.
    drop(Lock::wait_for_folder(Path::new(layout::STATE))?);
    if Lock::is_held(&state.lock()) {
        let pid = fs::read_to_string(state.keeper()).context("cannot read keeper.pid")?;
        let pid = pid
            .trim()
            .parse()
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .context("keeper.pid is damaged")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("cannot signal the keeper")?;
        let deadline = Instant::now() + patience::stretched(Duration::from_secs(30));
        while Lock::is_held(&state.lock()) {
            if Instant::now() > deadline {
                bail!(
                    "the keeper of {name} (process {pid}) does not end: see {}",
                    state.0.join("keeper.log").display()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        removed.push(name.to_owned());
    }
    removed.extend(sweep()?);
    removed.sort();
    removed.dedup();
    Ok(removed)
}

/// Removes the leftovers of clusters that died.
pub fn sweep() -> Result<Vec<String>> {
    if !Path::new(layout::STATE).exists() {
        return Ok(Vec::new());
    }
    let all = Lock::wait_for_folder(Path::new(layout::STATE))?;
    let removed = undo::sweep(&all)?;
    host::give_back(&all)?;
    Ok(removed)
}

/// The process that the keeper's command line starts.
pub fn run_keeper(state: PathBuf) -> Result<()> {
    keeper::run(State(state))
}

/// The process that an init's command line starts.
pub fn run_init(state: PathBuf, member: Member) -> Result<()> {
    init::run(&State(state), member)
}
