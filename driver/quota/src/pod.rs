//! A pod, as far as its gate and its claims go.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::names::{GATE, OPENED_OVER_BUDGET};
use crate::time::Wall;

/// A pod with a claim, an extended resource or our gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// As Kubernetes writes it: the order of these texts is that of age.
    pub created: String,
    pub is_gated: bool,
    /// Gates of others; ours opens last.
    pub other_gates: Box<[String]>,
    /// By their names in the pod: the claims; `None` while Kubernetes has not made it.
    pub claims: Box<[(String, Option<String>)]>,
    /// Names with a slash, of which those of our classes count.
    pub extended: Box<[(String, u64)]>,
    /// It has finished.
    pub is_over: bool,
    pub is_deleted: bool,
    /// By when it is to be gone, if it is deleted.
    pub gone_by: Option<Wall>,
    /// Where it was bound.
    pub node: Option<String>,
    /// kube-scheduler found no place for it.
    pub is_unschedulable: bool,
    pub priority_class: Option<String>,
    /// The leader took its gate off while the namespace was over budget.
    pub was_opened_over_budget: bool,
    /// The claim that kube-scheduler made for its extended resources.
    pub extended_claim: Option<String>,
}

impl Pod {
    /// Returns true if it may matter to a quota at all: most pods have no GPU.
    #[must_use]
    pub fn is_relevant(&self) -> bool {
        self.is_gated || !self.claims.is_empty() || !self.extended.is_empty()
    }

    /// Returns true if kube-scheduler does not look at it: it waits for no GPU yet.
    pub(crate) fn has_gates(&self) -> bool {
        self.is_gated || !self.other_gates.is_empty()
    }

    #[must_use]
    pub const fn is_bound(&self) -> bool {
        self.node.is_some()
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            #[serde(default)]
            name: String,
            #[serde(default)]
            namespace: String,
            #[serde(default)]
            uid: String,
            #[serde(default)]
            creation_timestamp: String,
            deletion_timestamp: Option<String>,
            annotations: Option<BTreeMap<String, String>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            scheduling_gates: Option<Vec<Named>>,
            resource_claims: Option<Vec<Named>>,
            containers: Option<Vec<Container>>,
            init_containers: Option<Vec<Container>>,
            node_name: Option<String>,
            priority_class_name: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Named {
            #[serde(default)]
            name: String,
            resource_claim_name: Option<String>,
        }
        #[derive(Deserialize)]
        struct Container {
            resources: Option<Resources>,
        }
        #[derive(Deserialize)]
        struct Resources {
            limits: Option<BTreeMap<String, String>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            phase: Option<String>,
            resource_claim_statuses: Option<Vec<Named>>,
            extended_resource_claim_status: Option<ExtendedClaim>,
            conditions: Option<Vec<Condition>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ExtendedClaim {
            #[serde(default)]
            resource_claim_name: String,
        }
        #[derive(Deserialize)]
        struct Condition {
            #[serde(default, rename = "type")]
            kind: String,
            #[serde(default)]
            status: String,
            #[serde(default)]
            reason: String,
        }
        let Whole { metadata, spec, status } = Whole::deserialize(deserializer)?;
        let (ours, other_gates): (Vec<String>, Vec<String>) = spec
            .scheduling_gates
            .into_iter()
            .flatten()
            .map(|gate| gate.name)
            .partition(|name| name == GATE);
        let made: BTreeMap<String, Option<String>> = status
            .resource_claim_statuses
            .into_iter()
            .flatten()
            .map(|claim| (claim.name, claim.resource_claim_name))
            .collect();
        let claims = spec
            .resource_claims
            .into_iter()
            .flatten()
            .filter_map(|claim| match claim.resource_claim_name {
                Some(name) => Some((claim.name, Some(name))),
                None => match made.get(&claim.name) {
                    Some(Some(name)) => Some((claim.name, Some(name.clone()))),
                    // Kubernetes says that the pod needs none.
                    Some(None) => None,
                    None => Some((claim.name, None)),
                },
            });
        // Init containers run one after the other, but their claims are requests of one claim: all count.
        let containers = spec
            .containers
            .into_iter()
            .flatten()
            .chain(spec.init_containers.into_iter().flatten());
        let limits = containers.filter_map(|container| container.resources?.limits).flatten();
        let mut extended: BTreeMap<String, u64> = BTreeMap::new();
        for (name, text) in limits.filter(|(name, _)| name.contains('/')) {
            let count = vgpu_quantity::whole(&text)
                .ok()
                .and_then(|count| u64::try_from(count).ok());
            let sum = extended.entry(name).or_default();
            *sum = sum.saturating_add(count.unwrap_or(1));
        }
        extended.retain(|_, count| *count > 0);
        Ok(Self {
            claims: claims.collect(),
            was_opened_over_budget: metadata
                .annotations
                .is_some_and(|annotations| annotations.contains_key(OPENED_OVER_BUDGET)),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            created: metadata.creation_timestamp,
            is_gated: !ours.is_empty(),
            other_gates: other_gates.into(),
            extended: extended.into_iter().collect(),
            is_over: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            is_deleted: metadata.deletion_timestamp.is_some(),
            gone_by: metadata.deletion_timestamp.as_deref().and_then(Wall::parse),
            node: spec.node_name.filter(|node| !node.is_empty()),
            is_unschedulable: status.conditions.iter().flatten().any(|condition| {
                condition.kind == "PodScheduled" && condition.status == "False" && condition.reason == "Unschedulable"
            }),
            priority_class: spec.priority_class_name,
            extended_claim: status
                .extended_resource_claim_status
                .map(|claim| claim.resource_claim_name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gates_claims_and_extended_resources_are_read() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "t", "uid": "u", "creationTimestamp": "2026-11-24T00:00:00Z"},
            "spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}, {"name": "kueue"}],
                "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "own"},
                    {"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimTemplateName": "t"}],
                "containers": [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}},
                    {"name": "y", "resources": {"limits": {"nvidia.com/gpu": "2", "amd.com/gpu": "0"}}}, {"name": "z"}]},
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a"}, {"name": "d"}]}}))
        .unwrap();
        assert!(pod.is_gated && pod.is_relevant() && !pod.is_over && !pod.is_bound());
        assert_eq!(*pod.other_gates, ["kueue".to_owned()]);
        let claims = [("a", Some("p-a")), ("b", Some("own")), ("c", None)];
        assert_eq!(
            *pod.claims,
            claims.map(|(name, claim)| (name.to_owned(), claim.map(str::to_owned)))
        );
        assert_eq!(*pod.extended, [("nvidia.com/gpu".to_owned(), 3)]);
        let bare: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"nodeName": ""}})).unwrap();
        assert!(!bare.is_relevant() && !bare.is_bound());
    }
}
