//! A node of a running cluster, for tests and the demo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::access::{Access, import, init_of, inside, path_inside, pid_of};
use super::config::{Member, Node};
use super::protocol::Wish;
use crate::api::{Api, Request};
use crate::wait::wait;

/// Time for a node to start. The keeper gives up earlier and reports its reason.
const START: Duration = Duration::from_secs(300);
const END: Duration = Duration::from_secs(60);

/// A node of the cluster, running or not.
#[derive(Debug, Clone, Copy)]
pub struct NodeHandle<'a> {
    cluster: Access<'a>,
    node: Node,
}

impl<'a> NodeHandle<'a> {
    pub(super) fn new(cluster: Access<'a>, node: Node) -> Self {
        Self { cluster, node }
    }

    #[must_use]
    pub fn name(&self) -> String {
        self.node.name()
    }

    fn member(&self) -> Member {
        Member::Node(self.node)
    }

    #[must_use]
    pub fn runs(&self) -> bool {
        self.cluster.state.member(self.member()).init().exists()
    }

    /// A command inside the node's namespaces, as root.
    #[must_use]
    pub fn inside(&self, command: &[&str]) -> Command {
        inside(self.cluster.state, self.cluster.config, self.member(), command)
    }

    /// A path of the running node, as a path on the host.
    pub fn path_inside(&self, path: &str) -> Result<PathBuf> {
        path_inside(self.cluster.state, self.member(), path)
    }

    /// The node's mounts, in the form of /proc/PID/mountinfo.
    pub fn mounts(&self) -> Result<String> {
        let file = format!("/proc/{}/mountinfo", init_of(self.cluster.state, self.member())?);
        fs::read_to_string(&file).with_context(|| format!("cannot read the mounts of {}", self.name()))
    }

    /// The PID of a component, in the node's namespace.
    pub fn pid_of(&self, component: &str) -> Result<i32> {
        pid_of(self.cluster.state, self.member(), component)
    }

    /// Stops a component (SIGTERM, or SIGKILL) and waits until it was started again.
    pub fn restart(&self, component: &str, kill: bool) -> Result<()> {
        self.check_running()?;
        self.cluster.restart(self.member(), component, kill)
    }

    /// Imports an OCI archive into the node's containerd.
    pub fn import(&self, archive: &Path) -> Result<()> {
        import(self.cluster.state, self.cluster.config, self.member(), archive)
    }

    /// Kills a component. It is started again by `resume` or with the node.
    pub fn stop(&self, component: &str) -> Result<()> {
        self.check_running()?;
        self.cluster.stop(self.member(), component)
    }

    /// Starts a component that was stopped.
    pub fn resume(&self, component: &str) -> Result<()> {
        self.check_running()?;
        self.cluster.resume(self.member(), component)
    }

    fn check_running(&self) -> Result<()> {
        ensure!(self.runs(), "{} does not run: start it first", self.name());
        Ok(())
    }

    /// Starts the node, for the first time or again, and waits until it is Ready. Its disk is kept, except
    /// containerd's data if the host's disk is an overlay. Imports `images` first.
    pub fn start(&self, images: &[PathBuf]) -> Result<()> {
        ensure!(!self.runs(), "{} runs already: end it first", self.name());
        // Until the new kubelet reports, the API server may still consider the old one Ready.
        let api = Api::of(self.cluster.state)?;
        let before = self.last_heard(&api)?;
        self.cluster.wish(&Wish::StartNode(self.node, images.to_vec()))?;
        wait(START, &format!("{} to be Ready", self.name()), || {
            Ok((self.last_heard(&api)? != before && api.is_ready(&self.name())?).then_some(()))
        })
    }

    /// Kills all its processes at once, like a loss of power.
    pub fn end(&self) -> Result<()> {
        self.check_running()?;
        self.cluster.wish(&Wish::EndNode(self.node))?;
        wait(END, &format!("{} to end", self.name()), || {
            Ok((!self.runs()).then_some(()))
        })
    }

    /// Returns true if the node is Ready by the API server.
    pub fn is_ready(&self) -> Result<bool> {
        Api::of(self.cluster.state)?.is_ready(&self.name())
    }

    /// The time of its kubelet's last lease renewal; None before the first.
    fn last_heard(&self, api: &Api) -> Result<Option<String>> {
        let leases = api.json(&Request::raw(
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        ))?;
        let leases = leases["items"].as_array().into_iter().flatten();
        let mut own = leases.filter(|lease| lease["metadata"]["name"] == self.name().as_str());
        Ok(own
            .next()
            .and_then(|lease| lease["spec"]["renewTime"].as_str().map(str::to_owned)))
    }
}
