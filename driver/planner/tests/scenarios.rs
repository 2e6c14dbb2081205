//! What the planner decides, step by step, in situations that users meet.

#[path = "scenarios/bad_input.rs"]
mod bad_input;
#[path = "scenarios/costly.rs"]
mod costly;
#[path = "scenarios/desk.rs"]
mod desk;
#[path = "scenarios/device_overhead.rs"]
mod device_overhead;
#[path = "scenarios/gangs.rs"]
mod gangs;
#[path = "scenarios/trouble.rs"]
mod trouble;
#[path = "scenarios/unbindable.rs"]
mod unbindable;

use std::sync::Arc;

use serde_json::{Value, json};
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::model::Unreadable;
use vgpu_planner::{Change, Intent, Settings, Write};

use desk::{Desk, kinds, read, said, wants};

#[test]
fn a_claim_is_marked_allocated_held_and_released() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    assert_eq!(kinds(&desk.settle().0), ["mark"], "before there is a pod");
    desk.pod("p", &["c"], json!({}));
    let (writes, _) = desk.settle();
    let [
        Write {
            intent: Intent::Allocate { allocation, hold, .. },
            ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    assert_eq!((hold.api_group.as_str(), hold.resource.as_str()), ("dra.vgpu", "holds"));
    assert_eq!((hold.name.as_str(), hold.uid.as_str()), ("p", "hold-uid-c"));
    let text = serde_json::to_value(&**allocation).unwrap();
    let result = &text["devices"]["results"][0];
    assert_eq!(
        (&result["shareID"], &result["consumedCapacity"]["memory"]),
        (&json!("share-1"), &json!("3"))
    );
    assert_eq!(text["allocationTimestamp"], json!(desk.time().to_string()));
    let field = json!([{"key": "metadata.name", "operator": "In", "values": ["n0"]}]);
    assert_eq!(
        text["nodeSelector"],
        json!({"nodeSelectorTerms": [{"matchFields": field}]})
    );
    // kube-scheduler reserves, then binds.
    let entry = read(json!({"resource": "pods", "name": "p", "uid": "uid-p"}));
    desk.edit("c", |claim| claim.reserved_for.push(entry));
    assert!(desk.settle().0.is_empty());
    desk.now += 29_000;
    assert!(desk.settle().0.is_empty(), "it is being bound");
    desk.pod("p", &["c"], json!({"spec": {"nodeName": "n0"}}));
    assert_eq!(kinds(&desk.settle().0), ["release"]);
    assert!(desk.settle().0.is_empty(), "kube-controller-manager does the rest");
}

#[test]
fn a_claim_that_a_pod_names_twice_is_placed_once() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 8);
    let twice =
        json!({"resourceClaims": [{"name": "a", "resourceClaimName": "c"}, {"name": "b", "resourceClaimName": "c"}]});
    desk.pod("p", &[], json!({"spec": twice}));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark", "allocate"], "{verdicts:?}");
}

#[test]
fn a_pod_that_does_not_come_is_tried_elsewhere_first() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    assert_eq!(desk.node_of("c").as_deref(), Some("n0"));
    for expected in ["n1", "n0"] {
        desk.now += 30_000;
        let (writes, verdicts) = desk.settle();
        assert_eq!(kinds(&writes), ["clear", "allocate"]);
        assert_eq!(said(&verdicts), ["HoldTimeout"]);
        assert_eq!(desk.node_of("c").as_deref(), Some(expected));
    }
    let mut alone = Desk::new(1);
    alone.fraction("c", 3);
    alone.pod("p", &["c"], json!({}));
    alone.settle();
    alone.now += 30_000;
    assert_eq!(
        kinds(&alone.settle().0),
        ["clear", "allocate"],
        "rather there than nowhere"
    );
}

#[test]
fn what_nobody_can_use_any_more_is_cleared() {
    type Happens = fn(&mut Desk);
    let reasons: [(&str, Happens); 3] = [
        ("PodGone", |desk| desk.tell(Change::PodGone { key: "ns/p".into() })),
        ("NodeGone", |desk| desk.tell(Change::NodeGone { name: "n0".into() })),
        ("ClaimDeleted", |desk| {
            desk.edit("c", |claim| claim.is_deleted = true);
        }),
    ];
    for (reason, happens) in reasons {
        let mut desk = Desk::new(1);
        desk.fraction("c", 3);
        desk.pod("p", &["c"], json!({}));
        desk.settle();
        happens(&mut desk);
        let (writes, verdicts) = desk.settle();
        assert_eq!(kinds(&writes)[0], "clear", "{reason}");
        assert_eq!(said(&verdicts)[0], reason);
        assert_eq!(desk.node_of("c"), None, "{reason}");
    }
}

#[test]
fn an_allocation_that_is_wiped_is_made_again() {
    let mut desk = Desk::new(1);
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    desk.settle();
    desk.edit("c", |claim| {
        claim.facts.status.allocation = None;
        claim.reserved_for.clear();
    });
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    desk.edit("c", |claim| claim.facts.status.allocation = None);
    assert_eq!(
        kinds(&desk.settle().0),
        ["release", "allocate"],
        "a hold of nothing is no hold"
    );
    assert_eq!(desk.node_of("c").as_deref(), Some("n0"));
}

#[test]
fn another_drivers_claim_decides_on_the_node() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.claim("net", json!([wants("nic", 0)]));
    desk.pod("p", &["c", "net"], json!({}));
    let (writes, _) = desk.settle();
    assert_eq!(
        kinds(&writes),
        ["mark", "allocate"],
        "kube-scheduler's claim is left alone"
    );
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"), "the only node with a NIC");
}

#[test]
fn what_can_never_be_says_why() {
    let mut desk = Desk::new(1);
    desk.claim("mixed", json!([wants("vgpu", 1), wants("nic", 0)]));
    let mut open = wants("vgpu", 1);
    open["exactly"]["tolerations"] = json!([{"operator": "Exists"}]);
    desk.claim("open", json!([open]));
    desk.fraction("large", 9);
    desk.fraction("here", 1);
    for claim in ["mixed", "open", "large"] {
        desk.pod(claim, &[claim], json!({}));
    }
    desk.pod("here", &["here"], json!({"spec": {"nodeName": "n0"}}));
    let containers = json!([{"resources": {"requests": {"example.com/vgpu": "1"}}}]);
    desk.pod("old", &[], json!({"spec": {"containers": containers}}));
    let (_, verdicts) = desk.settle();
    let mut reasons = said(&verdicts);
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(
        reasons,
        [
            "ClaimMixesDrivers",
            "ClaimTolerations",
            "ExtendedResource",
            "NoNodeFits",
            "PlacedByHand"
        ]
    );
}

#[test]
fn a_selector_that_no_device_matches_is_said_and_one_that_is_only_full_is_not() {
    let why = |selectors: Value, memory: u8| {
        let mut desk = Desk::new(2);
        let mut wanted = wants("vgpu", memory);
        let selectors = selectors.as_array().unwrap().iter();
        wanted["exactly"]["selectors"] = selectors.map(|text| json!({"cel": {"expression": text}})).collect();
        desk.claim("c", json!([wanted]));
        desk.pod("p", &["c"], json!({}));
        let (_, verdicts) = desk.settle();
        let [(_, verdict)] = &verdicts[..] else {
            panic!("{verdicts:?}");
        };
        (verdict.reason(), verdict.to_string())
    };
    // Every GPU matches, and none is large enough.
    assert_eq!(why(json!(["device.driver == 'dra.vgpu'"]), 9).0, "NoNodeFits");
    let (reason, text) = why(
        json!([
            "true",
            "device.driver == 'dra.vgpu'\n  // the large ones\n  && device.allowMultipleAllocations == false\n"
        ]),
        9,
    );
    assert_eq!(
        (reason, &*text),
        (
            "NoDeviceMatches",
            "claim ns/c, request r-vgpu: no device of class vgpu in the cluster matches selectors[1]: device.driver == \
             'dra.vgpu' && device.allowMultipleAllocations == false; kubectl get resourceslices -o yaml shows what there is"
        )
    );
    let (reason, text) = why(json!(["device.attributes['gpu.nvidia.com'].productName == 'H100'"]), 1);
    assert_eq!(reason, "NoDeviceMatches");
    assert!(
        text.contains("no such key")
            && text.ends_with("\"gpu.nvidia.com\" is another driver's domain, these devices have \"dra.vgpu\""),
        "{text}"
    );
}

#[test]
fn a_pod_with_a_claim_that_cannot_be_read_waits_whole() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    desk.claim("deep", json!([]));
    desk.edit("deep", |claim| {
        claim.unreadable = Some(Box::new(Unreadable {
            why: "spec: recursion limit exceeded".into(),
            ..Unreadable::default()
        }))
    });
    desk.pod("p", &["c", "deep"], json!({}));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"], "nothing is held for a pod that cannot come");
    assert_eq!(said(&verdicts), ["ClaimUnreadable"]);
    assert_eq!(
        verdicts[0].1.to_string(),
        "claim deep cannot be read, so nothing of the pod is allocated: spec: recursion limit exceeded; make the claim \
         anew"
    );
    // An allocation from somebody who could read the claim is valid, and limits where the pod can go.
    let allocation = json!({"devices": {}, "nodeSelector": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}});
    desk.edit("deep", |claim| {
        claim.facts.status.allocation = Some(Arc::new(read(allocation)))
    });
    desk.settle();
    assert_eq!(desk.node_of("c").as_deref(), Some("n1"));
}

#[test]
fn a_third_partys_allocation_counts_and_is_named() {
    let mut desk = Desk::new(1);
    desk.fraction("theirs", 6);
    desk.fraction("c", 3);
    let allocation = json!({"devices": {"results": [{"request": "r-vgpu", "driver": "dra.vgpu", "pool": "n0/vgpu",
        "device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": "6"}}]}});
    desk.edit("theirs", |claim| {
        claim.facts.status.allocation = Some(Arc::new(read(allocation)))
    });
    desk.pod("p", &["c"], json!({}));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"]);
    let mut reasons = said(&verdicts);
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons, ["AllocatedByOthers", "NoNodeFits"]);
}

#[test]
fn a_second_pod_of_a_claim_is_told_that_it_does_not_move() {
    let mut desk = Desk::new(2);
    desk.fraction("c", 3);
    let cpu = |amount: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": amount}}}]}});
    desk.pod("p", &["c"], cpu("6"));
    desk.settle();
    desk.pod("q", &["c"], cpu("4"));
    let (writes, verdicts) = desk.settle();
    assert!(writes.is_empty());
    assert_eq!(said(&verdicts), ["AllocatedElsewhere"]);
}

#[test]
fn who_waits_is_counted_as_long_as_it_does() {
    let mut desk = Desk::new(1);
    let none = |desk: &Desk| {
        let queue = desk.planner.queue();
        (queue.pods, queue.claims, queue.oldest(desk.time()).as_secs())
    };
    let made = |desk: &Desk, ago: i64| {
        let created = vgpu_planner::Time::from_millis(desk.now - ago * 1_000).to_string();
        json!({"metadata": {"creationTimestamp": created}})
    };
    assert_eq!(none(&desk), (0, 0, 0));
    for (claim, memory) in [("a", 5), ("b", 5), ("c", 5)] {
        desk.fraction(claim, memory);
    }
    // The first pod is placed; two others wait, sharing one claim; a gated pod does not count.
    let (old, new) = (made(&desk, 70), made(&desk, 7));
    desk.pod("p", &["a"], old.clone());
    desk.settle();
    desk.pod("q", &["b"], new.clone());
    desk.pod("r", &["b", "c"], old);
    let mut gated = new;
    gated["spec"] = json!({"schedulingGates": [{"name": "later"}]});
    desk.pod("s", &["c"], gated);
    desk.settle();
    assert_eq!(none(&desk), (2, 2, 70));
    assert_eq!(desk.planner.state().free().memory_of_used, 3);
    assert_eq!(desk.planner.state().free().fragmentation(), 1.0);
    desk.now += 5_000;
    assert_eq!(none(&desk).2, 75, "it goes on without a plan");
    desk.tell(Change::Lease(None));
    desk.settle();
    assert_eq!(none(&desk), (0, 0, 0), "who does not lead has no queue");
}

#[test]
fn without_a_policy_of_their_own_claims_have_that_of_the_settings() {
    let of = |policy: AllocationPolicy| {
        let settings = Settings {
            policy,
            ..Settings::default()
        };
        let mut desk = Desk::with(settings, 2);
        for (claim, pod) in [("a", "p"), ("b", "q")] {
            desk.fraction(claim, 3);
            desk.pod(pod, &[claim], json!({}));
            desk.settle();
        }
        desk.node_of("a").unwrap() == desk.node_of("b").unwrap()
    };
    assert!(of(AllocationPolicy::Binpack), "both on one GPU");
    assert!(!of(AllocationPolicy::Spread), "a GPU each");
}
