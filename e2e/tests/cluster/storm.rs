//! Controller mode with many pods on hand-made nodes: pods are packed across nodes, and nothing is allocated twice
//! while controllers die.
//!
//! The storm keeps `VGPU_STORM_PODS` pods (80) for `VGPU_STORM_SECONDS` (24; 60 in full), with room for half of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::{install, patience, shell};

use crate::checker::the_checker_notices;
use crate::controller::leader;
use crate::fleet::{ALL_BOUND, ROOM, TAKEOVER, bound, create, delete, on_fleet, wait_full};
use crate::shared::{Installed, Test};
use crate::size;

pub(crate) const TESTS: &[Test] = &[
    ("checker_of_storms_notices_a_double_allocation", the_checker_notices),
    ("controller_packs_two_hundred_quarters_onto_fifty_gpus", packs),
    ("controllers_that_are_killed_in_a_storm_give_nothing_twice", storm),
];

fn packs() -> Result<()> {
    let seen = on_fleet("packs", 100, |_, kube, fleet| {
        let names: Vec<String> = (0..200).map(|number| format!("quarter-{number:03}")).collect();
        create(kube, &fleet.pods(names.iter().map(String::as_str)))?;
        wait_full(kube, 200, ALL_BOUND)?;
        let claims = kube.get(&["resourceclaims"])?;
        let claims = claims["items"].as_array().context("no list of claims")?.iter();
        let gpus: BTreeSet<String> = claims
            .map(|claim| {
                let result = &claim["status"]["allocation"]["devices"]["results"][0];
                format!("{}/{}", result["pool"], result["device"])
            })
            .collect();
        match gpus.len() {
            50 => Ok(()),
            many => Err(anyhow!("200 quarters are on {many} GPUs instead of 50")),
        }
    })?;
    println!("{} versions of claims, and no GPU over-committed at any", seen.versions);
    Ok(())
}

/// Ends the leading replica, or both, in one of the ways in which processes end. Returns false if there was no leader.
pub(crate) fn end_one(installed: &Installed, project: &Kube<'_>, round: usize) -> Result<bool> {
    Ok(match round % 3 {
        // Deleted; a new pod replaces it.
        0 => {
            let end = |pod: String| project.run(&["delete", "pod", &pod, "--ignore-not-found", "--wait=false"]);
            leader(project)?
                .map(end)
                .transpose()?
                .is_some_and(|said| said.contains("deleted"))
        }
        // Both at once, without notice.
        1 => shell::capture(&mut installed.cluster.inside(&["pkill", "-KILL", "-x", "vgpu-controller"]))?
            .status
            .success(),
        // New pods for both, because the kubelet restarts the old ones with growing delays.
        _ => {
            let pods = [
                "delete",
                "pods",
                "-l",
                "app.kubernetes.io/component=controller",
                "--wait=false",
            ];
            project.run(&pods)?.contains("deleted")
        }
    })
}

/// Pause before a controller is ended again: 5 to 40 s.
fn pause(round: usize) -> Duration {
    Duration::from_secs(5 + (round as u64 * 7) % 36)
}

/// Interval at which pods are deleted and others created.
const TICK: Duration = Duration::from_secs(3);

fn storm() -> Result<()> {
    let pods = usize::try_from(number("VGPU_STORM_PODS", 80)?)?;
    ensure!(pods > 0, "VGPU_STORM_PODS=0: write a number of at least 1");
    // Both durations let controllers end three times on a quiet machine: after 0, 5 and 17 s.
    let lasts = size::of("seconds of the storm of controllers:", 24, 60);
    let longest = patience::stretched(TAKEOVER);
    let limit = Duration::from_secs(number("VGPU_STORM_SECONDS", lasts)?);
    let nodes = pods.div_ceil(2 * ROOM);
    let room = nodes * ROOM;
    let (mut made, mut round, mut ended, mut left) = (0, 0, 0, 0);
    let seen = on_fleet("storm", nodes, |installed, kube, fleet| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let mut come = |count: usize| -> Result<()> {
            let names: Vec<String> = (made..made + count).map(|number| format!("p{number:06}")).collect();
            made += count;
            if names.is_empty() {
                return Ok(());
            }
            create(kube, &fleet.pods(names.iter().map(String::as_str)))
        };
        come(1)?;
        wait_full(kube, 1, TAKEOVER)?;
        come(pods - 1)?;
        let begun = Instant::now();
        let mut due = begun;
        while begun.elapsed() < limit || (ended < 3 && begun.elapsed() < longest) {
            if Instant::now() >= due {
                ended += usize::from(end_one(installed, &project, round)?);
                due = Instant::now() + pause(round);
                round += 1;
            }
            std::thread::sleep(TICK);
            // Delete the oldest, at most as many as are created meanwhile: claims are created at 20 per second.
            let bound = bound(kube)?;
            let going = (bound.len() / 4).min(40);
            delete(kube, bound.iter().take(going).map(String::as_str))?;
            come(going)?;
        }
        project.run(&[
            "rollout",
            "status",
            "deployment",
            &patience::timeout(Duration::from_secs(120)),
        ])?;
        left = wait_full(kube, room, ALL_BOUND)?;
        Ok(())
    })?;
    println!(
        "{made} pods, {left} at a time, room for {room}; {ended} times a controller ended; {} versions of claims in {} s",
        seen.versions,
        limit.as_secs()
    );
    ensure!(ended >= 3, "controllers ended only {ended} times");
    Ok(())
}

fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{variable}={text}: write a number")),
        Err(_) => Ok(default),
    }
}
