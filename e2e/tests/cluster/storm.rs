//! Controller mode with many pods on hand-made nodes: packed across nodes, and nothing given twice while controllers die.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::{Kube, wait};

use crate::fleet::{Checker, Fleet, bound, create, many, the_checker_notices};
use crate::manifests::template;
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("checker_of_storms_notices_what_is_given_twice", the_checker_notices),
    ("controller_packs_two_hundred_quarters_onto_fifty_gpus", packs),
    ("controllers_that_are_killed_in_a_storm_give_nothing_twice", storm),
];

/// Claims are made from templates at 20 a second.
const ALL_BOUND: Duration = Duration::from_secs(240);

fn quarter() -> String {
    template("quarter", "vgpu", json!({"memory": "20Gi", "cores": "25"}), &[])
}

fn wait_bound(kube: &Kube<'_>, count: usize) -> Result<()> {
    wait(ALL_BOUND, &format!("{count} pods to be bound"), || {
        let bound = bound(kube)?.len();
        match bound == count {
            true => Ok(Some(())),
            false => Err(anyhow!("{bound} are bound")),
        }
    })
}

/// Nothing of the namespace is left, and every claim with it.
fn clear(kube: &Kube<'_>) -> Result<()> {
    kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
    wait(2 * LIMIT, "every claim to be freed", || {
        let claims = kube.get(&["resourceclaims"])?;
        match claims["items"].as_array().map_or(0, Vec::len) {
            0 => Ok(Some(())),
            left => Err(anyhow!("{left} claims are left")),
        }
    })
}

fn packs() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "packs", |installed, kube| {
        let fleet = Fleet::new(Kube::new(&installed.cluster, "packs"), "packing", 100)?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        let pods = (0..200).map(|number| fleet.pod(&format!("quarter-{number:03}"), "quarter", "100m"));
        create(kube, &many(pods.collect()))?;
        wait_bound(kube, 200)?;
        let claims = kube.get(&["resourceclaims"])?;
        let claims = claims["items"].as_array().context("no list of claims")?.iter();
        let gpus: BTreeSet<String> = claims
            .map(|claim| {
                let result = &claim["status"]["allocation"]["devices"]["results"][0];
                format!("{}/{}", result["pool"], result["device"])
            })
            .collect();
        let outcome = match gpus.len() {
            50 => Ok(()),
            many => Err(anyhow!("200 quarters are on {many} GPUs instead of 50")),
        };
        let cleared = clear(kube);
        let changes = checker.end()?;
        println!("{changes} versions of claims, and no GPU over-committed at any");
        outcome.and(cleared)
    })
}

/// Ends the replica that leads, or both, in one of the ways in which processes end.
fn end_one(installed: &shared::Installed, project: &Kube<'_>, round: usize) -> Result<()> {
    match round % 3 {
        // Told to go, and a new pod comes.
        0 => {
            let lease = project.get(&["lease", "dra-driver-vgpu-controller"])?;
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            match holder.split('_').next().filter(|pod| !pod.is_empty()) {
                Some(pod) => project
                    .run(&["delete", "pod", pod, "--ignore-not-found", "--wait=false"])
                    .map(drop),
                None => Ok(()),
            }
        }
        // Both at once, without a word.
        1 => vgpu_e2e::shell::capture(&mut installed.cluster.inside(&["pkill", "-KILL", "-x", "vgpu-controller"]))
            .map(drop),
        // New pods for both: the old ones were told to wait longer with each restart.
        _ => {
            let pods = [
                "delete",
                "pods",
                "-l",
                "app.kubernetes.io/component=controller",
                "--wait=false",
            ];
            project.run(&pods).map(drop)
        }
    }
}

fn storm() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, "storm", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        // Five nodes: forty quarters at a time.
        let fleet = Fleet::new(Kube::new(&installed.cluster, "storm"), "storming", 5)?;
        let checker = Checker::begin(kube)?;
        kube.apply(&quarter())?;
        let first = (0..4).map(|number| fleet.pod(&format!("first-{number}"), "quarter", "100m"));
        create(kube, &many(first.collect()))?;
        wait_bound(kube, 4)?;
        let begun = Instant::now();
        let mut made = 0;
        let mut ended = 0;
        while begun.elapsed() < Duration::from_secs(seconds()) {
            let pods: Vec<Value> = (made..made + 12)
                .map(|number| fleet.pod(&format!("quarter-{number:04}"), "quarter", "100m"))
                .collect();
            made += pods.len();
            create(kube, &many(pods))?;
            end_one(installed, &project, ended)?;
            ended += 1;
            std::thread::sleep(Duration::from_secs(3 + (ended as u64 * 5) % 11));
            // The older half of what is bound goes.
            let there = bound(kube)?;
            let going: Vec<&str> = there.iter().take(there.len() / 2).map(String::as_str).collect();
            if !going.is_empty() {
                let delete = [
                    "delete",
                    "pod",
                    "--ignore-not-found",
                    "--force",
                    "--grace-period=0",
                    "--wait=false",
                ];
                kube.run(&[&delete[..], &going].concat())?;
            }
        }
        project.run(&["rollout", "status", "deployment", "--timeout=120s"])?;
        let left = wait(ALL_BOUND, "as many pods to be bound as there is room for", || {
            let pods = kube.get(&["pods"])?;
            let all = pods["items"].as_array().map_or(0, Vec::len);
            let bound = bound(kube)?.len();
            match bound == all.min(40) {
                true => Ok(Some(all)),
                false => Err(anyhow!("{bound} of {all} are bound")),
            }
        })?;
        let cleared = clear(kube);
        let changes = checker.end()?;
        println!("{made} pods, {ended} times a controller ended, {left} pods at the end, {changes} versions of claims");
        if ended < 3 {
            bail!("controllers ended only {ended} times");
        }
        cleared
    })
}

fn seconds() -> u64 {
    let longer = std::env::var("VGPU_STORM_SECONDS").ok();
    longer.and_then(|text| text.parse().ok()).unwrap_or(60)
}
