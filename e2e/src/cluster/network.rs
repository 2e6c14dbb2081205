//! The networks in the cluster's namespaces, without a route to the outside.
//!
//! ```text
//! control plane: lo 10.96.0.1 (the API server), bridge 10.99.0.254
//!                   │ veth, one a node
//! node N:        eth0 10.99.0.N ── ptp ── pods 10.98.N.0/24
//! ```
//! A node sends all foreign addresses to the bridge, and the control plane knows each node's pod addresses. So pods
//! reach the API server and pods of other nodes, and the API server reaches kubelets and pods.

use anyhow::{Context, Result};

use super::config::{API_ADDRESS, Node};
use crate::shell;

const BRIDGE: &str = "nodes";
const GATEWAY: &str = "10.99.0.254";

/// Runs in the control plane: loopback with the API server's address, and the bridge.
pub(super) fn control_plane() -> Result<()> {
    loopback()?;
    ip(&["addr", "add", &format!("{API_ADDRESS}/32"), "dev", "lo"])?;
    ip(&["link", "add", "name", BRIDGE, "type", "bridge"])?;
    ip(&["addr", "add", &format!("{GATEWAY}/24"), "dev", BRIDGE])?;
    ip(&["link", "set", "dev", BRIDGE, "up"])?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot let pods of two nodes reach each other")
}

/// Runs in a new network namespace.
pub(super) fn loopback() -> Result<()> {
    ip(&["link", "set", "dev", "lo", "up"])
}

/// Runs on the host: joins a node to the control plane, both given by the PIDs of their inits.
pub(super) fn join(control_plane: &str, node: Node, init: &str) -> Result<()> {
    let inside = |pid: &str, words: &[&str]| {
        let mut nsenter = shell::command("nsenter", ["--target", pid, "--net", "--", "ip"]);
        shell::run(nsenter.args(words)).with_context(|| format!("cannot join {} to the network", node.name()))
    };
    let name = node.name();
    let (address, pods) = (node.address(), node.pods());
    // The kernel removes the cable of a node that ended, but takes its time.
    let _ = inside(control_plane, &["link", "delete", &name]);
    let cable = [
        "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", init,
    ];
    inside(control_plane, &cable)?;
    inside(control_plane, &["link", "set", "dev", &name, "master", BRIDGE, "up"])?;
    inside(control_plane, &["route", "replace", &pods, "via", &address])?;
    inside(init, &["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
    inside(init, &["link", "set", "dev", "eth0", "up"])?;
    inside(init, &["route", "add", "default", "via", GATEWAY])
}

fn ip(words: &[&str]) -> Result<()> {
    shell::run(&mut shell::command("ip", words))
}
