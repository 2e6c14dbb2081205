//! Random nodes, with pods in and over budget: the pods that are evicted for a waiting pod are always over budget, on
//! one node, and as few as possible; the pod then fits; and neither a PodDisruptionBudget nor a new leader increases
//! their number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vgpu_api::PodRef;
use vgpu_planner::{Change as OfState, Time};
use vgpu_quota::{Change, Now, Outcome, QuotaController, Steady, Task, Write};

mod support;

use support::{end_of_claims, ends};

const START: Time = Time::from_millis(1_795_309_200_000);
const GPU: u64 = 80;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn seconds(seconds: u64) -> Now {
    Duration::from_secs(seconds)
}

/// The namespaces of the pods; each name says the state of its budget.
const TEAMS: [&str; 3] = ["spent", "rich", "free"];

#[derive(Debug, Clone)]
struct PodState {
    namespace: &'static str,
    claim: String,
    node: Option<usize>,
    is_low: bool,
    created: u64,
    deleted_by: Option<Time>,
    is_gone: bool,
}

#[derive(Debug, Clone)]
struct ClaimState {
    namespace: &'static str,
    memory: u64,
    cores: u64,
    /// Node and GPU.
    at: Option<(usize, usize)>,
    /// It selects the GPUs of this node.
    only: Option<usize>,
}

/// The API server's state.
#[derive(Debug, Clone, Default)]
struct Cluster {
    gpus: Vec<usize>,
    pods: BTreeMap<String, PodState>,
    claims: BTreeMap<String, ClaimState>,
    /// Pods whose eviction is refused.
    protected: BTreeSet<String>,
    now: Now,
    /// How long pods take to end.
    grace: u64,
    evicted: Vec<String>,
}

impl Cluster {
    fn free(&self, gone: &BTreeSet<String>) -> BTreeMap<(usize, usize), (u64, u64)> {
        let all = self.gpus.iter().enumerate();
        let mut free: BTreeMap<_, _> = all
            .flat_map(|(node, gpus)| (0..*gpus).map(move |gpu| ((node, gpu), (GPU, 100))))
            .collect();
        for (name, claim) in &self.claims {
            let mut holders = self.pods.iter().filter(|(_, pod)| pod.claim == *name && !pod.is_gone);
            let is_held = holders.any(|(pod, _)| !gone.contains(pod));
            if let Some(at) = claim.at.filter(|_| is_held) {
                let free = free.get_mut(&at).unwrap();
                free.0 -= claim.memory;
                free.1 -= claim.cores;
            }
        }
        free
    }

    fn fits(&self, claim: &str, gone: &BTreeSet<String>) -> bool {
        let wanted = &self.claims[claim];
        let is_selected = |node| wanted.only.is_none_or(|only| only == node);
        let mut free = self.free(gone).into_iter();
        free.any(|((node, _), (memory, cores))| is_selected(node) && memory >= wanted.memory && cores >= wanted.cores)
    }

    /// Returns true if the pod is bound, its namespace is over budget, and its gate was opened while over budget.
    fn may_go(&self, pod: &str) -> bool {
        let pod = &self.pods[pod];
        pod.namespace == "spent" && pod.is_low && pod.node.is_some()
    }

    /// The fewest that have to go, by trying all sets of each node.
    fn fewest(&self, claim: &str) -> Option<usize> {
        let of_node = |node: usize| {
            let pods = self.pods.iter().filter(move |(_, pod)| pod.node == Some(node));
            let pods = pods.map(|(name, _)| name.clone());
            pods.filter(|name| self.may_go(name) && !self.protected.contains(name))
                .collect::<Vec<_>>()
        };
        let sizes = (0..self.gpus.len()).filter_map(|node| {
            let pods = of_node(node);
            let sets = (0u32..1 << pods.len()).filter(|set| {
                let gone = pods.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0);
                self.fits(claim, &gone.map(|(_, name)| name.clone()).collect())
            });
            sets.map(u32::count_ones).min()
        });
        sizes.min().map(|size| size as usize)
    }

    fn pod(&self, name: &str) -> Change {
        let pod = &self.pods[name];
        let mut value = json!({"metadata": {"name": name, "namespace": pod.namespace, "uid": name,
                "creationTimestamp": Time::from_millis(START.millis() - 1_000_000 + i64::try_from(pod.created).unwrap() * 1000).text()},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": pod.claim}]}});
        match pod.node {
            Some(node) => value["spec"]["nodeName"] = json!(format!("n{node}")),
            None => {
                value["status"] = json!({"conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
            }
        }
        if pod.is_low {
            value["metadata"]["annotations"] = json!({"dra.vgpu/opened-over-budget": "true"});
        }
        if let Some(by) = pod.deleted_by {
            value["metadata"]["deletionTimestamp"] = json!(by.text());
        }
        Change::Cluster(OfState::Pod(read(value)))
    }

    fn claim(&self, name: &str) -> Change {
        let claim = &self.claims[name];
        let capacity = json!({"memory": format!("{}Gi", claim.memory), "cores": claim.cores.to_string()});
        let selectors = claim
            .only
            .map(|node| format!("device.attributes['dra.vgpu'].node == 'n{node}'"));
        let selectors: Vec<Value> = selectors
            .map(|cel| json!({"cel": {"expression": cel}}))
            .into_iter()
            .collect();
        let mut value = json!({"metadata": {"name": name, "namespace": claim.namespace, "uid": format!("uid-{name}")},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                "selectors": selectors, "capacity": {"requests": capacity}}}]}}});
        if let Some((node, gpu)) = claim.at {
            let result = json!({"driver": "dra.vgpu", "pool": format!("n{node}"), "device": format!("gpu-{gpu}"),
                "shareID": name, "consumedCapacity": capacity});
            value["status"] = json!({"allocation": {"devices": {"results": [result]},
                "allocationTimestamp": Time::from_millis(START.millis() - 500_000).text()}});
        }
        Change::Cluster(OfState::Claim(read(value)))
    }

    /// A leader that has listed the current state.
    fn leader(&self) -> QuotaController {
        let now = self.now;
        let mut controller = QuotaController::new("term", Steady::new(now, START.after(now)));
        let class = json!({"metadata": {"name": "vgpu"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == \"dra.vgpu\""}}]}});
        controller.apply(Change::Cluster(OfState::Class(read(class))), now);
        for (node, gpus) in self.gpus.iter().enumerate() {
            let gpu = |gpu: usize| {
                json!({"name": format!("gpu-{gpu}"), "allowMultipleAllocations": true,
                    "attributes": {"type": {"string": "gpu"}, "node": {"string": format!("n{node}")}},
                    "capacity": {"memory": {"value": format!("{GPU}Gi")}, "cores": {"value": "100"}}})
            };
            let name = format!("n{node}");
            let slice = json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": name,
                "pool": {"name": name, "resourceSliceCount": 1}, "devices": (0..*gpus).map(gpu).collect::<Vec<_>>()}});
            controller.apply(
                Change::Cluster(OfState::Slice {
                    slice: read(slice),
                    read: None,
                }),
                now,
            );
        }
        let names = (0..self.gpus.len()).map(|node| format!("n{node}")).collect();
        for end in ends(vec!["vgpu".into()], names) {
            controller.apply(end, now);
        }
        controller.apply(Change::ResourceQuotas { names: vec![] }, now);
        controller.apply(Change::Namespaces { uids: vec![] }, now);
        controller.apply(Change::Defaults { names: vec![] }, now);
        for (namespace, hours) in [("spent", 0), ("rich", 100)] {
            let quota = json!({"metadata": {"name": "vgpu", "namespace": namespace, "uid": namespace,
                    "resourceVersion": "1", "generation": 1, "creationTimestamp": START.text()},
                "spec": {"budget": {"gpuHours": hours, "every": "24h"}}});
            controller.apply(Change::Quota(Box::new(read(quota))), now);
        }
        let uids = vec!["spent".into(), "rich".into()];
        controller.apply(Change::Quotas { uids }, now);
        for name in self.claims.keys() {
            controller.apply(self.claim(name), now);
        }
        let claims = self.claims.iter();
        let keys = claims
            .map(|(name, claim)| format!("{}/{name}", claim.namespace))
            .collect();
        controller.apply(end_of_claims(keys), now);
        for (name, _) in self.pods.iter().filter(|(_, pod)| !pod.is_gone) {
            controller.apply(self.pod(name), now);
        }
        let there = self.pods.iter().filter(|(_, pod)| !pod.is_gone);
        let keys = there.map(|(name, pod)| format!("{}/{name}", pod.namespace)).collect();
        controller.apply(Change::Cluster(OfState::Pods { keys }), now);
        controller
    }

    /// Evicts like the writer: with dry runs for all first.
    fn evict(&mut self, victims: &[PodRef]) -> Outcome {
        let is_kept = |pod: &&PodRef| self.protected.contains(&pod.name);
        let kept: Vec<_> = victims.iter().filter(is_kept).collect();
        if !kept.is_empty() {
            let kept = kept.into_iter().map(|pod| (pod.clone(), "budget".to_owned()));
            return Outcome::Evicted {
                gone: vec![],
                kept: kept.collect(),
            };
        }
        for victim in victims {
            self.evicted.push(victim.name.clone());
            let by = START.after(self.now + seconds(self.grace));
            self.pods.get_mut(&victim.name).unwrap().deleted_by = Some(by);
        }
        Outcome::Evicted {
            gone: victims.to_vec(),
            kept: vec![],
        }
    }
}

/// In order: team, node, GPU, memory, cores, is it low, is it protected, does it share the claim of the pod before it.
type Running = (usize, usize, usize, u64, u64, bool, bool, bool);

#[derive(Debug, Clone)]
struct Plan {
    gpus: Vec<usize>,
    pods: Vec<Running>,
    wanted: (u64, u64),
    /// The claim selects the GPUs of this node.
    only: Option<usize>,
    /// The second at which a new leader takes over.
    restart: Option<u64>,
    /// For how long the watches do not show an eviction.
    lag: u64,
    grace: u64,
    is_heard: bool,
}

fn plans() -> impl Strategy<Value = Plan> {
    let pod = (
        prop::sample::select(vec![0usize, 0, 0, 1, 2]),
        0usize..3,
        0usize..2,
        prop::sample::select(vec![10u64, 20, 30, 40, 80]),
        prop::sample::select(vec![0u64, 10, 50]),
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.2),
    );
    (
        prop::collection::vec(1usize..3, 1..4),
        prop::collection::vec(pod, 0..12),
        (
            prop::sample::select(vec![20u64, 40, 60, 80]),
            prop::sample::select(vec![0u64, 60]),
        ),
        prop::option::of(0usize..3),
        prop::option::of(1u64..100),
        0u64..20,
        prop::sample::select(vec![2u64, 30, 150]),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(gpus, pods, wanted, only, restart, lag, grace, is_heard)| Plan {
            only: only.map(|node| node % gpus.len()),
            gpus,
            pods,
            wanted,
            restart,
            lag,
            grace,
            is_heard,
        })
}

fn build(plan: &Plan) -> Cluster {
    let mut cluster = Cluster {
        gpus: plan.gpus.clone(),
        grace: plan.grace,
        ..Cluster::default()
    };
    let mut before: Option<(String, usize, usize)> = None;
    for (number, (team, node, gpu, memory, cores, is_low, is_protected, is_shared)) in plan.pods.iter().enumerate() {
        let name = format!("p{number:02}");
        let node = node % plan.gpus.len();
        let gpu = gpu % plan.gpus[node];
        let with = before.clone().filter(|(_, of, _)| *is_shared && of == team);
        let (claim, node) = match with {
            Some((claim, _, node)) => (claim, node),
            None => {
                let (free, time) = cluster.free(&BTreeSet::new())[&(node, gpu)];
                if free < *memory || time < *cores {
                    continue;
                }
                let claim = format!("{name}-gpu");
                let state = ClaimState {
                    namespace: TEAMS[*team],
                    memory: *memory,
                    cores: *cores,
                    at: Some((node, gpu)),
                    only: None,
                };
                cluster.claims.insert(claim.clone(), state);
                (claim, node)
            }
        };
        before = Some((claim.clone(), *team, node));
        if *is_protected {
            cluster.protected.insert(name.clone());
        }
        let state = PodState {
            namespace: TEAMS[*team],
            claim,
            node: Some(node),
            is_low: *is_low,
            created: number as u64,
            deleted_by: None,
            is_gone: false,
        };
        cluster.pods.insert(name, state);
    }
    let waiting = ClaimState {
        namespace: "rich",
        memory: plan.wanted.0,
        cores: plan.wanted.1,
        at: None,
        only: plan.only,
    };
    cluster.claims.insert("waits-gpu".into(), waiting);
    let waiting = PodState {
        namespace: "rich",
        claim: "waits-gpu".into(),
        node: None,
        is_low: false,
        created: 99,
        deleted_by: None,
        is_gone: false,
    };
    cluster.pods.insert("waits".into(), waiting);
    cluster
}

/// Runs for ten minutes, in which the pod is not bound. Returns the seconds at which somebody was evicted.
fn run(plan: &Plan, cluster: &mut Cluster) -> Vec<u64> {
    let mut leader = cluster.leader();
    let mut shown: Vec<(u64, String)> = Vec::new();
    let mut at = Vec::new();
    for second in 0..600 {
        cluster.now = seconds(second);
        if plan.restart == Some(second) {
            leader = cluster.leader();
            shown.clear();
        }
        for (_, name) in shown.extract_if(.., |(due, _)| *due <= second) {
            leader.apply(cluster.pod(&name), cluster.now);
        }
        let late = |pod: &PodState| pod.deleted_by.is_some_and(|by| by < START.after(seconds(second)));
        let names: Vec<String> = cluster
            .pods
            .iter()
            .filter(|(_, pod)| late(pod) && !pod.is_gone)
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let pod = cluster.pods.get_mut(&name).unwrap();
            pod.is_gone = true;
            let (key, claim) = (format!("{}/{name}", pod.namespace), pod.claim.clone());
            leader.apply(Change::Cluster(OfState::PodGone { key }), cluster.now);
            if !cluster.pods.values().any(|pod| pod.claim == claim && !pod.is_gone) {
                cluster.claims.get_mut(&claim).unwrap().at = None;
                leader.apply(cluster.claim(&claim), cluster.now);
            }
        }
        for write in leader.plan(cluster.now).writes {
            let outcome = match &write {
                Write::Evict { waiting, victims } => {
                    assert_eq!(waiting.name, "waits");
                    let outcome = cluster.evict(victims);
                    if matches!(&outcome, Outcome::Evicted { gone, .. } if !gone.is_empty()) {
                        at.push(second);
                        shown.extend(victims.iter().map(|victim| (second + plan.lag, victim.name.clone())));
                    }
                    if plan.is_heard { outcome } else { Outcome::Again }
                }
                _ => Outcome::Again,
            };
            leader.report(&write.task(), outcome, cluster.now);
        }
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn those_over_budget_go_and_as_few_as_can_be(plan in plans()) {
        let mut cluster = build(&plan);
        let fewest = cluster.fewest("waits-gpu");
        let before = cluster.clone();
        let at = run(&plan, &mut cluster);
        let gone: BTreeSet<String> = cluster.evicted.iter().cloned().collect();
        prop_assert_eq!(gone.len(), cluster.evicted.len(), "nobody twice");
        prop_assert!(at.iter().all(|second| *second >= 60), "evicted at {:?}", at);
        for victim in &gone {
            prop_assert!(before.may_go(victim), "{} is not over budget", victim);
            prop_assert!(!before.protected.contains(victim), "{} is protected", victim);
        }
        let nodes: BTreeSet<_> = gone.iter().map(|victim| before.pods[victim].node).collect();
        prop_assert!(nodes.len() <= 1, "on {:?}", nodes);
        // If a PodDisruptionBudget refuses and all answers are lost, the leader does not learn of the refusal, and
        // possibly nobody is evicted.
        if plan.is_heard || before.protected.is_empty() {
            prop_assert_eq!(gone.len(), fewest.unwrap_or(0));
        }
        prop_assert!(gone.is_empty() || before.fits("waits-gpu", &gone));
    }
}

fn waiting_for_two() -> Plan {
    let pod = |memory, is_protected| (0, 0, 0, memory, 0, true, is_protected, false);
    Plan {
        gpus: vec![1],
        pods: vec![pod(30, false), pod(20, false), pod(20, false), pod(10, false)],
        wanted: (40, 0),
        only: None,
        restart: None,
        lag: 0,
        grace: 30,
        is_heard: true,
    }
}

fn notices(controller: &mut QuotaController, now: Now) -> Vec<String> {
    let plan = controller.plan(now);
    let lines = plan.notices.iter();
    lines
        .map(|(subject, notice)| format!("{} {}: {notice}", subject.name, notice.reason()))
        .collect()
}

/// The first evictions of a leader, after 60 s.
fn first(cluster: &mut Cluster) -> (QuotaController, Option<(Task, Vec<PodRef>)>) {
    let mut controller = cluster.leader();
    let mut found = None;
    for second in [0, 61] {
        cluster.now = seconds(second);
        for write in controller.plan(cluster.now).writes {
            match &write {
                Write::Evict { victims, .. } => found = Some((write.task(), victims.clone())),
                _ => controller.report(&write.task(), Outcome::Again, cluster.now),
            }
        }
    }
    (controller, found)
}

#[test]
fn both_are_told() {
    let mut cluster = build(&waiting_for_two());
    let (mut controller, found) = first(&mut cluster);
    let (task, victims) = found.unwrap();
    assert_eq!(victims.len(), 2, "{victims:?}");
    let outcome = Outcome::Evicted {
        gone: victims,
        kept: vec![],
    };
    controller.report(&task, outcome, cluster.now);
    let said = notices(&mut controller, cluster.now);
    let of = |words: &str| said.iter().filter(|line| line.contains(words)).count();
    assert_eq!(
        of("EvictedOverBudget: evicted from node n0: the GPU hours of its namespace are spent until 20"),
        2,
        "{said:#?}"
    );
    assert_eq!(
        of("waits RoomMade: to make room for it, pods over budget are evicted from node n0: 2"),
        1,
        "{said:#?}"
    );
}

#[test]
fn a_refusal_is_told_and_others_are_chosen() {
    let mut plan = waiting_for_two();
    plan.pods[0].6 = true;
    let mut cluster = build(&plan);
    let (mut controller, found) = first(&mut cluster);
    let (task, victims) = found.unwrap();
    let outcome = cluster.evict(&victims);
    assert!(cluster.evicted.is_empty(), "a dry run was refused");
    controller.report(&task, outcome, cluster.now);
    let said = notices(&mut controller, cluster.now);
    assert!(
        said.iter()
            .any(|line| line.starts_with("waits NoEviction: pods over budget hold what it waits for")),
        "{said:#?}"
    );
    cluster.now = seconds(63);
    let writes = controller.plan(cluster.now).writes;
    let next = writes.iter().find_map(|write| match write {
        Write::Evict { victims, .. } => Some(victims.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>()),
        _ => None,
    });
    // Without the protected pod (30 GiB), two pods of 20 GiB are needed.
    assert_eq!(
        next.map(|mut names| {
            names.sort_unstable();
            names
        }),
        Some(vec!["p01", "p02"])
    );
}

#[test]
fn who_was_evicted_for_one_is_not_counted_on_for_another() {
    let mut cluster = build(&waiting_for_two());
    let (mut controller, found) = first(&mut cluster);
    let (task, gone) = found.unwrap();
    // Another pod begins to wait, and has waited long enough before the watch shows the eviction of the first two.
    let claim = cluster.claims["waits-gpu"].clone();
    let pod = PodState {
        claim: "late-gpu".into(),
        ..cluster.pods["waits"].clone()
    };
    cluster.claims.insert("late-gpu".into(), claim);
    cluster.pods.insert("late".into(), pod);
    controller.apply(cluster.claim("late-gpu"), cluster.now);
    controller.apply(cluster.pod("late"), cluster.now);
    drop(controller.plan(seconds(63)));
    cluster.now = seconds(120);
    controller.report(
        &task,
        Outcome::Evicted {
            gone: gone.clone(),
            kept: vec![],
        },
        cluster.now,
    );
    let writes = controller.plan(seconds(124)).writes;
    let next = writes.iter().find_map(|write| match write {
        Write::Evict { waiting, victims } => Some((waiting.name.as_str(), victims.clone())),
        _ => None,
    });
    let (waiting, others) = next.unwrap();
    assert_eq!((waiting, others.len()), ("late", 2));
    assert!(
        !others.iter().any(|pod| gone.contains(pod)),
        "{others:?} after {gone:?}"
    );
}

#[test]
fn nobody_goes_for_a_pod_without_a_quota_or_of_which_too_little_is_known() {
    for (namespace, class, says) in [
        ("free", "vgpu", None),
        ("rich", "none", Some("NoEviction: no pod over budget is evicted for it")),
    ] {
        let mut cluster = build(&waiting_for_two());
        cluster.pods.get_mut("waits").unwrap().namespace = namespace;
        cluster.claims.get_mut("waits-gpu").unwrap().namespace = namespace;
        let mut controller = cluster.leader();
        let claim = json!({"metadata": {"name": "waits-gpu", "namespace": namespace, "uid": "uid-waits-gpu"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                "capacity": {"requests": {"memory": "40Gi"}}}}, {"name": "other", "exactly": {"deviceClassName": class}}]}}});
        controller.apply(Change::Cluster(OfState::Claim(read(claim))), cluster.now);
        let mut said = Vec::new();
        for second in [0, 61, 63] {
            let plan = controller.plan(seconds(second));
            assert!(
                !plan.writes.iter().any(|write| matches!(write, Write::Evict { .. })),
                "{namespace}"
            );
            said.extend(
                plan.notices
                    .iter()
                    .map(|(_, notice)| format!("{}: {notice}", notice.reason())),
            );
        }
        assert_eq!(
            said.iter().any(|line| says.is_some_and(|says| line.starts_with(says))),
            says.is_some(),
            "{said:?}"
        );
    }
}
