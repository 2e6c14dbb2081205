//! The keeper: a process in the host's namespaces that owns one cluster from its first to its last trace.
//!
//! It tells init what to start and when, and takes everything down when it is told to, when the program that asked for
//! the cluster goes, or when something breaks. It is a session leader of its own: a Ctrl-C reaches only that program.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::components::{self, CONTAINERD_SOCKET};
use super::config::{Config, Gpu, NODE, SOFT_GPU_DRIVER, SOFT_GPU_STATE, State};
use super::protocol::{Event, News, Order, Wish, messages, send};
use super::{certs, cgroup, inside, mounts, undo};
use crate::lock::Lock;
use crate::shell;

/// Nothing takes longer than this on two cores, and a machine that is this slow gets a clear line.
const LIMIT: Duration = Duration::from_secs(120);
/// A component that ended this often before the node was Ready will not come up.
const PATIENCE: u32 = 10;

enum Cue {
    Caller(Wish),
    CallerGone,
    Signal,
    Init(Event),
    InitGone,
}

/// The end that was asked for, as opposed to one that something broke.
#[derive(Debug)]
struct Asked(&'static str);

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Asked {}

/// Standard input is the socket to the program that wants the cluster.
pub(super) fn run(state: State) -> Result<()> {
    let _ = rustix::process::setsid(); // fails for a group leader, which is as good
    let caller = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let Some(_lock) = Lock::try_take(&state.lock())? else {
        let text = format!(
            "a cluster named {} is running: `vgpu-e2e down` ends it, CLUSTER=NAME names another",
            state.name()
        );
        return send(&caller, &News::Failed(text));
    };
    fs::write(state.keeper(), std::process::id().to_string()).context("cannot write keeper.pid")?;
    let (sender, cues) = channel();
    listen(&caller, &sender)?;
    send(&caller, &News::Note(format!("state in {}", state.0.display())))?;
    let ended = match state.load() {
        Ok(config) => {
            let keep = config.keep;
            let mut keeper = Keeper {
                state: &state,
                config,
                caller: &caller,
                sender,
                cues,
                init: None,
                keep,
                ready: false,
                failures: 0,
            };
            let ended = keeper.hold().expect_err("a cluster is held until something ends it");
            if let Some(init) = keeper.init.take() {
                init.end();
            }
            ended
        }
        Err(error) => error,
    };
    let news = match (undo::remove(&state), ended.downcast_ref::<Asked>()) {
        (Ok(()), Some(_)) => News::Done,
        (Ok(()), None) => News::Failed(format!("{ended:#}")),
        (Err(undo), _) => News::Failed(format!("{ended:#}; and the cluster could not be removed: {undo:#}")),
    };
    let _ = send(&caller, &news); // nobody may be left to hear it
    Ok(())
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

/// The first process of the cluster's namespaces.
struct Init {
    unshare: Child,
    socket: UnixStream,
}

impl Init {
    /// Ends init, and with it all that lives in its namespaces. Returns when the last process is gone.
    fn end(mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if matches!(self.unshare.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.unshare.kill(); // --kill-child takes init along
        let _ = self.unshare.wait();
    }
}

struct Keeper<'a> {
    state: &'a State,
    config: Config,
    caller: &'a UnixStream,
    sender: Sender<Cue>,
    cues: Receiver<Cue>,
    init: Option<Init>,
    keep: bool,
    ready: bool,
    failures: u32,
}

impl Keeper<'_> {
    /// Brings the cluster up and holds it until something ends it: never returns `Ok`.
    fn hold(&mut self) -> Result<()> {
        self.lay_out()?;
        self.start_init()?;
        for component in components::first(&self.config, self.state)? {
            self.order(&Order::Start(component))?;
        }
        self.until("kube-apiserver to answer", "kube-apiserver", |keeper| {
            keeper.kubectl(&["get", "--raw", "/readyz"]).is_some()
        })?;
        for component in components::second(&self.config, self.state)? {
            self.order(&Order::Start(component))?;
        }
        self.import_pause()?;
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        self.until("the node to be Ready", "kubelet", |keeper| {
            keeper
                .kubectl(&["get", "node", NODE, "-o", ready])
                .is_some_and(|status| status == "True")
        })?;
        self.until("the default service account", "kube-controller-manager", |keeper| {
            keeper
                .kubectl(&["get", "serviceaccount", "default", "-o", "name"])
                .is_some()
        })?;
        self.ready = true;
        send(self.caller, &News::Ready).or_else(|error| if self.keep { Ok(()) } else { Err(error) })?;
        loop {
            self.attend(Duration::from_secs(3600))?;
        }
    }

    fn lay_out(&self) -> Result<()> {
        for folder in ["logs", "tmp", "etcd"] {
            fs::create_dir_all(self.state.0.join(folder)).with_context(|| format!("cannot create {folder}"))?;
        }
        mounts::prepare(self.state)?;
        components::write_files(&self.config, self.state)?;
        if let Gpu::Soft(from) = &self.config.gpu {
            install_soft_gpu(self.state, from)?;
        }
        cgroup::create(&self.config.name)
    }

    fn start_init(&mut self) -> Result<()> {
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
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
        let log = self.state.log("init");
        let unshare = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--"])
            .arg(&self.config.program)
            .arg("init")
            .arg(&self.state.0)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?)
            .spawn()
            .context("cannot run unshare (util-linux)")?;
        let events = messages::<Event>(&ours)?;
        let sender = self.sender.clone();
        thread::spawn(move || {
            for event in events {
                let _ = sender.send(Cue::Init(event));
            }
            let _ = sender.send(Cue::InitGone);
        });
        self.init = Some(Init { unshare, socket: ours });
        self.until("the namespaces", "init", |keeper| keeper.state.init().exists())
    }

    fn import_pause(&mut self) -> Result<()> {
        self.until("containerd to answer", "containerd", |keeper| {
            shell::run(&mut inside(
                keeper.state,
                &keeper.config,
                &["ctr", "--timeout=2s", "version"],
            ))
            .is_ok()
        })?;
        let pause = self.config.pause.display().to_string();
        shell::run(&mut inside(
            self.state,
            &self.config,
            &["ctr", "-n", "k8s.io", "images", "import", &pause],
        ))
        .with_context(|| format!("cannot import the pause image over {CONTAINERD_SOCKET}"))
    }

    /// Answers cues until `probe` holds.
    fn until(&mut self, what: &str, component: &str, probe: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !probe(self) {
            self.attend(Duration::from_millis(100))?;
            if Instant::now() > deadline {
                bail!(
                    "waited {} s for {what}: {}",
                    LIMIT.as_secs(),
                    self.end_of_log(component)
                );
            }
        }
        Ok(())
    }

    /// Waits for one cue and answers it; an error ends the cluster.
    fn attend(&mut self, wait: Duration) -> Result<()> {
        match self.cues.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => bail!("the keeper lost its own threads"),
            Ok(Cue::Caller(Wish::Keep)) => {
                self.keep = true;
                Ok(())
            }
            Ok(Cue::Caller(Wish::Restart(name))) => self.order(&Order::Restart(name)),
            Ok(Cue::Caller(Wish::Kill(name))) => self.order(&Order::Kill(name)),
            Ok(Cue::CallerGone) if self.keep => Ok(()),
            Ok(Cue::CallerGone) => Err(anyhow!(Asked("the program that asked for the cluster has gone"))),
            Ok(Cue::Signal) => Err(anyhow!(Asked("a signal asked for the end"))),
            Ok(Cue::InitGone) => bail!("the cluster's first process ended: {}", self.end_of_log("init")),
            Ok(Cue::Init(event)) => self.event(event),
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Up(pid) => fs::write(self.state.init(), pid.to_string()).context("cannot write init.pid"),
            Event::Failed(reason) => bail!("{reason}"),
            Event::Started { name, pid } => {
                let file = self.state.0.join(format!("{name}.pid"));
                fs::write(&file, pid.to_string()).with_context(|| format!("cannot write {}", file.display()))
            }
            Event::Ended { name, status } => {
                self.failures += 1;
                if !self.ready && self.failures > PATIENCE {
                    bail!("{name} does not stay up ({status}): {}", self.end_of_log(&name));
                }
                Ok(())
            }
        }
    }

    fn order(&self, order: &Order) -> Result<()> {
        let init = self.init.as_ref().context("no init is running")?;
        send(&init.socket, order)
    }

    fn kubectl(&self, arguments: &[&str]) -> Option<String> {
        let program = self.config.toolchain.program("kubectl").ok()?;
        let mut command = self.state.client(program);
        shell::output(command.arg("--request-timeout=5s").args(arguments)).ok()
    }

    fn end_of_log(&self, component: &str) -> String {
        let text = fs::read_to_string(self.state.log(component)).unwrap_or_default();
        format!("the end of {component}'s log:\n{}", shell::tail(&text, 15))
    }
}

/// The software GPU as a driver root: libraries where a distribution has them, and a folder that all may write.
fn install_soft_gpu(state: &State, from: &std::path::Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let at = |path: &str| state.var(path.trim_start_matches("/var/"));
    let libraries = at(SOFT_GPU_DRIVER).join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries).context("cannot create the software GPU's driver root")?;
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::copy(from.join(name), libraries.join(name))
            .with_context(|| format!("cannot copy {}: run `make dist`", from.join(name).display()))?;
    }
    let shared = at(SOFT_GPU_STATE);
    fs::create_dir_all(&shared).context("cannot create the software GPU's state")?;
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).context("cannot open the software GPU's state")
}
