//! Processes of the cluster that tests stop, continue, and add.

use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use vgpu_e2e::cluster::{Cluster, Member};
use vgpu_e2e::outcome::after;
use vgpu_e2e::shell;
use vgpu_e2e::wait::wait;

use crate::shared::{Installed, LIMIT};

/// A process that is stopped (SIGSTOP) until this is dropped.
pub(crate) struct Stopped<'a> {
    cluster: &'a Cluster,
    pid: String,
    /// Its start time: another process may get its PID later.
    started: String,
    is_awake: bool,
}

impl<'a> Stopped<'a> {
    /// Stops the process with this PID in the cluster.
    pub(crate) fn stop(cluster: &'a Cluster, pid: String) -> Result<Self> {
        let started = started(cluster, &pid)?;
        signal(cluster, &pid, "STOP")?;
        Ok(Self {
            cluster,
            pid,
            started,
            is_awake: false,
        })
    }

    /// Continues the process.
    ///
    /// # Errors
    /// It no longer exists: something ended it meanwhile because it did not answer.
    pub(crate) fn wake(mut self) -> Result<()> {
        self.is_awake = true;
        let woken = self.go_on();
        woken.with_context(|| format!("process {} was ended while it stood still", self.pid))
    }

    fn go_on(&self) -> Result<()> {
        let now = started(self.cluster, &self.pid)?;
        ensure!(now == self.started, "its number is another process's by now");
        signal(self.cluster, &self.pid, "CONT")
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if !self.is_awake {
            // If it has ended, there is nothing to continue.
            let _ = self.go_on();
        }
    }
}

/// The process's start time, in ticks since the machine's boot.
fn started(cluster: &Cluster, pid: &str) -> Result<String> {
    let file = cluster.path_inside(&format!("/proc/{pid}/stat"))?;
    let stat = fs::read_to_string(&file).with_context(|| format!("process {pid} of the cluster is gone"))?;
    started_of(&stat).with_context(|| format!("{} says {stat:?}", file.display()))
}

/// Field 22. The name before it may contain anything.
fn started_of(stat: &str) -> Option<String> {
    let (_, after) = stat.rsplit_once(") ")?;
    after.split(' ').nth(19).map(str::to_owned)
}

fn signal(cluster: &Cluster, pid: &str, signal: &str) -> Result<()> {
    shell::run(&mut cluster.inside(&["kill", &format!("-{signal}"), pid]))
}

/// The PID of vgpu-controller in that pod, in the cluster's namespace.
pub(crate) fn controller_in(installed: &Installed, pod: &str) -> Result<String> {
    let find = format!(
        "for pid in $(pgrep -x vgpu-controller); do tr '\\0' '\\n' </proc/$pid/environ | grep -qx POD_NAME={pod} && echo $pid; done; true"
    );
    let found = shell::output(&mut installed.cluster.inside(&["sh", "-c", &find]))?;
    let pid = found.trim().to_owned();
    ensure!(
        !pid.is_empty() && !pid.contains('\n'),
        "the processes of {pod}: {found:?}"
    );
    Ok(pid)
}

const FIRST_PORT: &str = "--secure-port=443";
const SECOND_PORT: &str = "--secure-port=6444";
const SECOND_SERVER: &str = "https://10.96.0.1:6444";

/// A second kube-apiserver on the same etcd, for a watch that survives the death of the first one. A watch resumed at
/// the first one may get 410 Gone, because its history begins at its restart.
pub(crate) struct SecondServer<'a> {
    cluster: &'a Cluster,
    child: Child,
}

impl<'a> SecondServer<'a> {
    /// Uses the first one's command line. It is in the cluster's PID namespace, so it ends at the latest with the
    /// cluster.
    pub(crate) fn start(cluster: &'a Cluster) -> Result<Self> {
        let pid = cluster.pid_of("kube-apiserver")?;
        let line = shell::output(&mut cluster.inside(&["cat", &format!("/proc/{pid}/cmdline")]))?;
        let arguments: Vec<&str> = line
            .trim_end_matches('\0')
            .split('\0')
            .map(|argument| if argument == FIRST_PORT { SECOND_PORT } else { argument })
            .collect();
        ensure!(
            arguments.contains(&SECOND_PORT),
            "kube-apiserver runs without {FIRST_PORT}: {arguments:?}"
        );
        let child = cluster
            .inside(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run nsenter")?;
        let server = Self { cluster, child };
        wait(LIMIT, "the second API server to answer", || {
            shell::run(&mut server.raw("/readyz")?).map(Some)
        })?;
        Ok(server)
    }

    /// A kubectl that prints the answer for a path. It is only in the cluster's network namespace, so killing it kills
    /// kubectl itself.
    pub(crate) fn raw(&self, path: &str) -> Result<Command> {
        let state = self.cluster.state();
        let init = state.member(Member::ControlPlane).init();
        let init = fs::read_to_string(init).context("cannot read init.pid")?;
        let mut command = shell::command("nsenter", ["--target", init.trim(), "--net", "--"]);
        command
            .arg(self.cluster.toolchain().program("kubectl")?)
            .arg("--kubeconfig")
            .arg(state.component_kubeconfig("admin"))
            .args(["--server", SECOND_SERVER, "get", "--raw", path])
            .env("KUBECACHEDIR", state.0.join("tmp/kubecachedir"));
        Ok(command)
    }
}

impl Drop for SecondServer<'_> {
    fn drop(&mut self) {
        let ended = shell::run(&mut self.cluster.inside(&["pkill", "-KILL", "-f", "--", SECOND_PORT]));
        // nsenter, which ends by itself if that has worked.
        let _ = self.child.kill();
        let waited = wait(LIMIT, "nsenter to end", || {
            self.child.try_wait().context("cannot wait for nsenter")
        });
        if let Err(error) = after(ended, waited.map(drop)) {
            eprintln!("the second API server may run on until its cluster ends: {error:#}");
        }
    }
}
