//! A small cluster in JSON, as the API server sends it: two GPUs of 80Gi on `node1` unless a test says otherwise.

use serde_json::{Value, json};
use vgpu_controller::answers::Answers;
use vgpu_controller::cluster::{Change, Cluster, Step};
use vgpu_controller::pending::{Kind, Verdict, explain};
use vgpu_controller::{convert, wire};

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) answers: Answers,
}

/// As a watch decodes it, in the allocator's type.
pub(crate) fn read<W: serde::de::DeserializeOwned + Into<T>, T>(object: Value) -> Step<T> {
    let text = object.to_string();
    let watched: W = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    Step::Changed(watched.into())
}

impl World {
    /// Our classes, and a pool of two GPUs with their monitor devices.
    pub(crate) fn new() -> Self {
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

    /// Our classes alone, and nodes without a device.
    pub(crate) fn bare() -> Self {
        let mut world = Self {
            cluster: Cluster::default(),
            answers: Answers::default(),
        };
        for (name, device_type) in [("vgpu", "gpu"), ("gpu", "gpu"), ("vgpu-monitor", "monitor")] {
            world.class(name, json!({"selectors": [{"cel": {"expression":
                format!("device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"{device_type}\"")}}]}));
        }
        for node in ["node1", "node2"] {
            world.node(node);
        }
        world
    }

    pub(crate) fn node(&mut self, name: &str) {
        let node = json!({"metadata": {"name": name}});
        self.cluster.apply(Change::Node(read::<wire::Node, _>(node)));
    }

    pub(crate) fn class(&mut self, name: &str, spec: Value) {
        let class = json!({"metadata": {"name": name}, "spec": spec});
        self.cluster.apply(Change::Class(read::<wire::Class, _>(class)));
    }

    pub(crate) fn slice(&mut self, node: &str, generation: i64, count: i64, devices: Value) {
        let slice = json!({"metadata": {"name": format!("{node}-{generation}")}, "spec": {
            "driver": "dra.vgpu", "nodeName": node, "devices": devices,
            "pool": {"name": format!("{node}/vgpu"), "generation": generation, "resourceSliceCount": count}}});
        self.cluster.apply(Change::Slice(read::<wire::Slice, _>(slice)));
    }

    pub(crate) fn rule(&mut self, device: &str, taint: Value) {
        let rule = json!({"metadata": {"name": "drain"}, "spec": {
            "deviceSelector": {"driver": "dra.vgpu", "device": device}, "taint": taint}});
        self.cluster.apply(Change::Rule(read::<wire::Rule, _>(rule)));
    }

    pub(crate) fn claim(&mut self, name: &str, devices: Value, allocation: Value) {
        let claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices},
            "status": if allocation.is_null() { json!({}) } else { json!({"allocation": {"devices": allocation}}) }});
        self.cluster.apply(Change::Claim(read::<wire::Claim, _>(claim)));
    }

    /// A claim that holds a share.
    pub(crate) fn share(&mut self, name: &str, device: &str, memory: &str, cores: &str) {
        let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": "node1/vgpu", "device": device,
            "shareID": "f8a1c2d0-0000-4000-8000-000000000000", "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"}});
        self.claim(name, json!({}), json!({"results": [result]}));
    }

    /// Why a pod waits whose claims are these.
    pub(crate) fn why(&mut self, claims: &[&str]) -> Option<Verdict> {
        self.why_pod(claims_of(claims), json!([]))
    }

    pub(crate) fn why_pod(&mut self, spec: Value, claim_statuses: Value) -> Option<Verdict> {
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        self.why_status(
            spec,
            json!({"resourceClaimStatuses": claim_statuses, "conditions": conditions}),
        )
    }

    pub(crate) fn why_status(&mut self, spec: Value, status: Value) -> Option<Verdict> {
        let pod =
            json!({"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": spec, "status": status});
        let pod = convert::pod(serde_json::from_value(pod).expect("a pod"));
        self.cluster.apply(Change::Pod(Step::Changed(pod.clone())));
        self.look();
        explain(&pod, &self.cluster, &self.answers)
    }

    /// Everything is answered.
    pub(crate) fn look(&mut self) {
        self.answers.ask(&self.cluster, None);
        assert!(self.answers.work(&mut self.cluster, None, &mut || true));
    }

    /// The words for a claim `train` with these requests.
    pub(crate) fn words(&mut self, devices: Value) -> String {
        self.claim("train", devices, Value::Null);
        let verdict = self.why(&["train"]).expect("the pod waits for us");
        assert_ne!(verdict.kind, Kind::Room, "{}", verdict.text);
        assert!(verdict.text.len() <= 1024, "{} bytes", verdict.text.len());
        verdict.text
    }
}

pub(crate) fn claims_of(claims: &[&str]) -> Value {
    let claims = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c}));
    json!({"containers": [], "resourceClaims": claims.collect::<Vec<_>>()})
}

pub(crate) fn gpu(name: &str) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"}}, "capacity": {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
        "shares": {"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}}}})
}

pub(crate) fn monitor(gpu: &str) -> Value {
    json!({"name": format!("{gpu}-monitor"), "attributes": {"type": {"string": "monitor"}}})
}

pub(crate) fn tainted_alone() -> Value {
    let mut tainted = gpu("gpu-0000000a");
    tainted["taints"] = json!([{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule"}]);
    tainted
}

pub(crate) fn exactly(class: &str, capacity: Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": class, "capacity": {"requests": capacity}}}]})
}

pub(crate) fn fraction() -> Value {
    exactly("vgpu", json!({"memory": "20Gi", "cores": "25"}))
}
