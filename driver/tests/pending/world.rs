//! A small cluster in JSON, as the API server sends it: two GPUs of 80Gi on `node1` unless a test says otherwise.

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_controller::decode::{Object, Readable};
use vgpu_planner::explain::{Answers, Message, MessageKind, message};
use vgpu_planner::model::Pod;
use vgpu_planner::{Change, Mode, State, Time};

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) answers: Answers,
    /// The version of the last object.
    version: u64,
}

/// Decodes an object as a watch does.
pub(crate) fn read<T: Readable>(text: &str) -> T {
    // The kind only names the object in the log.
    let watched: Object<k8s_openapi::api::core::v1::Pod, T> =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    watched.body.expect("an object of its kind")
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

    /// Only our classes, without any devices.
    pub(crate) fn bare() -> Self {
        let mut world = Self {
            state: State::new(Mode::Scheduler, Features::default()),
            answers: Answers::default(),
            version: 0,
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

    pub(crate) fn apply(&mut self, change: Change) {
        self.state.apply(change, Time::default());
    }

    /// Gives the object the newest version.
    pub(crate) fn newest(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object
    }

    pub(crate) fn node(&mut self, name: &str) {
        let node = json!({"metadata": {"name": name}});
        self.apply(Change::Node(read(&node.to_string())));
    }

    pub(crate) fn class(&mut self, name: &str, spec: Value) {
        let class = json!({"metadata": {"name": name}, "spec": spec});
        self.apply(Change::Class(read(&class.to_string())));
    }

    pub(crate) fn slice(&mut self, node: &str, generation: i64, count: i64, devices: Value) {
        let slice = json!({"metadata": {"name": format!("{node}-{generation}")}, "spec": {
            "driver": "dra.vgpu", "nodeName": node, "devices": devices,
            "pool": {"name": format!("{node}/vgpu"), "generation": generation, "resourceSliceCount": count}}});
        self.set_slice(slice);
    }

    pub(crate) fn set_slice(&mut self, slice: Value) {
        let slice = read(&self.newest(slice).to_string());
        self.apply(Change::Slice { slice, read: None });
    }

    pub(crate) fn set_claim(&mut self, claim: Value) {
        let claim = read(&self.newest(claim).to_string());
        self.apply(Change::Claim(claim));
    }

    pub(crate) fn set_pod(&mut self, pod: &Value) -> Pod {
        let pod: Pod = read(&pod.to_string());
        self.apply(Change::Pod(pod.clone()));
        pod
    }

    pub(crate) fn rule(&mut self, device: &str, taint: Value) {
        let rule = json!({"metadata": {"name": "drain"}, "spec": {
            "deviceSelector": {"driver": "dra.vgpu", "device": device}, "taint": taint}});
        self.apply(Change::Rules(vec![read(&rule.to_string())]));
    }

    pub(crate) fn claim(&mut self, name: &str, devices: Value, allocation: Value) {
        let claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices},
            "status": if allocation.is_null() { json!({}) } else { json!({"allocation": {"devices": allocation}}) }});
        self.set_claim(claim);
    }

    /// A claim that holds a share.
    pub(crate) fn share(&mut self, name: &str, device: &str, memory: &str, cores: &str) {
        let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": "node1/vgpu", "device": device,
            "shareID": "f8a1c2d0-0000-4000-8000-000000000000", "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"}});
        self.claim(name, json!({}), json!({"results": [result]}));
    }

    /// Why a pod with these claims waits.
    pub(crate) fn why(&mut self, claims: &[&str]) -> Option<Message> {
        self.why_pod(claims_of(claims), json!([]))
    }

    pub(crate) fn why_pod(&mut self, spec: Value, claim_statuses: Value) -> Option<Message> {
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        self.why_status(
            spec,
            json!({"resourceClaimStatuses": claim_statuses, "conditions": conditions}),
        )
    }

    pub(crate) fn why_status(&mut self, spec: Value, status: Value) -> Option<Message> {
        let pod =
            json!({"metadata": {"name": "train", "namespace": "default", "uid": "1"}, "spec": spec, "status": status});
        let pod = self.set_pod(&pod);
        self.look();
        message(&pod, &self.state, &self.answers)
    }

    /// Completes all answers.
    pub(crate) fn look(&mut self) {
        self.answers.update_queue(&self.state);
        assert!(self.answers.work(&mut self.state, &mut || true));
    }

    /// The words for a claim `train` with these requests.
    pub(crate) fn words(&mut self, devices: Value) -> String {
        self.claim("train", devices, Value::Null);
        let verdict = self.why(&["train"]).expect("the pod waits for us");
        assert_ne!(verdict.kind, MessageKind::Room, "{}", verdict.text);
        assert!(verdict.text.len() <= 1024, "{} bytes", verdict.text.len());
        verdict.text
    }
}

pub(crate) fn claims_of(claims: &[&str]) -> Value {
    let claims = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c}));
    json!({"containers": [], "resourceClaims": claims.collect::<Vec<_>>()})
}

pub(crate) fn gpu(name: &str) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"},
        "profile": {"string": "none"}, "placement": {"string": "none"}}, "capacity": {
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
