//! Why pods wait for the quota of their namespace, for `vgpu explain`: what the leader would tell them.

use crate::budget::Steady;
use crate::change::Change;
use crate::desk::Desk;
use crate::notice::{Kind, Notice, Subject};
use crate::time::{Now, Wall};

/// The notices for pods if these were all objects there are. Whether a budget yields is asked of all namespaces, so it is
/// known only if their objects are given.
#[must_use]
pub fn waits(objects: impl IntoIterator<Item = Change>, at: Wall) -> Vec<(Subject, Notice)> {
    let mut desk = Desk::of_all(Steady::new(Now::ZERO, at));
    for object in objects {
        desk.apply(object, Now::ZERO);
    }
    let mut notices = desk.plan(Now::ZERO).notices;
    notices.retain(|(subject, _)| subject.kind == Kind::Pod);
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_pod_that_waits_is_told_what_it_wants_of_how_much() {
        let object = |value: Value| serde_json::from_value(value).unwrap();
        let quota = json!({"metadata": {"name": "vgpu", "namespace": "team", "uid": "q", "resourceVersion": "1"},
            "spec": {"hard": {"memory": "80Gi"}}, "status": {}});
        let claim = |name: &str, status: Value| {
            json!({"metadata": {"name": name, "namespace": "team", "uid": name},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
                    "capacity": {"requests": {"memory": "60Gi"}}}}]}}, "status": status})
        };
        let given = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "n",
            "device": "gpu-0", "consumedCapacity": {"memory": "60Gi", "cores": "0"}}]}}});
        let pod = |name: &str, gates: Value| {
            json!({"metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-11-24T00:00:00Z"},
                "spec": {"schedulingGates": gates, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}})
        };
        let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
            "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}});
        let all = || {
            vec![
                Change::Class(serde_json::from_value(class.clone()).unwrap()),
                Change::Slice(crate::gpus::tests::slice("n", &[80])),
                Change::Claim(serde_json::from_value(claim("first", given.clone())).unwrap()),
                Change::Pod(serde_json::from_value(pod("first", json!([]))).unwrap()),
                Change::Claim(serde_json::from_value(claim("second", json!({}))).unwrap()),
                Change::Pod(serde_json::from_value(pod("second", json!([{"name": crate::names::GATE}]))).unwrap()),
            ]
        };
        let mut with_quota = all();
        with_quota.push(Change::Quota(Box::new(object(quota))));
        let told = waits(with_quota, Wall(0));
        let second = told.iter().find(|(subject, _)| subject.name == "second").unwrap();
        let words = second.1.to_string();
        assert!(words.contains("memory 60Gi of 80Gi used, 60Gi wanted"), "{words}");
        assert_eq!(waits(all(), Wall(0)), Vec::new(), "without a quota nobody waits for it");
    }
}
