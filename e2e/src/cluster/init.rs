//! PID 1 of a member: mounts its file systems and sets up its network. Then it starts the components that the keeper
//! orders, restarts those that exit unless they were stopped, and reaps zombies. It ends when the keeper does, and the
//! kernel then kills everything else in its namespace. A node's namespace is inside the control plane's, so it ends
//! together with that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::components::Component;
use super::config::{Config, Member, MemberState, State};
use super::protocol::{Event, Order, messages, send};
use super::{mounts, network, proxy};

/// Interval of the search for ended processes.
const REAP: Duration = Duration::from_millis(50);
/// Pause before a component that ended is started again.
const PAUSE: Duration = Duration::from_millis(300);

/// Standard output is the socket to the keeper; the control plane's standard input is the listening socket of the host.
pub(super) fn run(state: &State, member: Member) -> Result<()> {
    let keeper = UnixStream::from(rustix::stdio::stdout().try_clone_to_owned()?);
    let config = state.load()?;
    let pid = match prepare(state, member) {
        Ok(pid) => pid,
        Err(error) => return send(&keeper, &Event::Failed(format!("{error:#}"))),
    };
    send(&keeper, &Event::Up(pid))?;
    if member == Member::ControlPlane {
        let listener = TcpListener::from(rustix::stdio::stdin().try_clone_to_owned()?);
        thread::spawn(move || proxy::serve(&listener));
    }
    let orders = messages::<Order>(&keeper)?;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for order in orders {
            if sender.send(order).is_err() {
                return;
            }
        } // dropping the sender shows the supervisor that the keeper has ended
    });
    Supervisor {
        temporary: state.0.join("tmp"),
        own: state.member(member),
        config,
        keeper,
        running: BTreeMap::new(),
        due: Vec::new(),
        stopped: BTreeSet::new(),
        idle: Vec::new(),
    }
    .run(&receiver)
}

fn prepare(state: &State, member: Member) -> Result<i32> {
    // The mounted /proc is still the host's, so it shows this process's PID on the host.
    let host = std::fs::read_link("/proc/self").context("cannot read /proc/self")?;
    let host = host.to_string_lossy().parse().context("/proc/self is no number")?;
    ensure!(
        std::process::id() == 1,
        "init was started outside of a new PID namespace: only the keeper starts it"
    );
    mounts::enter(state, member)?;
    match member {
        Member::ControlPlane => network::control_plane()?,
        Member::Node(_) => network::loopback()?, // the keeper joins it to the others
    }
    Ok(host)
}

/// Growth of a component's heap in percent before Go's garbage collector runs again. These heaps are small, the
/// machine has few cores, and several clusters may run on them.
const GOGC: &str = "300";

struct Supervisor {
    temporary: PathBuf,
    own: MemberState,
    config: Config,
    keeper: UnixStream,
    running: BTreeMap<i32, Component>,
    due: Vec<(Instant, Component)>,
    /// Components that stay stopped until they are resumed.
    stopped: BTreeSet<String>,
    /// Stopped components that have ended.
    idle: Vec<Component>,
}

impl Supervisor {
    fn run(mut self, orders: &Receiver<Order>) -> Result<()> {
        loop {
            match orders.recv_timeout(REAP) {
                Ok(Order::Start(component)) => self.start(component)?,
                Ok(Order::Restart(name)) => self.signal(&name, Signal::TERM),
                Ok(Order::Kill(name)) => self.signal(&name, Signal::KILL),
                Ok(Order::Stop(name)) => {
                    self.signal(&name, Signal::KILL);
                    let stopped = self.due.extract_if(.., |(_, component)| component.name == name);
                    self.idle.extend(stopped.map(|(_, component)| component));
                    self.stopped.insert(name);
                }
                Ok(Order::Resume(name)) => {
                    self.stopped.remove(&name);
                    let resumed = self.idle.extract_if(.., |component| component.name == name);
                    self.due.extend(resumed.map(|component| (Instant::now(), component)));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.reap()?;
            let now = Instant::now();
            let (due, later) = std::mem::take(&mut self.due)
                .into_iter()
                .partition(|(when, _)| *when <= now);
            self.due = later;
            let due: Vec<(Instant, Component)> = due;
            for (_, component) in due {
                self.start(component)?;
            }
        }
    }

    fn start(&mut self, component: Component) -> Result<()> {
        let log = self.own.log(&component.name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let Some((program, arguments)) = component.command.split_first() else {
            bail!("{} has no command", component.name)
        };
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", self.config.toolchain.search_path())
            .env("HOME", "/root")
            .env("TMPDIR", &self.temporary)
            .env("GOGC", GOGC)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot clone a log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        // Not waited for through `child`: all processes are reaped in one place.
        let pid = i32::try_from(child.id()).context("a process id that is no number")?;
        send(
            &self.keeper,
            &Event::Started {
                name: component.name.clone(),
                pid,
            },
        )?;
        self.running.insert(pid, component);
        Ok(())
    }

    fn signal(&self, name: &str, signal: Signal) {
        for (pid, _) in self.running.iter().filter(|(_, component)| component.name == name) {
            if let Some(pid) = Pid::from_raw(*pid) {
                let _ = kill_process(pid, signal);
            }
        }
    }

    fn reap(&mut self) -> Result<()> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(component) = self.running.remove(&pid.as_raw_nonzero().get()) {
                let status = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("exit status {code}"),
                    (_, Some(signal)) => format!("signal {signal}"),
                    _ => "an unknown status".to_owned(),
                };
                send(
                    &self.keeper,
                    &Event::Ended {
                        name: component.name.clone(),
                        status,
                    },
                )?;
                if self.stopped.contains(&component.name) {
                    self.idle.push(component);
                } else {
                    self.due.push((Instant::now() + PAUSE, component));
                }
            }
        }
        Ok(())
    }
}
