//! `spec.nodeSelector` and required node affinity.

use vgpu_allocator::node_selector;

use super::refusal::Refusal;
use crate::model::{Node, Pod};

pub(super) fn check(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    match matches(pod, node) {
        true => Ok(()),
        false => Err(Refusal::Affinity),
    }
}

/// An invalid selector matches nothing, as in kube-scheduler.
pub(super) fn matches(pod: &Pod, node: &Node) -> bool {
    let by_label = pod
        .node_selector
        .iter()
        .all(|(key, value)| node.label(key) == Some(value));
    by_label
        && pod
            .node_affinity
            .as_ref()
            .is_none_or(|selector| node_selector::matches(selector, &node.facts).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use crate::filter::Refusal;
    use crate::filter::tests::{cluster, pod, refusals};

    #[test]
    fn both_must_match() {
        let terms = |terms: &str| {
            format!(
                r#""nodeSelector":{{"zone":"a"}},"affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":
                   {{"nodeSelectorTerms":[{terms}]}}}}}}"#
            )
        };
        let cluster = cluster(&[]);
        let no = || Some(Refusal::Affinity);
        let fields = terms(r#"{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["a1"]}]}"#);
        assert_eq!(refusals(&cluster, &pod("p", "", &fields)), [no(), None, no()]);
        let broken = terms(r#"{"matchExpressions":[{"key":"zone","operator":"Is","values":["a"]}]}"#);
        assert_eq!(refusals(&cluster, &pod("p", "", &broken)), [no(), no(), no()]);
    }
}
