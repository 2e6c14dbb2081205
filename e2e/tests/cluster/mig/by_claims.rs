//! Claims make instances, on a node with eight GPUs in MIG mode. The scenes share an install, which takes longer than most of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{patience, workload};

use super::killed;
use super::nvml::{OfChart, published};
use super::pods::{EIGHTH, HALF, claim, delete, is_skipped, runs_with, scene, waits, whole_of};
use crate::autoscaler::utilisation;
use crate::fleet::claim_of;
use crate::nodes::deployment;
use crate::of_chart::{STATE, on_gpus_of_the_chart, upgrade};
use crate::plugins;
use crate::shared::{self, LIMIT, memory_enforced};

const GPUS: usize = 8;
/// The places of an H100's instances.
const PLACES: usize = 25;
/// GPU memory that the Deployment's pod allocates.
const HELD: u64 = 1 << 30;

pub(super) fn in_scheduler_mode() -> Result<()> {
    if is_skipped("mig::claims_make_instances") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "mig", |installed, kube| {
        let state = format!("{STATE}-dynamic");
        let values = format!("softGpu.gpus={GPUS},mig.dynamic=instances");
        let modes: String = (0..GPUS).map(|gpu| format!("{gpu}:; ")).collect();
        let profile = format!("gpus = {GPUS}\nnvml_pids = own\nmig = {modes}\n");
        let gpus = OfChart {
            cluster: &installed.cluster,
            state: &state,
            first: 0,
            count: GPUS as u64,
        };
        on_gpus_of_the_chart(installed, kube, [&state, &values, &profile], || {
            scene("all places are published", || all_places(kube))?;
            scene("claims make instances", || made(gpus, kube))?;
            scene("killed between two steps", || killed::between_steps(gpus, kube))?;
            scene("drained", || drained(gpus, kube))?;
            scene("upgraded", || upgraded(gpus, kube))?;
            // A record ends after its instance.
            wait(LIMIT, "the last record to end", || {
                Ok(gpus.records()?.is_empty().then_some(()))
            })
        })
    })
}

/// Each GPU is a pool of its own, complete, and nothing of it was written twice.
fn all_places(kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "all places of the GPUs to be published", || {
        let slices = kube.get(&["resourceslices"])?;
        let mut pools: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for slice in slices["items"].as_array().context("no slices")? {
            let pool = slice["spec"]["pool"]["name"]
                .as_str()
                .context("a slice without a pool")?;
            pools.entry(pool.to_owned()).or_default().push(slice.clone());
        }
        pools.retain(|pool, _| pool.contains("/vgpu-mig-"));
        ensure!(pools.len() == GPUS, "the pools are {:?}", pools.keys());
        for (pool, slices) in &pools {
            let of = |key: &str| -> BTreeSet<String> {
                let values = slices.iter().map(|slice| slice["spec"]["pool"][key].to_string());
                values.collect()
            };
            let devices = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
            let places: usize = slices.iter().map(devices).sum();
            let (count, generation) = (of("resourceSliceCount"), of("generation"));
            ensure!(
                count == BTreeSet::from([slices.len().to_string()]) && generation.len() == 1 && places == PLACES,
                "{pool} has {} of {count:?} slices, of generations {generation:?}, with {places} places",
                slices.len()
            );
        }
        let all = || pools.values().flatten();
        let is_first = |slice: &&Value| slice["metadata"]["generation"] == 1;
        ensure!(all().all(|slice| is_first(&slice)), "a slice was written twice");
        let bytes: usize = all().map(|slice| slice.to_string().len()).sum();
        println!("{} slices of {bytes} bytes", all().count());
        Ok(Some(()))
    })
}

/// How far the cluster autoscaler finds the GPUs in use, by index.
fn in_use(kube: &Kube<'_>) -> Result<Vec<f64>> {
    let pools = utilisation(kube)?;
    let slices = kube.get(&["resourceslices"])?;
    let mut found = BTreeMap::new();
    for slice in slices["items"].as_array().context("no slices")? {
        let index = &slice["spec"]["devices"][0]["attributes"]["index"]["int"];
        let pool = slice["spec"]["pool"]["name"].as_str().unwrap_or_default();
        if let (Some(index), Some(used)) = (index.as_u64(), pools.get(pool)) {
            found.insert(index, *used);
        }
    }
    Ok(found.into_values().collect())
}

/// A claim for a whole instance of GPU 0.
fn on_first(name: &str, profile: &str) -> String {
    claim(name, &whole_of(profile, 0))
}

/// Instances come with the first claim and go with the last, also while the plugin is killed.
fn made(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let unused = vec![0.0; GPUS];
    ensure!(in_use(kube)? == unused, "{:?}", in_use(kube)?);
    gpus.agrees(kube)?;
    kube.apply(&on_first("half", "3g.40gb"))?;
    runs_with(kube, "half", HALF)?;
    // An instance fills the counter of each of its memory slices.
    let used: Vec<f64> = [1.0].into_iter().chain(unused.iter().copied().skip(1)).collect();
    ensure!(in_use(kube)? == used, "{:?}", in_use(kube)?);
    kube.apply(&on_first("eighth", "1g.10gb"))?;
    runs_with(kube, "eighth", EIGHTH)?;
    gpus.agrees(kube)?;
    memory_enforced(kube, "half", "True", "Library")?;
    // The rest has no place for another half.
    kube.apply(&on_first("second", "3g.40gb"))?;
    waits(kube, "second")?;
    plugins::kill(gpus.cluster)?;
    delete(kube, &["eighth"])?;
    runs_with(kube, "second", HALF)?;
    gpus.agrees(kube)?;
    delete(kube, &["half", "second"])?;
    gpus.agrees(kube)?;
    ensure!(in_use(kube)? == unused, "{:?}", in_use(kube)?);
    Ok(())
}

/// The only pod of the namespace, which runs, and its claim.
fn moving(kube: &Kube<'_>) -> Result<(String, String)> {
    let (running, _) = workload::settle(kube, 1, 0, LIMIT)?;
    let pod = running.into_iter().next().context("no pod")?;
    let claim = claim_of(kube, &pod)?["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    Ok((pod, claim))
}

/// The instance of a pod that is drained goes, and the pod comes back with another claim.
fn drained(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let request = json!({"name": "gpu", "exactly": whole_of("3g.40gb", 2)});
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [request]}}}});
    kube.apply(&template.to_string())?;
    let hold = ["vgpu-client", "hold", &HELD.to_string()];
    kube.apply(&deployment("moves", 1, &hold, &json!({}))?)?;
    let (_, before) = moving(kube)?;
    gpus.agrees(kube)?;
    let node = gpus.cluster.node(Node::FIRST).name();
    let only = [
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--pod-selector=app=moves",
    ];
    let drained = kube.run(&[&["drain", &node, &patience::timeout(LIMIT)], &only[..]].concat());
    let waits = drained.and_then(|_| workload::settle(kube, 0, 1, LIMIT));
    let gone = waits.and_then(|_| {
        wait(LIMIT, "the instance to be destroyed", || {
            let listed = gpus.instances()?;
            ensure!(listed.is_empty(), "{listed:?}");
            Ok(Some(()))
        })
    });
    after(gone, kube.run(&["uncordon", &node]).map(drop))?;
    let (_, now) = moving(kube)?;
    ensure!(now != before, "the pod has still {before}");
    gpus.agrees(kube)
}

/// A pod keeps its instance, with its memory in it, while the chart is upgraded.
fn upgraded(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let (pod, claim) = moving(kube)?;
    let (plugins, listed) = (plugins::uids(gpus.cluster)?, gpus.instances()?);
    upgrade(gpus.cluster, "plugin.podAnnotations.upgraded=now")?;
    plugins::settle(gpus.cluster, &plugins)?;
    ensure!(moving(kube)? == (pod.clone(), claim.clone()), "another pod or claim");
    let line: Value = serde_json::from_str(&kube.exec(&pod, &["vgpu-client", "check"])?)?;
    let (free, total) = (line["free"].as_u64(), line["total"].as_u64());
    ensure!(
        total == Some(HALF) && free.is_some_and(|free| free <= HALF - HELD),
        "{pod}: {line}"
    );
    ensure!(gpus.instances()? == listed, "NVML lists {:?}", gpus.instances()?);
    memory_enforced(kube, &claim, "True", "Library")?;
    let there = published(kube)?.len();
    ensure!(there == GPUS * PLACES, "{there} places are published");
    kube.run(&["delete", "deployment", "moves"])?;
    gpus.agrees(kube)
}
