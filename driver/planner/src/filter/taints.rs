//! Taints of nodes, and the pod's tolerations.

use super::refusal::Refusal;
use crate::model::{Node, Pod};

pub(super) fn check(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    let keeps_away = node.taints.iter().find(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerates(pod, &taint.key, &taint.value, &taint.effect)
    });
    match keeps_away {
        Some(taint) => Err(Refusal::Taint(taint.key.clone())),
        None => Ok(()),
    }
}

/// A toleration without a key must have the operator `Exists`; one without an effect tolerates all effects.
pub(super) fn tolerates(pod: &Pod, key: &str, value: &str, effect: &str) -> bool {
    pod.tolerations.iter().any(|toleration| {
        let by_effect = toleration.effect.is_empty() || toleration.effect == effect;
        let exists = toleration.operator == "Exists";
        let by_key = toleration.key == key || toleration.key.is_empty() && exists;
        let by_value = exists || matches!(toleration.operator.as_str(), "" | "Equal") && toleration.value == value;
        by_effect && by_key && by_value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{node, pod};

    #[test]
    fn taints_keep_away_who_does_not_tolerate_them() {
        let node = node(
            "a1",
            r#","spec":{"taints":[{"key":"soft","effect":"PreferNoSchedule"},{"key":"k","value":"v","effect":"NoSchedule"}]}"#,
        );
        for (tolerations, expected) in [
            ("", Err(Refusal::Taint("k".into()))),
            (r#"{"key":"k","value":"v"}"#, Ok(())),
            (
                r#"{"key":"k","operator":"Equal","value":"v","effect":"NoSchedule"}"#,
                Ok(()),
            ),
            (r#"{"key":"k","value":"w"}"#, Err(Refusal::Taint("k".into()))),
            (
                r#"{"key":"k","operator":"Exists","effect":"NoExecute"}"#,
                Err(Refusal::Taint("k".into())),
            ),
            (r#"{"operator":"Exists"}"#, Ok(())),
            (r#"{"value":"v"}"#, Err(Refusal::Taint("k".into()))),
        ] {
            let pod = pod("p", "", &format!(r#""tolerations":[{tolerations}]"#));
            assert_eq!(check(&pod, &node), expected, "{tolerations}");
        }
    }
}
