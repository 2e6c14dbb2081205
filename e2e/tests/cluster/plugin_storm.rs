//! Pods are created and deleted while the plugin is killed every 2 s.
//!
//! Alternately, only its processes are killed and the kubelet restarts the container, or its pod is replaced too,
//! because the kubelet restarts a container with growing delays.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::node;
use vgpu_e2e::wait::wait;

use crate::load::Load;
use crate::shared::{self, Installed, LIMIT, Test};
use crate::{plugins, size};

pub(crate) const TESTS: &[Test] = &[(
    "pods_come_and_go_while_the_plugin_is_killed_every_two_seconds",
    killed_every_two_seconds,
)];

const EVERY: Duration = Duration::from_secs(2);
/// Pods older than this are deleted: the kubelet retries a failed Prepare only after 60 to 90 s, when the storm is
/// over.
const OLDEST: Duration = Duration::from_secs(6);
/// The least number of kills: a storm is more than one restart.
const KILLS: usize = 3;

fn killed_every_two_seconds() -> Result<()> {
    let pods: usize = size::of("pods that come and go while the plugin is killed:", 40, 200);
    shared::in_namespace_of(shared::observed()?, "plugin-storm", |installed, kube| {
        let cluster = &installed.cluster;
        let before = plugins::uids(cluster)?;
        let mut load = Load::new(kube, 12)?.cut_at(OLDEST);
        let (mut kills, mut due) = (0, Instant::now() + EVERY);
        while load.made < pods || kills < KILLS {
            load.tick(pods - load.made)?;
            check_sums(installed)?;
            if Instant::now() >= due {
                plugins::kill(cluster)?;
                if kills % 2 == 1 {
                    plugins::replace(cluster)?;
                }
                kills += 1;
                due = Instant::now() + EVERY;
            }
        }
        if kills < 2 {
            plugins::replace(cluster)?;
        }
        let plugin = plugins::settle(cluster, &before)?;
        plugins::published(installed, kube)?;
        load.finish(Duration::from_secs(300), !size::is_full())?;
        ensure!(load.proved > 0, "no pod has proved its limit");
        println!(
            "{} pods: {} proved their limit, {} were deleted before; the plugin was killed {kills} times",
            load.made, load.proved, load.cut
        );
        plugins::only_sockets_of(cluster, &plugin)?;
        nothing_is_left(installed)
    })
}

/// Checks that the shares prepared by the plugin fit on the GPUs.
fn check_sums(installed: &Installed) -> Result<()> {
    let memory = installed.gpus.iter().map(|gpu| gpu.memory).max().unwrap_or(0);
    let held: BTreeMap<_, _> = node::held(&node::claims(&installed.cluster)?);
    let fits = held.values().all(|(bytes, cores)| *bytes <= memory && *cores <= 100);
    ensure!(fits, "more is prepared than GPUs of {memory} bytes have: {held:?}");
    Ok(())
}

/// No pod has a claim any more, so the node must not have one either.
fn nothing_is_left(installed: &Installed) -> Result<()> {
    let node = installed.cluster.node(Node::FIRST);
    wait(LIMIT, "the node to forget all claims", || {
        let claims: Vec<String> = node::claims(&installed.cluster)?.into_keys().collect();
        let mounts = node.mounts()?;
        let mounts: Vec<&str> = mounts
            .lines()
            .filter(|line| line.contains(" /run/vgpu/claims/"))
            .collect();
        ensure!(claims.is_empty() && mounts.is_empty(), "left: {claims:?} {mounts:?}");
        Ok(Some(()))
    })
}
