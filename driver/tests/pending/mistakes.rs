//! Mistakes in claims, classes and slices: each is named, and affects no other claim.

use serde_json::{Value, json};
use vgpu_planner::Change;
use vgpu_planner::explain::{MessageKind, messages};

use crate::world::{World, claims_of, exactly, fraction, gpu, monitor, read};

#[test]
fn a_class_that_does_not_exist_is_named() {
    let text = World::new().words(exactly("vgpu-slot", json!({})));
    assert!(
        text.contains(
            "claim default/train, request gpu: asked for a device of class vgpu-slot; UnknownClass: deviceClassName \
             \"vgpu-slot\": there is no such DeviceClass; the classes of dra-driver-vgpu here are "
        ),
        "{text}"
    );
}

#[test]
fn what_prepare_would_refuse_is_said_before_it_runs() {
    for (config, capacity, words) in [
        (
            json!({"computepolicy": "Balanced"}),
            json!({}),
            "spec.devices.config[0].opaque.parameters.computepolicy: is not a field",
        ),
        (
            json!({"computePolicy": "Unlimited"}),
            json!({}),
            "parameters.computePolicy: Unlimited is looser than what the class says",
        ),
        (
            json!({"priority": "High"}),
            json!({}),
            "parameters.priority: High is looser",
        ),
        (
            json!({"computePolicy": "Guaranteed"}),
            json!({"memory": "20Gi"}),
            "parameters.computePolicy: Guaranteed caps",
        ),
        (
            json!({"sharing": "Exclusive"}),
            json!({"memory": "20Gi"}),
            "parameters.sharing: Exclusive needs the whole GPU",
        ),
    ] {
        let mut parameters = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig"});
        parameters
            .as_object_mut()
            .unwrap()
            .extend(config.as_object().unwrap().clone());
        let mut devices = exactly("vgpu", capacity);
        devices["config"] = json!([{"opaque": {"driver": "dra.vgpu", "parameters": parameters}}]);
        let mut world = World::new();
        world.claim("train", devices.clone(), Value::Null);
        let verdict = world.why(&["train"]).unwrap();
        assert_eq!(verdict.kind, MessageKind::Refused);
        assert!(verdict.text.contains(words), "{}", verdict.text);
        // The same mistake in the config of another request, or for another driver, does not affect this request.
        for (path, value) in [
            ("/config/0/requests", json!(["other"])),
            ("/config/0/opaque/driver", json!("other.example")),
        ] {
            let mut devices = devices.clone();
            devices["config"][0]["requests"] = json!([]);
            *devices.pointer_mut(path).unwrap() = value;
            world.claim("train", devices, Value::Null);
            assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
        }
    }
}

#[test]
fn a_class_that_grants_is_believed() {
    let mut world = World::new();
    let parameters =
        |policy: &str| json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig", "computePolicy": policy});
    world.class(
        "burst",
        json!({"selectors": [{"cel": {"expression": "device.driver == 'dra.vgpu'"}}],
        "config": [{"opaque": {"driver": "dra.vgpu", "parameters": parameters("Unlimited")}}]}),
    );
    let mut devices = exactly("burst", json!({}));
    devices["config"] = json!([{"opaque": {"driver": "dra.vgpu", "parameters": parameters("Unlimited")}}]);
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn a_wrong_unit_that_came_past_the_admission_policy_is_named() {
    let text = World::new().words(exactly("vgpu", json!({"memory": "20"})));
    assert!(
        text.contains("spec.devices.requests[0].exactly.capacity.requests[memory]: \"20\" is less than"),
        "{text}"
    );
    assert!(text.contains("did you mean 20Gi?"), "{text}");
}

/// On a cluster that is older than Kubernetes 1.38 such a claim waits for ever, if it came past the admission policy.
#[test]
fn a_name_with_the_domain_is_told_which_scheduler_serves_it() {
    let mut world = World::new();
    world.claim(
        "train",
        exactly("vgpu", json!({"dra.vgpu/memory": "20Gi"})),
        Value::Null,
    );
    let verdict = world.why(&["train"]).unwrap();
    assert_eq!(verdict.kind, MessageKind::Waiting, "{}", verdict.text);
    let words =
        "spec.devices.requests[0].exactly.capacity.requests: kube-scheduler before Kubernetes 1.38 finds no GPU";
    assert!(verdict.text.contains(words), "{}", verdict.text);
    // The same name in a claim that nobody can serve.
    world.claim(
        "train",
        exactly("vgpu", json!({"dra.vgpu/memory": "20Gi", "memory": "10Gi"})),
        Value::Null,
    );
    let verdict = world.why(&["train"]).unwrap();
    assert_eq!(verdict.kind, MessageKind::Refused, "{}", verdict.text);
    let words = "requests[dra.vgpu/memory]: \"20Gi\", and \"10Gi\" in memory, are one capacity under two names; keep only memory";
    assert!(verdict.text.contains(words), "{}", verdict.text);
}

#[test]
fn a_monitor_without_admin_access_is_told_what_it_lacks() {
    let mut world = World::new();
    let text = world.words(exactly("vgpu-monitor", json!({})));
    assert!(text.contains("set adminAccess: true"), "{text}");
    let mut devices = exactly("vgpu-monitor", json!({}));
    devices["requests"][0]["exactly"]["adminAccess"] = json!(true);
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn a_selector_that_fails_is_named_and_stops_no_other_claim() {
    let mut world = World::new();
    for (expression, words) in [
        ("device.attributes['dra.vgpu'].nonsense == 1", "no such key"),
        ("device.nonsense", "does not compile"),
    ] {
        let mut devices = fraction();
        devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": expression}}]);
        world.claim("broken", devices, Value::Null);
        let verdict = world.why(&["broken"]).unwrap();
        assert_eq!(verdict.kind, MessageKind::Waiting);
        assert!(
            verdict.text.contains("asked for memory 20Gi, cores 25; on 1 of 1 devices: CELError: selectors[0] on device dra.vgpu/node1/vgpu/gpu-"),
            "{}",
            verdict.text
        );
        assert!(verdict.text.contains(words), "{}", verdict.text);
        world.claim("train", fraction(), Value::Null);
        assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
    }
}

#[test]
fn a_selector_that_no_gpu_matches_is_said_on_one_line() {
    let mut world = World::new();
    let mut devices = fraction();
    let selector = "device.attributes['dra.vgpu'].type ==\n  'H100' // the new ones\n  && true\n";
    devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
    let text = world.words(devices.clone());
    assert!(
        text.starts_with(
            "claim default/train, request gpu: asked for memory 20Gi, cores 25; no GPU of the cluster matches it, so it \
             waits for another GPU or another selector; on 2 of 2 devices: Selector: the selector of the request does not \
             match: device.attributes['dra.vgpu'].type == 'H100' && true (for example node1 gpu-"
        ),
        "{text}"
    );
    // The GPU matches now, so the reason is its memory.
    let selector = "device.attributes['dra.vgpu'].type == 'gpu'";
    devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
    devices["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "90Gi".into();
    let text = world.words(devices.clone());
    assert!(text.contains("Capacity: ") && !text.contains("matches it"), "{text}");
    let selector = "'x' in device.attributes['gpu.nvidia.com']";
    devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
    let text = world.words(devices);
    assert!(
        text.contains("\"gpu.nvidia.com\" is another driver's domain, this device has \"dra.vgpu\""),
        "{text}"
    );
}

#[test]
fn a_selector_that_costs_too_much_is_told_so() {
    let ten = |name: &str, of: &str| format!("[1,2,3,4,5,6,7,8,9,10].all({name}, {of})");
    let expression = ["a", "b", "c", "d", "e"]
        .iter()
        .rfold("a + b + c + d + e > 0".to_owned(), |of, name| ten(name, &of));
    let mut devices = fraction();
    devices["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": expression}}]);
    let text = World::new().words(devices);
    assert!(
        text.contains("CELError: selectors[0] on device dra.vgpu/node1/vgpu/gpu-"),
        "{text}"
    );
    assert!(text.contains("cost"), "{text}");
}

#[test]
fn a_class_that_cannot_be_read_is_named_with_what_to_do() {
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let class = format!(
        r#"{{"metadata": {{"name": "vgpu"}}, "spec": {{"config": [{{"opaque": {{"driver": "theirs", "parameters": {{"x": {deep}}}}}}}]}}}}"#
    );
    let mut world = World::new();
    world.apply(Change::Class(read(&class)));
    let text = world.words(fraction());
    assert!(
        text.starts_with(
            "claim default/train, request gpu: class vgpu cannot be read: recursion limit exceeded; write it anew"
        ),
        "{text}"
    );
}

#[test]
fn a_capacity_that_makes_no_sense_is_named() {
    let published = |value: &str| {
        let mut world = World::bare();
        let mut wrong = gpu("gpu-0000000a");
        wrong["capacity"]["memory"] = json!({"value": value});
        world.slice("node1", 1, 1, json!([wrong]));
        world
    };
    let text = published("-5").words(fraction());
    assert!(
        text.contains("Capacity: memory: 20Gi wanted, -5 of -5 free (node1 gpu-0000000a)"),
        "{text}"
    );
    // A request without an amount asks for all of it.
    let text = published("-5").words(exactly("vgpu", json!({})));
    assert!(
        text.contains(
            "device dra.vgpu/node1/vgpu/gpu-0000000a: capacity \"memory\": -5 would be consumed, which is below zero; ask \
             for more, or have the driver publish another value"
        ),
        "{text}"
    );
    // A value that is too large is not the claim's mistake.
    let mut world = published("9223372036854775807E");
    world.claim("train", fraction(), Value::Null);
    let verdict = world.why(&["train"]).unwrap();
    assert_eq!(verdict.kind, MessageKind::Room, "{}", verdict.text);
}

#[test]
fn a_slice_for_nodes_that_nobody_can_tell_is_named() {
    let mut world = World::new();
    let slice = json!({"metadata": {"name": "fabric"}, "spec": {"driver": "other.example", "devices": [{"name": "x"}],
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}]},
        "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1}}});
    world.set_slice(slice);
    let text = world.words(fraction());
    assert!(text.contains("slice \"fabric\""), "{text}");
}

#[test]
fn numbers_of_others_cannot_break_the_sums() {
    let mut world = World::new();
    world.share("enormous", "gpu-0000000a", "9999Ei", "9e99");
    world.share("too-much", "gpu-0000000b", "90Gi", "25");
    world.share("lost", "gpu-which-is-not-published", "20Gi", "25");
    let text = world.words(exactly("vgpu", json!({"memory": "64Mi"})));
    assert!(
        text.contains("memory: 64Mi wanted, -10Gi of 80Gi free, held by default/too-much (node1 gpu-0000000b)"),
        "{text}"
    );
    world.share("too-much", "gpu-0000000b", "0", "25");
    world.claim("train", exactly("vgpu", json!({"memory": "80Gi"})), Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

#[test]
fn nothing_published_an_incomplete_pool_and_an_old_generation_are_told_apart() {
    let mut world = World::bare();
    let text = world.words(fraction());
    assert!(text.contains("no node publishes a GPU for driver dra.vgpu"), "{text}");

    // The newest generation is used, although it is incomplete.
    world.slice("node1", 1, 1, json!([gpu("gpu-0000000a")]));
    world.slice("node1", 2, 2, json!([gpu("gpu-0000000a")]));
    let text = world.words(fraction());
    assert!(
        text.contains(
            "on 1 of 2 nodes: IncompletePool: pool dra.vgpu/node1/vgpu: not all slices of its newest generation are \
             published (node node1); see the log"
        ),
        "{text}"
    );

    // A newer, complete generation, without the device that the old one had.
    world.slice("node1", 3, 1, json!([monitor("gpu-0000000a")]));
    let text = world.words(fraction());
    assert!(
        text.contains("none of 1 devices is of the class: the selector of class vgpu does not match: device.driver"),
        "{text}"
    );
    // The pool of another node stays usable.
    world.slice("node2", 1, 1, json!([gpu("gpu-0000000c")]));
    world.claim("train", fraction(), Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, MessageKind::Room);
}

/// The author of a translated pod wrote the amount for a system that refuses it. A larger GPU may still be added.
#[test]
fn a_translated_pod_that_wants_more_than_any_gpu_has_is_refused() {
    let devices = |report: Value, memory: &str| {
        let mut devices = exactly("vgpu", json!({"memory": memory}));
        let mut parameters = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig"});
        parameters
            .as_object_mut()
            .unwrap()
            .extend(report.as_object().unwrap().clone());
        devices["config"] = json!([{"opaque": {"driver": "dra.vgpu", "parameters": parameters}}]);
        devices
    };
    let why = |devices: Value| {
        let mut world = World::new();
        world.claim("train", devices, Value::Null);
        world.why(&["train"]).unwrap()
    };
    let refused = why(devices(json!({"reportAs": "hami"}), "100Gi"));
    assert_eq!(refused.kind, MessageKind::Refused, "{}", refused.text);
    assert_eq!(refused.kind.reason(), "VgpuClaimRefused");
    assert!(
        refused.text.contains(
            "request gpu: spec.devices.requests[0].exactly.capacity.requests[memory]: 100Gi is more than any GPU of the \
             cluster has, which is 80Gi; "
        ),
        "{}",
        refused.text
    );
    for waits in [
        devices(json!({}), "100Gi"),
        devices(json!({"reportAs": "hami"}), "80Gi"),
    ] {
        assert_ne!(why(waits).kind, MessageKind::Refused);
    }
}

/// Uses the wording of `vgpu explain`.
#[test]
fn a_claim_that_no_container_names_and_one_that_goes_are_said_beside_the_shortage_and_where_there_is_room() {
    let pod = |claims: Value| {
        json!({"containers": [{"name": "main", "resources": {"claims": claims}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]})
    };
    let unnamed = "no container names its claim gpu, so none gets the GPU: add resources.claims: [{name: gpu}] to the \
                   container that needs it, and create the pod again";
    for (memory, words) in [("100Gi", "100Gi wanted"), ("20Gi", "node1 has room")] {
        let mut world = World::new();
        world.claim("train", exactly("vgpu", json!({"memory": memory})), Value::Null);
        let message = world.why_pod(pod(json!([])), json!([])).expect("it waits");
        assert!(message.text.starts_with(unnamed), "{}", message.text);
        assert_eq!(message.kind, MessageKind::Waiting);
        assert_eq!(message.text.contains(words), memory == "100Gi", "{}", message.text);
        let named = world
            .why_pod(pod(json!([{"name": "gpu"}])), json!([]))
            .expect("it waits");
        assert!(
            named.text.contains(words) && !named.text.contains("names"),
            "{}",
            named.text
        );
    }
    let mut world = World::new();
    world.set_claim(
        json!({"metadata": {"name": "train", "namespace": "default", "deletionTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"devices": fraction()}}),
    );
    let message = world
        .why_pod(pod(json!([{"name": "gpu"}])), json!([]))
        .expect("it waits");
    let words = "claim default/train is being deleted, so it is given to no pod any more";
    assert!(message.text.starts_with(words), "{}", message.text);
}

/// Uses the wording of `vgpu explain`. kube-scheduler does not try such a pod, and reports nothing.
#[test]
fn a_claim_that_does_not_exist_is_said_where_all_classes_are_ours() {
    let spec = claims_of(&["gone"]);
    let pod = json!({"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": spec});
    let said = |world: &World| messages(&world.state, &world.answers);
    let mut world = World::new();
    world.set_pod(&pod);
    let [(about, message)] = &said(&world)[..] else {
        panic!("one pod waits");
    };
    assert_eq!((&*about.name, message.kind), ("train", MessageKind::NoClaim));
    assert_eq!(
        message.text,
        "claim default/gone does not exist: create it in namespace default, as claims of other namespaces cannot be used; \
         if it is the name of a ResourceClaimTemplate, write resourceClaimTemplateName: gone in place of \
         resourceClaimName"
    );
    for (field, value) in [
        ("/spec/schedulingGates", json!([{"name": "example.com/later"}])),
        ("/spec/nodeName", json!("node1")),
    ] {
        let mut other = pod.clone();
        other["spec"]["schedulingGates"] = Value::Null;
        other["spec"]["nodeName"] = Value::Null;
        *other.pointer_mut(field).unwrap() = value;
        world.set_pod(&other);
        assert_eq!(said(&world), [], "{field}");
    }
    world.set_pod(&pod);
    world.class(
        "other",
        json!({"selectors": [{"cel": {"expression": "device.driver == 'other.example'"}}]}),
    );
    assert_eq!(said(&world), [], "it may be another driver's");
    world.apply(Change::ClassGone { name: "other".into() });
    world.claim("gone", fraction(), Value::Null);
    assert_eq!(said(&world), []);
}

#[test]
fn who_shares_the_claim_of_a_pod_that_waits_is_said() {
    let mut world = World::new();
    world.claim("train", exactly("vgpu", json!({"memory": "100Gi"})), Value::Null);
    let other =
        json!({"metadata": {"name": "other", "namespace": "default", "uid": "2"}, "spec": claims_of(&["train"])});
    world.set_pod(&other);
    let text = world.why(&["train"]).unwrap().text;
    assert!(
        text.contains("; claim default/train is also used by pods other: they share its GPU, and its limit is one"),
        "{text}"
    );
}
