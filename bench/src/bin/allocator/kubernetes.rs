//! Measures Kubernetes' own allocator on the same cluster, by e2e/kubernetes-go, which measures its own time.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use vgpu_allocator::model::Allocation;
use vgpu_quantity::Quantity;

use crate::cluster;

const ROUNDS: usize = 51;

pub(crate) struct Answer {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    /// The number of nodes on which the claim fits.
    pub(crate) fit: u64,
}

/// Asks the program to allocate claim `number` while the allocations `live` exist.
pub(crate) fn ask(program: &Path, nodes: usize, live: &[Allocation], number: usize) -> Answer {
    let (shares, amounts) = in_use(live);
    let question = json!({
        "features": ["DRAAdminAccess", "DRAConsumableCapacity", "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
            "DRADeviceTaints", "DRAPartitionableDevices", "DRAPrioritizedList"],
        "nodes": (0..nodes).map(cluster::node).collect::<Vec<_>>(),
        "slices": (0..nodes).map(cluster::slice).collect::<Vec<_>>(),
        "classes": [cluster::class()],
        "claims": [cluster::claim(number)],
        "allocatedShared": shares,
        "aggregatedCapacity": amounts,
        "rounds": ROUNDS,
    });
    let mut child = Command::new(program)
        .arg("figures")
        .env("GOMAXPROCS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let mut input = child.stdin.take().unwrap_or_else(|| panic!("no pipe"));
    input
        .write_all(question.to_string().as_bytes())
        .unwrap_or_else(|error| panic!("{error}"));
    drop(input);
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    assert!(
        output.status.success(),
        "{} figures: {}",
        program.display(),
        output.status
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}"));
    let number = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}"));
    Answer {
        median: Duration::from_nanos(number("medianNs")),
        p99: Duration::from_nanos(number("p99Ns")),
        fit: number("fit"),
    }
}

/// All shares in use, and the total consumption of each device.
fn in_use(live: &[Allocation]) -> (Vec<String>, BTreeMap<String, BTreeMap<String, Quantity>>) {
    let mut shares = Vec::new();
    let mut amounts: BTreeMap<String, BTreeMap<String, Quantity>> = BTreeMap::new();
    for result in live.iter().flat_map(|allocation| &allocation.devices.results) {
        let device = format!("{}/{}/{}", result.driver, result.pool, result.device);
        if let Some(share) = &result.share_id {
            shares.push(format!("{device}/{share}"));
        }
        let sums = amounts.entry(device).or_default();
        for (name, amount) in &result.consumed_capacity {
            sums.entry(name.clone()).or_default().add(amount);
        }
    }
    (shares, amounts)
}
