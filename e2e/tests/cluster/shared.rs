//! The clusters that tests share, one for each allocator and one with the webhook, and a namespace for each test.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Config};
use vgpu_e2e::install::{self, PublishedGpu};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::prepared::Prepared;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{node, workload};

use crate::manifests::{HOLD, pod, template};

/// A test: its name and its function.
pub(crate) type Test = (&'static str, fn() -> Result<()>);

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

static PREPARED: OnceLock<Prepared> = OnceLock::new();
type Slot = Mutex<Option<Result<&'static Installed, String>>>;
static CLUSTER: Slot = Mutex::new(None);
static CONTROLLER: Slot = Mutex::new(None);
static TRANSLATING: Slot = Mutex::new(None);
static OBSERVED: Slot = Mutex::new(None);
static LIMITED: Slot = Mutex::new(None);

/// A cluster with this project on it.
pub(crate) struct Installed {
    pub(crate) cluster: Cluster,
    pub(crate) gpus: Vec<PublishedGpu>,
}

/// Sets the prepared artefacts for every cluster of the tests.
pub(crate) fn provide(prepared: Prepared) {
    let _ = PREPARED.set(prepared);
}

pub(crate) fn prepared() -> &'static Prepared {
    PREPARED.get().expect("main provides it before the first test")
}

/// A cluster name that no other run on this machine uses.
pub(crate) fn name(of: &str) -> String {
    format!("test-{}-{of}", std::process::id())
}

const QUOTAS: [&str; 2] = ["quota.enabled=true", "quota.evictAfter=5s"];

/// The cluster on which kube-scheduler allocates.
pub(crate) fn installed() -> Result<&'static Installed> {
    in_slot(&CLUSTER, "shared", &[&QUOTAS[..], &install::TRANSLATES].concat())
}

/// The cluster on which vgpu-controller allocates.
pub(crate) fn controlled() -> Result<&'static Installed> {
    let values = ["allocator=controller", "admission.foreignClasses={nic.example}"];
    in_slot(
        &CONTROLLER,
        "controlled",
        &[&QUOTAS[..], &values, &install::TRANSLATES].concat(),
    )
}

/// The folder of the library on the nodes of [`translating`].
pub(crate) const OTHER_STORE: &str = "/opt/gpu/library";

/// The cluster whose webhook translates pods of HAMi and KAI, and whose nodes have the library in another folder than by default.
pub(crate) fn translating() -> Result<&'static Installed> {
    let store = format!("plugin.libraryStore={OTHER_STORE}");
    in_slot(&TRANSLATING, "translating", &["translate.dialects={hami,kai}", &store])
}

/// The cluster whose driver lists processes, as a real one does on a node. It has the chart's own values.
pub(crate) fn observed() -> Result<&'static Installed> {
    in_slot_with(&OBSERVED, "observed", &[], |_| {})
}

/// The cluster whose driver limits cgroups itself and lists processes. It has the chart's own values.
pub(crate) fn limited() -> Result<&'static Installed> {
    in_slot_with(&LIMITED, "limited", &[], |config| config.limits_cgroups = true)
}

/// The cluster of a slot, started by the first test that needs it. If the start fails, all of these tests fail. Its
/// driver lists no processes, so that limits are tested where the plugin cannot compare them with the driver's figures.
fn in_slot(slot: &Slot, of: &str, values: &[&str]) -> Result<&'static Installed> {
    in_slot_with(slot, of, values, |config| config.lists_processes = false)
}

fn in_slot_with(slot: &Slot, of: &str, values: &[&str], change: fn(&mut Config)) -> Result<&'static Installed> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    slot.get_or_insert_with(|| {
        let mut config = prepared().config(&name(of));
        change(&mut config);
        let cluster = Cluster::up(config).map_err(|error| format!("{error:#}"))?;
        let gpus = install::install(&cluster, prepared(), values).map_err(|error| format!("{error:#}"))?;
        // Lives until `end`, which removes the cluster by its name.
        Ok(Box::leak(Box::new(Installed { cluster, gpus })))
    })
    .clone()
    .map_err(|error| anyhow!("no cluster: {error}"))
}

/// Checks that the namespaces of all tests are deleted, and removes the shared clusters.
pub(crate) fn end() -> Result<()> {
    let clusters = [
        ("shared", &CLUSTER),
        ("controlled", &CONTROLLER),
        ("translating", &TRANSLATING),
        ("observed", &OBSERVED),
        ("limited", &LIMITED),
    ];
    let mut ended = Ok(());
    for (of, slot) in clusters {
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Ok(installed)) = *slot {
            ended = after(ended, namespaces_are_gone(&installed.cluster));
        }
        ended = after(ended, vgpu_e2e::cluster::down(&name(of)).map(drop));
    }
    ended
}

/// Tests delete their namespaces without waiting for their end, which takes Kubernetes some seconds for each.
fn namespaces_are_gone(cluster: &Cluster) -> Result<()> {
    let kube = Kube::new(cluster, "default");
    wait(LIMIT, "the tests' namespaces to be gone", || {
        let all = kube.get(&["namespaces"])?;
        let all = all["items"].as_array().into_iter().flatten();
        let left = all.filter(|one| !one["metadata"]["deletionTimestamp"].is_null());
        let left: Vec<_> = left.map(|one| one["status"].to_string()).collect();
        ensure!(left.is_empty(), "{}", left.join(" "));
        Ok(Some(()))
    })
}

/// Runs a test in its own namespace on the cluster of kube-scheduler.
pub(crate) fn in_namespace(name: &str, test: impl FnOnce(&Installed, &Kube<'_>) -> Result<()>) -> Result<()> {
    in_namespace_of(installed()?, name, test)
}

/// Runs a test in its own namespace. After a failure, prints the namespace's state and the driver's logs. Afterwards
/// nothing of the namespace's claims may be left on the node.
pub(crate) fn in_namespace_of(
    installed: &Installed,
    name: &str,
    test: impl FnOnce(&Installed, &Kube<'_>) -> Result<()>,
) -> Result<()> {
    let kube = Kube::new(&installed.cluster, name);
    // An earlier test may have used this name.
    wait(LIMIT, "the namespace to be created", || {
        kube.create_namespace().map(Some)
    })?;
    kube.wait_service_account(LIMIT)?;
    let outcome = test(installed, &kube).map_err(|error| anyhow!("{error:#}\n{}", kube.dump()));
    let (uids, read) = match workload::shares(&kube) {
        Ok(shares) => (shares.into_iter().map(|share| share.claim_uid).collect(), Ok(())),
        // Then the claims on the node are unknown. The namespace is deleted anyway.
        Err(error) => (
            Vec::new(),
            Err(error.context(format!("the claims of namespace {name}"))),
        ),
    };
    let cleaned = clean(installed, &kube, &uids);
    after(outcome, after(read, cleaned))
}

/// Deletes the namespace, and waits until its pods and claims are deleted and the node has nothing of them.
fn clean(installed: &Installed, kube: &Kube<'_>, uids: &[String]) -> Result<()> {
    kube.delete_namespace()?;
    wait(LIMIT * 2, "the namespace's pods and claims to be gone", || {
        for kind in ["pods", "resourceclaims"] {
            let left = kube.get(&[kind])?["items"].as_array().map_or(0, Vec::len);
            ensure!(left == 0, "{left} {kind} are left");
        }
        Ok(Some(()))
    })?;
    wait(LIMIT, "the node to forget the namespace's claims", || {
        let left = node::left_of(&installed.cluster, uids)?;
        ensure!(left.is_empty(), "left: {}", left.join(", "));
        Ok(Some(()))
    })
}

/// Starts the pod `name`, which keeps a share of this memory from the template `t`.
pub(crate) fn hold(kube: &Kube<'_>, name: &str, memory: &str) -> Result<()> {
    kube.apply(&(template("t", "vgpu", json!({"memory": memory}), &[]) + &pod(name, "client", &HOLD, "t")))?;
    kube.wait_running(name, LIMIT)
}

/// The plugin's pod.
pub(crate) fn plugin_pod(cluster: &Cluster) -> Result<String> {
    let kube = Kube::new(cluster, install::NAME);
    let pods = kube.get(&[
        "pods",
        "-l",
        "app.kubernetes.io/component=plugin",
        "--field-selector=status.phase=Running",
    ])?;
    let name = pods["items"][0]["metadata"]["name"].as_str().map(str::to_owned);
    name.context("no plugin runs")
}

/// Waits until a claim's condition says so; it is never True before.
pub(crate) fn memory_enforced(kube: &Kube<'_>, claim: &str, status: &str, reason: &str) -> Result<()> {
    let last = std::cell::RefCell::new(Value::Null);
    let what = format!("MemoryEnforced of {claim} to be {status} for the reason {reason}");
    let found = wait(LIMIT, &what, || {
        let claim = kube.get(&["resourceclaim", claim])?;
        let conditions = claim["status"]["devices"][0]["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        let memory = conditions.find(|of| of["type"] == "MemoryEnforced").unwrap_or_default();
        ensure!(status == "True" || memory["status"] != "True", "{memory}");
        let is_there = memory["status"] == status && memory["reason"] == reason;
        last.replace(memory);
        Ok(is_there.then_some(()))
    });
    found.with_context(|| format!("the condition was {}", last.borrow()))
}
