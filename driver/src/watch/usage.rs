//! VgpuNodes: all their shares for the sums of namespaces, and the shares without a claim for quotas.

use kube::Resource as _;
use vgpu_api::usage::VgpuNode;
use vgpu_quota::{self as quotas, Unclaimed};

use super::seen::{Changes, Names, Raw, Seen};
use crate::usage::plan as usage;
use crate::usage::share::Node;

pub(super) fn node(seen: &Seen<Raw<VgpuNode>>, quotas: bool) -> Changes {
    let names = |listed: &[Names]| listed.iter().map(|names| names.name.clone()).collect();
    let (usage, of_quotas) = match seen {
        Seen::Set(object) => {
            let follows = "it cannot be read, so what was known of the node stays";
            let Some(status) = object.decode::<VgpuNode>(follows).and_then(|node| node.status) else {
                return Changes::default();
            };
            let name = object.meta().name.clone().unwrap_or_default();
            let (node, shares) = (Node::read(&status), Unclaimed::of(&status));
            (
                usage::Change::Node {
                    name: name.clone(),
                    node,
                },
                quotas::Change::Node { name, shares },
            )
        }
        Seen::Gone(Names { name, .. }) => (
            usage::Change::NodeGone { name: name.clone() },
            quotas::Change::NodeGone { name: name.clone() },
        ),
        Seen::Listed(listed) => (
            usage::Change::Nodes { names: names(listed) },
            quotas::Change::Nodes { names: names(listed) },
        ),
    };
    Changes {
        usage: Some(usage),
        quotas: quotas.then_some(of_quotas),
        ..Changes::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seen(status: &Value) -> Seen<Raw<VgpuNode>> {
        let node = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuNode", "metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {}, "status": status});
        Seen::Set(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn quotas_get_what_a_node_holds_without_a_claim_and_sums_get_all() {
        let share = |name: &str, gone: bool| {
            json!({"namespace": "team", "claim": name, "uid": name, "device": "gpu-0", "withoutClaim": gone, "memory": "1Gi",
                "cores": 25})
        };
        let status = json!({"shares": [share("a", false), share("b", true)]});
        let changes = node(&seen(&status), true);
        assert!(
            matches!(&changes.usage, Some(usage::Change::Node { name, node }) if name == "n" && node.shares.len() == 2),
            "{:?}",
            changes.usage
        );
        let Some(quotas::Change::Node { shares, .. }) = changes.quotas else {
            panic!("quotas get nothing");
        };
        let expected = Unclaimed {
            namespace: "team".into(),
            uid: "b".into(),
            share: String::new(),
            device: "gpu-0".into(),
            memory: Some(1 << 30),
            cores: 25,
        };
        assert_eq!(shares, [expected]);
        assert!(node(&seen(&status), false).quotas.is_none());
    }

    #[test]
    fn of_a_node_that_cannot_be_read_what_was_known_stays() {
        for status in [Value::Null, json!("none"), json!({"shares": [{"refusals": -1}]})] {
            assert!(node(&seen(&status), true).is_empty(), "{status}");
        }
    }
}
