//! The network inside of the cluster's namespace: nothing of it leaves.

use anyhow::Result;

use super::config::{API_ADDRESS, NODE_ADDRESS};
use crate::shell;

/// Loopback with the API server's address on it, and a bridge with the node's (`kubectl logs` and `exec` need a node
/// address that is not loopback).
pub(super) fn up() -> Result<()> {
    let api = format!("{API_ADDRESS}/32");
    let node = format!("{NODE_ADDRESS}/24");
    for arguments in [
        ["link", "set", "dev", "lo", "up"].as_slice(),
        &["addr", "add", &api, "dev", "lo"],
        &["link", "add", "name", "node0", "type", "bridge"],
        &["addr", "add", &node, "dev", "node0"],
        &["link", "set", "dev", "node0", "up"],
    ] {
        shell::run(&mut shell::command("ip", arguments))?;
    }
    Ok(())
}
