//! The API's objects, decoded straight into the allocator's own types.
//!
//! ```text
//!  JSON of a list or a watch ─► Watched<Kind, Spec, Status> ─► the allocator's object
//! ```
//!
//! Of `metadata` only what is used is read: `managedFields` alone would be half of a claim. Group, version and names
//! are those of k8s-openapi's type of the same kind; a field that nobody reads is skipped and never stored.
//!
//! How it fails: the API server keeps what this cannot read (parameters nested a thousand deep, quantities beyond any
//! number), and a list is decoded as a whole. So a part of an object is decoded by itself, and one that cannot be is
//! left out with a line in the log: its tenant's claim is not explained, and everybody else's is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use vgpu_allocator::model;

/// An object of kind `K`, as far as it is read.
#[derive(Clone)]
pub struct Watched<K, Spec, Status = Unread> {
    metadata: ObjectMeta,
    spec: Option<Spec>,
    status: Option<Status>,
    kind: PhantomData<fn() -> K>,
}

impl<'de, K, Spec, Status> Deserialize<'de> for Watched<K, Spec, Status>
where
    K: Resource<DynamicType = ()>,
    Spec: DeserializeOwned,
    Status: DeserializeOwned,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            #[serde(deserialize_with = "slim")]
            metadata: ObjectMeta,
            spec: Option<Box<RawValue>>,
            status: Option<Box<RawValue>>,
        }
        let Parts { metadata, spec, status } = Parts::deserialize(deserializer)?;
        let kind = K::kind(&());
        Ok(Self {
            spec: read(spec, "spec", &kind, &metadata),
            status: read(status, "status", &kind, &metadata),
            metadata,
            kind: PhantomData,
        })
    }
}

/// A part of an object; `None` for one that is missing, null, or not to be read.
fn read<T: DeserializeOwned>(part: Option<Box<RawValue>>, name: &str, kind: &str, metadata: &ObjectMeta) -> Option<T> {
    match serde_json::from_str(part?.get()) {
        Ok(read) => read,
        Err(error) => {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let object = metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(
                kind,
                namespace,
                name = object,
                "its {name} cannot be read and counts as empty: {error}"
            );
            None
        }
    }
}

/// A part of an object that nobody reads.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Unread {}

pub type Node = Watched<core::Node, Unread>;
pub type Class = Watched<resource::DeviceClass, model::ClassSpec>;
pub type Slice = Watched<resource::ResourceSlice, model::SliceSpec>;
pub type Claim = Watched<resource::ResourceClaim, model::ClaimSpec, model::ClaimStatus>;
pub type Rule = Watched<resource::DeviceTaintRule, model::RuleSpec>;

impl<K, Spec: Debug, Status: Debug> Debug for Watched<K, Spec, Status> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("name", &self.metadata.name)
            .field("spec", &self.spec)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()>, Spec, Status> Resource for Watched<K, Spec, Status> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What is used of `metadata`; the resource version is the watch's own.
pub(crate) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    }
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        labels: slim.labels,
        ..ObjectMeta::default()
    })
}

fn metadata(metadata: ObjectMeta) -> model::Metadata {
    model::Metadata {
        name: metadata.name.unwrap_or_default(),
        namespace: metadata.namespace.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
    }
}

impl From<Node> for model::Node {
    fn from(node: Node) -> Self {
        Self {
            metadata: metadata(node.metadata),
        }
    }
}

impl From<Class> for model::DeviceClass {
    fn from(class: Class) -> Self {
        Self {
            metadata: metadata(class.metadata),
            spec: class.spec.unwrap_or_default(),
        }
    }
}

impl From<Slice> for model::ResourceSlice {
    fn from(slice: Slice) -> Self {
        Self {
            metadata: metadata(slice.metadata),
            spec: slice.spec.unwrap_or_default(),
        }
    }
}

impl From<Claim> for model::ResourceClaim {
    fn from(claim: Claim) -> Self {
        Self {
            metadata: metadata(claim.metadata),
            spec: claim.spec.unwrap_or_default(),
            status: claim.status.unwrap_or_default(),
        }
    }
}

impl From<Rule> for model::DeviceTaintRule {
    fn from(rule: Rule) -> Self {
        Self {
            metadata: metadata(rule.metadata),
            spec: rule.spec.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_read_without_what_nobody_needs() {
        let claim: Claim = serde_json::from_str(
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}], "annotations": {"a": "b"}},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
            "status": {"reservedFor": [{"name": "p"}], "devices": [{"device": "x", "data": {"big": []}}]}}"#,
        )
        .unwrap();
        assert_eq!(claim.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(
            (&claim.meta().managed_fields, &claim.meta().annotations),
            (&None, &None)
        );
        let claim = model::ResourceClaim::from(claim);
        assert_eq!(claim.key(), "ns/c");
        assert_eq!(claim.spec.devices.requests[0].exactly.as_ref().unwrap().class, "vgpu");
        assert_eq!(claim.status.allocation, None);
    }

    #[test]
    fn what_is_missing_or_null_is_empty() {
        for text in [
            r#"{"metadata": {"name": "n"}}"#,
            r#"{"metadata": {"name": "n", "labels": null}, "spec": null, "status": null}"#,
        ] {
            assert_eq!(
                model::Node::from(serde_json::from_str::<Node>(text).unwrap())
                    .metadata
                    .name,
                "n"
            );
            let rule = model::DeviceTaintRule::from(serde_json::from_str::<Rule>(text).unwrap());
            assert_eq!(rule.spec, model::RuleSpec::default());
        }
    }

    /// As lists and watches bring them.
    #[test]
    fn an_object_that_cannot_be_read_keeps_no_other_from_being_read() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let parameters = format!(
            r#"{{"devices": {{"config": [{{"opaque": {{"driver": "theirs", "parameters": {{"x": {deep}}}}}}}]}}}}"#
        );
        let quantity = r#"{"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "theirs",
            "capacity": {"requests": {"x": "1e1005"}}}}]}}"#;
        let sound = r#"{"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "vgpu"}}]}}"#;
        let claim = |name: &str, spec: &str| format!(r#"{{"metadata": {{"name": "{name}"}}, "spec": {spec}}}"#);
        let claims = [
            claim("deep", &parameters),
            claim("large", quantity),
            claim("sound", sound),
        ];
        let list = format!(
            r#"{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "metadata": {{}}, "items": [{}]}}"#,
            claims.join(",")
        );
        let list: kube::core::ObjectList<Claim> = serde_json::from_str(&list).unwrap();
        let requests = |claim: &Claim| claim.spec.as_ref().map(|spec| spec.devices.requests.len());
        assert_eq!(
            list.items.iter().map(requests).collect::<Vec<_>>(),
            [None, None, Some(1)]
        );
        for claim in &claims {
            let event = format!(r#"{{"type": "MODIFIED", "object": {claim}}}"#);
            let event: kube::core::WatchEvent<Claim> = serde_json::from_str(&event).unwrap();
            assert!(matches!(event, kube::core::WatchEvent::Modified(_)));
        }
    }

    #[test]
    fn the_paths_are_those_of_the_kinds() {
        assert_eq!(Node::url_path(&(), None), "/api/v1/nodes");
        for (path, name) in [
            (Class::url_path(&(), None), "deviceclasses"),
            (Slice::url_path(&(), None), "resourceslices"),
            (Claim::url_path(&(), None), "resourceclaims"),
            (Rule::url_path(&(), None), "devicetaintrules"),
        ] {
            assert_eq!(path, format!("/apis/resource.k8s.io/v1/{name}"));
        }
    }
}
