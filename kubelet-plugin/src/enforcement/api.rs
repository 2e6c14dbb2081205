//! The requests of this part: device status of claims, and the pods of the node. Behind traits that tests implement.

use super::verdicts::mounts::{ClaimUse, Pod, PodContainer};
use crate::api::{Claims as _, Cluster, Error};
use crate::dra::share::ClaimId;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use vgpu_api::DRIVER_NAME;
use vgpu_api::usage::VgpuNode;

/// Who owns the fields, for server-side apply.
const MANAGER: &str = "dra.vgpu/kubelet-plugin";
/// Pods per request. A pod has some 10 KiB of JSON, and the plugin must use little memory.
const PODS_AT_ONCE: u32 = 25;

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Kept,
    /// The API server does not keep this field: its gate DRAResourceClaimDeviceStatus is off.
    Dropped,
    /// The claim no longer exists, or no longer has the allocation to which the devices belong.
    Gone,
}

/// Writes device status.
pub trait Statuses: Send + Sync + 'static {
    /// Our entries of `status.devices`. None: the claim is gone or not allocated.
    fn devices(&self, id: &ClaimId) -> impl Future<Output = Result<Option<Vec<AllocatedDeviceStatus>>, Error>> + Send;
    fn apply(
        &self,
        id: &ClaimId,
        devices: &[AllocatedDeviceStatus],
    ) -> impl Future<Output = Result<Applied, Error>> + Send;
}

/// Lists pods.
pub trait Pods: Send + Sync + 'static {
    /// The pods of this node.
    fn pods(&self) -> impl Future<Output = Result<Vec<Pod>, Error>> + Send;
}

/// Reads and writes the VgpuNode of this node.
pub trait NodeObjects: Send + Sync + 'static {
    /// The object; `None` if there is none.
    fn vgpu_node(&self) -> impl Future<Output = Result<Option<VgpuNode>, Error>> + Send;
    /// Creates it, or replaces every field of it.
    fn apply_vgpu_node(&self, object: &VgpuNode) -> impl Future<Output = Result<(), Error>> + Send;
}

impl NodeObjects for Cluster {
    async fn vgpu_node(&self) -> Result<Option<VgpuNode>, Error> {
        Ok(Api::all(self.client()).get_opt(self.node_name()).await?)
    }

    async fn apply_vgpu_node(&self, object: &VgpuNode) -> Result<(), Error> {
        let nodes: Api<VgpuNode> = Api::all(self.client());
        let parameters = PatchParams::apply(MANAGER).force();
        nodes
            .patch(self.node_name(), &parameters, &Patch::Apply(object))
            .await?;
        Ok(())
    }
}

impl Statuses for Cluster {
    async fn devices(&self, id: &ClaimId) -> Result<Option<Vec<AllocatedDeviceStatus>>, Error> {
        let claim = self.get(&id.namespace, &id.name).await?;
        let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&id.uid));
        let status = claim.and_then(|claim| claim.status);
        let allocated = status.filter(|status| status.allocation.is_some());
        let ours = |device: &AllocatedDeviceStatus| device.driver == DRIVER_NAME;
        Ok(allocated.map(|status| status.devices.unwrap_or_default().into_iter().filter(ours).collect()))
    }

    async fn apply(&self, id: &ClaimId, devices: &[AllocatedDeviceStatus]) -> Result<Applied, Error> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client(), &id.namespace);
        // With the UID, a claim of the same name that came later is not touched.
        let patch = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": id.name, "namespace": id.namespace, "uid": id.uid},
            "status": {"devices": devices},
        });
        let parameters = PatchParams::apply(MANAGER).force();
        match claims.patch_status(&id.name, &parameters, &Patch::Apply(&patch)).await {
            Ok(claim) => {
                let kept = claim.status.and_then(|status| status.devices).unwrap_or_default();
                let ours = kept.iter().any(|device| device.driver == DRIVER_NAME);
                Ok(if ours || devices.is_empty() {
                    Applied::Kept
                } else {
                    Applied::Dropped
                })
            }
            Err(error) => refused(id, error.into()),
        }
    }
}

/// Distinguishes a claim that cannot have the status from a request that can be repeated. A conflict can be repeated:
/// somebody else has written, or the name has another UID now, and reading the claim again shows which.
fn refused(id: &ClaimId, error: Error) -> Result<Applied, Error> {
    match error {
        Error::NotFound(why) | Error::Invalid(why) => {
            tracing::debug!("no device status for {id}: {why}");
            Ok(Applied::Gone)
        }
        error => Err(error),
    }
}

impl Pods for Cluster {
    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let pods: Api<DynamicObject> = Api::all_with(self.client(), &resource);
        let mut all = Vec::new();
        let on_node = format!("spec.nodeName={}", self.node_name());
        let mut parameters = ListParams::default().fields(&on_node).limit(PODS_AT_ONCE);
        loop {
            let page = pods.list(&parameters).await?;
            all.extend(page.items.into_iter().map(|pod| {
                let (meta, data) = (pod.metadata, pod.data);
                pod_of(
                    meta.namespace.unwrap_or_default(),
                    meta.name.unwrap_or_default(),
                    meta.uid.unwrap_or_default(),
                    data,
                )
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }
}

/// The fields of a pod that matter here; everything else is left out.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    containers: Vec<SpecContainer>,
    init_containers: Vec<SpecContainer>,
    resource_claims: Vec<PodClaim>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecContainer {
    name: String,
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    claims: Vec<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    request: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
    resource_claim_statuses: Vec<PodClaim>,
    extended_resource_claim_status: Option<Extended>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Extended {
    resource_claim_name: String,
    request_mappings: Vec<Mapping>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    container_name: String,
    request_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: String,
    state: State,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Value>,
}

fn pod_of(namespace: String, name: String, uid: String, body: Value) -> Pod {
    let Ok(Body { spec, status }) = serde_json::from_value(body) else {
        return Pod {
            uid,
            namespace,
            name,
            ..Pod::default()
        };
    };
    let named = spec.resource_claims.iter().chain(&status.resource_claim_statuses);
    let claims: BTreeMap<&str, &str> = named
        .filter_map(|claim| Some((claim.name.as_str(), claim.resource_claim_name.as_deref()?)))
        .collect();
    let of_container = |container: &str| {
        let all = spec.containers.iter().chain(&spec.init_containers);
        let own = all
            .filter(|of| of.name == container)
            .flat_map(|of| &of.resources.claims);
        let mut used: Vec<ClaimUse> = own
            .filter_map(|of| {
                Some(ClaimUse {
                    claim: (*claims.get(of.name.as_str())?).to_owned(),
                    request: of.request.clone(),
                })
            })
            .collect();
        if let Some(extended) = &status.extended_resource_claim_status {
            let own = extended
                .request_mappings
                .iter()
                .filter(|of| of.container_name == container);
            used.extend(own.map(|of| ClaimUse {
                claim: extended.resource_claim_name.clone(),
                request: of.request_name.clone(),
            }));
        }
        used
    };
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let running = statuses.filter(|of| of.state.running.is_some());
    let containers = running.filter_map(|of| {
        Some(PodContainer {
            id: of.container_id.split_once("://")?.1.to_owned(),
            claims: of_container(&of.name),
            name: of.name.clone(),
        })
    });
    let extended = status.extended_resource_claim_status.iter();
    let extended = extended.map(|of| of.resource_claim_name.as_str());
    Pod {
        containers: containers.collect(),
        claims: Some(claims.values().copied().chain(extended).map(str::to_owned).collect()),
        uid,
        namespace,
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_containers_and_the_claims_that_they_use() {
        let running = |name: &str, id: &str| json!({"name": name, "containerID": format!("containerd://{id}"), "state": {"running": {}}});
        let body = json!({
            "spec": {
                "resourceClaims": [{"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "t"}],
                "containers": [
                    {"name": "one", "resources": {"claims": [{"name": "a"}, {"name": "b", "request": "gpu"}]}},
                    {"name": "two"},
                    {"name": "ended", "resources": {"claims": [{"name": "a"}]}},
                    {"name": "plain"},
                ],
                "initContainers": [{"name": "side", "resources": {"claims": [{"name": "a"}]}}],
            },
            "status": {
                "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}, {"name": "none"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "whole", "requestMappings": [{"containerName": "two", "resourceName": "nvidia.com/gpu", "requestName": "container-1"}]},
                "containerStatuses": [
                    running("one", "1"), running("two", "2"), running("plain", "4"),
                    {"name": "ended", "containerID": "containerd://3", "state": {"terminated": {}}},
                    {"name": "young", "state": {"waiting": {}}},
                ],
                "initContainerStatuses": [running("side", "5")],
            },
        });
        let pod = pod_of("d".into(), "p".into(), "u".into(), body);
        let uses = |of: &PodContainer| {
            let texts = of.claims.iter().map(|used| match &used.request {
                Some(request) => format!("{}/{request}", used.claim),
                None => used.claim.clone(),
            });
            texts.collect::<Vec<_>>().join(",")
        };
        let found: Vec<_> = pod
            .containers
            .iter()
            .map(|of| (of.name.as_str(), of.id.as_str(), uses(of)))
            .collect();
        let expected = [
            ("one", "1", "shared,made/gpu"),
            ("two", "2", "whole/container-1"),
            ("plain", "4", ""),
            ("side", "5", "shared"),
        ];
        assert_eq!(found, expected.map(|(name, id, claims)| (name, id, claims.to_owned())));
        assert_eq!(
            pod.claims,
            Some(["shared", "made", "whole"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn a_conflict_is_tried_again_and_a_claim_that_is_gone_is_not() {
        let id = ClaimId {
            namespace: "d".into(),
            name: "c".into(),
            uid: "u".into(),
        };
        let answer = |code: u16| {
            let status = kube::core::Status {
                code,
                ..kube::core::Status::default()
            };
            refused(&id, kube::Error::Api(Box::new(status)).into())
        };
        assert_eq!([404, 422].map(answer), [Ok(Applied::Gone), Ok(Applied::Gone)]);
        assert!([409, 403, 500].map(answer).iter().all(Result::is_err));
    }

    #[test]
    fn nonsense_is_a_pod_without_containers() {
        let named = json!({"status": {"containerStatuses": [{"containerID": "x"}]}});
        for (body, is_pod) in [
            (json!(null), false),
            (json!({"spec": 5}), false),
            (json!({"spec": {"resourceClaims": null}}), false),
            (named, true),
        ] {
            let pod = pod_of("d".into(), "p".into(), "u".into(), body);
            assert!(pod.containers.is_empty());
            assert_eq!(
                pod.claims.is_some(),
                is_pod,
                "which claims a pod has that is none is not known"
            );
        }
    }
}
