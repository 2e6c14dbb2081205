//! How many pods wait.

use std::collections::BTreeMap;

use super::question::Question;
use crate::model::Pod;
use crate::state::State;

/// Returns for each namespace the number of its pods that wait for our devices: kube-scheduler could not place them, or a
/// scheduling gate keeps them. A pod that was just created does not wait yet.
#[must_use]
pub fn waiting(state: &State) -> BTreeMap<String, u32> {
    let mut waiting = BTreeMap::new();
    let is_waiting = |pod: &&Pod| pod.is_waiting() && (pod.is_unschedulable || pod.is_gated);
    for pod in state.pods().filter(is_waiting) {
        if Question::of(pod, state).is_some() {
            *waiting.entry(pod.namespace.clone()).or_default() += 1;
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vgpu_allocator::Features;

    use super::*;
    use crate::change::Change;
    use crate::state::Mode;
    use crate::time::Time;

    #[test]
    fn pods_wait_whose_claim_has_no_device_and_that_were_looked_at() {
        let mut state = State::new(Mode::Scheduler, Features::default());
        let mut apply = |change| drop(state.apply(change, Time::default()));
        let unschedulable =
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
        let allocated = json!({"allocation": {"devices": {"results": []}}});
        for (name, class, claim, spec, status) in [
            ("new", "vgpu", json!({}), json!({}), json!({})),
            ("waits", "vgpu", json!({}), json!({}), unschedulable.clone()),
            (
                "gated",
                "vgpu",
                json!({}),
                json!({"schedulingGates": [{"name": "dra.vgpu/quota"}]}),
                json!({}),
            ),
            ("has", "vgpu", allocated, json!({}), unschedulable.clone()),
            ("other", "other.example.com", json!({}), json!({}), unschedulable),
        ] {
            let claim = json!({"metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}, "status": claim,
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class}}]}}});
            apply(Change::Claim(serde_json::from_value(claim).unwrap()));
            let mut pod =
                json!({"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": spec, "status": status});
            pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
            apply(Change::Pod(serde_json::from_value(pod).unwrap()));
        }
        assert_eq!(waiting(&state), [("team".to_owned(), 2)].into());
    }
}
