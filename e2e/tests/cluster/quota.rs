//! Namespace quotas: the documented example, translated pods, users' mistakes, and many pods while leaders end.
//!
//! The storm has `VGPU_STORM_PODS` pods (60) in three namespaces, on hand-made nodes with room for all of them.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{hand_made, install};

use crate::controller::leader;
use crate::fleet::{ALL_BOUND, Fleet, Mode, QUARTER, ROOM, clear, create, told};
use crate::manifests::{HOLD, pod, template};
use crate::processes::{Stopped, controller_in};
use crate::shared::{self, Installed, LIMIT, Test};
use crate::storm::{end_one, number};

pub(crate) const TESTS: &[Test] = &[
    (
        "example_quota_second_pod_waits_for_the_first",
        example_on_kube_scheduler,
    ),
    ("quota_example_in_controller_mode", example_in_controller_mode),
    ("quota_of_translated_pods_is_the_tighter_of_all", translated),
    ("quota_mistakes_are_refused_or_told", mistakes),
    ("quota_budget_that_is_spent_holds_or_yields", budgets),
    ("quota_holds_in_a_storm_on_kube_scheduler", storm_on_kube_scheduler),
    ("quota_holds_in_a_storm_in_controller_mode", storm_in_controller_mode),
];

/// Until the controller, and with it the API server's policies, have seen the quota.
fn wait_seen(kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "the quota to be seen", || {
        let quota = kube.get(&["vgpuquota", "vgpu"])?;
        let is_seen = quota["status"]["observedGeneration"] == quota["metadata"]["generation"];
        Ok(is_seen.then_some(()))
    })?;
    // The policy watches quotas by itself: it is seen by what becomes of a pod.
    wait(LIMIT, "the policy to gate a pod", || {
        let trial = pod("trial", "client", &HOLD, "none");
        let said = kube.try_run_with_input(
            &["create", "--dry-run=server", "-o", "json", "-f", "-"],
            trial.trim_end_matches("---\n"),
        )?;
        let pod: Value = serde_json::from_str(&said.stdout).with_context(|| said.stderr.clone())?;
        Ok(pod["spec"]["schedulingGates"][0].is_object().then_some(()))
    })
}

fn quota(spec: &Value) -> String {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota", "metadata": {"name": "vgpu"}, "spec": spec})
        .to_string()
}

fn set_quota(kube: &Kube<'_>, spec: &Value) -> Result<()> {
    kube.apply(&quota(spec))?;
    wait_seen(kube)
}

fn is_gated(kube: &Kube<'_>, pod: &str) -> Result<bool> {
    let pod = kube.get(&["pod", pod])?;
    let gates = pod["spec"]["schedulingGates"].as_array();
    Ok(gates.is_some_and(|gates| gates.iter().any(|gate| gate["name"] == "dra.vgpu/quota")))
}

fn example_on_kube_scheduler() -> Result<()> {
    example(shared::installed()?)
}

fn example_in_controller_mode() -> Result<()> {
    example(shared::controlled()?)
}

fn example(installed: &Installed) -> Result<()> {
    let read = |file: &str| -> Result<String> { Ok(std::fs::read_to_string(install::example("quota").join(file))?) };
    shared::in_namespace_of(installed, "team-a", |_, a| {
        shared::in_namespace_of(installed, "team-b", |_, b| {
            for team in [a, b] {
                team.apply(&read("quota.yaml")?)?;
                wait_seen(team)?;
                team.apply(&read("pods.yaml")?)?;
            }
            for team in [a, b] {
                team.wait_running("first", Duration::from_secs(120))?;
                told(
                    team,
                    "second",
                    "QuotaExceeded",
                    &["memory 60Gi of 80Gi used, 40Gi wanted", "spec.hard.memory"],
                )?;
                ensure!(is_gated(team, "second")?, "the second pod has no gate");
            }
            a.run(&["delete", "pod", "first", "--wait=false"])?;
            a.wait_running("second", LIMIT)?;
            ensure!(is_gated(b, "second")?, "the other team's pod was let through too");
            let quota = a.get(&["vgpuquota", "vgpu"])?;
            ensure!(quota["status"]["used"]["memory"] == "40Gi", "{quota}");
            Ok(())
        })
    })
}

/// Pods of two dialects, and a ResourceQuota in the names of each.
fn translated() -> Result<()> {
    shared::in_namespace("quota-dialects", |_, kube| {
        kube.run(&["label", "namespace", "quota-dialects", "dra.vgpu/translate=true"])?;
        let ceilings = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "8000", "requests.volcano.sh/vgpu-memory": "5000"}}});
        kube.apply(&ceilings.to_string())?;
        set_quota(kube, &json!({"hard": {"memory": "80Gi"}}))?;
        let asks = |name: &str, limits: Value| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "dra-driver-vgpu/client:dev", "command": HOLD,
                    "imagePullPolicy": "IfNotPresent", "resources": {"limits": limits}}]}})
        };
        kube.apply(&asks("hami", json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})).to_string())?;
        kube.wait_running("hami", LIMIT)?;
        let volcano = json!({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"});
        kube.apply(&asks("volcano", volcano).to_string())?;
        let words = [
            "memory 3000Mi of 5000Mi used, 3000Mi wanted",
            "ResourceQuota gpus requests.volcano.sh/vgpu-memory is raised",
        ];
        told(kube, "volcano", "QuotaExceeded", &words)?;
        ensure!(is_gated(kube, "volcano")?, "a translated pod passed without its gate");
        let limited = kube.get(&["vgpuquota", "vgpu"])?["status"]["limitedBy"]["memory"].clone();
        ensure!(
            limited == "ResourceQuota gpus requests.volcano.sh/vgpu-memory",
            "{limited}"
        );
        let raise = r#"{"spec": {"hard": {"requests.volcano.sh/vgpu-memory": "7000"}}}"#;
        kube.run(&["patch", "resourcequota", "gpus", "--type=merge", "-p", raise])?;
        kube.wait_running("volcano", LIMIT)
    })
}

fn refused(kube: &Kube<'_>, arguments: &[&str], input: &str, words: &str) -> Result<()> {
    let said = kube.try_run_with_input(arguments, input)?;
    match said.stderr.contains(words) {
        true if !said.status.success() => Ok(()),
        _ => bail!(
            "{arguments:?} {input}: expected {words}, and it says {}{}",
            said.stdout,
            said.stderr
        ),
    }
}

fn mistakes() -> Result<()> {
    shared::in_namespace("quota-mistakes", |_, kube| {
        let any_field = ["create", "--validate=false", "-f", "-"];
        refused(
            kube,
            &any_field,
            &quota(&json!({"hrad": {}})),
            "spec.hrad: unknown field; use hard, budget and backfill",
        )?;
        let gpumem = quota(&json!({"hard": {"gpumem": 1}}));
        refused(kube, &any_field, &gpumem, "spec.hard.gpumem: unknown field")?;
        refused(
            kube,
            &any_field,
            &quota(&json!({"hard": {"memory": "80GB"}})),
            "spec.hard.memory: \"80GB\" is neither 0 nor at least 64Mi",
        )?;
        let second = quota(&json!({})).replace("\"vgpu\"", "\"second\"");
        refused(kube, &any_field, &second, "a namespace has one VgpuQuota, named vgpu")?;
        set_quota(kube, &json!({"hard": {"memory": "2Gi"}}))?;
        let status = r#"{"status": {"reservations": {}}}"#;
        let patch = [
            "patch",
            "vgpuquota",
            "vgpu",
            "--subresource=status",
            "--type=merge",
            "-p",
            status,
        ];
        refused(kube, &patch, "", "status: vgpu-controller alone writes it")?;
        kube.apply(&(template("one", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("a", "client", &HOLD, "one")))?;
        kube.wait_running("a", LIMIT)?;
        // Below what is used: nobody is stopped, and new pods wait.
        set_quota(kube, &json!({"hard": {"memory": "512Mi"}}))?;
        kube.apply(&pod("b", "client", &HOLD, "one"))?;
        told(
            kube,
            "b",
            "QuotaExceeded",
            &["never fits into VgpuQuota vgpu: memory 1Gi wanted, and the ceiling is 512Mi"],
        )?;
        set_quota(kube, &json!({"hard": {"memory": "1Gi"}}))?;
        told(kube, "b", "QuotaExceeded", &["memory 1Gi of 1Gi used, 1Gi wanted"])?;
        kube.wait_running("a", LIMIT)?;
        let open = r#"[{"op": "remove", "path": "/spec/schedulingGates"}]"#;
        let by_hand = ["patch", "pod", "b", "--type=json", "-p", open];
        refused(
            kube,
            &by_hand,
            "",
            "vgpu-controller alone takes the gate dra.vgpu/quota off",
        )?;
        // The quota goes: so does the ceiling.
        kube.run(&["delete", "vgpuquota", "vgpu"])?;
        kube.wait_running("b", LIMIT)?;
        // A pod waits while its namespace is deleted, which is what comes next.
        set_quota(kube, &json!({"hard": {"memory": "0"}}))?;
        kube.apply(&pod("c", "client", &HOLD, "one"))?;
        told(kube, "c", "QuotaExceeded", &["never fits"])
    })
}

fn budgets() -> Result<()> {
    shared::in_namespace("quota-budget", |_, kube| {
        set_quota(
            kube,
            &json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Hold"}}),
        )?;
        kube.apply(&(template("one", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("held", "client", &HOLD, "one")))?;
        told(
            kube,
            "held",
            "BudgetSpent",
            &["0 of 0 GPU hours used, and spec.budget.whenSpent is Hold"],
        )?;
        let waiting = kube.get(&["pod", "held"])?;
        ensure!(
            waiting["spec"]["priorityClassName"].is_null(),
            "Hold changes no priority: {waiting}"
        );
        set_quota(
            kube,
            &json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Yield"}}),
        )?;
        // Nobody else waits, so it starts; a new one comes after those in budget.
        kube.wait_running("held", LIMIT)?;
        wait(LIMIT, "a pod to get the low priority", || {
            kube.apply(&pod("low", "client", &HOLD, "one"))?;
            let low = kube.get(&["pod", "low"])?;
            let (class, value) = (&low["spec"]["priorityClassName"], &low["spec"]["priority"]);
            ensure!(class == "vgpu-over-budget" && *value == -1000, "{class} {value}");
            Ok(Some(()))
        })?;
        kube.wait_running("low", LIMIT)?;
        let quota = kube.get(&["vgpuquota", "vgpu"])?;
        ensure!(quota["status"]["budget"]["state"] == "Spent", "{quota}");
        // What runs is charged every 10 s.
        wait(LIMIT, "GPU time to be charged", || {
            let quota = kube.get(&["vgpuquota", "vgpu"])?;
            let used = quota["status"]["budget"]["usedGpuSeconds"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let used: f64 = used.parse().with_context(|| format!("{used:?} GPU seconds"))?;
            Ok((used > 0.0).then_some(()))
        })
    })
}

// === the storm ===

fn storm_on_kube_scheduler() -> Result<()> {
    storm(shared::installed()?, "quota-storm-s", Mode::Scheduler)
}

fn storm_in_controller_mode() -> Result<()> {
    storm(shared::controlled()?, "quota-storm-c", Mode::Settled)
}

const NAMESPACES: usize = 3;
const GI: u64 = 1 << 30;
/// Five quarters of a GPU.
const CEILING: u64 = 100 * GI;

/// Adds up each namespace's claims at every version of every claim.
struct Sums {
    child: Child,
    reader: JoinHandle<()>,
    seen: Arc<Mutex<(usize, Vec<String>)>>,
}

impl Sums {
    fn begin(kube: &Kube<'_>, of: &'static str) -> Result<Self> {
        let watch = [
            "get",
            "resourceclaims",
            "-A",
            "--watch",
            "--output-watch-events",
            "-o",
            "json",
        ];
        let mut child = kube
            .command(watch)?
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let seen: Arc<Mutex<(usize, Vec<String>)>> = Arc::default();
        let own = seen.clone();
        let reader = std::thread::spawn(move || {
            let mut held: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
            let output = std::io::BufReader::new(output).bytes();
            let bytes = output.map_while(Result::ok).collect_in();
            for event in bytes {
                let claim = &event["object"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let namespace = text(&claim["metadata"]["namespace"]);
                if !namespace.starts_with(of) {
                    continue;
                }
                let results = claim["status"]["allocation"]["devices"]["results"].as_array();
                let memory = |result: &Value| install::bytes(&text(&result["consumedCapacity"]["memory"])).unwrap_or(0);
                let memory: u64 = results.into_iter().flatten().map(memory).sum();
                let memory = if event["type"] == "DELETED" { 0 } else { memory };
                let of_namespace = held.entry(namespace.clone()).or_default();
                of_namespace.insert(text(&claim["metadata"]["uid"]), memory);
                let sum: u64 = of_namespace.values().sum();
                let mut seen = own.lock().unwrap_or_else(PoisonError::into_inner);
                seen.0 += 1;
                if sum > CEILING {
                    seen.1.push(format!("{namespace} holds {} GiB", sum / GI));
                }
            }
        });
        Ok(Self { child, reader, seen })
    }

    /// The number of versions, none of them above a ceiling.
    fn end(mut self) -> Result<usize> {
        let ended = self.child.try_wait()?;
        self.child.kill().ok();
        self.child.wait()?;
        self.reader.join().map_err(|_| anyhow!("the sums could not be made"))?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(ended.is_none(), "the watch ended by itself: {ended:?}");
        ensure!(seen.1.is_empty(), "above the ceiling of 100 GiB: {:?}", seen.1);
        Ok(seen.0)
    }
}

/// JSON documents one after the other, each as soon as it is complete.
trait Documents: Iterator<Item = u8> + Sized {
    fn collect_in(self) -> impl Iterator<Item = Value> {
        struct Source<I>(I);
        impl<I: Iterator<Item = u8>> std::io::Read for Source<I> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let (Some(slot), Some(byte)) = (buffer.first_mut(), self.0.next()) else {
                    return Ok(0);
                };
                *slot = byte;
                Ok(1)
            }
        }
        serde_json::Deserializer::from_reader(Source(self))
            .into_iter::<Value>()
            .map_while(Result::ok)
    }
}

impl<I: Iterator<Item = u8>> Documents for I {}

fn storm(installed: &Installed, name: &'static str, mode: Mode) -> Result<()> {
    let pods = usize::try_from(number("VGPU_STORM_PODS", 60)?)?;
    let names: Vec<String> = (0..NAMESPACES).map(|number| format!("{name}-{number}")).collect();
    let project = Kube::new(&installed.cluster, install::NAME);
    shared::in_namespace_of(installed, name, |_, home| {
        for namespace in &names {
            home.run(&["create", "namespace", namespace])?;
        }
        let teams: Vec<Kube<'_>> = names.iter().map(|name| Kube::new(&installed.cluster, name)).collect();
        let fleet = Fleet::new(*home, name, pods.div_ceil(ROOM) + 1)?;
        if mode != Mode::Settled {
            fleet.turn(&fleet.nodes().collect::<Vec<_>>(), mode)?;
        }
        let outcome = storm_in(installed, &project, &teams, &fleet, pods, name);
        let cleared: Result<()> = teams.iter().try_for_each(clear);
        let deleted = names
            .iter()
            .try_for_each(|namespace| home.run(&["delete", "namespace", namespace, "--wait=false"]).map(drop));
        after(outcome, after(cleared, deleted))
    })
}

fn storm_in(
    installed: &Installed,
    project: &Kube<'_>,
    teams: &[Kube<'_>],
    fleet: &Fleet<'_>,
    pods: usize,
    name: &'static str,
) -> Result<()> {
    for team in teams {
        wait(LIMIT, "the namespace's service account", || {
            team.run(&["get", "serviceaccount", "default"]).map(Some)
        })?;
        team.apply(&template(QUARTER, "vgpu", hand_made::quarter(), &[]))?;
        set_quota(team, &json!({"hard": {"memory": "100Gi"}}))?;
    }
    let sums = Sums::begin(project, name)?;
    let share = pods / teams.len();
    let room = usize::try_from(CEILING / (20 * GI))?;
    let mut left: Vec<Vec<String>> = Vec::new();
    for team in teams {
        let names: Vec<String> = (0..share).map(|number| format!("p{number:04}")).collect();
        create(team, &fleet.pods(names.iter().map(String::as_str)))?;
        left.push(names);
    }
    let (mut round, mut ended) = (0, 0);
    let outcome: Result<()> = (|| {
        while left.iter().any(|names| !names.is_empty()) {
            for (team, names) in teams.iter().zip(&mut left) {
                // As many as fit run, and no more; then they end, and the next ones start.
                let expected = room.min(names.len());
                let bound = wait(ALL_BOUND, "as many pods to be bound as the quota allows", || {
                    let bound = crate::fleet::bound(team)?;
                    match bound.len() {
                        many if many == expected => Ok(Some(bound)),
                        many if many > expected => bail!("{many} are bound, and {expected} fit"),
                        many => Err(anyhow!(
                            "{many} of {expected} are bound\n{}",
                            team.run(&["get", "vgpuquota", "vgpu", "-o", "yaml"])?
                        )),
                    }
                })?;
                crate::fleet::delete(team, bound.iter().map(String::as_str))?;
                names.retain(|name| !bound.contains(name));
            }
            match round % 2 {
                0 => ended += usize::from(end_one(installed, project, round)?),
                _ => {
                    if let Some(pod) = leader(project)? {
                        let stopped = Stopped::stop(&installed.cluster, controller_in(installed, &pod)?)?;
                        // Longer than the lease.
                        std::thread::sleep(Duration::from_secs(20));
                        ended += 1;
                        // Its liveness probe may have ended it.
                        let _ = stopped.wake();
                    }
                }
            }
            round += 1;
        }
        Ok(())
    })();
    let summed = sums.end();
    outcome?;
    let versions = summed?;
    println!(
        "{pods} pods; {ended} times a leader ended or stood still; {versions} versions of claims, none above a ceiling"
    );
    ensure!(ended >= 2, "leaders ended only {ended} times");
    Ok(())
}
