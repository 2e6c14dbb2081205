//! Kueue beside this driver (docs/queues.md): deploy/examples/kueue as it is, with Kueue's own chart.
//!
//! ```text
//! install ─► queues ─► one: charged ─► gang: held whole, then started ─► urgent: preempts ─► group ─► not counted
//!        ─► stopped ─► back ─► jobs and queues deleted ─► uninstall ─► a Job with the queue's label runs without a quota
//! ```
//! Kueue stays on the cluster for one test only: its webhooks are asked about each pod.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience};

use crate::beside::{self, items};
use crate::manifests::{HOLD, pod_object};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const ON_KUBE_SCHEDULER: &[Test] = &[("example_kueue_counts_memory_and_starts_gangs_whole", || {
    beside_kueue(
        "kueue::example_kueue_counts_memory_and_starts_gangs_whole",
        "kueue",
        shared::installed,
    )
})];

pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[("kueue_in_controller_mode", || {
    beside_kueue(
        "kueue::kueue_in_controller_mode",
        "kueue-controlled",
        shared::controlled,
    )
})];

/// The namespace of Kueue and the name of its release.
const NAMESPACE: &str = "kueue-system";
const RELEASE: &str = "kueue";
/// The resource of the queues.
const MEMORY: &str = "dra.vgpu/memory";
/// Time for a suspended or preempted Job's pods to be replaced by others.
const MOVED: Duration = Duration::from_secs(120);

fn beside_kueue(test: &str, namespace: &str, cluster: fn() -> Result<&'static Installed>) -> Result<()> {
    if beside::skips(test, "kueue") {
        return Ok(());
    }
    shared::in_namespace_of(cluster()?, namespace, |installed, kube| {
        let kueue = Kueue::install(installed)?;
        let outcome = scenes(kube, &kueue).map_err(|error| anyhow!("{error:#}\n{}", kueue.state(kube)));
        after(outcome, kueue.remove(kube))?;
        without_kueue(kube)
    })
}

fn scenes(kube: &Kube<'_>, kueue: &Kueue<'_>) -> Result<()> {
    apply(kube, "queues.yaml")?;
    one_is_charged(kube)?;
    gang_is_held_whole(kube)?;
    urgent_preempts(kube)?;
    group_starts_whole(kube)?;
    not_counted(kube)?;
    stopped_and_back(kube, kueue)
}

/// Kueue on a cluster, by its chart and the values of the example.
struct Kueue<'a> {
    system: Kube<'a>,
}

impl<'a> Kueue<'a> {
    fn install(installed: &'a Installed) -> Result<Self> {
        beside::import(installed, "kueue", "manager")?;
        let this = Self {
            system: Kube::new(&installed.cluster, NAMESPACE),
        };
        let chart = beside::program("kueue")?.module.join("charts/kueue");
        let manager = "controllerManager.manager";
        let here = [
            format!("{manager}.image.repository={}", beside::repository("kueue")),
            format!("{manager}.image.tag={}", beside::TAG),
            format!("{manager}.image.pullPolicy=Never"),
            // Kueue's own image names a user.
            format!("{manager}.podSecurityContext.runAsUser=65532"),
            format!("{manager}.resources.requests.cpu=50m"),
            format!("{manager}.resources.requests.memory=64Mi"),
        ];
        let values = install::example("kueue/values.yaml");
        beside::install(&this.system, RELEASE, &chart, Some(&values), &here)?;
        Ok(this)
    }

    /// Starts or ends Kueue's only replica.
    fn scale(&self, replicas: &str) -> Result<()> {
        let name = "deployment/kueue-controller-manager";
        self.system.run(&["scale", name, &format!("--replicas={replicas}")])?;
        match replicas {
            "0" => wait(LIMIT, "Kueue to end", || {
                let pods = self.system.get(&["pods"])?;
                Ok(items(&pods).is_empty().then_some(()))
            }),
            _ => {
                let limit = patience::timeout(LIMIT * 2);
                self.system.run(&["rollout", "status", name, &limit])?;
                Ok(())
            }
        }
    }

    /// Returns the objects that explain a failure, as text.
    fn state(&self, kube: &Kube<'_>) -> String {
        let mut text = String::new();
        for (kube, words) in [
            (kube, ["get", "workloads,clusterqueues,jobs", "-o", "yaml"]),
            (
                &self.system,
                [
                    "logs",
                    "deployment/kueue-controller-manager",
                    "--tail=60",
                    "--all-containers",
                ],
            ),
        ] {
            let said = kube.run(&words).unwrap_or_else(|error| format!("{error:#}"));
            text.push_str(&format!("$ kubectl {}\n{said}\n", words.join(" ")));
        }
        text
    }

    /// Takes Kueue off the cluster in the documented order: while it still runs, everything of which it holds a finalizer.
    fn remove(&self, kube: &Kube<'_>) -> Result<()> {
        let limit = patience::timeout(LIMIT * 2);
        let delete = |kinds: &str| kube.run(&["delete", kinds, "--all", &limit]).map(drop);
        let emptied = kube
            .run(&["delete", "jobs,pods", "--all", "--wait=false"])
            .and_then(|_| {
                [
                    "workloads",
                    "jobs,pods",
                    "localqueues",
                    "clusterqueues",
                    "resourceflavors",
                    "workloadpriorityclasses",
                ]
                .into_iter()
                .try_for_each(delete)
            });
        let uninstalled = beside::uninstall(&self.system, RELEASE);
        after(emptied, after(uninstalled, beside::delete_namespace(&self.system)))
    }
}

/// Applies a file of the example.
fn apply(kube: &Kube<'_>, file: &str) -> Result<()> {
    kube.apply_as_user(&manifest(file)?)
}

fn manifest(file: &str) -> Result<String> {
    let path = install::example("kueue").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn pods_of(kube: &Kube<'_>, app: &str) -> Result<Vec<Value>> {
    Ok(items(&kube.get(&["pods", "-l", &format!("app={app}")])?).to_vec())
}

/// Waits until `app` has exactly so many pods and all of them run.
fn wait_running(kube: &Kube<'_>, app: &str, wanted: usize) -> Result<()> {
    wait(MOVED, &format!("{wanted} pods of {app} to run"), || {
        let pods = pods_of(kube, app)?;
        let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        match (running, pods.len()) == (wanted, wanted) {
            true => Ok(Some(())),
            false => bail!("{running} of {} run", pods.len()),
        }
    })
}

/// Waits until the queue has this much memory in use.
fn wait_charged(kube: &Kube<'_>, wanted: &str) -> Result<()> {
    wait(LIMIT, &format!("the queue to have {wanted} in use"), || {
        let queue = kube.get(&["clusterqueue", "gpus"])?;
        let used = queue["status"]["flavorsUsage"][0]["resources"].as_array();
        let memory = used.into_iter().flatten().find(|one| one["name"] == MEMORY);
        match memory.map(|one| &one["total"]) {
            Some(total) if total == wanted => Ok(Some(())),
            other => bail!("in use: {other:?}"),
        }
    })
}

/// The Workload that Kueue made for a Job.
fn workload_of(kube: &Kube<'_>, job: &str) -> Result<Value> {
    let all = kube.get(&["workloads.kueue.x-k8s.io"])?;
    let found = items(&all)
        .iter()
        .find(|one| one["metadata"]["ownerReferences"][0]["name"] == job);
    found.cloned().with_context(|| format!("no Workload of {job}"))
}

/// Waits until Kueue says of a Job that it is not admitted, in these words.
fn wait_held(kube: &Kube<'_>, job: &str, words: &[&str]) -> Result<String> {
    wait(LIMIT, &format!("Kueue to hold {job}: {words:?}"), || {
        let workload = workload_of(kube, job)?;
        let conditions = workload["status"]["conditions"].as_array();
        let held = conditions
            .into_iter()
            .flatten()
            .find(|one| one["type"] == "QuotaReserved" && one["status"] == "False");
        let said = held
            .map(|one| format!("{}: {}", one["reason"], one["message"]))
            .unwrap_or_default();
        match !said.is_empty() && words.iter().all(|word| said.contains(word)) {
            true => Ok(Some(said)),
            false => bail!("it says {said:?}"),
        }
    })
}

fn delete(kube: &Kube<'_>, kind: &str, name: &str) -> Result<()> {
    kube.run(&["delete", kind, name, &patience::timeout(MOVED)]).map(drop)
}

/// Kueue charges what the claim consumes.
fn one_is_charged(kube: &Kube<'_>) -> Result<()> {
    apply(kube, "one.yaml")?;
    wait_running(kube, "one", 1)?;
    wait_charged(kube, "5Gi")?;
    let claims = kube.get(&["resourceclaims"])?;
    let consumed = &items(&claims)[0]["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"];
    ensure!(consumed["memory"] == "5Gi", "the claim consumes {consumed}");
    Ok(())
}

/// 20Gi do not fit in the 15Gi that are left: none of the four pods exists, and all start when there is room.
fn gang_is_held_whole(kube: &Kube<'_>) -> Result<()> {
    apply(kube, "gang.yaml")?;
    let said = wait_held(kube, "gang", &["insufficient", MEMORY])?;
    println!("Kueue says of a gang that is too large: {said}");
    let pods = pods_of(kube, "gang")?;
    ensure!(pods.is_empty(), "{} pods of the gang exist", pods.len());
    delete(kube, "job", "one")?;
    wait_running(kube, "gang", 4)?;
    wait_charged(kube, "20Gi")
}

/// The gang is suspended for one with a priority, and starts again after it.
fn urgent_preempts(kube: &Kube<'_>) -> Result<()> {
    apply(kube, "urgent.yaml")?;
    wait_running(kube, "urgent", 4)?;
    wait_running(kube, "gang", 0)?;
    let job = kube.get(&["job", "gang"])?;
    ensure!(
        job["spec"]["suspend"] == true,
        "the gang is not suspended: {}",
        job["spec"]
    );
    delete(kube, "job", "urgent")?;
    wait_running(kube, "gang", 4)?;
    delete(kube, "job", "gang")
}

/// Three of four pods wait for the last one.
fn group_starts_whole(kube: &Kube<'_>) -> Result<()> {
    let all = manifest("group.yaml")?;
    let (three, last) = all.rsplit_once("\n---\n").context("four pods")?;
    kube.apply_as_user(three)?;
    let gated = |pod: &Value| pod["spec"]["schedulingGates"][0]["name"] == "kueue.x-k8s.io/admission";
    let pods = pods_of(kube, "group")?;
    ensure!(
        pods.len() == 3 && pods.iter().all(gated),
        "three pods without a gate: {pods:?}"
    );
    kube.apply_as_user(last)?;
    wait_running(kube, "group", 4)?;
    wait_charged(kube, "20Gi")?;
    // The pods have a finalizer, which Kueue takes off when the group is over.
    kube.run(&["delete", "pods", "-l", "app=group", "--wait=false"])?;
    kube.run(&[
        "delete",
        "workload",
        "group",
        "--ignore-not-found",
        &patience::timeout(MOVED),
    ])?;
    wait_running(kube, "group", 0)
}

/// Kueue does not start pods whose claims it cannot count: a claim by name, alternatives, a class without a mapping.
fn not_counted(kube: &Kube<'_>) -> Result<()> {
    let part = |class: &str| json!({"deviceClassName": class, "capacity": {"requests": {"memory": "5Gi"}}});
    let claim = |requests: Value| json!({"devices": {"requests": requests}});
    let exactly = |class: &str| claim(json!([{"name": "gpu", "exactly": part(class)}]));
    let mut either = part("vgpu");
    either["name"] = json!("small");
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let template = |name: &str, spec: Value| object("ResourceClaimTemplate", name, json!({"spec": spec}));
    let unmapped = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]);
    for (name, uses, made) in [
        (
            "named",
            "resourceClaimName",
            object("ResourceClaim", "named", exactly("vgpu")),
        ),
        (
            "either",
            "resourceClaimTemplateName",
            template("either", claim(json!([{"name": "gpu", "firstAvailable": [either]}]))),
        ),
        (
            "unmapped",
            "resourceClaimTemplateName",
            template("unmapped", claim(unmapped)),
        ),
    ] {
        let job = manifest("one.yaml")?
            .replace("name: one", &format!("name: {name}"))
            .replace("app: one", &format!("app: {name}"))
            .replace("resourceClaimTemplateName: five", &format!("{uses}: {name}"));
        kube.apply(&format!("{made}\n---\n"))?;
        kube.apply_as_user(&job)?;
        let said = wait_held(kube, name, &[])?;
        println!("Kueue says of {name}: {said}");
        let pods = pods_of(kube, name)?;
        ensure!(pods.is_empty(), "{} pods of {name} exist", pods.len());
        delete(kube, "job", name)?;
    }
    Ok(())
}

/// While Kueue is down, what runs goes on, and its webhooks refuse new Jobs, but no pod of the driver. Afterwards it goes on
/// where it stopped.
fn stopped_and_back(kube: &Kube<'_>, kueue: &Kueue<'_>) -> Result<()> {
    apply(kube, "gang.yaml")?;
    wait_running(kube, "gang", 4)?;
    kueue.scale("0")?;
    let refused = kube.try_apply(&manifest("one.yaml")?)?;
    ensure!(
        !refused.status.success(),
        "a Job was taken while Kueue was down: {}",
        refused.stdout
    );
    println!("without Kueue's pod: {}", refused.stderr.trim());
    let plain = plain_pod()?;
    for (namespace, is_taken) in [(kube.namespace(), false), (install::NAME, true)] {
        let said = kube.try_run_with_input(&["create", "--dry-run=server", "-n", namespace, "-f", "-"], &plain)?;
        ensure!(
            said.status.success() == is_taken,
            "a pod in {namespace}: {}{}",
            said.stdout,
            said.stderr
        );
    }
    wait_running(kube, "gang", 4)?;
    kueue.scale("1")?;
    wait(LIMIT, "Kueue to take Jobs again", || apply(kube, "one.yaml").map(Some))?;
    wait_held(kube, "one", &["insufficient", MEMORY])?;
    wait_charged(kube, "20Gi")?;
    wait_running(kube, "gang", 4)
}

/// A pod without a claim and without a queue.
fn plain_pod() -> Result<String> {
    let mut plain = pod_object("plain", &HOLD, "none")?;
    plain["spec"]["resourceClaims"] = json!([]);
    plain["spec"]["containers"][0]["resources"] = json!({});
    Ok(plain.to_string())
}

/// The label of a queue means nothing without Kueue.
fn without_kueue(kube: &Kube<'_>) -> Result<()> {
    apply(kube, "one.yaml")?;
    wait_running(kube, "one", 1)
}
