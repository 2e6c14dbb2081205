//! Cordoned nodes, and nodes whose object cannot be read.

use super::refusal::Refusal;
use crate::model::{Node, Pod};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A pod that tolerates the taint `node.kubernetes.io/unschedulable` can run on a cordoned node.
pub(super) fn check(pod: &Pod, node: &Node) -> Result<(), Refusal> {
    if node.is_unreadable {
        return Err(Refusal::Unreadable);
    }
    let tolerates = || super::taints::tolerates(pod, UNSCHEDULABLE, "", "NoSchedule");
    match node.unschedulable && !tolerates() {
        true => Err(Refusal::Unschedulable),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{node, pod};

    #[test]
    fn a_node_that_cannot_be_read_takes_nobody() {
        let mut node = node("a1", "");
        node.is_unreadable = true;
        let open = pod("p", "", r#""tolerations":[{"operator":"Exists"}]"#);
        assert_eq!(check(&open, &node), Err(Refusal::Unreadable));
    }

    #[test]
    fn a_cordoned_node_takes_only_those_that_tolerate_it() {
        let node = node("a1", r#","spec":{"unschedulable":true}"#);
        assert_eq!(check(&pod("p", "", ""), &node), Err(Refusal::Unschedulable));
        assert_eq!(
            check(&pod("p", "", r#""tolerations":[{"operator":"Exists"}]"#), &node),
            Ok(())
        );
    }
}
