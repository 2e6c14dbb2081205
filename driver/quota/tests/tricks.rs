//! Claims and pods made to get around a quota, and many that are made to stop the leader.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vgpu_planner::model::Version;
use vgpu_planner::{Change as Cluster, Last};
use vgpu_quota::{Change, Status, Write};

mod support;

use support::{Api, Replica, TEAM, seconds};

const GI: u64 = 1 << 30;

fn hard(gibibytes: u64) -> Api {
    Api::new(json!({"hard": {"memory": format!("{gibibytes}Gi")}}))
}

fn claim(value: Value) -> Change {
    Change::Cluster(Cluster::Claim(serde_json::from_value(value).unwrap()))
}

fn pod(value: Value) -> Change {
    Change::Cluster(Cluster::Pod(serde_json::from_value(value).unwrap()))
}

/// A claim that says it was made for a pod's extended resources.
fn extended(name: &str, memory: &str, owner: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": TEAM, "uid": format!("uid-{name}"),
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"kind": "Pod", "name": "owner", "uid": owner}]},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": memory}}}}]}}})
}

fn waiting(name: &str, claims: &[&str]) -> Value {
    let claims: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "resourceClaimName": claim}))
        .collect();
    json!({"metadata": {"name": name, "namespace": TEAM, "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-11-24T00:00:0{}Z", name.len())},
        "spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}], "resourceClaims": claims}})
}

/// Sends the writes of a plan. Returns the status among them, and the pods whose gates were opened.
fn plan(leader: &mut Replica, api: &mut Api) -> (Option<Status>, Vec<String>) {
    let (mut status, mut opened) = (None, Vec::new());
    for write in leader.controller.plan(api.now).writes {
        match &write {
            Write::Status { status: written, .. } => status = Some(*written.clone()),
            Write::Ungate { pod, .. } => opened.push(pod.name.clone()),
            _ => {}
        }
        let outcome = api.send(&write);
        leader.controller.report(&write.task(), outcome, api.now);
    }
    (status, opened)
}

#[test]
fn claims_that_say_they_are_a_pods_extended_one_count_each_by_itself() {
    let mut api = hard(80);
    let mut leader = Replica::new(&api);
    for number in 1..=3 {
        let name = "c".repeat(number);
        leader
            .controller
            .apply(claim(extended(&name, "80Gi", "some-pod")), api.now);
        leader
            .controller
            .apply(pod(waiting(&"p".repeat(number), &[&name])), api.now);
    }
    let (status, opened) = plan(&mut leader, &mut api);
    assert_eq!((status.unwrap().used.memory / GI, opened.len()), (80, 0));
    let (_, opened) = plan(&mut leader, &mut api);
    assert_eq!(opened, ["p"], "there is room for one");
}

#[test]
fn a_pod_that_needs_none_of_our_gpus_waits_for_no_write() {
    let mut api = hard(80);
    api.set_status(json!({"epoch": "of another leader"}));
    let mut leader = Replica::new(&api);
    leader.controller.apply(pod(waiting("p", &[])), api.now);
    let (_, opened) = plan(&mut leader, &mut api);
    assert_eq!(opened, ["p"]);
}

#[test]
fn two_such_claims_of_one_pod_both_count() {
    let mut api = hard(80);
    let mut leader = Replica::new(&api);
    leader
        .controller
        .apply(claim(extended("big", "80Gi", "uid-p")), api.now);
    leader
        .controller
        .apply(claim(extended("small", "64Mi", "uid-p")), api.now);
    leader.controller.apply(pod(waiting("p", &["big", "small"])), api.now);
    let (status, opened) = plan(&mut leader, &mut api);
    assert_eq!(
        (status.map(|status| status.used.memory), opened.len()),
        (Some(0), 0),
        "80Gi and 64Mi are more than 80Gi"
    );
}

#[test]
fn what_was_made_for_extended_resources_has_its_pods_reservation_until_it_ends() {
    let mut api = hard(80);
    let mut leader = Replica::new(&api);
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == \"dra.vgpu\""}}]}});
    leader.controller.apply(
        Change::Cluster(Cluster::Class(serde_json::from_value(class).unwrap())),
        api.now,
    );
    let mut value = waiting("p", &[]);
    value["spec"]["containers"] = json!([{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    leader.controller.apply(pod(value.clone()), api.now);
    let (status, _) = plan(&mut leader, &mut api);
    let reserved = |status: &Status| -> BTreeMap<String, u64> {
        let all = status.reservations.iter();
        all.map(|(key, amount)| (key.clone(), amount.memory / GI)).collect()
    };
    assert_eq!(reserved(&status.unwrap()), [("pod-uid-p".to_owned(), 80)].into());
    let (_, opened) = plan(&mut leader, &mut api);
    assert_eq!(opened, ["p"]);
    // kube-scheduler makes the claim, and names it in the pod's status.
    let mut made = extended("made", "80Gi", "uid-p");
    made["status"] = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "n/vgpu",
        "device": "gpu-0", "consumedCapacity": {"memory": "80Gi", "cores": "0"}}]}}});
    value["spec"]["schedulingGates"] = json!([]);
    value["spec"]["nodeName"] = json!("n");
    value["status"] = json!({"extendedResourceClaimStatus": {"resourceClaimName": "made"}});
    leader.controller.apply(pod(value), api.now);
    leader.controller.apply(claim(made), api.now);
    plan(&mut leader, &mut api);
    let status = api.status();
    assert_eq!((status.used.memory / GI, reserved(&status).len()), (80, 1), "once");
    // Both are deleted, the pod first: its reservation is released at once.
    let key = format!("{TEAM}/p");
    leader
        .controller
        .apply(Change::Cluster(Cluster::PodGone { key }), api.now);
    let (key, version) = (format!("{TEAM}/made"), Version::default());
    leader
        .controller
        .apply(Change::Cluster(Cluster::ClaimGone { key, version }), api.now);
    plan(&mut leader, &mut api);
    assert_eq!(api.status().used.memory, 0);
}

#[test]
fn a_pod_behind_another_scheduler_gate_waits_for_no_gpu() {
    let mut api = Api::new(json!({"budget": {"gpuHours": "0", "every": "24h", "whenSpent": "Yield"}}));
    api.pod(1, Err(20), true);
    let mut leader = Replica::new(&api);
    let mut other = waiting("q", &["c"]);
    other["metadata"]["namespace"] = json!("rich");
    other["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
    let mut wanted = extended("c", "20Gi", "none");
    wanted["metadata"]["namespace"] = json!("rich");
    leader.controller.apply(claim(wanted), api.now);
    leader.controller.apply(pod(other.clone()), api.now);
    leader.settle(&mut api);
    assert!(!api.pods["p001"].gated, "nobody in budget waits for a GPU");
    other["spec"]["schedulingGates"] = json!([]);
    leader.controller.apply(pod(other), api.now);
    api.pod(2, Err(20), true);
    api.now += seconds(1);
    leader.settle(&mut api);
    assert!(api.pods["p002"].gated, "now one does");
}

/// A pod over budget waits, and so do this many pods in budget that are hard to place.
fn with_hard_pods(count: usize) -> (Api, Replica) {
    let mut api = Api::new(json!({"budget": {"gpuHours": "0", "every": "24h", "whenSpent": "Yield"}}));
    api.pod(1, Err(20), true);
    let mut leader = Replica::new(&api);
    // Eight GPUs of 80 sizes each on ten nodes, so that no two are alike.
    for node in 0..10 {
        let gpus: Vec<Value> = (0..8)
            .map(|gpu| {
                json!({"name": format!("gpu-{gpu}"), "attributes": {"type": {"string": "gpu"}},
                    "allowMultipleAllocations": true, "capacity": {"memory": {"value": format!("{}Mi", 80_000 + node * 8 + gpu)}}})
            })
            .collect();
        let slice = json!({"metadata": {"name": format!("s{node}")}, "spec": {"driver": "dra.vgpu",
            "nodeName": format!("n{node}"), "pool": {"name": format!("n{node}"), "resourceSliceCount": 1}, "devices": gpus}});
        leader.controller.apply(
            Change::Cluster(Cluster::Slice {
                slice: serde_json::from_value(slice).unwrap(),
                read: None,
            }),
            api.now,
        );
    }
    // Requests of 32 different sizes that only just do not fit.
    for number in 0..count {
        let name = format!("hard-{number}");
        let request = |size: usize| {
            json!({"name": format!("r{size}"), "exactly": {"deviceClassName": "vgpu",
                "capacity": {"requests": {"memory": format!("{}Mi", 20_000 + number * 40 + size)}}}})
        };
        let requests: Vec<Value> = (0..32).map(request).collect();
        let wanted = json!({"metadata": {"name": name, "namespace": "rich", "uid": name},
            "spec": {"devices": {"requests": requests}}});
        leader.controller.apply(claim(wanted), api.now);
        let waits = json!({"metadata": {"name": name, "namespace": "rich", "uid": format!("pod-of-{name}")},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}});
        leader.controller.apply(pod(waits), api.now);
    }
    (api, leader)
}

#[test]
fn one_pod_that_is_hard_to_place_keeps_no_gate_shut() {
    let (mut api, mut leader) = with_hard_pods(1);
    leader.settle(&mut api);
    assert!(!api.pods["p001"].gated);
}

#[test]
fn pods_that_are_hard_to_place_do_not_stop_the_leader() {
    let (mut api, mut leader) = with_hard_pods(60);
    for _ in 0..20 {
        leader.turn(&mut api, 9, 9);
        leader.catch_up(&api);
    }
    assert!(api.pods["p001"].gated, "it is not known, so the pods over budget wait");
    // The pods are deleted while the search is not repeated.
    for number in 0..60 {
        let key = format!("rich/hard-{number}");
        leader
            .controller
            .apply(Change::Cluster(Cluster::PodGone { key }), api.now);
    }
    leader.turn(&mut api, 9, 9);
    api.now += seconds(11);
    for _ in 0..4 {
        leader.turn(&mut api, 9, 9);
        leader.catch_up(&api);
    }
    assert!(!api.pods["p001"].gated, "then it is asked again, and nobody waits");
}

#[test]
fn who_waits_behind_many_is_told_once_and_found_again() {
    let mut api = hard(80);
    for number in 1..=6 {
        api.pod(number, Err(80), true);
    }
    let mut leader = Replica::new(&api);
    for name in ["p001", "p002", "p003"] {
        leader.settle(&mut api);
        api.bind(name);
        leader.settle(&mut api);
        api.end(name);
    }
    leader.settle(&mut api);
    let said = &leader.notices.lines;
    assert_eq!(
        said.iter().filter(|text| text.starts_with("p006 ")).count(),
        1,
        "{said:#?}"
    );
    let plan = leader.controller.plan(api.now);
    assert!(plan.notices.is_empty() && plan.wake.is_some_and(|wake| wake <= api.now + seconds(300)));
    let found = leader.controller.plan(api.now + seconds(300)).notices;
    assert!(
        found.iter().any(|(subject, _)| subject.name == "p006"),
        "its event is gone after an hour"
    );
}

#[test]
fn a_share_costs_what_it_did_while_its_node_is_away() {
    let mut api = Api::new(json!({"budget": {"gpuHours": "100", "every": "24h", "whenSpent": "Hold"}}));
    api.pod(1, Err(20), true);
    let mut leader = Replica::new(&api);
    let small = json!({"metadata": {"name": "small"}, "spec": {"driver": "dra.vgpu", "pool": {"name": "m"},
        "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "24Gi"}}}]}});
    leader.controller.apply(
        Change::Cluster(Cluster::Slice {
            slice: serde_json::from_value(small).unwrap(),
            read: None,
        }),
        api.now,
    );
    leader.settle(&mut api);
    api.bind("p001");
    leader.settle(&mut api);
    let (name, last) = ("s".to_owned(), Last::Version(Version::default()));
    leader
        .controller
        .apply(Change::Cluster(Cluster::SliceGone { name, last }), api.now);
    for _ in 0..360 {
        api.now += seconds(10);
        leader.catch_up(&api);
        leader.turn(&mut api, 9, 9);
    }
    leader.settle(&mut api);
    assert_eq!(
        api.status_value()["budget"]["usedGpuHours"],
        "0.25",
        "a quarter of 80Gi, not most of 24Gi"
    );
}

#[test]
fn a_pod_that_hid_behind_another_gate_is_opened_as_over_budget() {
    let mut api = Api::new(json!({"hard": {"memory": "80Gi"}, "budget": {"gpuHours": "0", "every": "24h"}}));
    let mut leader = Replica::new(&api);
    let open = |leader: &mut Replica, api: &mut Api| {
        let mut opened = Vec::new();
        for _ in 0..3 {
            for write in leader.controller.plan(api.now).writes {
                if let Write::Ungate {
                    pod, is_over_budget, ..
                } = &write
                {
                    opened.push((pod.name.clone(), *is_over_budget));
                }
                let outcome = api.send(&write);
                leader.controller.report(&write.task(), outcome, api.now);
            }
        }
        opened
    };
    let gates = |names: &[&str]| {
        let mut pod = waiting("late", &["shared"]);
        pod["spec"]["schedulingGates"] = names.iter().map(|name| json!({"name": name})).collect();
        pod
    };
    // Another pod with the same claim is ungated, so the claim is reserved.
    api.shared("shared", 8);
    leader.catch_up(&api);
    leader
        .controller
        .apply(pod(gates(&["mine", "dra.vgpu/quota"])), api.now);
    leader.controller.apply(pod(waiting("first", &["shared"])), api.now);
    assert_eq!(
        open(&mut leader, &mut api),
        [("first".to_owned(), true)],
        "ours goes last"
    );
    leader.controller.apply(pod(gates(&["dra.vgpu/quota"])), api.now);
    assert_eq!(open(&mut leader, &mut api), [("late".to_owned(), true)]);
}
