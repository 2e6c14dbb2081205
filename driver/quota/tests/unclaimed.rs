//! Shares that a node still holds for claims that are gone: they count, and cost hours, until the node lets go.

mod support;

use serde_json::{Value, json};
use support::{Api, Replica, TEAM, seconds};
use vgpu_quota::{Change, Unclaimed};

/// What node `n` holds without a claim.
fn holds(memory: Option<u64>, count: usize) -> Change {
    let share = |number| Unclaimed {
        namespace: TEAM.into(),
        uid: "gone".into(),
        share: format!("share-{number}"),
        device: "gpu-0".into(),
        memory,
        cores: 0,
    };
    Change::Node {
        name: "n".into(),
        shares: (0..count).map(share).collect(),
    }
}

fn apply(leader: &mut Replica, api: &Api, change: Change) {
    leader.controller.apply(change, api.now);
}

const GI: u64 = 1 << 30;

fn hard(memory: &str) -> Value {
    json!({"hard": {"memory": memory}})
}

#[test]
fn a_pod_waits_for_what_its_namespace_still_holds_without_a_claim() {
    let mut api = Api::new(hard("80Gi"));
    let mut leader = Replica::new(&api);
    apply(&mut leader, &api, holds(Some(30 * GI), 1));
    api.pod(1, Err(60), true);
    leader.settle(&mut api);
    assert!(api.pods["p001"].gated);
    assert_eq!((api.status().used.memory / GI, api.status().used.shares), (30, 1));
    assert!(api.status().reservations.is_empty(), "it is no reservation");
    let said = "memory 30Gi of 80Gi used, 60Gi wanted";
    assert!(
        leader.notices.lines.iter().any(|notice| notice.contains(said)),
        "{:?}",
        leader.notices
    );
    // The next leader sees it too, and opens no gate.
    let mut next = Replica::new(&api);
    apply(&mut next, &api, holds(Some(30 * GI), 1));
    next.settle(&mut api);
    assert!(api.pods["p001"].gated);
    apply(&mut next, &api, holds(None, 0));
    next.settle(&mut api);
    assert!(!api.pods["p001"].gated);
}

/// A new leader opens no gate before it knows of the nodes, unless they cannot be read.
#[test]
fn the_first_decision_waits_for_the_nodes_and_not_for_ever() {
    for are_listed in [true, false] {
        let mut api = Api::new(hard("80Gi"));
        api.pod(1, Err(60), true);
        let mut leader = Replica::new(&api);
        leader.controller = leader.controller.with_nodes(api.now + seconds(10));
        let plan = leader.controller.plan(api.now);
        assert_eq!(plan.wake, Some(api.now + seconds(10)));
        assert!(plan.writes.is_empty());
        if are_listed {
            apply(&mut leader, &api, holds(Some(30 * GI), 1));
            apply(
                &mut leader,
                &api,
                Change::Nodes {
                    names: vec!["n".into()],
                },
            );
        } else {
            api.now += seconds(10);
        }
        leader.settle(&mut api);
        assert_eq!(api.pods["p001"].gated, are_listed);
    }
}

#[test]
fn a_node_that_is_gone_holds_nothing() {
    for gone in [
        Change::NodeGone { name: "n".into() },
        Change::Nodes { names: Vec::new() },
    ] {
        let mut api = Api::new(hard("80Gi"));
        let mut leader = Replica::new(&api);
        apply(&mut leader, &api, holds(Some(30 * GI), 1));
        api.pod(1, Err(60), true);
        leader.settle(&mut api);
        assert!(api.pods["p001"].gated);
        apply(&mut leader, &api, gone);
        leader.settle(&mut api);
        assert!(!api.pods["p001"].gated);
    }
}

#[test]
fn it_costs_hours_from_when_it_is_seen_to_its_end() {
    let mut api = Api::new(json!({"budget": {"gpuHours": "10", "every": "24h", "whenSpent": "Hold"}}));
    let mut leader = Replica::new(&api);
    leader.settle(&mut api);
    apply(&mut leader, &api, holds(Some(40 * GI), 1));
    // The node writes each minute for an hour, and nothing is counted twice. Settling takes some time of its own.
    let mut hour = |count: usize, hundredths: std::ops::Range<f64>| {
        apply(&mut leader, &api, holds(Some(40 * GI), count));
        for _ in 0..60 {
            api.now += seconds(60);
            apply(&mut leader, &api, holds(Some(40 * GI), count));
        }
        leader.settle(&mut api);
        let used: f64 = api.status_value()["budget"]["usedGpuHours"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(hundredths.contains(&(used * 100.0)), "{used}");
    };
    hour(1, 50.0..55.0);
    hour(2, 150.0..160.0);
    hour(0, 150.0..160.0);
}

#[test]
fn what_cannot_be_read_is_a_whole_gpu_and_nothing_is_more_than_one() {
    for (memory, count, used) in [
        (None, 1, 80),
        (Some(20 * GI), 1, 20),
        (Some(20 * GI), 2, 40),
        (Some(u64::MAX), 1, 80),
        (Some(20 * GI), 2000, 80),
        (None, 2000, 80),
    ] {
        let mut api = Api::new(hard("800Gi"));
        let mut leader = Replica::new(&api);
        apply(&mut leader, &api, holds(memory, count));
        leader.settle(&mut api);
        assert_eq!(api.status().used.memory / GI, used, "{memory:?} {count}");
    }
}
