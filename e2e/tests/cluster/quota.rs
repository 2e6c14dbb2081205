//! Namespace quotas: the documented example, translated pods, users' mistakes, budgets.
//!
//! ```text
//! storm.rs     many pods while leaders are killed and stopped
//! troubles.rs  the label, the quota's kind or the API server disappears
//! evict.rs     a pod within budget replaces one over budget
//! namespace.rs a namespace with a quota, for all of them
//! defaults.rs  quotas created from a VgpuQuotaDefault
//! ```

mod defaults;
mod evict;
mod namespace;
mod storm;
mod troubles;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::controller::leader;
use crate::explain;
use crate::fleet::wait_for_event;
use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, Installed, LIMIT, Test};

use namespace::{is_gated, quota, refused, set_quota, wait_label, wait_seen};

pub(crate) const ON_KUBE_SCHEDULER: &[Test] = &[
    (
        "example_quota_second_pod_waits_for_the_first",
        example_on_kube_scheduler,
    ),
    ("quota_of_translated_pods_is_the_tighter_of_all", translated),
    ("quota_mistakes_are_refused_or_reported", mistakes),
    ("quota_budget_that_is_spent_holds_or_yields", budgets),
    ("quota_evicts_the_one_over_budget_that_may_go", evict::on_kube_scheduler),
    (
        "quota_holds_and_others_are_not_touched_while_the_api_server_restarts",
        troubles::api_server_restarts,
    ),
    ("quota_label_is_the_controllers", troubles::label),
    ("quota_kind_that_is_deleted_opens_the_gates", troubles::kind_deleted),
    (
        "quota_defaults_are_stamped_and_keep_off_an_administrators",
        defaults::stamped,
    ),
    ("quota_holds_in_a_storm_on_kube_scheduler", storm::on_kube_scheduler),
];

pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[
    ("quota_example_in_controller_mode", example_in_controller_mode),
    ("quota_evicts_in_controller_mode_too", evict::in_controller_mode),
    ("quota_holds_in_a_storm_in_controller_mode", storm::in_controller_mode),
];

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
            let pods = read("pods.yaml")?;
            let (first, _) = pods.split_once("\n---\n").context("two pods")?;
            for team in [a, b] {
                team.apply(&read("quota.yaml")?)?;
                wait_seen(team)?;
                team.apply(first)?;
            }
            for team in [a, b] {
                // The second pod only follows now: a pod without a claim blocks nobody, and Kubernetes creates the
                // claims of two pods in any order.
                team.wait_running("first", Duration::from_secs(120))?;
                team.apply(&pods)?;
                wait_for_event(
                    team,
                    "second",
                    "QuotaExceeded",
                    &["memory 60Gi of 80Gi used, 40Gi wanted", "spec.hard.memory"],
                )?;
                ensure!(is_gated(team, "second")?, "the second pod has no gate");
            }
            seen_by_people(installed, a)?;
            a.run(&["delete", "pod", "first", "--wait=false"])?;
            a.wait_running("second", LIMIT)?;
            ensure!(is_gated(b, "second")?, "the other team's pod was let through too");
            let quota = a.get(&["vgpuquota", "vgpu"])?;
            ensure!(quota["status"]["used"]["memory"] == "40Gi", "{quota}");
            Ok(())
        })
    })
}

/// Checks `vgpu explain`, `kubectl get` and the metrics while the second pod of team-a waits.
fn seen_by_people(installed: &Installed, team: &Kube<'_>) -> Result<()> {
    let said = explain::as_text(installed, "team-a", "pod/second")?;
    for line in [
        "VgpuQuota vgpu of namespace team-a: memory 60Gi of 80Gi used; shares 1 of 8 used",
        "pod second: waits for VgpuQuota vgpu: memory 60Gi of 80Gi used, 40Gi wanted",
    ] {
        ensure!(said.contains(line), "vgpu explain: {said}");
    }
    let table = team.run(&["get", "vgpuquotas"])?;
    for column in ["MEMORY", "60Gi", "80Gi", "SHARES", "GPU HOURS"] {
        ensure!(table.contains(column), "no {column}: {table}");
    }
    let project = Kube::new(&installed.cluster, install::NAME);
    wait(LIMIT, "the leader's metrics", || {
        let leader = leader(&project)?.context("nobody leads")?;
        let path = format!("/api/v1/namespaces/{}/pods/{leader}:9441/proxy/metrics", install::NAME);
        let metrics = project.raw(&path)?;
        let quotas: Vec<&str> = metrics
            .lines()
            .filter(|line| line.starts_with("vgpu_controller_quota"))
            .collect();
        let has = |wanted: &str| quotas.iter().any(|line| line.starts_with(wanted));
        let all = [
            "vgpu_controller_quota_waiting_pods 2",
            "vgpu_controller_quota_reservations 2",
            "vgpu_controller_quotas{state=\"in budget\"} 2",
            "vgpu_controller_quota_writes_total{intent=\"gate\",outcome=\"done\"}",
            "vgpu_controller_quota_writes_total{intent=\"label\",outcome=\"done\"}",
            "vgpu_controller_quota_used_ratio{namespace=\"team-a\",resource=\"memory\"} 0.75",
        ];
        // The others are sums over all namespaces, so that the number of series is limited.
        let mut of_namespaces = quotas.iter().filter(|line| line.contains("team-a"));
        let is_ratio = |line: &&str| line.starts_with("vgpu_controller_quota_used_ratio{");
        ensure!(of_namespaces.all(is_ratio), "{quotas:?}");
        match all.iter().find(|wanted| !has(wanted)) {
            None => Ok(Some(())),
            Some(missing) => bail!("no {missing}: {quotas:?}"),
        }
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
        wait_for_event(kube, "volcano", "QuotaExceeded", &words)?;
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
            "spec.hard.memory: \"80GB\" is not a quantity; did you mean 80Gi?",
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
        // Below the current use: nothing is stopped, and new pods wait.
        set_quota(kube, &json!({"hard": {"memory": "512Mi"}}))?;
        kube.apply(&pod("b", "client", &HOLD, "one"))?;
        wait_for_event(
            kube,
            "b",
            "QuotaExceeded",
            &["never fits into VgpuQuota vgpu: memory 1Gi wanted, and the ceiling is 512Mi"],
        )?;
        set_quota(kube, &json!({"hard": {"memory": "1Gi"}}))?;
        wait_for_event(kube, "b", "QuotaExceeded", &["memory 1Gi of 1Gi used, 1Gi wanted"])?;
        kube.wait_running("a", LIMIT)?;
        let open = r#"[{"op": "remove", "path": "/spec/schedulingGates"}]"#;
        let by_hand = ["patch", "pod", "b", "--type=json", "-p", open];
        refused(
            kube,
            &by_hand,
            "",
            "vgpu-controller alone takes the gate dra.vgpu/quota off",
        )?;
        // Deleting the quota removes the ceiling.
        kube.run(&["delete", "vgpuquota", "vgpu"])?;
        kube.wait_running("b", LIMIT)?;
        // A pod waits while its namespace is deleted next.
        set_quota(kube, &json!({"hard": {"memory": "0"}}))?;
        kube.apply(&pod("c", "client", &HOLD, "one"))?;
        wait_for_event(kube, "c", "QuotaExceeded", &["never fits"])
    })
}

fn budgets() -> Result<()> {
    shared::in_namespace("quota-budget", |_, kube| {
        set_quota(
            kube,
            &json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Hold"}}),
        )?;
        kube.apply(&(template("one", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("held", "client", &HOLD, "one")))?;
        wait_for_event(
            kube,
            "held",
            "BudgetSpent",
            &["0 of 0 GPU hours used, and spec.budget.whenSpent is Hold"],
        )?;
        wait_label(kube, "quota-budget", Some("Held"))?;
        let waiting = kube.get(&["pod", "held"])?;
        ensure!(
            waiting["spec"]["priorityClassName"].is_null(),
            "Hold changes no priority: {waiting}"
        );
        set_quota(
            kube,
            &json!({"budget": {"gpuHours": 0, "every": "1d", "whenSpent": "Yield"}}),
        )?;
        // Nobody else waits, so it starts; a new pod comes after those within budget.
        kube.wait_running("held", LIMIT)?;
        wait_label(kube, "quota-budget", Some("OverBudget"))?;
        kube.apply(&pod("low", "client", &HOLD, "one"))?;
        let low = kube.get(&["pod", "low"])?;
        let (class, value) = (&low["spec"]["priorityClassName"], &low["spec"]["priority"]);
        ensure!(class == "vgpu-over-budget" && *value == -1000, "{class} {value}");
        kube.wait_running("low", LIMIT)?;
        let quota = kube.get(&["vgpuquota", "vgpu"])?;
        ensure!(quota["status"]["budget"]["state"] == "Spent", "{quota}");
        // Running pods are charged every 10 s.
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
