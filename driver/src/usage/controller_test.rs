//! When a namespace's object is written, and its content.

use serde_json::{Value, json};
use vgpu_api::usage::{VgpuNodeStatus, VgpuUsageStatus};

use super::super::plan::{Change, Others, Outcome, Plan, Write};
use super::*;

const GI: u64 = 1 << 30;

fn seconds(seconds: u64) -> Now {
    Now::from_secs(seconds)
}

/// The controller with a clock.
struct Leader {
    controller: UsageController,
    now: Now,
}

impl Leader {
    /// A leader that has listed these objects and knows no node yet.
    fn new(objects: &[(&str, u64)]) -> Self {
        let mut leader = Self {
            controller: UsageController::default(),
            now: seconds(0),
        };
        leader.controller.begin();
        leader.apply(Change::Nodes { names: Vec::new() });
        leader.apply(Change::Others(Others::default()));
        assert_eq!(leader.plan().writes, [Write::List]);
        let objects = objects.iter().map(|(name, digest)| ((*name).to_owned(), *digest));
        leader.report(None, Outcome::Listed(objects.collect()));
        leader
    }

    fn wall(&self) -> Time {
        Time::parse("2026-11-28T00:00:00Z").unwrap().after(self.now)
    }

    fn apply(&mut self, change: Change) {
        let wall = self.wall();
        self.controller.apply(change, self.now, wall);
    }

    /// The node writes, now.
    fn node(&mut self, name: &str, shares: &Value) {
        let status = json!({"asOf": self.wall().to_string(), "shares": shares});
        let status: VgpuNodeStatus = serde_json::from_value(status).unwrap();
        self.apply(Change::Node {
            name: name.into(),
            node: Node::read(&status),
        });
    }

    fn plan(&mut self) -> Plan {
        let wall = self.wall();
        self.controller.plan(self.now, wall)
    }

    fn report(&mut self, namespace: Option<&str>, outcome: Outcome) {
        self.controller.report(namespace, outcome, self.now);
    }

    /// Plans at each wake until this time. All writes succeed; returns each with its time and namespace.
    fn run(&mut self, until: u64) -> Vec<(u64, String, Option<VgpuUsageStatus>)> {
        let mut written = Vec::new();
        while self.now < seconds(until) {
            let plan = self.plan();
            for write in plan.writes {
                let (name, status) = match write {
                    Write::Set { namespace, status } => (namespace, Some(*status)),
                    Write::Delete { namespace } => (namespace, None),
                    Write::List => panic!("a second list"),
                };
                self.report(Some(&name), Outcome::Done);
                written.push((self.now.as_secs(), name, status));
            }
            let wake = plan.wake.unwrap().max(Duration::from_millis(100));
            self.now = (self.now + wake).min(seconds(until));
        }
        written
    }
}

fn share(namespace: &str, claim: &str, gibibytes: u64, used: u64) -> Value {
    json!({"namespace": namespace, "claim": claim, "uid": claim, "device": "gpu-0", "memory": format!("{gibibytes}Gi"),
        "memoryUsed": used.to_string(), "memoryPeak": "2Gi", "memoryMean": "1Gi", "cores": 25, "gpuTimePercent": 10, "processes": 1,
        "refusals": 3, "since": "2026-11-27T00:00:00Z"})
}

#[test]
fn shares_of_all_nodes_are_one_sum_a_namespace() {
    let mut leader = Leader::new(&[]);
    let mut gone = share("team", "gone", 10, GI);
    gone["withoutClaim"] = json!(true);
    leader.node(
        "n1",
        &json!([share("team", "a", 20, GI), gone, share("other", "x", 5, 0)]),
    );
    leader.node("n2", &json!([share("team", "b", 30, 2 * GI)]));
    let budget = BudgetUse {
        gpu_hours: "100".into(),
        used_gpu_hours: "1.5".into(),
        state: "InBudget".into(),
    };
    leader.apply(Change::Others(Others {
        waiting: [("team".to_owned(), 2), ("waits".to_owned(), 1)].into(),
        budgets: [("team".to_owned(), budget.clone())].into(),
    }));
    let written = leader.run(1);
    let names: Vec<&str> = written.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["other", "team", "waits"]);
    let team = written[1].2.as_ref().unwrap();
    assert_eq!(
        (team.shares, team.without_claim, team.use_not_known, team.not_listed),
        (3, 1, 0, 0)
    );
    assert_eq!((team.memory.held.as_str(), team.memory.used.as_str()), ("60Gi", "4Gi"));
    assert_eq!(
        (team.cores_held, team.gpu_time_percent, team.refusals, team.waiting),
        (75, Some(30), 9, 2)
    );
    assert_eq!(team.budget, Some(budget));
    assert_eq!(team.as_of, "2026-11-28T00:00:00Z");
    let claims = team
        .claims
        .iter()
        .map(|claim| (claim.claim.as_str(), claim.node.as_str(), claim.without_claim));
    assert_eq!(
        claims.collect::<Vec<_>>(),
        [("b", "n2", false), ("a", "n1", false), ("gone", "n1", true)]
    );
    let first = &team.claims[0].usage;
    assert_eq!(
        (first.memory.as_str(), first.memory_peak.as_str(), first.since.as_str()),
        ("30Gi", "2Gi", "2026-11-27T00:00:00Z")
    );
    assert_eq!(written[2].2.as_ref().unwrap().waiting, 1);
}

#[test]
fn what_is_held_is_written_soon_and_what_is_used_once_a_minute() {
    let mut leader = Leader::new(&[]);
    // The use changes every second; at 100 s a share is added.
    let mut written = Vec::new();
    for at in 0..180 {
        let mut shares = vec![share("team", "a", 20, at * GI / 100)];
        shares.extend((at >= 100).then(|| share("team", "b", 1, 0)));
        leader.node("n", &json!(shares));
        written.extend(leader.run(at + 1));
    }
    let at: Vec<u64> = written.iter().map(|(at, ..)| *at).collect();
    assert_eq!(at, [0, 60, 100, 160]);
    // The held amounts change every second: written at most every 5 s.
    let mut leader = Leader::new(&[]);
    let mut written = Vec::new();
    for at in 0..20 {
        leader.node("n", &json!([share("team", "a", 20 + at, 0)]));
        written.extend(leader.run(at + 1));
    }
    let at: Vec<u64> = written.iter().map(|(at, ..)| *at).collect();
    assert_eq!(at, [0, 5, 10, 15]);
}

#[test]
fn nothing_is_written_when_only_time_has_passed() {
    let mut leader = Leader::new(&[]);
    let mut written = Vec::new();
    for at in (0..600).step_by(60) {
        leader.node("n", &json!([share("team", "a", 20, GI)]));
        written.extend(leader.run(at + 60));
    }
    assert_eq!(written.len(), 1);
}

#[test]
fn a_namespace_that_has_nothing_any_more_has_no_object_unless_it_has_a_budget() {
    let mut leader = Leader::new(&[]);
    leader.node("n", &json!([share("team", "a", 20, 0), share("rich", "b", 20, 0)]));
    leader.apply(Change::Others(Others {
        budgets: [("rich".to_owned(), BudgetUse::default())].into(),
        ..Others::default()
    }));
    assert_eq!(leader.run(2).len(), 2);
    leader.apply(Change::NodeGone { name: "n".into() });
    let written = leader.run(60);
    assert_eq!(written.len(), 2);
    assert!(
        written
            .iter()
            .any(|(_, name, status)| name == "team" && status.is_none())
    );
    assert!(
        written
            .iter()
            .any(|(_, name, status)| name == "rich" && status.as_ref().is_some_and(|status| status.shares == 0))
    );
    assert!(
        !leader.controller.namespaces.contains_key("team"),
        "nothing of it is kept"
    );
}

#[test]
fn a_new_leader_writes_what_is_other_and_deletes_what_nobody_needs() {
    let mut leader = Leader::new(&[]);
    leader.node("n", &json!([share("same", "a", 20, GI)]));
    let written = leader.run(1);
    let same = digest(written[0].2.as_ref().unwrap());
    let mut next = Leader::new(&[("same", same), ("stale", 1), ("other", 2)]);
    next.node("n", &json!([share("same", "a", 20, GI), share("other", "b", 1, 0)]));
    let mut written = next.run(60);
    written.sort_by(|a, b| a.1.cmp(&b.1));
    let written: Vec<_> = written
        .iter()
        .map(|(_, name, status)| (name.as_str(), status.is_some()))
        .collect();
    assert_eq!(written, [("other", true), ("stale", false)]);
}

#[test]
fn a_term_begins_with_a_list_and_what_it_is_told_of_others() {
    let mut controller = UsageController::default();
    let wall = Time::default();
    let plan = |controller: &mut UsageController, now| controller.plan(seconds(now), wall).writes;
    controller.begin();
    assert_eq!(plan(&mut controller, 0), []);
    controller.apply(Change::Nodes { names: Vec::new() }, seconds(0), wall);
    assert_eq!(plan(&mut controller, 1), [], "nobody said who waits");
    controller.apply(Change::Others(Others::default()), seconds(1), wall);
    assert_eq!(plan(&mut controller, 2), [Write::List]);
    assert_eq!(plan(&mut controller, 3), [], "it is under way");
    controller.report(None, Outcome::Failed, seconds(3));
    assert_eq!(plan(&mut controller, 7), [], "it is tried again after 5 s");
    assert_eq!(plan(&mut controller, 8), [Write::List]);
    controller.report(None, Outcome::Listed(vec![("stale".into(), 1)]), seconds(8));
    assert_eq!(
        plan(&mut controller, 8),
        [Write::Delete {
            namespace: "stale".into()
        }]
    );
    // The lease was lost and won again meanwhile: nothing of the old term is taken for known.
    controller.begin();
    assert_eq!(plan(&mut controller, 9), []);
    controller.apply(Change::Others(Others::default()), seconds(9), wall);
    assert_eq!(plan(&mut controller, 9), [Write::List]);
}

#[test]
fn a_node_that_is_silent_holds_what_it_held_and_nobody_knows_what_it_uses() {
    let mut leader = Leader::new(&[]);
    leader.node("n", &json!([share("team", "a", 20, GI)]));
    let written = leader.run(400);
    let at: Vec<u64> = written.iter().map(|(at, ..)| *at).collect();
    assert!(matches!(at[..], [0, 300..=320]), "{at:?}");
    let silent = written[1].2.as_ref().unwrap();
    assert_eq!((silent.shares, silent.use_not_known), (1, 1));
    assert_eq!((silent.memory.held.as_str(), silent.memory.used.as_str()), ("20Gi", ""));
    let claim = &silent.claims[0];
    assert!(claim.use_not_known && claim.usage.memory_used.is_empty() && claim.usage.gpu_time_percent.is_none());
    leader.node("n", &json!([share("team", "a", 20, GI)]));
    let back = leader.run(500);
    assert_eq!(back[0].2.as_ref().unwrap().use_not_known, 0);
}

#[test]
fn a_namespace_that_is_not_there_is_tried_ever_more_rarely_and_keeps_nobody_waiting() {
    let mut leader = Leader::new(&[]);
    leader.node("n", &json!([share("nowhere", "a", 20, 0), share("team", "b", 20, 0)]));
    let mut tried = Vec::new();
    while leader.now < seconds(290) {
        let plan = leader.plan();
        for write in plan.writes {
            let name = write.namespace().unwrap().to_owned();
            let outcome = if name == "nowhere" {
                Outcome::Failed
            } else {
                Outcome::Done
            };
            leader.report(Some(&name), outcome);
            tried.push((leader.now.as_secs(), name));
        }
        leader.now += plan.wake.unwrap().max(Duration::from_millis(100));
    }
    let of = |wanted: &str| {
        tried
            .iter()
            .filter(|(_, name)| name == wanted)
            .map(|(at, _)| *at)
            .collect::<Vec<u64>>()
    };
    assert_eq!(of("team"), [0]);
    assert!(
        matches!(of("nowhere")[..], [0, 5..=10, 15..=20, 35..=45, 75..=90, 155..=175]),
        "{:?}",
        of("nowhere")
    );
}

#[test]
fn few_writes_are_under_way_at_once_and_known_namespaces_come_first() {
    let mut leader = Leader::new(&[("known", 1)]);
    let shares: Vec<Value> = (0..50).map(|i| share(&format!("a{i}"), "c", 1, 0)).collect();
    leader.node("n", &json!([shares, vec![share("known", "c", 1, 0)]].concat()));
    let first = leader.plan().writes;
    assert_eq!(first.len(), WRITES);
    assert_eq!(first[0].namespace(), Some("known"));
    assert_eq!(leader.plan().writes, []);
    for write in &first {
        leader.report(write.namespace(), Outcome::Done);
    }
    assert_eq!(leader.plan().writes.len(), WRITES);
}

#[test]
fn what_a_hostile_node_says_ends_nothing_and_is_bounded() {
    let mut leader = Leader::new(&[]);
    let mut hostile: Vec<Value> = vec![
        share("../../default/pods", "a", 1, 0),
        share("", "a", 1, 0),
        json!({"namespace": "team", "claim": "\u{1b}[31m", "device": "../x", "memory": "-5", "memoryUsed": "lots", "cores": u32::MAX,
            "gpuTimePercent": u32::MAX, "refusals": u64::MAX, "since": "yesterday"}),
        json!({"namespace": "team", "memory": "7E", "memoryUsed": "7E", "cores": u32::MAX, "gpuTimePercent": u32::MAX,
            "refusals": u64::MAX}),
        json!({"namespace": "team", "memory": "7E", "memoryUsed": "7E"}),
        json!({"namespace": "team", "memory": "7E", "memoryUsed": "7E"}),
    ];
    hostile.extend((0..100_000).map(|_| share("many", "c", 1, 0)));
    leader.node("n", &json!(hostile));
    let written = leader.run(1);
    let names: Vec<&str> = written.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["many", "team"]);
    let many = written[0].2.as_ref().unwrap();
    assert!(many.shares as usize <= super::super::share::MOST_SHARES);
    assert_eq!(
        (many.claims.len(), many.claims.len() + many.not_listed as usize),
        (200, many.shares as usize)
    );
    let team = written[1].2.as_ref().unwrap();
    assert_eq!(
        (team.cores_held, team.gpu_time_percent, team.refusals),
        (u32::MAX, Some(u32::MAX), u64::MAX)
    );
    assert_eq!((team.shares, team.use_not_known), (4, 1));
    assert_eq!(
        (team.claims[3].claim.as_str(), team.claims[3].usage.memory.as_str()),
        ("", "")
    );
}

/// The bound: 20 MiB for 1,000 nodes with 8 GPUs and 7 shares on each.
#[test]
fn a_large_cluster_takes_a_part_of_twenty_mebibytes() {
    let name = "a-pod-of-a-training-job-with-a-long-name-gpu-x7k2p";
    let shares: Vec<Value> = (0..56)
        .map(|i| {
            let mut share = share(&format!("team-{}", i % 10), name, 10, GI);
            share["device"] = json!(format!("gpu-{:08x}", i / 7));
            share
        })
        .collect();
    let status: VgpuNodeStatus = serde_json::from_value(json!({"asOf": "", "shares": shares})).unwrap();
    let node = Node::read(&status);
    // Each allocation may take 16 bytes more; names of namespaces and devices are there once a node.
    let of_share = size_of_val(&node.shares[0]) + name.len() + 16;
    let of_node = 56 * of_share + 18 * 64 + size_of::<Known>() + 10 * 64 + 256;
    assert!(1000 * of_node < 16 << 20, "{of_share} bytes a share, {of_node} a node");
}
