//! The parts of a pod that quotas use.

use vgpu_planner::model::{Pod, PodClaim, Requests, Unusual};

use crate::names::GATE;

/// The pod without the fields that only affect its node, and without its mistakes, to save memory.
pub(crate) fn kept(mut pod: Pod) -> Pod {
    pod.claims.shrink_to_fit();
    let unusual = pod.unusual.take().map(|unusual| Unusual {
        unnamed: Vec::new(),
        claimless: Vec::new(),
        ..*unusual
    });
    Pod {
        unusual: unusual.filter(|unusual| *unusual != Unusual::default()).map(Box::new),
        labels: Default::default(),
        gang: None,
        requests: Requests::default(),
        ports: Vec::new(),
        node_selector: Default::default(),
        node_affinity: None,
        tolerations: Vec::new(),
        affinity: Vec::new(),
        anti_affinity: Vec::new(),
        spread: Vec::new(),
        ..pod
    }
}

/// Returns true if it waits behind the gate of quotas.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    pod.unusual().gates.iter().any(|gate| gate == GATE)
}

/// Returns true if it has other gates; ours opens last.
pub(crate) fn has_other_gates(pod: &Pod) -> bool {
    pod.unusual().gates.iter().any(|gate| gate != GATE)
}

/// Returns true if it may matter to a quota at all: most pods have no GPU.
pub(crate) fn is_relevant(pod: &Pod) -> bool {
    is_gated(pod) || !pod.claims.is_empty() || !pod.extended.is_empty()
}

/// The names of its claims, each once; `None` for one that Kubernetes has not made yet.
pub(crate) fn claim_names(pod: &Pod) -> impl Iterator<Item = Option<&String>> {
    pod.distinct_claims().map(|claim| match claim {
        PodClaim::Named(name) | PodClaim::Made(name) => Some(name),
        PodClaim::NotYet(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gates_and_claims_are_told_apart() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "t", "uid": "u", "creationTimestamp": "2026-11-24T00:00:00Z"},
            "spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}, {"name": "kueue"}],
                "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "own"},
                    {"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimTemplateName": "t"}],
                "containers": [{"name": "x"}]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a"}, {"name": "d"}]}}))
        .unwrap();
        assert!(is_gated(&pod) && has_other_gates(&pod) && is_relevant(&pod));
        let names: Vec<Option<&str>> = claim_names(&pod).map(|name| name.map(String::as_str)).collect();
        assert_eq!(names, [Some("p-a"), Some("own"), None]);
        let bare: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"nodeName": ""}})).unwrap();
        assert!(!is_relevant(&bare) && bare.node.is_none());
        let extended = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [
            {"name": "x", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}}]}});
        assert!(is_relevant(&serde_json::from_value(extended).unwrap()), "bound or not");
    }
}
