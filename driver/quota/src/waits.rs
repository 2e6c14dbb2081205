//! Why pods wait for the quota of their namespace, for `vgpu explain`: the same notices that the leader would write.

use vgpu_planner::{About, Object, Time};

use crate::Now;
use crate::budget::Steady;
use crate::change::Change;
use crate::controller::QuotaController;
use crate::notice::Notice;

/// The notices for pods, as if these objects were complete. Whether a spent budget must yield depends on all
/// namespaces, so that is only known if their objects are given.
#[must_use]
pub fn waits(objects: impl IntoIterator<Item = Change>, at: Time) -> Vec<(About, Notice)> {
    let mut controller = QuotaController::of_all(Steady::new(Now::ZERO, at));
    for object in objects {
        controller.apply(object, Now::ZERO);
    }
    let mut notices = controller.plan(Now::ZERO).notices;
    notices.retain(|(subject, _)| subject.object == Object::Pod);
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use vgpu_planner::Change as Cluster;
    use vgpu_planner::model::Slice;

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
                Change::Cluster(Cluster::Class(serde_json::from_value(class.clone()).unwrap())),
                Change::Cluster(Cluster::Slice {
                    slice: Slice {
                        facts: crate::gpus::tests::slice("n", &[80]),
                        ..Slice::default()
                    },
                    read: None,
                }),
                Change::Cluster(Cluster::Claim(
                    serde_json::from_value(claim("first", given.clone())).unwrap(),
                )),
                Change::Cluster(Cluster::Pod(serde_json::from_value(pod("first", json!([]))).unwrap())),
                Change::Cluster(Cluster::Claim(
                    serde_json::from_value(claim("second", json!({}))).unwrap(),
                )),
                Change::Cluster(Cluster::Pod(
                    serde_json::from_value(pod("second", json!([{"name": crate::names::GATE}]))).unwrap(),
                )),
            ]
        };
        let mut with_quota = all();
        with_quota.push(Change::Quota(Box::new(object(quota))));
        let told = waits(with_quota, Time::from_millis(0));
        let second = told.iter().find(|(subject, _)| subject.name == "second").unwrap();
        let words = second.1.to_string();
        assert!(words.contains("memory 60Gi of 80Gi used, 60Gi wanted"), "{words}");
        assert_eq!(
            waits(all(), Time::from_millis(0)),
            Vec::new(),
            "without a quota nobody waits for it"
        );
    }
}
