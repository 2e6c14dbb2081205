//! Recognises the allocations and holds that the controller wrote.
//!
//! The controller's devices are tainted, so the controller adds one toleration to the claims that it allocates: exactly
//! of that taint. The toleration stays in the allocation's results, where nobody else writes it, and so marks the
//! allocation as the controller's.

use std::sync::Arc;

use vgpu_allocator::model::{Allocation, Exactly, Request, ResourceClaim, Toleration};

use crate::device_taints::SCHEDULER;
use crate::model::{Claim, Consumer, Pod};
use crate::names::{CONTROLLER, DRIVER, HOLD_GROUP, HOLD_RESOURCE, TAINT_EFFECT, TAINT_KEY};

/// The API server's limit for the tolerations of a result.
pub(crate) const MOST_TOLERATIONS: usize = 16;

fn toleration(value: &str) -> Toleration {
    Toleration {
        key: TAINT_KEY.to_owned(),
        operator: "Equal".to_owned(),
        value: value.to_owned(),
        effect: TAINT_EFFECT.to_owned(),
        toleration_seconds: None,
    }
}

/// Returns the claim with the controller's toleration.
pub(crate) fn as_controller(claim: &ResourceClaim) -> ResourceClaim {
    tolerating(claim, CONTROLLER)
}

/// Returns the claim with kube-scheduler's toleration, which only the allocator crate knows.
pub(crate) fn as_scheduler(claim: &ResourceClaim) -> ResourceClaim {
    tolerating(claim, SCHEDULER)
}

fn tolerating(claim: &ResourceClaim, value: &str) -> ResourceClaim {
    let mut claim = claim.clone();
    for request in &mut Arc::make_mut(&mut claim.spec).devices.requests {
        let alternatives = request.first_available.iter_mut();
        let asks = alternatives.map(|alternative| &mut alternative.ask);
        for ask in asks.chain(request.exactly.as_mut()) {
            ask.tolerations.push(toleration(value));
        }
    }
    claim
}

/// All requests of a claim, including alternatives.
pub(crate) fn asks(claim: &ResourceClaim) -> impl Iterator<Item = &Exactly> {
    claim.spec.devices.requests.iter().flat_map(Request::asks)
}

/// Returns true if the controller wrote the allocation.
pub(crate) fn is_ours(allocation: &Allocation) -> bool {
    let results = &allocation.devices.results;
    let ours = toleration(CONTROLLER);
    !results.is_empty()
        && results
            .iter()
            .all(|result| result.driver == DRIVER && result.tolerations.contains(&ours))
}

/// The node of an allocation whose node selector names exactly one.
pub(crate) fn node_of(allocation: &Allocation) -> Option<&str> {
    let [term] = &allocation.node_selector.as_ref()?.node_selector_terms[..] else {
        return None;
    };
    match (&term.match_fields[..], &term.match_expressions[..]) {
        ([field], []) if field.key == "metadata.name" && field.operator == "In" => match &field.values[..] {
            [node] => Some(node),
            _ => None,
        },
        _ => None,
    }
}

/// The entry in `reservedFor` that keeps kube-scheduler from deallocating the claim. It has the pod's name; no
/// pod has its uid.
pub(crate) fn hold(claim: &Claim, pod: &Pod) -> Consumer {
    Consumer {
        api_group: HOLD_GROUP.to_owned(),
        resource: HOLD_RESOURCE.to_owned(),
        name: pod.name.clone(),
        uid: format!("hold-{}", claim.uid()),
    }
}

pub(crate) fn is_hold(consumer: &Consumer) -> bool {
    consumer.api_group == HOLD_GROUP && consumer.resource == HOLD_RESOURCE
}

/// The hold of a claim: the one that a controller wrote, else any that somebody else added.
pub(crate) fn hold_of(claim: &Claim) -> Option<&Consumer> {
    let holds = || claim.reserved_for.iter().filter(|consumer| is_hold(consumer));
    let is_own = |hold: &&Consumer| hold.uid.strip_prefix("hold-") == Some(claim.uid());
    holds().find(is_own).or_else(|| holds().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_says_whose_it_is_and_where() {
        let claim: ResourceClaim = serde_json::from_str(
            r#"{"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"vgpu"}},
                {"name":"l","firstAvailable":[{"name":"a","deviceClassName":"vgpu"}]}]}}}"#,
        )
        .unwrap();
        let asked = as_controller(&claim);
        assert!(asks(&asked).all(|ask| ask.tolerations == [toleration(CONTROLLER)]));
        assert_eq!(asks(&asked).count(), 2);
        let text = |driver: &str, toleration: &Toleration| {
            let toleration = serde_json::to_string(toleration).unwrap();
            format!(
                r#"{{"devices":{{"results":[{{"driver":"{driver}","tolerations":[{toleration}]}}]}},"nodeSelector":
                   {{"nodeSelectorTerms":[{{"matchFields":[{{"key":"metadata.name","operator":"In","values":["n"]}}]}}]}}}}"#
            )
        };
        let read = |text: String| -> Allocation { serde_json::from_str(&text).unwrap() };
        let ours = read(text(DRIVER, &toleration(CONTROLLER)));
        assert!(is_ours(&ours));
        assert_eq!(
            (node_of(&ours), ours.node_selector.as_deref()),
            (Some("n"), Some(&vgpu_allocator::model::NodeSelector::only("n")))
        );
        assert!(!is_ours(&read(text(DRIVER, &toleration(SCHEDULER)))));
        assert!(!is_ours(&read(text("other", &toleration(CONTROLLER)))));
        assert!(!is_ours(&Allocation::default()) && node_of(&Allocation::default()).is_none());
    }
}
