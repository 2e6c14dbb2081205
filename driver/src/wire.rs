//! The API's objects, decoded straight into the types that are decided by.
//!
//! ```text
//!  JSON of a list or a watch ─► Object<Kind, Body> ─┬─ Halves: spec and status ─► the allocator's object
//!                                                  └─ the planner's own, see `control::objects`
//! ```
//!
//! Of `metadata` only what is used is read: `managedFields` alone would be half of a claim. Group, version and names
//! are those of k8s-openapi's type of the same kind; a field that nobody reads is skipped and never stored.
//!
//! How it fails: the API server keeps what this cannot read (parameters nested a thousand deep, quantities beyond any
//! number), and a list is decoded as a whole. So a part of an object is decoded by itself, and one that cannot be is
//! left out with a line in the log that says what follows: its tenant's claim is not explained, and everybody else's is.

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

use crate::words;

/// An object of kind `K`, of which `B` is what is read besides its metadata.
pub struct Object<K, B> {
    metadata: ObjectMeta,
    pub(crate) body: B,
    kind: PhantomData<fn() -> K>,
}

/// The parts of an object, as the API server wrote them.
#[derive(Deserialize)]
pub struct Parts {
    pub(crate) metadata: Box<RawValue>,
    pub(crate) spec: Option<Box<RawValue>>,
    pub(crate) status: Option<Box<RawValue>>,
}

/// What is read of an object.
pub trait Body: Sized {
    /// As much as can be read. Of the rest `unread` is told: what it is, and why.
    fn read(parts: &Parts, unread: &mut dyn FnMut(&str, serde_json::Error)) -> Self;
}

impl<'de, K: Resource<DynamicType = ()>, B: Body> Deserialize<'de> for Object<K, B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Parts::deserialize(deserializer)?;
        let metadata = slim(&parts).map_err(serde::de::Error::custom)?;
        let body = B::read(&parts, &mut |what, error| {
            tracing::warn!(
                kind = &*K::kind(&()),
                namespace = metadata.namespace.as_deref().unwrap_or_default(),
                name = metadata.name.as_deref().unwrap_or_default(),
                "{what}: {error}"
            );
        });
        Ok(Self {
            metadata,
            body,
            kind: PhantomData,
        })
    }
}

impl<K, B: Clone> Clone for Object<K, B> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            body: self.body.clone(),
            kind: PhantomData,
        }
    }
}

impl<K, B: Debug> Debug for Object<K, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.metadata.name)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()>, B> Resource for Object<K, B> {
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

/// Spec and status, each by itself; `None` for one that is missing, null, or not to be read.
#[derive(Debug, Clone)]
pub struct Halves<Spec, Status> {
    spec: Option<Spec>,
    status: Option<Status>,
    /// Why the spec is not to be read.
    unread: Option<String>,
}

/// A spec or a status.
pub trait Half: DeserializeOwned {
    /// What follows where it cannot be read, for the log.
    const UNREAD: &'static str;
}

impl<Spec: Half, Status: Half> Body for Halves<Spec, Status> {
    fn read(parts: &Parts, unread: &mut dyn FnMut(&str, serde_json::Error)) -> Self {
        let mut why = None;
        let spec = half(parts.spec.as_deref(), &mut |what, error| {
            why = Some(in_short(&error));
            unread(what, error);
        });
        Self {
            spec,
            status: half(parts.status.as_deref(), unread),
            unread: why,
        }
    }
}

fn half<T: Half>(part: Option<&RawValue>, unread: &mut dyn FnMut(&str, serde_json::Error)) -> Option<T> {
    let read = serde_json::from_str(part?.get());
    read.unwrap_or_else(|error| {
        unread(T::UNREAD, error);
        None
    })
}

/// The most that is told of why something cannot be read: the error may have a text of somebody's in it.
const ERROR_MAX: usize = 200;

/// What is wrong with an object, without the place in a text that its owner never sees.
pub(crate) fn in_short(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    words::cut(text.strip_suffix(&place).unwrap_or(&text), ERROR_MAX)
}

pub type Watched<K, Spec, Status = Unread> = Object<K, Halves<Spec, Status>>;

/// A part of an object that nobody reads.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Unread {}

impl Half for Unread {
    const UNREAD: &'static str = "a part of it that nobody needs is no object";
}

impl Half for model::ClassSpec {
    const UNREAD: &'static str =
        "its spec cannot be read, so it selects no device and claims that name it are not allocated";
}

impl Half for model::SliceSpec {
    const UNREAD: &'static str = "its spec cannot be read, so it counts as without devices";
}

impl Half for model::ClaimSpec {
    const UNREAD: &'static str = "its spec cannot be read, so nothing that it asks for is explained";
}

impl Half for model::ClaimStatus {
    const UNREAD: &'static str = "its status cannot be read, so what it holds counts as free";
}

impl Half for model::RuleSpec {
    const UNREAD: &'static str = "its spec cannot be read, so it taints no device";
}

pub type Node = Watched<core::Node, Unread>;
pub type Class = Watched<resource::DeviceClass, model::ClassSpec>;
pub type Slice = Watched<resource::ResourceSlice, model::SliceSpec>;
pub type Claim = Watched<resource::ResourceClaim, model::ClaimSpec, model::ClaimStatus>;
pub type Rule = Watched<resource::DeviceTaintRule, model::RuleSpec>;

/// What is used of `metadata`; the resource version is the watch's own.
fn slim(parts: &Parts) -> Result<ObjectMeta, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    }
    let slim: Slim = serde_json::from_str(parts.metadata.get())?;
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
            spec: class.body.spec.unwrap_or_else(nothing),
            unreadable: class.body.unread,
        }
    }
}

/// Of a class that cannot be read: it must not be given what its selectors would have left out.
fn nothing() -> model::ClassSpec {
    let never = model::CelSelector {
        expression: "false".into(),
    };
    model::ClassSpec {
        selectors: vec![model::Selector { cel: Some(never) }],
        ..model::ClassSpec::default()
    }
}

impl From<Slice> for model::ResourceSlice {
    fn from(slice: Slice) -> Self {
        Self {
            metadata: metadata(slice.metadata),
            spec: slice.body.spec.unwrap_or_default(),
        }
    }
}

impl From<Claim> for model::ResourceClaim {
    fn from(claim: Claim) -> Self {
        Self {
            metadata: metadata(claim.metadata),
            spec: claim.body.spec.unwrap_or_default(),
            status: claim.body.status.unwrap_or_default(),
        }
    }
}

impl From<Rule> for model::DeviceTaintRule {
    fn from(rule: Rule) -> Self {
        Self {
            metadata: metadata(rule.metadata),
            spec: rule.body.spec.unwrap_or_default(),
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

    #[test]
    fn a_class_that_cannot_be_read_selects_nothing() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let class = |parameters: &str| {
            let text = format!(
                r#"{{"metadata": {{"name": "c"}}, "spec": {{"config": [{{"opaque": {{"driver": "theirs", "parameters": {parameters}}}}}]}}}}"#
            );
            model::DeviceClass::from(serde_json::from_str::<Class>(&text).unwrap())
        };
        let sound = class("{}");
        assert_eq!(
            (sound.spec.selectors, sound.unreadable),
            (vec![], None),
            "all devices, as it says"
        );
        let class = class(&format!(r#"{{"x": {deep}}}"#));
        assert_eq!(class.spec.selectors[0].cel.as_ref().unwrap().expression, "false");
        assert_eq!(class.unreadable.as_deref(), Some("recursion limit exceeded"));
    }

    #[test]
    fn why_something_cannot_be_read_is_short() {
        let long = format!("{:?}", "x".repeat(1_000));
        let error = serde_json::from_str::<model::RuleSpec>(&long).unwrap_err();
        let text = in_short(&error);
        assert!(
            text.starts_with("invalid type: string") && text.ends_with("...") && text.len() == 200,
            "{text}"
        );
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
        let requests = |claim: &Claim| claim.body.spec.as_ref().map(|spec| spec.devices.requests.len());
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
