//! Clusters and the machine: two clusters at the same time, with decoys of a kubelet, and every order of dying.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use vgpu_e2e::cluster::{self, Cluster, Config, Gpu, Member, Node, State};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::snapshot::Snapshot;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{prepared, shell};

use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    (
        "machine_is_left_as_found_and_decoys_of_a_kubelet_survive",
        decoys_survive,
    ),
    ("interrupted_cluster_is_removed_before_the_program_returns", interrupted),
    (
        "cluster_interrupted_while_starting_is_removed",
        interrupted_on_the_way_up,
    ),
    ("cluster_of_a_killed_program_is_taken_down", killed_program),
    ("leftovers_of_a_killed_keeper_are_swept", killed_keeper),
    (
        "two_clusters_run_side_by_side_and_a_name_in_use_is_refused",
        side_by_side,
    ),
    ("containers_run_under_the_default_apparmor_profile", apparmor),
];

/// A cluster without GPUs.
fn plain(name: &str) -> Config {
    Config {
        gpu: Gpu::Absent,
        ..shared::prepared().config(name)
    }
}

/// Files and processes like those of a kubelet on the machine.
struct Decoys {
    created: Vec<PathBuf>,
    _socket: UnixListener,
    socket: PathBuf,
    process: Child,
    cgroup: PathBuf,
}

impl Decoys {
    fn place() -> Result<Self> {
        let mut created = Vec::new();
        let sockets = Path::new("/var/lib/kubelet/device-plugins");
        for folder in [sockets.parent().unwrap_or(sockets), sockets] {
            if !folder.exists() {
                fs::create_dir(folder).with_context(|| format!("cannot create {}", folder.display()))?;
                created.push(folder.to_path_buf());
            }
        }
        let socket = sockets.join("decoy.sock");
        if socket.exists() && UnixStream::connect(&socket).is_err() {
            let _ = fs::remove_file(&socket); // left by a killed test
        }
        let listener = UnixListener::bind(&socket).context("cannot bind the decoy socket")?;
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists());
        let pods = Path::new(root.context("no cgroup hierarchy to put a decoy in")?).join("kubepods");
        let cgroup = pods.join("pod00000000-0000-0000-0000-000000000000");
        for folder in [&pods, &cgroup] {
            if !folder.exists() {
                fs::create_dir(folder).with_context(|| format!("cannot create {}", folder.display()))?;
                created.push(folder.clone());
            }
        }
        let process = Command::new("sleep").arg("600").spawn().context("cannot run sleep")?;
        fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).context("cannot move the decoy process")?;
        Ok(Self {
            created,
            _socket: listener,
            socket,
            process,
            cgroup,
        })
    }

    fn check(&mut self) -> Result<()> {
        ensure!(
            self.socket.exists(),
            "the socket of a device plugin of the machine's kubelet was deleted"
        );
        if let Some(status) = self.process.try_wait()? {
            bail!("a process in a pod cgroup of the machine's kubelet was ended: {status}");
        }
        let members = fs::read_to_string(self.cgroup.join("cgroup.procs")).context("the decoy cgroup is gone")?;
        ensure!(
            members.lines().any(|pid| pid == self.process.id().to_string()),
            "the decoy process was moved out of its cgroup"
        );
        Ok(())
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.socket);
        for folder in self.created.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A user's program that works with the cluster: from the tool cache, with the cluster's folder on its command line,
/// and still running after the cluster. None of that makes it part of the cluster.
struct Users(Child);

impl Users {
    fn begin(kube: &Kube<'_>) -> Result<Self> {
        let mut proxy = kube.command(["proxy", "--port=0"])?;
        let mut child = Self(proxy.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("kubectl has no standard output")?).read_line(&mut line)?;
        ensure!(line.starts_with("Starting to serve"), "kubectl proxy said {line:?}");
        Ok(child)
    }

    fn check(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("a user's kubectl was ended with the cluster: {status}"),
        }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The addresses on which processes of the cluster listen in the host's network namespace, as /proc/net writes them.
/// Concurrent tests listen there too.
fn listeners(cluster: &str) -> Result<Vec<String>> {
    const LISTEN: &str = "0A";
    let processes = Snapshot::take().lines_with(&format!(" of vgpu-e2e-{cluster}: "));
    let pids = processes.iter().filter_map(|line| line.split(' ').nth(1));
    let open = pids.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten());
    let sockets: BTreeSet<PathBuf> = open.filter_map(|file| fs::read_link(file.path()).ok()).collect();
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).with_context(|| format!("cannot read {table}"))?;
        let rows = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        found.extend(
            rows.filter(|row| row.get(3) == Some(&LISTEN))
                .filter(|row| sockets.contains(Path::new(&format!("socket:[{}]", row[9]))))
                .map(|row| row[1].to_owned()),
        );
    }
    Ok(found)
}

/// A cluster adds one listener to the host: the proxy, on 127.0.0.1.
fn only_the_proxy_listens(cluster: &str) -> Result<()> {
    const LOOPBACK: &str = "0100007F:";
    let found = listeners(cluster)?;
    match &found[..] {
        [one] if one.starts_with(LOOPBACK) => Ok(()),
        _ => bail!("the cluster listens on {found:?} instead of one port of 127.0.0.1"),
    }
}

fn decoys_survive() -> Result<()> {
    let mut decoys = Decoys::place()?;
    let before = Snapshot::take();
    let name = shared::name("decoys");
    let cluster = Cluster::up(plain(&name))?;
    let kube = Kube::new(&cluster, "default");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": {
        "dnsPolicy": "Default", "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev"}]}});
    kube.apply(&pod.to_string())?;
    kube.wait_running("plain", LIMIT)?;
    decoys.check()?;
    only_the_proxy_listens(&name)?;
    let node = cluster.node(Node::FIRST);
    node.restart("kubelet", true)?;
    wait(LIMIT, "the restarted kubelet to clean up what it does not know", || {
        let lines = node
            .path_inside("/var/lib/kubelet/device-plugins")?
            .join("kubelet.sock")
            .exists();
        Ok(lines.then_some(()))
    })?;
    kube.wait_running("plain", LIMIT)?;
    decoys.check()?;
    let mut own = Users::begin(&kube)?;
    cluster.down()?;
    own.check()?;
    decoys.check()?;
    is_as_before(&before)
}

/// Compares everything except concurrent changes by others: clusters of other programs start and end, tests mount in
/// their own folders below /tmp and /dev/shm, and tests of `vgpu run` keep creating and removing folders.
fn is_as_before(before: &Snapshot) -> Result<()> {
    const LEFT: &str = "file /run/vgpu-run";
    const MEANWHILE: &str = "file /run/vgpu";
    const OF_FIRST_CONTACT: &str = "/sys/fs/cgroup/kit-x";
    let mounted =
        [env::temp_dir().as_path(), Path::new("/dev/shm")].map(|folder| format!("mount {}/.tmp", folder.display()));
    let is_of_another = |change: &String| {
        mounted.iter().any(|folder| change.contains(folder))
            || *change == format!("added: {LEFT}")
            || *change == format!("gone: {MEANWHILE}")
    };
    let is_of_now = |change: &String| {
        *change == format!("added: {MEANWHILE}") || *change == format!("added: cgroup {OF_FIRST_CONTACT}")
    };
    let changes = wait(LIMIT, "the end of the programs beside this test", || {
        let mut changes = before.changes(&Snapshot::take(), &shared::name(""));
        changes.retain(|change| !is_of_another(change));
        let is_settled = changes.is_empty() || !changes.iter().all(is_of_now);
        Ok(is_settled.then_some(changes))
    })?;
    ensure!(
        changes.is_empty(),
        "the machine is not as it was found:\n{}",
        changes.join("\n")
    );
    Ok(())
}

/// Starts a separate program that runs a cluster.
fn holder(name: &str) -> Result<Child> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vgpu-e2e"))
        .args(["--cluster", name, "up", "--hold"])
        .env(prepared::VARIABLE, shared::prepared().save()?)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run vgpu-e2e")?;
    let lines = BufReader::new(child.stdout.take().context("vgpu-e2e has no standard output")?).lines();
    for line in lines.map_while(Result::ok) {
        if line.starts_with("export KUBECONFIG=") {
            return Ok(child);
        }
    }
    bail!("vgpu-e2e ended before its cluster was up: {}", child.wait()?)
}

fn pid(child: &Child) -> Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a process without a number")
}

/// Checks that nothing of that cluster is on the machine: no process, folder or cgroup with its name.
fn is_gone(name: &str) -> Result<()> {
    let left = Snapshot::take().lines_with(name);
    ensure!(left.is_empty(), "left: {}", left.join("\n"));
    Ok(())
}

fn interrupted() -> Result<()> {
    let name = shared::name("interrupted");
    let mut child = holder(&name)?;
    kill_process(pid(&child)?, Signal::INT)?;
    let status = child.wait()?;
    ensure!(
        status.code() == Some(130),
        "an interrupted program ended with {status} instead of 130"
    );
    is_gone(&name)
}

/// Interrupts the start of a cluster at several points.
fn interrupted_on_the_way_up() -> Result<()> {
    let before = Snapshot::take();
    let name = shared::name("early");
    let state = State::of(&name);
    let first_node = Member::Node(Node::FIRST);
    for reached in [
        state.0.clone(),
        state.member(Member::ControlPlane).init(),
        state.member(first_node).init(),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vgpu-e2e"))
            .args(["--cluster", &name, "up", "--hold"])
            .env(prepared::VARIABLE, shared::prepared().save()?)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run vgpu-e2e")?;
        wait(LIMIT, &format!("{} to appear", reached.display()), || {
            Ok(reached.exists().then_some(()))
        })?;
        kill_process(pid(&child)?, Signal::INT)?;
        let status = child.wait()?;
        ensure!(
            status.code() == Some(130),
            "interrupted once {} was there, the program ended with {status} instead of 130",
            reached.display()
        );
        is_gone(&name)?;
    }
    is_as_before(&before)
}

fn killed_program() -> Result<()> {
    let before = Snapshot::take();
    let name = shared::name("killed");
    let mut child = holder(&name)?;
    child.kill()?;
    child.wait()?;
    // The cluster's own files are removed before the machine's settings are restored.
    wait(LIMIT, "the keeper to take the cluster down", || {
        is_gone(&name)?;
        is_as_before(&before).map(Some)
    })
}

fn killed_keeper() -> Result<()> {
    let name = shared::name("keeper");
    let before = Snapshot::take();
    let cluster = Cluster::up(plain(&name))?;
    let keeper = fs::read_to_string(State::of(&name).keeper()).context("no keeper.pid")?;
    let keeper = keeper
        .trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .context("keeper.pid is no number")?;
    kill_process(keeper, Signal::KILL)?;
    drop(cluster);
    let swept = cluster::sweep()?;
    ensure!(swept.contains(&name), "the leftovers were not swept: {swept:?}");
    is_gone(&name)?;
    is_as_before(&before)
}

fn side_by_side() -> Result<()> {
    let name = shared::name("first");
    let first = Cluster::up(plain(&name))?;
    let error = Cluster::up(plain(&name))
        .err()
        .context("a second cluster of the same name came up")?;
    ensure!(
        error.to_string().contains("is running: `make down` ends it"),
        "the error does not say what to do: {error:#}"
    );
    let second = Cluster::up(plain(&shared::name("second")))?;
    let uid = |cluster: &Cluster| -> Result<String> {
        let found = Kube::new(cluster, "default").get(&["namespace", "kube-system"])?;
        Ok(found["metadata"]["uid"].to_string())
    };
    ensure!(uid(&first)? != uid(&second)?, "both KUBECONFIGs lead to one cluster");
    second.down()?;
    Kube::new(&first, "default").get(&["node", &Node::FIRST.name()])?;
    first.down()
}

/// The reason why containerd cannot load its profile here. It then starts containers without a profile.
fn missing_for_apparmor() -> Option<&'static str> {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    let path = env::var_os("PATH").unwrap_or_default();
    let is_program = |folder: &Path| folder.join("apparmor_parser").is_file();
    let has_parser = env::split_paths(&path).any(|folder| is_program(&folder)) || is_program(Path::new("/sbin"));
    if enabled.trim() != "Y" {
        Some("this machine has no AppArmor: `make guest` boots one that has")
    } else if !Path::new("/sys/kernel/security/apparmor").exists() {
        Some("securityfs is not mounted on /sys/kernel/security")
    } else if !has_parser {
        Some("apparmor_parser is missing: install the package apparmor")
    } else {
        None
    }
}

/// A container with a share runs under containerd's default profile, the plugin under none, because it mounts.
fn apparmor() -> Result<()> {
    if let Some(missing) = missing_for_apparmor() {
        vgpu_skip::skip("containers_run_under_the_default_apparmor_profile", missing);
        return Ok(());
    }
    shared::in_namespace_of(shared::translating()?, "apparmor", |installed, kube| {
        shared::hold(kube, "confined", "1Gi")?;
        let label = "/proc/1/attr/current";
        let own = kube.exec("confined", &["cat", label])?;
        ensure!(
            own.trim() == "cri-containerd.apparmor.d (enforce)",
            "the pod runs under {own:?}"
        );
        kube.exec("confined", &["vgpu-client", "check"])?;
        let plugin = shell::output(&mut installed.cluster.node(Node::FIRST).inside(&[
            "sh",
            "-c",
            "cat /proc/$(pgrep -o -x vgpu-kubelet-pl)/attr/current",
        ]))?;
        ensure!(plugin.trim() == "unconfined", "the plugin runs under {plugin:?}");
        Ok(())
    })
}
