//! What a pod's owner reads, from objects as the API server stores them.
//!
//! Each test is a small cluster in JSON: two GPUs of 80Gi on `node1` unless it says otherwise.

use serde_json::{Value, json};
use vgpu_controller::cluster::{Change, Cluster, Step};
use vgpu_controller::convert;
use vgpu_controller::pending::{Kind, Verdict, explain};
use vgpu_controller::supply::Supply;

struct World {
    cluster: Cluster,
}

impl World {
    /// Our classes, and a pool of two GPUs with their monitor devices.
    fn new() -> Self {
        let mut world = Self::bare();
        world.slice(
            "node1",
            1,
            1,
            json!([
                gpu("gpu-0000000a"),
                monitor("gpu-0000000a"),
                gpu("gpu-0000000b"),
                monitor("gpu-0000000b")
            ]),
        );
        world
    }

    /// Our classes alone.
    fn bare() -> Self {
        let mut world = Self {
            cluster: Cluster::default(),
        };
        for (name, device_type) in [("vgpu", "gpu"), ("gpu", "gpu"), ("vgpu-monitor", "monitor")] {
            world.class(name, json!({"selectors": [{"cel": {"expression":
                format!("device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"{device_type}\"")}}]}));
        }
        world
    }

    fn class(&mut self, name: &str, spec: Value) {
        let class = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a class");
        self.cluster
            .apply(Change::Class(Step::Changed(name.to_owned(), convert::class(class))));
    }

    fn slice(&mut self, node: &str, generation: i64, count: i64, devices: Value) {
        let name = format!("{node}-{generation}");
        let slice = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "driver": "dra.vgpu", "nodeName": node, "devices": devices,
            "pool": {"name": format!("{node}/vgpu"), "generation": generation, "resourceSliceCount": count}}}))
        .expect("a slice");
        self.cluster
            .apply(Change::Slice(Step::Changed(name, convert::slice(slice))));
    }

    fn claim(&mut self, name: &str, devices: Value, allocation: Value) {
        let claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices},
            "status": if allocation.is_null() { json!({}) } else { json!({"allocation": {"devices": allocation}}) }});
        let claim: k8s_openapi::api::resource::v1::ResourceClaim = serde_json::from_value(claim).expect("a claim");
        let key = convert::key(&claim.metadata);
        self.cluster
            .apply(Change::Claim(Step::Changed(key, convert::claim(claim))));
    }

    /// A claim that holds a share.
    fn share(&mut self, name: &str, device: &str, memory: &str, cores: &str) {
        let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": "node1/vgpu", "device": device,
            "shareID": "f8a1c2d0-0000-4000-8000-000000000000", "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"}});
        self.claim(name, json!({}), json!({"results": [result]}));
    }

    /// Why a pod waits whose claims are these.
    fn why(&self, claims: &[&str]) -> Option<Verdict> {
        let spec: Vec<_> = claims
            .iter()
            .map(|c| json!({"name": c, "resourceClaimName": c}))
            .collect();
        self.why_pod(json!({"containers": [], "resourceClaims": spec}), json!([]))
    }

    fn why_pod(&self, spec: Value, claim_statuses: Value) -> Option<Verdict> {
        let pod = serde_json::from_value(
            json!({"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": spec,
            "status": {"resourceClaimStatuses": claim_statuses, "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}),
        )
        .expect("a pod");
        let supply = Supply::new(self.cluster.slices.values(), self.cluster.claims.values());
        explain(&convert::pod(pod), &self.cluster, &supply)
    }

    /// The words for a claim `train` with these requests.
    fn words(&mut self, devices: Value) -> String {
        self.claim("train", devices, Value::Null);
        let verdict = self.why(&["train"]).expect("the pod waits for us");
        assert_ne!(verdict.kind, Kind::Room, "{}", verdict.text);
        verdict.text
    }
}

fn gpu(name: &str) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"}}, "capacity": {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
        "shares": {"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}}}})
}

fn monitor(gpu: &str) -> Value {
    json!({"name": format!("{gpu}-monitor"), "attributes": {"type": {"string": "monitor"}}})
}

fn exactly(class: &str, capacity: Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": class, "capacity": {"requests": capacity}}}]})
}

fn fraction() -> Value {
    exactly("vgpu", json!({"memory": "20Gi", "cores": "25"}))
}

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
        "claim default/train, request gpu: asked for memory 20Gi, cores 25; the largest free share is memory 0Mi, \
         cores 0 on node1 gpu-0000000a (largest GPU: 80Gi, 100 cores)"
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
    assert!(
        text.contains("memory 10Gi, cores 10 on node1 gpu-0000000b, the most free cores are memory 0Mi, cores 100"),
        "{text}"
    );
    // Not generated yet: nothing to say.
    assert_eq!(world.why_pod(spec, json!([])), None);
}

#[test]
fn more_than_any_gpu_has_is_said_as_that() {
    let text = World::new().words(exactly("vgpu", json!({"memory": "100Gi"})));
    assert!(
        text.contains("asked for memory 100Gi, cores 0; no GPU is that large (largest GPU: 80Gi, 100 cores)"),
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
        text.contains("asked for a whole GPU; the largest free share is memory 81856Mi, cores 100"),
        "{text}"
    );
}

#[test]
fn nothing_published_an_incomplete_pool_and_an_old_generation_are_told_apart() {
    let mut world = World::bare();
    let text = world.words(fraction());
    assert!(text.contains("no node publishes a GPU for driver dra.vgpu"), "{text}");

    // The newest generation counts, and it is not whole.
    world.slice("node1", 1, 1, json!([gpu("gpu-0000000a")]));
    world.slice("node1", 2, 2, json!([gpu("gpu-0000000a")]));
    let text = world.words(fraction());
    assert!(
        text.contains("pool node1/vgpu is not wholly published, 1 of 2 slices"),
        "{text}"
    );

    // A newer, complete one, without the device that the old one had.
    world.slice("node1", 3, 1, json!([]));
    let text = world.words(fraction());
    assert!(text.contains("no node publishes a GPU"), "{text}");
}

#[test]
fn a_class_that_does_not_exist_is_named() {
    let text = World::new().words(exactly("vgpu-slot", json!({})));
    assert!(text.contains("DeviceClass vgpu-slot does not exist"), "{text}");
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
    assert!(text.contains("all 64 shares of node1 gpu-0000000a are taken"), "{text}");
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
    assert_eq!(verdict.kind, Kind::Room);
    assert!(verdict.text.contains("node1 gpu-0000000b has room"), "{}", verdict.text);
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
        assert_eq!(verdict.kind, Kind::Refused);
        assert!(verdict.text.contains(words), "{}", verdict.text);
        // The same for another request, or by another driver, is none of this request's business.
        for (path, value) in [
            ("/config/0/requests", json!(["other"])),
            ("/config/0/opaque/driver", json!("other.example")),
        ] {
            let mut devices = devices.clone();
            devices["config"][0]["requests"] = json!([]);
            *devices.pointer_mut(path).unwrap() = value;
            world.claim("train", devices, Value::Null);
            assert_eq!(world.why(&["train"]).unwrap().kind, Kind::Room);
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
    assert_eq!(world.why(&["train"]).unwrap().kind, Kind::Room);
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

#[test]
fn taints_are_named_unless_they_are_tolerated() {
    let mut world = World::bare();
    let mut tainted = gpu("gpu-0000000a");
    tainted["taints"] = json!([{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule"}]);
    world.slice("node1", 1, 1, json!([tainted]));
    let text = world.words(fraction());
    assert!(
        text.contains("dra.vgpu/allocator=controller:NoSchedule on node1 gpu-0000000a"),
        "{text}"
    );

    let mut devices = fraction();
    devices["requests"][0]["exactly"]["tolerations"] = json!([{"operator": "Exists"}]);
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, Kind::Room);
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
        text.contains("asked for 2 times a whole GPU; 2 GPUs of one node are needed, and 1 on node"),
        "{text}"
    );

    devices["requests"][0]["exactly"]["allocationMode"] = json!("All");
    world.claim("train", devices, Value::Null);
    assert_eq!(
        world.why(&["train"]).unwrap().kind,
        Kind::Room,
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
    assert_eq!(verdict.kind, Kind::Waiting);
    assert!(
        verdict
            .text
            .contains("claim default/one, request gpu; claim default/two, request gpu: each has room by itself"),
        "{}",
        verdict.text
    );
    world.slice("node2", 1, 1, json!([gpu("gpu-0000000c"), gpu("gpu-0000000d")]));
    assert_eq!(world.why(&["one", "two"]).unwrap().kind, Kind::Room);
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
        text.contains("request gpu/large: asked for memory 100Gi, cores 0; no GPU is that large"),
        "{text}"
    );
    assert!(
        text.contains("request gpu/small: asked for memory 40Gi, cores 0; the largest free share is memory 10Gi"),
        "{text}"
    );
    let devices = json!({"requests": [{"name": "gpu", "firstAvailable": [sub("large", "100Gi"), sub("tiny", "1Gi")]}]});
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, Kind::Room);
}

#[test]
fn a_monitor_without_admin_access_is_told_what_it_lacks() {
    let mut world = World::new();
    let text = world.words(exactly("vgpu-monitor", json!({})));
    assert!(text.contains("set adminAccess: true"), "{text}");
    let mut devices = exactly("vgpu-monitor", json!({}));
    devices["requests"][0]["exactly"]["adminAccess"] = json!(true);
    world.claim("train", devices, Value::Null);
    assert_eq!(world.why(&["train"]).unwrap().kind, Kind::Room);
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
    assert!(
        verdict
            .text
            .starts_with("container main, resource deviceclass.resource.kubernetes.io/gpu: asked for a whole GPU; ")
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
    let supply = Supply::default();
    for conditions in [
        json!([]),
        json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
    ] {
        let pod = json!({"metadata": {"name": "train", "namespace": "default"}, "status": {"conditions": conditions},
            "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}});
        let pod = convert::pod(serde_json::from_value(pod).unwrap());
        assert_eq!(
            explain(&pod, &world.cluster, &supply),
            None,
            "the scheduler has not tried it"
        );
    }
}

#[test]
fn numbers_of_others_cannot_break_the_sums() {
    let mut world = World::new();
    world.share("negative", "gpu-0000000a", "-20Gi", "-25");
    world.share("enormous", "gpu-0000000b", "9999Ei", "9e99");
    world.share("lost", "gpu-which-is-not-published", "20Gi", "25");
    let text = world.words(exactly("vgpu", json!({"memory": "81Gi"})));
    assert!(text.contains("largest GPU: 80Gi, 100 cores"), "{text}");
    world.claim("train", exactly("vgpu", json!({"memory": "80Gi"})), Value::Null);
    assert_eq!(
        world.why(&["train"]).unwrap().kind,
        Kind::Room,
        "a negative consumption gives nothing and takes nothing"
    );
}

#[test]
fn a_long_text_is_cut_to_what_an_event_may_hold() {
    let mut world = World::bare();
    let requests: Vec<_> = (0..32)
        .map(|i| json!({"name": format!("gpu-{i}-\u{e9}"), "exactly": {"deviceClassName": "vgpu"}}))
        .collect();
    let text = world.words(json!({"requests": requests}));
    assert!(text.len() <= 1024 && text.ends_with("..."), "{} bytes", text.len());
}
