//! Upgrades of the plugin by Helm, with `maxSurge: 1`: the new release runs together with the old one until it is
//! ready.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, node, patience, shell};

use crate::fleet::claim_of;
use crate::load::{Load, PROVES, failed_prepares, share};
use crate::manifests::{HOLD, pod, pod_object};
use crate::plugins::SliceWatch;
use crate::releases::{Release, roll_back};
use crate::shared::{self, Installed, LIMIT, Test, hold};
use crate::{plugins, size};

pub(crate) const TESTS: &[Test] = &[
    (
        "upgrade_and_rollback_under_load_fail_no_prepare_and_delete_no_slice",
        under_load,
    ),
    ("release_that_never_gets_ready_leaves_the_old_one_serving", never_ready),
    ("uninstall_names_pods_with_claims_and_deletes_nothing", uninstall),
];

/// The release of the library in a pod's claim.
fn library(cluster: &Cluster, kube: &Kube<'_>, pod: &str) -> Result<String> {
    let claim = claim_of(kube, pod)?;
    let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
    let claims = node::claims(cluster)?;
    let library = claims.get(uid).and_then(|claim| claim["library"].as_str());
    Ok(library.with_context(|| format!("{pod} is not prepared"))?.to_owned())
}

fn runs(kube: &Kube<'_>, name: &str) -> Result<()> {
    kube.apply(&pod(name, "client", &HOLD, "load"))?;
    kube.wait_running(name, LIMIT)
}

fn restarts(kube: &Kube<'_>, pod: &str) -> Result<u64> {
    let found = kube.get(&["pod", pod])?;
    found["status"]["containerStatuses"][0]["restartCount"]
        .as_u64()
        .with_context(|| format!("{pod} has no container"))
}

fn under_load() -> Result<()> {
    let pods: usize = size::of("pods that come and go during upgrades and rollbacks:", 20, 200);
    shared::in_namespace_of(shared::observed()?, "upgrade-load", |installed, kube| {
        let cluster = &installed.cluster;
        Release::Next.import(cluster)?;
        let mut load = Load::new(kube, if size::is_full() { 12 } else { 4 })?;
        runs(kube, "before")?;
        let old = library(cluster, kube, "before")?;
        let slices = SliceWatch::begin(kube)?;
        let over = AtomicBool::new(false);
        let (changed, rounds) = std::thread::scope(|scope| {
            let loading = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::SeqCst) || load.made < pods {
                    load.tick(load.at_once)?;
                }
                load.finish(LIMIT, false)
            });
            let mut rounds = 0;
            let mut change = || -> Result<()> {
                // A full run repeats this until the load has ended, at most 8 times.
                while rounds == 0 || (size::is_full() && rounds < 8 && !loading.is_finished()) {
                    rounds += 1;
                    there_and_back(installed, kube, &old, rounds)?;
                }
                Ok(())
            };
            let changed = change();
            over.store(true, Ordering::SeqCst);
            let loaded = loading.join().map_err(|_| anyhow!("the load panicked"));
            (after(changed, loaded.and_then(|loaded| loaded)), rounds)
        });
        let failed = failed_prepares(kube)?;
        changed.with_context(|| format!("failed Prepares: {failed:?}"))?;
        ensure!(failed.is_empty(), "failed Prepares: {failed:?}");
        slices.end()?;
        ensure!(restarts(kube, "before")? == 0, "the pod from before was restarted");
        ensure!(
            library(cluster, kube, "before")? == old,
            "the pod from before has another library"
        );
        println!(
            "{} pods during {rounds} upgrades and rollbacks: {} proved their limit, {} were deleted before; no Prepare \
             failed and no slice was deleted",
            load.made, load.proved, load.cut
        );
        Ok(())
    })
}

/// An upgrade to the next release and a rollback, with a new pod in each.
fn there_and_back(installed: &Installed, kube: &Kube<'_>, old: &str, round: usize) -> Result<()> {
    let cluster = &installed.cluster;
    let (during, back) = (format!("during-{round}"), format!("back-{round}"));
    let change = |change: &dyn Fn() -> Result<()>| -> Result<Value> {
        let before = plugins::uids(cluster)?;
        change()?;
        let plugin = plugins::settle(cluster, &before)?;
        plugins::only_sockets_of(cluster, &plugin)?;
        Ok(plugin)
    };
    let plugin = change(&|| Release::Next.upgrade(cluster));
    let upgraded = plugin.and_then(|plugin| {
        let image = &plugin["spec"]["containers"][0]["image"];
        ensure!(
            *image == format!("docker.io/{}:dev", Release::Next.repository()),
            "the new plugin's image is {image}"
        );
        runs(kube, &during)?;
        ensure!(
            library(cluster, kube, &during)? != old,
            "{during} has the library of before"
        );
        ensure!(
            library(cluster, kube, "before")? == old,
            "the pod from before has another library"
        );
        Ok(())
    });
    after(upgraded, change(&|| roll_back(cluster)).map(drop))?;
    runs(kube, &back)?;
    ensure!(
        library(cluster, kube, &back)? == old,
        "{back} has not the library of before"
    );
    // A pod that got its share from the next release still has it.
    ensure!(library(cluster, kube, &during)? != old, "{during} has lost its library");
    ensure!(restarts(kube, &during)? == 0, "{during} was restarted");
    kube.run(&["delete", "pod", &during, &back, "--wait=false"]).map(drop)
}

fn never_ready() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "upgrade-never-ready", |installed, kube| {
        kube.apply(&share())?;
        let slices = SliceWatch::begin(kube)?;
        let old = plugins::uids(&installed.cluster)?;
        ensure!(old.len() == 1, "{} plugins before the upgrade", old.len());
        for release in [Release::Exits, Release::Hangs, Release::Incomplete] {
            release.import(&installed.cluster)?;
            let upgraded = match release {
                Release::Hangs => release.upgrade_cut_off(&installed.cluster),
                _ => release.upgrade(&installed.cluster),
            };
            let tried = upgraded.and_then(|()| serves(installed, kube, release, &old[0]));
            let back = roll_back(&installed.cluster).and_then(|()| {
                wait(LIMIT, "the release that is not ready to go", || {
                    let left = plugins::uids(&installed.cluster)?;
                    ensure!(left == old, "the plugins were {old:?} and are {left:?}");
                    Ok(Some(()))
                })
            });
            after(tried, back).with_context(|| format!("a release that {release:?}"))?;
        }
        slices.end()?;
        plugins::published(installed, kube)
    })
}

/// An uninstall is refused while a claim exists. The command that the refusal names restores the release. Without
/// claims the uninstall succeeds.
fn uninstall() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "uninstall", |installed, kube| {
        let cluster = &installed.cluster;
        let project = Kube::new(cluster, install::NAME);
        hold(kube, "train", "1Gi")?;
        let before = plugins::uids(cluster)?;
        let said = shell::capture(&mut project.helm_command(&["uninstall", install::NAME])?)?;
        ensure!(!said.status.success(), "uninstalled: {}", said.stdout);
        let claim = claim_of(kube, "train")?["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let node = cluster.node(Node::FIRST).name();
        let line = format!("  uninstall/train (claim {claim}, node {node})\n");
        ensure!(
            said.stderr.contains(&line),
            "helm does not say {line:?}: {}",
            said.stderr
        );
        ensure!(plugins::uids(cluster)? == before, "the plugin of before is gone");
        let start = format!("To keep the driver: helm rollback {} ", install::NAME);
        let words = said.stderr.split_once(&start).map(|(_, rest)| rest.split(' ').next());
        let revision = words
            .flatten()
            .with_context(|| format!("no {start:?}: {}", said.stderr))?;
        project.helm(&["rollback", install::NAME, revision])?;
        let status = project.helm(&["status", install::NAME, "-o", "json"])?;
        let status: Value = serde_json::from_str(&status).context("helm gave no JSON")?;
        ensure!(
            status["info"]["status"] == "deployed",
            "after the rollback: {}",
            status["info"]
        );
        ensure!(plugins::uids(cluster)? == before, "the rollback replaced the plugin");

        kube.run(&["delete", "pod", "train", &patience::timeout(LIMIT)])?;
        wait(LIMIT, "an uninstall without claims", || {
            project.helm(&["uninstall", install::NAME, "--wait"]).map(Some)
        })?;
        let left = project.get(&["jobs"])?["items"].as_array().map_or(0, Vec::len);
        ensure!(left == 0, "{left} Jobs are left");
        let gpus = install::install(cluster, shared::prepared(), &[])?;
        ensure!(gpus == installed.gpus, "installed again, it publishes {gpus:?}");
        Ok(())
    })
}

/// The old plugin serves a new pod while the new one is not ready.
fn serves(installed: &Installed, kube: &Kube<'_>, release: Release, old: &str) -> Result<()> {
    let cluster = &installed.cluster;
    let new = || -> Result<Value> {
        let pods = plugins::all(cluster)?;
        let new = pods.into_iter().find(|pod| pod["metadata"]["uid"] != old);
        new.context("there is no new plugin")
    };
    wait(LIMIT, "the new plugin to have been started", || {
        let pod = new()?;
        let status = &pod["status"]["containerStatuses"][0];
        let has_ended = status["restartCount"].as_u64() > Some(0);
        let is_there = match release {
            Release::Exits => has_ended,
            _ => status["state"]["running"].is_object(),
        };
        Ok(is_there.then_some(()))
    })?;
    if release == Release::Incomplete {
        wait(LIMIT, "the new plugin to say that it has no library", || {
            let pod = new()?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let logs = Kube::new(cluster, install::NAME).logs(&pod, None)?;
            Ok(logs.contains("has no libvgpu.so").then_some(()))
        })?;
        // A plugin that works registers within a second of its start.
        std::thread::sleep(patience::stretched(Duration::from_secs(4)));
    }
    let name = format!("{release:?}").to_lowercase();
    let mut proves = pod_object(&name, &["sh", "-c", PROVES], "load")?;
    proves["metadata"]["labels"] = serde_json::json!({"while": name});
    kube.apply(&proves.to_string())?;
    let proved = wait(LIMIT, "a pod to prove its limit", || {
        let phase = &kube.get(&["pod", &name])?["status"]["phase"];
        ensure!(*phase == "Succeeded", "it is {phase}");
        Ok(Some(()))
    });
    let failed = failed_prepares(kube)?;
    proved.with_context(|| format!("failed Prepares: {failed:?}\n{}", kube.describe(&name)))?;
    ensure!(failed.is_empty(), "failed Prepares: {failed:?}");
    let claim = claim_of(kube, &name).map(|claim| claim["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
    kube.run(&["delete", "pod", &name, &patience::timeout(LIMIT)])?;
    if let Ok(uid) = claim {
        wait(LIMIT, "the claim to be unprepared", || {
            let left = node::left_of(cluster, std::slice::from_ref(&uid))?;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(Some(()))
        })?;
    }
    let pod = new()?;
    ensure!(
        pod["status"]["containerStatuses"][0]["ready"] != true,
        "the release that {release:?} is ready"
    );
    let old_pod = plugins::all(cluster)?
        .into_iter()
        .find(|pod| pod["metadata"]["uid"] == old);
    let old_pod = old_pod.context("the old plugin has gone")?;
    ensure!(
        old_pod["status"]["containerStatuses"][0]["ready"] == true
            && old_pod["metadata"]["deletionTimestamp"].is_null(),
        "the old plugin is not ready any more"
    );
    Ok(())
}
