//! Devices that are used up, tainted or too small.

use serde_json::{Value, json};
use vgpu_planner::Change;
use vgpu_planner::explain::MessageKind;

use crate::world::{World, claims_of, exactly, fraction, gpu, tainted_alone};

#[test]
fn the_ninth_quarter_reads_what_it_asked_for_and_what_there_is() {
    let mut world = World::new();
    for i in 0..8 {
        world.share(
            &format!("c{i}"),
            if i < 4 { "gpu-0000000a" } else { "gpu-0000000b" },
            "20Gi",
            "25",
        );
    }
    assert_eq!(
        world.words(fraction()),
        "claim default/train, request gpu: asked for memory 20Gi, cores 25; on 2 of 2 devices: Capacity: cores: 25 wanted, \
         0 of 100 free; memory: 20Gi wanted, 0 of 80Gi free, held by default/c0, default/c1, default/c2 and 1 more \
         (most free: node1 gpu-0000000a); no GPU has both that much memory and that many cores free; every device: vgpu explain pod/train -n default"
    );
}

#[test]
fn a_generated_claim_is_found_by_the_pods_status() {
    let mut world = World::new();
    world.share("a", "gpu-0000000a", "80Gi", "0");
    world.share("b", "gpu-0000000b", "70Gi", "90");
    world.claim("train-gpu-x7x2k", fraction(), Value::Null);
    let spec = json!({"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]});
    let statuses = json!([{"name": "gpu", "resourceClaimName": "train-gpu-x7x2k"}]);
    let text = world.why_pod(spec.clone(), statuses).unwrap().text;
    assert!(
        text.starts_with("claim default/train-gpu-x7x2k, request gpu: "),
        "{text}"
    );
    for words in [
        "on 2 of 2 devices: ",
        "on 1 of 2 devices: Capacity: memory: 20Gi wanted, 0 of 80Gi free, held by default/a (node1 gpu-0000000a)",
        "on 1: Capacity: cores: 25 wanted, 10 of 100 free; memory: 20Gi wanted, 10Gi of 80Gi free, held by default/b (node1 gpu-0000000b)",
    ] {
        assert_eq!(text.contains(words), words != "on 2 of 2 devices: ", "{text}");
    }
    // The claim is not generated yet, so there is no message.
    assert_eq!(world.why_pod(spec, json!([])), None);
}

#[test]
fn more_than_any_gpu_has_is_said_as_that() {
    let text = World::new().words(exactly("vgpu", json!({"memory": "100Gi"})));
    assert!(
        text.contains(
            "asked for memory 100Gi, cores 0; no GPU of the cluster that matches has more memory than 80Gi, so this never \
             fits, however long it waits: ask for at most that, or add a GPU with more; on 2 of 2 devices: Capacity: \
             memory: 100Gi wanted, 80Gi of 80Gi free (most free: node1 gpu-0000000a); every device: "
        ),
        "{text}"
    );
}

#[test]
fn a_whole_gpu_waits_for_a_wholly_free_one() {
    let mut world = World::new();
    world.share("a", "gpu-0000000a", "64Mi", "0");
    world.share("b", "gpu-0000000b", "20Gi", "25");
    let text = world.words(exactly("gpu", json!({})));
    assert!(
        text.contains(
            "asked for a whole GPU; on 2 of 2 devices: Capacity: memory: 80Gi wanted, 79.9Gi of 80Gi free, held by \
             default/a (most free: node1 gpu-0000000a)"
        ),
        "{text}"
    );
}

#[test]
fn used_up_shares_are_not_mistaken_for_used_up_memory() {
    let mut world = World::new();
    for i in 0..128 {
        world.share(
            &format!("c{i}"),
            if i < 64 { "gpu-0000000a" } else { "gpu-0000000b" },
            "64Mi",
            "0",
        );
    }
    let text = world.words(exactly("vgpu", json!({"memory": "64Mi"})));
    assert!(
        text.contains("on 2 of 2 devices: Capacity: shares: 1 wanted, 0 of 64 free, held by default/c0, default/c1, "),
        "{text}"
    );
}

#[test]
fn a_result_without_a_share_takes_the_whole_device_and_admin_access_nothing() {
    let mut world = World::new();
    let result = |device: &str, admin: bool| json!({"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "node1/vgpu", "device": device, "adminAccess": admin}]});
    world.claim("dedicated", json!({}), result("gpu-0000000a", false));
    world.claim("admin", json!({}), result("gpu-0000000b", true));
    world.claim(
        "foreign",
        json!({}),
        json!({"results": [
        {"request": "nic", "driver": "other.example", "pool": "node1/vgpu", "device": "gpu-0000000b"}]}),
    );
    world.claim("train", fraction(), Value::Null);
    let verdict = world.why(&["train"]).unwrap();
    assert_eq!(verdict.kind, MessageKind::Room);
    assert_eq!(
        verdict.text,
        "node node1 has room (gpu-0000000b for claim default/train, request gpu), so it does not wait for \
         devices; see the scheduler's own event on the pod"
    );
}

#[test]
fn taints_are_named_unless_they_are_tolerated() {
    let mut world = World::bare();
    world.slice("node1", 1, 1, json!([tainted_alone(), gpu("gpu-0000000b")]));
    // A rule adds a taint to those of the slice.
    world.rule("gpu-0000000b", json!({"key": "drain", "effect": "NoExecute"}));
    let text = world.words(fraction());
    for words in [
        "of 2 devices: Taint: taint dra.vgpu/allocator=controller:NoSchedule is not tolerated (node1 gpu-0000000a)",
        "on 1: Taint: taint drain:NoExecute is not tolerated (node1 gpu-0000000b)",
    ] {
        assert!(text.contains(words), "{text}");
    }
    world.apply(Change::Rules(Vec::new()));
    world.claim("train", fraction(), Value::Null);
    assert_eq!(
        world.why(&["train"]).unwrap().kind,
        MessageKind::Room,
        "the rule is gone"
    );
    world.slice("node1", 2, 1, json!([tainted_alone()]));

    let mut devices = fraction();
    devices["requests"][0]["exactly"]["tolerations"] = json!([{"operator": "Exists"}]);
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn several_devices_come_from_one_node() {
    let mut world = World::new();
    world.slice("node2", 1, 1, json!([gpu("gpu-0000000c")]));
    world.share("a", "gpu-0000000a", "20Gi", "0");
    let mut devices = exactly("gpu", json!({}));
    devices["requests"][0]["exactly"]["count"] = json!(2);
    let text = world.words(devices.clone());
    assert!(
        text.contains("asked for 2 times a whole GPU; on 1 of 3 devices: Capacity: memory: 80Gi wanted, 60Gi of 80Gi free, held by"),
        "{text}"
    );
    assert!(
        text.contains("; 2 are wanted on one node, and of node node1 1 would do"),
        "{text}"
    );

    // The case e2e/people/count-above-the-gpus.yaml.
    let mut three = devices.clone();
    three["requests"][0]["exactly"]["count"] = json!(3);
    world.share("b", "gpu-0000000b", "20Gi", "0");
    let text = world.words(three);
    for words in [
        "request gpu",
        "3 are wanted on one node",
        "no node of the cluster has more than 2 GPUs",
    ] {
        assert!(text.contains(words), "{text}");
    }

    devices["requests"][0]["exactly"]["allocationMode"] = json!("All");
    world.claim("train", devices, Value::Null);
    assert_eq!(
        world.why(&["train"]).unwrap().kind,
        MessageKind::Room,
        "all of node2 is one free GPU"
    );
}

#[test]
fn two_claims_that_fit_only_one_by_one_are_told_so() {
    let mut world = World::bare();
    world.slice("node1", 1, 1, json!([gpu("gpu-0000000a")]));
    world.claim("one", exactly("vgpu", json!({"memory": "60Gi"})), Value::Null);
    world.claim("two", exactly("vgpu", json!({"memory": "60Gi"})), Value::Null);
    let verdict = world.why(&["one", "two"]).unwrap();
    assert_eq!(verdict.kind, MessageKind::Waiting);
    assert!(
        verdict.text.starts_with(
            "claim default/two, request gpu: asked for memory 60Gi, cores 0, beside what the pod asks for before it; on 1 of 1 \
             devices: Capacity: memory: 60Gi wanted, 20Gi of 80Gi free, and asked for together with default/one (node1 \
             gpu-0000000a); would fit: memory 20Gi"
        ),
        "{}",
        verdict.text
    );
    world.slice("node2", 1, 1, json!([gpu("gpu-0000000c"), gpu("gpu-0000000d")]));
    assert_eq!(world.why(&["one", "two"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn every_alternative_is_accounted_for_and_one_with_room_is_enough() {
    let sub = |name: &str, memory: &str| json!({"name": name, "deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory}}});
    let mut world = World::new();
    world.share("a", "gpu-0000000a", "70Gi", "0");
    world.share("b", "gpu-0000000b", "70Gi", "0");
    let devices =
        json!({"requests": [{"name": "gpu", "firstAvailable": [sub("large", "100Gi"), sub("small", "40Gi")]}]});
    let text = world.words(devices);
    assert!(
        text.contains(
            "request gpu/large: asked for memory 100Gi, cores 0; no GPU of the cluster that matches has more memory than \
             80Gi, so this never fits, however long it waits: ask for at most that, or add a GPU with more; on 2 of 2 \
             devices: Capacity: memory: 100Gi wanted, 10Gi of"
        ),
        "{text}"
    );
    assert!(
        text.contains("request gpu/small: asked for memory 40Gi, cores 0; on 2 of 2 devices: Capacity: memory: 40Gi wanted, 10Gi of"),
        "{text}"
    );
    assert!(
        text.contains("; would fit: memory 10Gi with the cores asked for"),
        "{text}"
    );
    let devices = json!({"requests": [{"name": "gpu", "firstAvailable": [sub("large", "100Gi"), sub("tiny", "1Gi")]}]});
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn an_extended_resource_of_our_class_is_a_whole_gpu() {
    let mut world = World::new();
    world.share("a", "gpu-0000000a", "1Gi", "0");
    world.share("b", "gpu-0000000b", "1Gi", "0");
    let pod = |resource: &str| json!({"containers": [{"name": "main", "resources": {"limits": {resource: "1", "cpu": "2"}}}]});
    let verdict = world
        .why_pod(pod("deviceclass.resource.kubernetes.io/gpu"), json!([]))
        .unwrap();
    let start = "container main, resource deviceclass.resource.kubernetes.io/gpu: asked for a whole GPU; on 2 of 2 devices: \
                 Capacity: memory: 80Gi wanted, 79Gi of 80Gi free, held by default/a";
    assert!(verdict.text.starts_with(start), "{}", verdict.text);
    assert!(
        verdict
            .text
            .ends_with("; every device: vgpu explain pod/train -n default"),
        "{}",
        verdict.text
    );
    assert_eq!(world.why_pod(pod("nvidia.com/gpu"), json!([])), None);
    world.class(
        "whole",
        json!({"extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'dra.vgpu'"}}]}),
    );
    assert!(world.why_pod(pod("nvidia.com/gpu"), json!([])).is_some());
}

#[test]
fn who_does_not_wait_for_us_hears_nothing() {
    let mut world = World::new();
    world.class(
        "nic",
        json!({"selectors": [{"cel": {"expression": "device.driver == 'other.example'"}}]}),
    );
    world.claim("train", exactly("nic", json!({})), Value::Null);
    assert_eq!(world.why(&["train"]), None, "another driver's class");
    assert_eq!(world.why(&["missing"]), None, "a claim that does not exist");
    assert_eq!(world.why(&[]), None, "no claim");
    world.share("train", "gpu-0000000a", "1Gi", "0");
    assert_eq!(world.why(&["train"]), None, "an allocated claim");

    world.claim("train", exactly("vgpu", json!({"memory": "100Gi"})), Value::Null);
    for conditions in [
        json!([]),
        json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
    ] {
        let verdict = world.why_status(claims_of(&["train"]), json!({"conditions": conditions}));
        assert_eq!(verdict, None, "the scheduler has not tried it");
    }
}

#[test]
fn a_long_text_is_cut_where_it_does_no_harm() {
    let mut world = World::bare();
    let gpus = (0..40).map(|i| {
        let mut gpu = gpu(&format!("gpu-{i:08}"));
        gpu["taints"] = json!([{"key": format!("example.com/{i}-{}", "long".repeat(10)), "effect": "NoSchedule"}]);
        gpu
    });
    world.slice("node1", 1, 1, json!(gpus.collect::<Vec<_>>()));
    let mut devices = fraction();
    devices["requests"][0]["name"] = "gpu-\u{e9}".into();
    let text = world.words(devices);
    assert!(text.len() > 1000, "{} bytes", text.len());
    assert!(
        text.ends_with("...; every device: vgpu explain pod/train -n default"),
        "{text}"
    );

    let selector = format!("device.driver == '{}'", "x".repeat(9000));
    let mut devices = fraction();
    devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
    world.slice("node1", 2, 1, json!([gpu("gpu-0000000a")]));
    let text = world.words(devices);
    assert!(
        text.contains("on 1 of 1 devices: Selector: the selector of the request does not match: device.driver == 'xxx"),
        "{text}"
    );
    assert!(
        text.contains("xxx...xxx") && text.contains("xxx' (node1 gpu-0000000a)"),
        "{text}"
    );
}

#[test]
fn what_is_held_already_says_where_the_rest_must_be() {
    let mut world = World::new();
    world.slice("node2", 1, 1, json!([gpu("gpu-0000000c")]));
    world.share("a", "gpu-0000000a", "70Gi", "0");
    world.share("b", "gpu-0000000b", "70Gi", "0");
    let held = |node: &str| {
        json!({"metadata": {"name": "held", "namespace": "default"}, "status": {"allocation": {
            "devices": {"results": [{"request": "r", "driver": "other.example", "pool": node, "device": "nic"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}})
    };
    world.claim("train", fraction(), Value::Null);
    for (node, kind, words) in [
        ("node1", MessageKind::Waiting, "on 2 of 2 devices: Capacity"),
        ("node2", MessageKind::Room, "node node2 has room"),
        (
            "node3",
            MessageKind::Waiting,
            "claim default/train: no node is where the pod's other claims are: default/held",
        ),
    ] {
        world.set_claim(held(node));
        let verdict = world.why(&["held", "train"]).unwrap();
        assert_eq!(verdict.kind, kind, "{}", verdict.text);
        assert!(verdict.text.contains(words), "{}", verdict.text);
    }
}

/// The claim of another driver in the same pod is taken into account, as by the scheduler.
#[test]
fn claims_of_other_drivers_are_asked_about_together_with_ours() {
    let mut world = World::new();
    world.class(
        "nic",
        json!({"selectors": [{"cel": {"expression": "device.driver == 'other.example'"}}]}),
    );
    let mut devices = fraction();
    devices["requests"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "nic", "exactly": {"deviceClassName": "nic"}}));
    let text = world.words(devices.clone());
    assert!(
        text.starts_with(
            "claim default/train, request nic: asked for a device of class nic, beside what the pod asks for before it; \
             none of 4 devices is of the class: "
        ),
        "{text}"
    );
    let slice = json!({"metadata": {"name": "nics"}, "spec": {"driver": "other.example", "nodeName": "node1",
        "devices": [{"name": "eth1"}], "pool": {"name": "node1", "generation": 1, "resourceSliceCount": 1}}});
    world.set_slice(slice);
    world.claim("train", devices, Value::Null);
    let text = world.why(&["train"]).unwrap().text;
    assert!(text.contains("eth1 for claim default/train, request nic"), "{text}");
}

/// The message uses one unit, and the suggestion can be copied: `55.3Gi` is not a whole number of bytes.
#[test]
fn sizes_are_gibibytes() {
    let mut world = World::new();
    world.share("a", "gpu-0000000a", "25218Mi", "0");
    world.share("b", "gpu-0000000b", "80Gi", "0");
    let text = world.words(exactly("vgpu", json!({"memory": "60Gi"})));
    assert!(text.contains("memory: 60Gi wanted, 55.3Gi of 80Gi free"), "{text}");
    assert!(
        text.contains("would fit: memory 55Gi with the cores asked for"),
        "{text}"
    );
}
