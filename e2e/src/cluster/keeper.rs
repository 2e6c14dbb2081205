//! The keeper: a process in the host's namespaces that starts one cluster, supervises it, and finally removes all of
//! it.
//!
//! ```text
//! cgroups ─► control plane: init, etcd, kube-apiserver ─► each node: init, network, containerd ─► /readyz
//! ─► controller manager, scheduler ─► each node: images, kubelet ─► Ready ─► default service account ─► News::Ready
//! ```
//!
//! It orders the inits of the control plane and of the nodes to start components. It removes everything on request,
//! when the program that asked for the cluster has ended, or when something breaks. It runs in its own session, so a
//! Ctrl-C reaches only that program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::access::{import, inside};
use super::components;
use super::config::{Config, Gpu, Member, Node, SOFT_GPU_DRIVER, SOFT_GPU_STATE, State};
use super::protocol::{Event, News, Order, Wish, messages, send};
use super::{certs, cgroup, host, mounts, network, undo};
use crate::api::{Api, Request};
use crate::lock::Lock;
use crate::{layout, patience, shell};

/// Time for a step of the start: enough on two quiet cores, and stretched on slower machines. After it, the wait fails
/// with the name of its condition.
const LIMIT: Duration = Duration::from_secs(120);
/// A component that ended this often before the cluster was ready is not restarted any more.
const MAX_FAILURES: u32 = 10;

enum Cue {
    Caller(Wish),
    CallerGone,
    Signal,
    /// An event of an init, by its number in the order of their starts: a node that comes back has a new init.
    Init(u64, Event),
    InitGone(u64),
}

/// An end that was requested, as opposed to a failure.
#[derive(Debug)]
struct Asked(&'static str);

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Asked {}

/// Standard input is the socket to the program that started the cluster.
pub(super) fn run(state: State) -> Result<()> {
    let _ = rustix::process::setsid(); // fails for a group leader, which already has its own group
    let caller = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let Some(_lock) = Lock::try_take(&state.lock())? else {
        let text = format!(
            "a cluster named {} is running: `make down` ends it, CLUSTER=NAME names another",
            state.name()
        );
        return send(&caller, &News::Failed(text));
    };
    // The caller holds the lock over all clusters until it gets this message. `remove` needs that lock.
    let _ = send(&caller, &News::Note(format!("state in {}", state.0.display())));
    let origin = cgroup::Origin::of_this_process();
    let ended = match &origin {
        Ok(_) => held(&state, &caller).err(),
        Err(error) => Some(anyhow!("{error:#}")),
    };
    let ended = ended.unwrap_or_else(|| anyhow!("the keeper let go of the cluster"));
    let news = match (remove(&state, origin.ok()), ended.downcast_ref::<Asked>()) {
        (Ok(()), Some(_)) => News::Done,
        (Ok(()), None) => News::Failed(format!("{ended:#}")),
        (Err(undo), _) => News::Failed(format!("{ended:#}; and the cluster could not be removed: {undo:#}")),
    };
    let _ = send(&caller, &news); // the caller may have ended
    Ok(())
}

/// Supervises the cluster until something ends it, and returns the reason as an error. Afterwards no process of the
/// cluster runs.
fn held(state: &State, caller: &UnixStream) -> Result<()> {
    let file = state.keeper();
    fs::write(&file, std::process::id().to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    let (sender, cues) = channel();
    listen(caller, &sender)?;
    let config = state.load()?;
    let mut keeper = Keeper {
        state,
        config,
        caller,
        sender,
        cues,
        inits: BTreeMap::new(),
        started: 0,
        keep: false,
        ready: false,
        failures: BTreeMap::new(),
    };
    let ended = keeper.hold();
    keeper.end();
    ended
}

/// Leaves the cluster's cgroup and removes the cluster. After the last cluster, restores the machine's settings.
fn remove(state: &State, origin: Option<cgroup::Origin>) -> Result<()> {
    if let Some(origin) = origin {
        origin.go_back()?;
    }
    undo::remove_cgroups(state)?;
    let all = Lock::wait_for_folder(Path::new(layout::STATE))?;
    undo::remove_files(state, &all)?;
    host::give_back(&all)
}

fn listen(caller: &UnixStream, sender: &Sender<Cue>) -> Result<()> {
    let wishes = messages::<Wish>(caller)?;
    let from_caller = sender.clone();
    thread::spawn(move || {
        for wish in wishes {
            let _ = from_caller.send(Cue::Caller(wish));
        }
        let _ = from_caller.send(Cue::CallerGone);
    });
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let from_signals = sender.clone();
    thread::spawn(move || {
        for _ in signals.forever() {
            let _ = from_signals.send(Cue::Signal);
        }
    });
    Ok(())
}

/// The first process of a member's namespaces.
struct Init {
    number: u64,
    /// `unshare`, or `nsenter` that runs `unshare`: ends after init.
    parent: Child,
    socket: UnixStream,
    /// Init's PID on the host, once its namespaces are ready.
    pid: Option<i32>,
}

impl Init {
    /// Ends init and with it every process in its namespaces. Returns when the last one has ended.
    fn end(mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if !self.is_gone_within(patience::stretched(Duration::from_secs(5))) {
            self.kill();
        }
    }

    /// Kills init without notice.
    fn kill(mut self) {
        match self.pid.and_then(Pid::from_raw) {
            Some(pid) => drop(kill_process(pid, Signal::KILL)),
            None => drop(self.parent.kill()),
        }
        // A stopped process that entered the namespace from outside would block this forever, so the wait is limited.
        // `undo::remove_cgroups` reports its PID.
        let _ = self.is_gone_within(patience::stretched(Duration::from_secs(10)));
    }

    fn is_gone_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if matches!(self.parent.try_wait(), Ok(Some(_)) | Err(_)) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

struct Keeper<'a> {
    state: &'a State,
    config: Config,
    caller: &'a UnixStream,
    sender: Sender<Cue>,
    cues: Receiver<Cue>,
    inits: BTreeMap<Member, Init>,
    /// The number of inits started so far.
    started: u64,
    keep: bool,
    ready: bool,
    /// How often each component ended.
    failures: BTreeMap<(Member, String), u32>,
}

impl Keeper<'_> {
    /// Starts the cluster and supervises it until something ends it. Never returns `Ok`.
    fn hold(&mut self) -> Result<()> {
        cgroup::enter(&self.config.name)?;
        for folder in ["tmp", "etcd"] {
            let folder = self.state.0.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        self.start_control_plane()?;
        for node in Node::first(self.config.nodes) {
            self.start_node(node)?;
        }
        self.until(
            "kube-apiserver to answer",
            Member::ControlPlane,
            "kube-apiserver",
            |keeper| keeper.asks(|api| api.text(&Request::raw("/readyz"))).is_some(),
        )?;
        for component in components::second(&self.config, self.state)? {
            self.order(Member::ControlPlane, &Order::Start(component))?;
        }
        for node in Node::first(self.config.nodes) {
            self.start_kubelet(node, &[])?;
        }
        for node in Node::first(self.config.nodes) {
            self.until_ready(node)?;
        }
        let manager = "kube-controller-manager";
        self.until("the default service account", Member::ControlPlane, manager, |keeper| {
            let path = "/api/v1/namespaces/default/serviceaccounts/default";
            keeper.asks(|api| api.text(&Request::raw(path))).is_some()
        })?;
        self.ready = true;
        send(self.caller, &News::Ready).or_else(|error| if self.keep { Ok(()) } else { Err(error) })?;
        loop {
            self.attend(Duration::from_secs(3600))?;
        }
    }

    /// Ends nodes before the control plane, because they are in its PID namespace.
    fn end(&mut self) {
        for init in self.inits.values() {
            let _ = init.socket.shutdown(std::net::Shutdown::Both);
        }
        while let Some((_, init)) = self.inits.pop_last() {
            init.end();
        }
    }

    fn start_control_plane(&mut self) -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on 127.0.0.1")?;
        let port = listener
            .local_addr()
            .context("a listening socket without an address")?
            .port();
        certs::write(self.state, port)?;
        if let Some((user, group)) = self.config.owner {
            std::os::unix::fs::chown(self.state.kubeconfig(), Some(user), Some(group))
                .context("cannot hand over the KUBECONFIG")?;
        }
        self.start_init(Member::ControlPlane, &[], Stdio::from(OwnedFd::from(listener)))?;
        for component in components::first(&self.config, self.state)? {
            self.order(Member::ControlPlane, &Order::Start(component))?;
        }
        Ok(())
    }

    /// Starts the node's namespaces and containerd, which need no API server.
    fn start_node(&mut self, node: Node) -> Result<()> {
        let member = Member::Node(node);
        cgroup::add_node(&self.config.name, &node.name())?;
        components::write_node_files(&self.config, self.state, node)?;
        if let Gpu::Soft(from) = &self.config.gpu {
            install_soft_gpu(&self.config, self.state, node, from)?;
        }
        let control_plane = self.init_pid(Member::ControlPlane)?;
        let enter = ["nsenter", "--target", &control_plane, "--net", "--pid", "--"];
        self.start_init(member, &enter, Stdio::null())?;
        network::join(&control_plane, node, &self.init_pid(member)?)?;
        self.order(
            member,
            &Order::Start(components::containerd(&self.config, self.state, node)?),
        )
    }

    /// Starts the rest of the node, once the API server answers.
    fn start_kubelet(&mut self, node: Node, images: &[PathBuf]) -> Result<()> {
        let member = Member::Node(node);
        self.until("containerd to answer", member, "containerd", |keeper| {
            let ask = [
                "ctr",
                "--timeout",
                &patience::argument(Duration::from_secs(2)),
                "version",
            ];
            shell::run(&mut inside(keeper.state, &keeper.config, member, &ask)).is_ok()
        })?;
        for archive in [&self.config.pause].into_iter().chain(images) {
            import(self.state, &self.config, member, archive)?;
        }
        self.order(
            member,
            &Order::Start(components::kubelet(&self.config, self.state, node)?),
        )
    }

    fn until_ready(&mut self, node: Node) -> Result<()> {
        let what = format!("{} to be Ready", node.name());
        self.until(&what, Member::Node(node), "kubelet", |keeper| {
            keeper.asks(|api| api.is_ready(&node.name())) == Some(true)
        })
    }

    /// Starts a member's init in new namespaces. `enter` is a command prefix (nsenter) that first enters the parent's
    /// namespaces.
    fn start_init(&mut self, member: Member, enter: &[&str], input: Stdio) -> Result<()> {
        let own = self.state.member(member);
        let logs = own.0.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        mounts::prepare(member, &own)?;
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
        let log = own.log("init");
        let unshare = "unshare --mount --net --pid --fork --kill-child=SIGKILL --";
        let mut words = enter.iter().copied().chain(unshare.split(' '));
        let parent = Command::new(words.next().unwrap_or("unshare"))
            .args(words)
            .arg(&self.config.program)
            .args([OsStr::new("init"), self.state.0.as_os_str(), OsStr::new(&member.name())])
            .stdin(input)
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?)
            .spawn()
            .context("cannot run unshare and nsenter (util-linux)")?;
        self.started += 1;
        let number = self.started;
        let events = messages::<Event>(&ours)?;
        let sender = self.sender.clone();
        thread::spawn(move || {
            for event in events {
                let _ = sender.send(Cue::Init(number, event));
            }
            let _ = sender.send(Cue::InitGone(number));
        });
        let init = Init {
            number,
            parent,
            socket: ours,
            pid: None,
        };
        self.inits.insert(member, init);
        let what = format!("the namespaces of {}", member.name());
        self.until(&what, member, "init", |keeper| keeper.init_pid(member).is_ok())
    }

    /// The PID of a member's init on the host.
    fn init_pid(&self, member: Member) -> Result<String> {
        let pid = self.inits.get(&member).and_then(|init| init.pid);
        let pid = pid.with_context(|| format!("{} does not run", member.name()))?;
        Ok(pid.to_string())
    }

    /// Ends the node like a loss of power: processes, memory and /run are lost, the disk stays.
    fn end_node(&mut self, node: Node) -> Result<()> {
        let member = Member::Node(node);
        let init = self.inits.remove(&member);
        init.with_context(|| format!("{} does not run", node.name()))?.kill();
        for file in self.state.member(member).pids() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(())
    }

    /// Handles cues until `probe` returns true.
    fn until(&mut self, what: &str, member: Member, component: &str, probe: impl Fn(&Self) -> bool) -> Result<()> {
        let limit = patience::stretched(LIMIT);
        let deadline = Instant::now() + limit;
        while !probe(self) {
            self.attend(Duration::from_millis(100))?;
            ensure!(
                Instant::now() <= deadline,
                "waited {} s for {what}: {}",
                limit.as_secs(),
                self.end_of_log(member, component)
            );
        }
        Ok(())
    }

    /// Waits for one cue and handles it. An error ends the cluster.
    fn attend(&mut self, wait: Duration) -> Result<()> {
        match self.cues.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => bail!("the keeper lost its own threads"),
            Ok(Cue::Caller(wish)) => self.grant(wish),
            Ok(Cue::CallerGone) if self.keep => Ok(()),
            Ok(Cue::CallerGone) => Err(anyhow!(Asked("the program that asked for the cluster has gone"))),
            Ok(Cue::Signal) => Err(anyhow!(Asked("a signal asked for the end"))),
            Ok(Cue::Init(number, event)) => match self.member_of(number) {
                Some(member) => self.event(member, event),
                None => Ok(()), // an event of a node that was ended
            },
            Ok(Cue::InitGone(number)) => match self.member_of(number) {
                Some(member) => bail!(
                    "the first process of {} ended: {}",
                    member.name(),
                    self.end_of_log(member, "init")
                ),
                None => Ok(()),
            },
        }
    }

    /// The caller has checked whether the member runs. If that changed meanwhile, the request is ignored.
    fn grant(&mut self, wish: Wish) -> Result<()> {
        let runs = |member| self.inits.contains_key(&member);
        match wish {
            Wish::Keep => {
                self.keep = true;
                Ok(())
            }
            Wish::Restart(member, name) if runs(member) => self.order(member, &Order::Restart(name)),
            Wish::Kill(member, name) if runs(member) => self.order(member, &Order::Kill(name)),
            Wish::Stop(member, name) if runs(member) => self.order(member, &Order::Stop(name)),
            Wish::Resume(member, name) if runs(member) => self.order(member, &Order::Resume(name)),
            Wish::EndNode(node) if runs(Member::Node(node)) => self.end_node(node),
            Wish::StartNode(node, images) if !runs(Member::Node(node)) => {
                self.start_node(node)?;
                self.start_kubelet(node, &images)?;
                self.until_ready(node)
            }
            _ => Ok(()),
        }
    }

    fn member_of(&self, number: u64) -> Option<Member> {
        let found = self.inits.iter().find(|(_, init)| init.number == number);
        found.map(|(member, _)| *member)
    }

    fn event(&mut self, member: Member, event: Event) -> Result<()> {
        let own = self.state.member(member);
        match event {
            Event::Up(pid) => {
                fs::write(own.init(), pid.to_string()).context("cannot write init.pid")?;
                if let Some(init) = self.inits.get_mut(&member) {
                    init.pid = Some(pid);
                }
                Ok(())
            }
            Event::Failed(reason) => bail!("{}: {reason}", member.name()),
            Event::Started { name, pid } => {
                let file = own.pid(&name);
                fs::write(&file, pid.to_string()).with_context(|| format!("cannot write {}", file.display()))
            }
            Event::Ended { name, status } => {
                let _ = fs::remove_file(own.pid(&name));
                let failures = self.failures.entry((member, name.clone())).or_default();
                *failures += 1;
                ensure!(
                    self.ready || *failures <= MAX_FAILURES,
                    "{name} does not stay up ({status}): {}",
                    self.end_of_log(member, &name)
                );
                Ok(())
            }
        }
    }

    fn order(&self, member: Member, order: &Order) -> Result<()> {
        let init = self.inits.get(&member);
        let init = init.with_context(|| format!("{} does not run", member.name()))?;
        send(&init.socket, order)
    }

    /// The API server's answer, if it answers.
    fn asks<T>(&self, ask: impl FnOnce(&Api) -> Result<T>) -> Option<T> {
        Api::of(self.state).and_then(|api| ask(&api)).ok()
    }

    fn end_of_log(&self, member: Member, component: &str) -> String {
        let text = fs::read_to_string(self.state.member(member).log(component)).unwrap_or_default();
        format!("the end of {component}'s log:\n{}", shell::tail(&text, 15))
    }
}

/// Installs the software GPU as a node's driver root: libraries in a distribution's folder, and a folder that all may
/// write.
fn install_soft_gpu(config: &Config, state: &State, node: Node, from: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let own = state.member(Member::Node(node));
    let at = |path: &str| own.var(path.trim_start_matches("/var/"));
    let libraries = at(SOFT_GPU_DRIVER).join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries).context("cannot create the software GPU's driver root")?;
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::copy(from.join(name), libraries.join(name))
            .with_context(|| format!("cannot copy {}: run `make dist`", from.join(name).display()))?;
    }
    let shared = at(SOFT_GPU_STATE);
    fs::create_dir_all(&shared).context("cannot create the software GPU's state")?;
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).context("cannot open the software GPU's state")?;
    let pids = if config.lists_processes { "own" } else { "none" };
    let limits = if config.limits_cgroups { "misc" } else { "none" };
    let profile = format!("nvml_pids = {pids}\nmemory_limits = {limits}\nnvlink = 0-1\n");
    fs::write(shared.join("profile"), profile).context("cannot write the software GPU's profile")?;
    // No two nodes have the same GPUs.
    fs::write(
        shared.join("machine-id"),
        mounts::machine_id(&state.name(), &node.name()),
    )
    .context("cannot write the software GPU's machine-id")
}
