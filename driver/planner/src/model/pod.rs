//! Pods: their claims, and what else decides on which nodes they can run.

use litemap::LiteMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use vgpu_allocator::model::{NodeSelector, Toleration, fitted, or_default};

use super::container::{self, Container, Extended, HostPort, Resources};
use super::meta::Object;
use super::{LabelSelector, Requests};
use crate::names::{GANG, GANG_SIZE};
use crate::time::Time;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Object<Spec, Status>")]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: LiteMap<String, String>,
    pub created: Time,
    pub priority: i32,
    pub is_deleted: bool,
    /// Succeeded or Failed: none of its containers runs any more.
    pub is_finished: bool,
    pub is_gated: bool,
    pub node: Option<String>,
    /// `spec.schedulerName`; `None` for `default-scheduler`.
    pub scheduler: Option<Box<str>>,
    /// True if it has volumes that must be bound before it: claims of volumes, or ephemeral ones.
    pub has_claimed_volumes: bool,
    /// It is not bound, and kube-scheduler has set the condition Unschedulable.
    pub is_unschedulable: bool,
    /// The annotations of its gang as written: name and size.
    pub gang: Option<(String, String)>,
    pub requests: Requests,
    pub ports: Vec<HostPort>,
    pub node_selector: LiteMap<String, String>,
    pub node_affinity: Option<NodeSelector>,
    pub tolerations: Vec<Toleration>,
    pub affinity: Vec<PodTerm>,
    pub anti_affinity: Vec<PodTerm>,
    pub spread: Vec<Spread>,
    pub claims: Vec<PodClaim>,
    /// Fields that few pods have: see [`Pod::unusual`].
    pub unusual: Option<Box<Unusual>>,
    /// Extended resources that its containers request; only of a pod that waits.
    pub extended: Vec<Extended>,
}

/// One entry of `spec.resourceClaims`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodClaim {
    /// A claim named in the pod's spec.
    Named(String),
    /// A claim that was created from a template, for this pod alone.
    Made(String),
    /// The claim of a template, which does not exist yet.
    NotYet,
}

/// Fields that are empty in most pods, of which there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unusual {
    /// The names of its scheduling gates.
    pub gates: Vec<String>,
    /// Entries of `resourceClaims` that none of its containers names, but at most an init container.
    pub unnamed: Vec<UnnamedClaim>,
    /// Containers that name none of its claims, if others name one.
    pub claimless: Vec<String>,
}

/// An entry of `resourceClaims` whose devices no container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedClaim {
    pub entry: String,
    /// The claim's name; `None` before its template has made it.
    pub claim: Option<String>,
    /// The init container that names it.
    pub init: Option<String>,
}

/// One required term of affinity or anti-affinity to pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerm {
    /// Without one it matches no pod.
    pub label_selector: Option<LabelSelector>,
    pub topology_key: String,
    #[serde(deserialize_with = "fitted")]
    pub namespaces: Vec<String>,
    pub namespace_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spread {
    pub max_skew: i64,
    pub topology_key: String,
    #[serde(deserialize_with = "or_default")]
    pub when_unsatisfiable: String,
    pub label_selector: Option<LabelSelector>,
    pub min_domains: Option<usize>,
    #[serde(deserialize_with = "or_default")]
    pub node_affinity_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub node_taints_policy: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "or_default")]
    node_name: String,
    #[serde(deserialize_with = "or_default")]
    scheduler_name: String,
    #[serde(deserialize_with = "fitted")]
    volumes: Vec<Volume>,
    #[serde(deserialize_with = "or_default")]
    priority: i32,
    #[serde(deserialize_with = "fitted")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "fitted")]
    init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    overhead: Requests,
    #[serde(deserialize_with = "or_default")]
    resources: Resources,
    #[serde(deserialize_with = "or_default")]
    node_selector: LiteMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    affinity: Affinity,
    #[serde(deserialize_with = "fitted")]
    tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "fitted")]
    topology_spread_constraints: Vec<Spread>,
    #[serde(deserialize_with = "fitted")]
    scheduling_gates: Vec<Gate>,
    #[serde(deserialize_with = "fitted")]
    resource_claims: Vec<Reference>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Gate {
    #[serde(deserialize_with = "or_default")]
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<IgnoredAny>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    #[serde(deserialize_with = "or_default")]
    node_affinity: Required<Option<NodeSelector>>,
    #[serde(deserialize_with = "or_default")]
    pod_affinity: Required<Vec<PodTerm>>,
    #[serde(deserialize_with = "or_default")]
    pod_anti_affinity: Required<Vec<PodTerm>>,
}

#[derive(Deserialize, Default)]
#[serde(bound = "T: Deserialize<'de> + Default", default)]
struct Required<T> {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "or_default"
    )]
    required: T,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    status: String,
    #[serde(deserialize_with = "or_default")]
    reason: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    phase: String,
    #[serde(deserialize_with = "fitted")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "fitted")]
    resource_claim_statuses: Vec<Reference>,
}

impl From<Object<Spec, Status>> for Pod {
    fn from(raw: Object<Spec, Status>) -> Self {
        let (meta, spec, status) = (raw.metadata, raw.spec, raw.status);
        let requests = container::requests_of(
            &spec.containers,
            &spec.init_containers,
            &spec.resources.requests,
            &spec.overhead,
        );
        let sidecars = spec.init_containers.iter();
        let sidecars = sidecars.filter(|container| container.restart_policy == "Always");
        let ports = spec.containers.iter().chain(sidecars);
        let ports = ports.flat_map(|container| container.ports.iter().filter(|port| port.host_port != 0));
        // A pod of which nothing is said yet is pending.
        let may_wait = spec.node_name.is_empty() && matches!(status.phase.as_str(), "" | "Pending");
        // Unschedulable or SchedulerError. kube-scheduler has not tried a pod with scheduling gates.
        let is_unschedulable = status.conditions.iter().any(|condition| {
            condition.kind == "PodScheduled" && condition.status == "False" && condition.reason != "SchedulingGated"
        });
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let unnamed = spec.resource_claims.iter().filter_map(|reference| {
            let names = |container: &&Container| container.names(&reference.name);
            // Without containers nothing is known of them: the API server has no such pod.
            if spec.containers.is_empty() || spec.containers.iter().any(|container| names(&container)) {
                return None;
            }
            let made = status
                .resource_claim_statuses
                .iter()
                .find(|made| made.name == reference.name);
            let made = made.and_then(|made| made.resource_claim_name.as_ref());
            Some(UnnamedClaim {
                entry: reference.name.clone(),
                claim: reference.resource_claim_name.as_ref().or(made).cloned(),
                init: spec
                    .init_containers
                    .iter()
                    .find(names)
                    .map(|init| init.name().to_owned()),
            })
        });
        let unnamed: Vec<UnnamedClaim> = unnamed.collect();
        let names_any = |container: &Container| spec.resource_claims.iter().any(|of| container.names(&of.name));
        let (with, without): (Vec<&Container>, Vec<&Container>) =
            spec.containers.iter().partition(|container| names_any(container));
        let without = without.into_iter().filter(|_| !with.is_empty());
        let claimless = without.map(|container| container.name().to_owned()).collect();
        let unusual = Unusual {
            gates: spec.scheduling_gates.iter().map(|gate| gate.name.clone()).collect(),
            unnamed,
            claimless,
        };
        let extended = containers.filter(|_| may_wait).flat_map(Container::extended);
        Self {
            is_unschedulable: may_wait && is_unschedulable,
            extended: extended.collect(),
            ports: ports.cloned().collect(),
            claims: spec
                .resource_claims
                .into_iter()
                .filter_map(|reference| claim(reference, &status.resource_claim_statuses))
                .collect(),
            unusual: (unusual != Unusual::default()).then(|| Box::new(unusual)),
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            labels: meta.labels,
            created: meta.creation_timestamp.unwrap_or_default(),
            priority: spec.priority,
            is_deleted: meta.deletion_timestamp.is_some(),
            is_finished: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            is_gated: !spec.scheduling_gates.is_empty(),
            node: Some(spec.node_name).filter(|node| !node.is_empty()),
            scheduler: Some(spec.scheduler_name)
                .filter(|name| !matches!(name.as_str(), "" | "default-scheduler"))
                .map(String::into_boxed_str),
            has_claimed_volumes: spec
                .volumes
                .iter()
                .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()),
            gang: meta.annotations.get(GANG).map(|name| {
                (
                    name.clone(),
                    meta.annotations.get(GANG_SIZE).cloned().unwrap_or_default(),
                )
            }),
            requests,
            node_selector: spec.node_selector,
            node_affinity: spec.affinity.node_affinity.required,
            tolerations: spec.tolerations,
            affinity: spec.affinity.pod_affinity.required,
            anti_affinity: spec.affinity.pod_anti_affinity.required,
            spread: spec.topology_spread_constraints,
        }
    }
}

/// `None` when a status without a name says that the entry needs no claim.
fn claim(reference: Reference, statuses: &[Reference]) -> Option<PodClaim> {
    if let Some(name) = reference.resource_claim_name {
        return Some(PodClaim::Named(name));
    }
    match statuses.iter().find(|status| status.name == reference.name) {
        Some(status) => status.resource_claim_name.clone().map(PodClaim::Made),
        None => Some(PodClaim::NotYet),
    }
}

impl Pod {
    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The keys of its claims, also of those that do not exist.
    pub fn claim_keys(&self) -> impl Iterator<Item = String> {
        self.claims.iter().filter_map(|claim| match claim {
            PodClaim::Named(name) | PodClaim::Made(name) => Some(format!("{}/{name}", self.namespace)),
            PodClaim::NotYet => None,
        })
    }

    /// Its gates, and its mistakes with claims.
    #[must_use]
    pub fn unusual(&self) -> &Unusual {
        static NONE: Unusual = Unusual {
            gates: Vec::new(),
            unnamed: Vec::new(),
            claimless: Vec::new(),
        };
        self.unusual.as_deref().unwrap_or(&NONE)
    }

    /// Returns true if the pod may still be bound.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.node.is_none() && !self.is_deleted && !self.is_finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_as_the_api_server_writes_it() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"p","namespace":"ns","uid":"u","creationTimestamp":"1970-01-01T00:00:01Z",
                "annotations":{"dra.vgpu/gang":"g","dra.vgpu/gang-size":"3"},"finalizers":null},
               "spec":{"containers":[{"ports":[{"containerPort":80},{"containerPort":80,"hostPort":8080}],
                 "resources":{"requests":{"cpu":"1"}}}],
                 "affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{}]}},
                   "podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone"}]}},
                 "schedulingGates":[{"name":"g"}],
                 "resourceClaims":[{"name":"a","resourceClaimName":"mine"},{"name":"b","resourceClaimTemplateName":"t"},
                   {"name":"c","resourceClaimTemplateName":"t"},{"name":"d","resourceClaimTemplateName":"t"}]},
               "status":{"phase":"Pending","resourceClaimStatuses":[{"name":"b","resourceClaimName":"p-b-x"},{"name":"d"}]}}"#,
        )
        .unwrap();
        assert_eq!(pod.key(), "ns/p");
        assert_eq!(
            pod.claims,
            [
                PodClaim::Named("mine".into()),
                PodClaim::Made("p-b-x".into()),
                PodClaim::NotYet
            ]
        );
        assert_eq!(pod.claim_keys().collect::<Vec<_>>(), ["ns/mine", "ns/p-b-x"]);
        assert_eq!(pod.ports.len(), 1);
        assert!(pod.is_gated && pod.is_waiting() && pod.node_affinity.is_some());
        assert_eq!((pod.anti_affinity.len(), pod.created.millis()), (1, 1_000));
        assert_eq!(pod.gang, Some(("g".to_owned(), "3".to_owned())));
    }

    #[test]
    fn what_its_binding_depends_on_is_read() {
        let pod = |spec: &str| serde_json::from_str::<Pod>(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let of = |spec: &str| {
            let pod = pod(spec);
            (pod.scheduler.as_deref().map(str::to_owned), pod.has_claimed_volumes)
        };
        assert_eq!(of("{}"), (None, false));
        assert_eq!(
            of(r#"{"schedulerName":"default-scheduler","volumes":[{"name":"v","emptyDir":{}}]}"#),
            (None, false)
        );
        let claimed = r#"{"schedulerName":"mine","volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"c"}}]}"#;
        assert_eq!(of(claimed), (Some("mine".to_owned()), true));
        assert!(pod(r#"{"volumes":[{"name":"v","ephemeral":{"volumeClaimTemplate":{}}}]}"#).has_claimed_volumes);
    }

    #[test]
    fn what_a_pod_waits_for_is_read_while_it_waits() {
        let pod = |node: &str, phase: &str, reason: &str| -> Pod {
            let text = format!(
                r#"{{"metadata":{{"name":"p"}},"spec":{{{node}"containers":[{{"name":"main","resources":{{"limits":
                {{"cpu":"1","example.com/gpu":"2","example.com/none":"0","example.com/odd":"two"}}}}}}]}},
                "status":{{"phase":"{phase}","conditions":[{{"type":"PodScheduled","status":"False","reason":"{reason}"}}]}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let waiting = pod("", "Pending", "Unschedulable");
        let gpus = Extended {
            container: "main".into(),
            resource: "example.com/gpu".into(),
            count: 2,
        };
        assert!(waiting.is_unschedulable);
        assert_eq!(waiting.extended, [gpus]);
        assert!(!pod("", "Pending", "SchedulingGated").is_unschedulable);
        for (node, phase) in [("\"nodeName\":\"n\",", "Pending"), ("", "Failed")] {
            let pod = pod(node, phase, "Unschedulable");
            assert!(!pod.is_unschedulable && pod.extended.is_empty());
        }
    }
}
