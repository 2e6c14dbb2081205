//! Pods: their claims, and the other fields that decide on which nodes they can run.

use litemap::LiteMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use vgpu_allocator::model::{NodeSelector, Toleration, fitted, or_default};
use vgpu_api::PodRef;
use vgpu_quantity::Quantity;

use super::container::{self, Container, Extended, HostPort, Resources};
use super::meta::Object;
use super::taken::{self, TakenByClaim};
use super::{LabelSelector, Requests};
use crate::names::{GANG, GANG_SIZE, OPENED_OVER_BUDGET, OVER_BUDGET};
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
    /// The time by which a deleted pod should be gone.
    pub gone_by: Option<Time>,
    /// It has the PriorityClass of pods whose namespace has spent its budget.
    pub is_over_budget: bool,
    /// Its quota's gate was taken off while the namespace was over budget.
    pub was_opened_over_budget: bool,
    /// Succeeded or Failed: none of its containers runs any more.
    pub is_finished: bool,
    pub is_gated: bool,
    pub node: Option<String>,
    /// `spec.schedulerName`; `None` for `default-scheduler`.
    pub scheduler: Option<Box<str>>,
    /// True if it has volumes that must be bound before the pod: PersistentVolumeClaims, or ephemeral volumes.
    pub has_claimed_volumes: bool,
    /// It is not bound, and kube-scheduler has set the condition Unschedulable.
    pub is_unschedulable: bool,
    /// The annotations of its gang as written: name and size.
    pub gang: Option<(String, String)>,
    /// If it is bound, with what its devices take of the node.
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
    /// Extended resources that its containers request.
    pub extended: Vec<Extended>,
}

/// One entry of `spec.resourceClaims`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodClaim {
    /// A claim named in the pod's spec.
    Named(String),
    /// A claim that was created from a template, for this pod alone.
    Made(String),
    /// A template's claim that does not exist yet, by the name of the entry.
    NotYet(String),
}

/// Fields that are empty in most pods. Kept apart because there are many pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unusual {
    /// The names of its scheduling gates.
    pub gates: Vec<String>,
    /// Entries of `resourceClaims` that no container names, or only an init container.
    pub unnamed: Vec<UnnamedClaim>,
    /// Containers that use none of the pod's claims, if other containers do.
    pub claimless: Vec<String>,
    /// The claim that kube-scheduler made for its extended resources.
    pub extended_claim: Option<String>,
    /// How often its containers name each of `claims`, if that is not once each.
    pub references: Vec<usize>,
    /// The amounts that its requests at pod level leave beside the requests of its containers.
    pub left_at_pod_level: Requests,
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
    /// Without a selector it matches no pod.
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
    #[serde(deserialize_with = "or_default")]
    priority_class_name: String,
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
    extended_resource_claim_status: Option<ExtendedClaim>,
    #[serde(deserialize_with = "fitted")]
    node_allocatable_resource_claim_statuses: Vec<TakenByClaim>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExtendedClaim {
    #[serde(deserialize_with = "or_default")]
    resource_claim_name: String,
}

impl From<Object<Spec, Status>> for Pod {
    fn from(raw: Object<Spec, Status>) -> Self {
        let (meta, spec, status) = (raw.metadata, raw.spec, raw.status);
        let unusual = Unusual::of(&spec, &status);
        let deleted = meta.deletion_timestamp.as_deref();
        let claims = spec.resource_claims.iter();
        Self {
            is_unschedulable: spec.node_name.is_empty() && status.is_unschedulable(),
            extended: spec.all_containers().flat_map(Container::extended).collect(),
            requests: spec.requests(&status),
            ports: spec.ports().cloned().collect(),
            has_claimed_volumes: spec.volumes.iter().any(Volume::is_claimed),
            claims: claims.filter_map(|entry| status.claim(entry)).collect(),
            unusual: (unusual != Unusual::default()).then(|| Box::new(unusual)),
            is_deleted: deleted.is_some(),
            gone_by: deleted.and_then(Time::parse),
            is_over_budget: spec.priority_class_name == OVER_BUDGET,
            was_opened_over_budget: meta.annotations.contains_key(OPENED_OVER_BUDGET),
            gang: meta.annotations.get(GANG).map(|name| {
                let size = meta.annotations.get(GANG_SIZE).cloned();
                (name.clone(), size.unwrap_or_default())
            }),
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            labels: meta.labels,
            created: meta.creation_timestamp.unwrap_or_default(),
            priority: spec.priority,
            is_finished: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            is_gated: !spec.scheduling_gates.is_empty(),
            node: Some(spec.node_name).filter(|node| !node.is_empty()),
            scheduler: Some(spec.scheduler_name)
                .filter(|name| !matches!(name.as_str(), "" | "default-scheduler"))
                .map(String::into_boxed_str),
            node_selector: spec.node_selector,
            node_affinity: spec.affinity.node_affinity.required,
            tolerations: spec.tolerations,
            affinity: spec.affinity.pod_affinity.required,
            anti_affinity: spec.affinity.pod_anti_affinity.required,
            spread: spec.topology_spread_constraints,
        }
    }
}

impl PodClaim {
    /// The claim's name; `None` if it does not exist yet.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) | Self::Made(name) => Some(name),
            Self::NotYet(_) => None,
        }
    }
}

impl From<&Pod> for PodRef {
    fn from(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

impl Unusual {
    fn of(spec: &Spec, status: &Status) -> Self {
        let unnamed = spec.resource_claims.iter().filter_map(|reference| {
            let names = |container: &&Container| container.names(&reference.name);
            // Without containers nothing is known about their use. Such a pod is not from an API server.
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
        let extended = status.extended_resource_claim_status.as_ref();
        Self {
            gates: spec.scheduling_gates.iter().map(|gate| gate.name.clone()).collect(),
            unnamed,
            claimless,
            extended_claim: extended.map(|made| made.resource_claim_name.clone()),
            references: spec.references(status),
            left_at_pod_level: spec.left_at_pod_level(),
        }
    }
}

impl Spec {
    fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// The status of a pod that is not bound may be of a node where it was not bound in the end.
    fn requests(&self, status: &Status) -> Requests {
        let of_pod = &self.resources.requests;
        let mut requests = container::requests_of(&self.containers, &self.init_containers, of_pod, &self.overhead);
        if !self.node_name.is_empty() {
            let taken = taken::sum(&status.node_allocatable_resource_claim_statuses);
            requests.add(&taken.without(of_pod));
        }
        requests
    }

    fn left_at_pod_level(&self) -> Requests {
        let mut left = self.resources.requests.clone();
        if !left.0.is_empty() {
            let none = Requests::default();
            let of_containers = container::requests_of(&self.containers, &self.init_containers, &none, &none);
            for (name, left) in &mut left.0 {
                left.subtract(of_containers.0.get(name).unwrap_or(&Quantity::default()));
            }
        }
        left
    }

    /// See [`Unusual::references`].
    fn references(&self, status: &Status) -> Vec<usize> {
        let entries = self
            .resource_claims
            .iter()
            .filter(|entry| status.claim(entry).is_some());
        let count = |entry: &Reference| {
            let containers = self.all_containers();
            containers.map(|container| container.references(&entry.name)).sum()
        };
        let counts: Vec<usize> = entries.map(count).collect();
        // Without containers nothing is known about their use. Such a pod is not from an API server.
        match self.containers.is_empty() || counts.iter().all(|count| *count == 1) {
            true => Vec::new(),
            false => counts,
        }
    }

    /// The host ports of containers and sidecars.
    fn ports(&self) -> impl Iterator<Item = &HostPort> {
        let sidecars = self.init_containers.iter();
        let sidecars = sidecars.filter(|container| container.restart_policy == "Always");
        let ports = self.containers.iter().chain(sidecars);
        let ports = ports.flat_map(|container| &container.ports);
        ports.filter(|port| port.host_port != 0)
    }
}

impl Volume {
    const fn is_claimed(&self) -> bool {
        self.persistent_volume_claim.is_some() || self.ephemeral.is_some()
    }
}

impl Status {
    /// Returns true if the pod waits, and kube-scheduler has tried it: Unschedulable or SchedulerError. It has not tried a pod
    /// with scheduling gates. A pod without a phase is pending.
    fn is_unschedulable(&self) -> bool {
        let was_tried = |condition: &Condition| {
            condition.kind == "PodScheduled" && condition.status == "False" && condition.reason != "SchedulingGated"
        };
        matches!(self.phase.as_str(), "" | "Pending") && self.conditions.iter().any(was_tried)
    }

    /// The claim of an entry of `resourceClaims`; `None` if the status has the entry without a name, which means that
    /// it needs no claim.
    fn claim(&self, entry: &Reference) -> Option<PodClaim> {
        if let Some(name) = &entry.resource_claim_name {
            return Some(PodClaim::Named(name.clone()));
        }
        match self.resource_claim_statuses.iter().find(|made| made.name == entry.name) {
            Some(made) => made.resource_claim_name.clone().map(PodClaim::Made),
            None => Some(PodClaim::NotYet(entry.name.clone())),
        }
    }
}

impl Pod {
    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        self.claim_key(&self.name)
    }

    /// `namespace/name` of its claim of this name. An object in a file may have no namespace.
    #[must_use]
    pub fn claim_key(&self, name: &str) -> String {
        match self.namespace.as_str() {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        }
    }

    /// Its claims, each once: two entries of `resourceClaims` may name the same one.
    pub fn distinct_claims(&self) -> impl Iterator<Item = &PodClaim> {
        let claims = self.claims.iter().enumerate();
        let is_first = |at: usize, claim: &PodClaim| !self.claims[..at].contains(claim);
        claims.filter_map(move |(at, claim)| is_first(at, claim).then_some(claim))
    }

    /// The keys of its claims, also of those that do not exist.
    pub fn claim_keys(&self) -> impl Iterator<Item = String> {
        let names = self.distinct_claims().filter_map(PodClaim::name);
        names.map(|name| self.claim_key(name))
    }

    /// Its scheduling gates, and mistakes in its use of claims.
    #[must_use]
    pub fn unusual(&self) -> &Unusual {
        static NONE: Unusual = Unusual {
            gates: Vec::new(),
            unnamed: Vec::new(),
            claimless: Vec::new(),
            extended_claim: None,
            references: Vec::new(),
            left_at_pod_level: Requests(LiteMap::new()),
        };
        self.unusual.as_deref().unwrap_or(&NONE)
    }

    /// How often its containers name a claim, by the claim's key: one container may name several of its requests.
    #[must_use]
    pub fn references(&self, claim: &str) -> usize {
        let counts = &self.unusual().references;
        let claims = self.claims.iter().enumerate();
        let of_claim = claims.filter(|(_, known)| known.name().is_some_and(|name| self.claim_key(name) == claim));
        of_claim.map(|(at, _)| counts.get(at).copied().unwrap_or(1)).sum()
    }

    /// The amounts that its devices add to its requests, if they take this of the node: nothing of a resource that it requests at pod
    /// level, because that request is for containers and devices together.
    #[must_use]
    pub fn added_by(&self, taken: &Requests) -> Requests {
        taken.without(&self.unusual().left_at_pod_level)
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
                PodClaim::NotYet("c".into())
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
            assert!(!pod.is_unschedulable);
        }
    }
}
