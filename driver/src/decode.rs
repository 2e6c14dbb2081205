//! Decodes the API's objects from JSON straight into the model that State, planner and allocator use.
//!
//! ```text
//!  JSON of a list, a watch or an answer ─► Parts: metadata, spec, status ─► Object<Kind, T>, T: Readable
//! ```
//!
//! Only the used fields of `metadata` are read: `managedFields` alone would be half of a claim. Group, version and
//! names are those of k8s-openapi's type of the same kind. Unused fields are skipped and never stored.
//!
//! Failure modes: the API server stores objects that this cannot decode (parameters nested a thousand levels deep,
//! quantities beyond any number), and a list is decoded as a whole. So each part of an object is decoded separately. A
//! part that fails is left out, and a line in the log names the consequence; no other object is affected. For a claim,
//! as much of the status as possible is kept, because its devices are in use even if its owner wrote parameters that
//! nobody can read; without its spec it is never allocated.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::{RawValue, to_raw_value};
use vgpu_allocator::model::{
    Allocation, CelSelector, ClaimSpec, Constraint, DeviceClaim, DeviceClass, DeviceResult, DeviceResults,
    DeviceTaintRule, Selector, fitted,
};
use vgpu_planner::explain::cut;
use vgpu_planner::model;

/// An object of kind `K`, as a `T` if it can be read.
pub struct Object<K, T> {
    metadata: ObjectMeta,
    pub body: Option<T>,
    kind: PhantomData<fn() -> K>,
}

pub type Pod = Object<core::Pod, model::Pod>;
pub type Node = Object<core::Node, model::Node>;
pub type Class = Object<resource::DeviceClass, DeviceClass>;
pub type Slice = Object<resource::ResourceSlice, model::Slice>;
pub type Claim = Object<resource::ResourceClaim, model::Claim>;
pub type Rule = Object<resource::DeviceTaintRule, DeviceTaintRule>;

/// The parts of an object, as the API server wrote them.
#[derive(Debug, Clone, Deserialize)]
pub struct Parts {
    metadata: Box<RawValue>,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

/// A kind that can be decoded, or salvaged if one of its parts cannot.
pub trait Readable: Sized {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error>;

    /// Returns what can be decoded of the object, and the consequence of the missing rest for the log.
    fn salvage(parts: &Parts, error: &serde_json::Error) -> (Option<Self>, &'static str);
}

impl<'de, K: Resource<DynamicType = ()>, T: Readable> Deserialize<'de> for Object<K, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Parts::deserialize(deserializer)?;
        let metadata = slim(&parts).map_err(serde::de::Error::custom)?;
        Ok(Self {
            body: read_or_salvage::<K, T>(&parts, &metadata),
            metadata,
            kind: PhantomData,
        })
    }
}

fn read_or_salvage<K: Resource<DynamicType = ()>, T: Readable>(parts: &Parts, metadata: &ObjectMeta) -> Option<T> {
    T::read(parts).map(Some).unwrap_or_else(|error| {
        let (left, follows) = T::salvage(parts, &error);
        warn::<K>(metadata, follows, &error);
        left
    })
}

fn warn<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta, follows: &str, error: &serde_json::Error) {
    tracing::warn!(
        kind = &*K::kind(&()),
        namespace = metadata.namespace.as_deref().unwrap_or_default(),
        name = metadata.name.as_deref().unwrap_or_default(),
        "{follows}: {error}"
    );
}

/// The parts themselves, for several readers of one object. Without `managedFields`, which may be half of the object.
impl Readable for Parts {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        let mut metadata: BTreeMap<String, &RawValue> = serde_json::from_str(parts.metadata.get())?;
        metadata.remove("managedFields");
        Ok(Self {
            metadata: to_raw_value(&metadata)?,
            ..parts.clone()
        })
    }

    fn salvage(_: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        (None, NOTHING)
    }
}

impl<K: Resource<DynamicType = ()>> Object<K, Parts> {
    /// Decodes the object as a `T`, or as much of it as can be decoded.
    pub(crate) fn facts<T: Readable>(&self) -> Option<T> {
        read_or_salvage::<K, T>(self.body.as_ref()?, &self.metadata)
    }

    /// Decodes the whole object; `None` if that fails. `follows` is the consequence for the log.
    pub(crate) fn decode<T: DeserializeOwned>(&self, follows: &str) -> Option<T> {
        let parts = self.body.as_ref()?;
        let whole = parts.whole(true, parts.status());
        whole
            .inspect_err(|error| warn::<K>(&self.metadata, follows, error))
            .ok()
    }

    /// Like [`Self::decode`], without spec and status.
    pub(crate) fn metadata<T: DeserializeOwned>(&self, follows: &str) -> Option<T> {
        let bare = self.body.as_ref()?.whole(false, None);
        bare.inspect_err(|error| warn::<K>(&self.metadata, follows, error)).ok()
    }
}

impl<K, T: Clone> Clone for Object<K, T> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            body: self.body.clone(),
            kind: PhantomData,
        }
    }
}

impl<K, T: Debug> Debug for Object<K, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.metadata.name)
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()>, T> Resource for Object<K, T> {
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

/// The fields of `metadata` that a watch needs.
fn slim(parts: &Parts) -> Result<ObjectMeta, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
    }
    let slim: Slim = serde_json::from_str(parts.metadata.get())?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        ..ObjectMeta::default()
    })
}

/// The limit for the text of an error, which may quote the object.
const ERROR_MAX: usize = 200;

/// The error without its line and column, which refer to a JSON text that the object's owner never sees.
fn in_short(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    cut(text.strip_suffix(&place).unwrap_or(&text), ERROR_MAX)
}

/// The consequence if an object has no readable name or version.
const NOTHING: &str = "its metadata cannot be read, so what was known of it stays";

impl Parts {
    /// Decodes the object from its metadata, its spec if `spec`, and this status.
    pub(crate) fn whole<T: DeserializeOwned>(&self, spec: bool, status: Option<&str>) -> Result<T, serde_json::Error> {
        let spec = self.spec.as_ref().filter(|_| spec);
        let mut text = format!(r#"{{"metadata":{}"#, self.metadata.get());
        if let Some(spec) = spec {
            text.push_str(r#","spec":"#);
            text.push_str(spec.get());
        }
        if let Some(status) = status {
            text.push_str(r#","status":"#);
            text.push_str(status);
        }
        text.push('}');
        serde_json::from_str(&text)
    }

    pub(crate) fn status(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.get())
    }
}

impl Readable for model::Node {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, parts.status())
    }

    /// The node without its spec and status. No pod fits on it.
    fn salvage(parts: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        match parts.whole::<Self>(false, None) {
            Ok(node) => {
                let is_unreadable = true;
                let node = Self { is_unreadable, ..node };
                (Some(node), "it cannot be read, so nothing is placed there")
            }
            Err(_) => (None, NOTHING),
        }
    }
}

impl Readable for model::Slice {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, None)
    }

    /// The slice without devices.
    fn salvage(parts: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        match parts.whole(false, None) {
            Ok(slice) => (Some(slice), "its spec cannot be read, so it counts as without devices"),
            Err(_) => (None, NOTHING),
        }
    }
}

impl Readable for model::Claim {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, parts.status())
    }

    fn salvage(parts: &Parts, error: &serde_json::Error) -> (Option<Self>, &'static str) {
        let Ok(bare) = parts.whole::<Self>(false, None) else {
            return (None, NOTHING);
        };
        let without_config = || without_config(parts.status()?);
        let by_status = parts.whole::<Self>(false, parts.status());
        let by_status = by_status.or_else(|error| match without_config() {
            Some(status) => parts.whole(false, Some(&status)),
            None => Err(error),
        });
        let of_spec = parts.whole::<Self>(true, None);
        let unreadable = Some(Box::new(match of_spec {
            Err(error) => model::Unreadable {
                why: format!("spec: {}", in_short(&error)),
                asked: Arc::new(
                    parts
                        .spec
                        .as_ref()
                        .and_then(|spec| asked(spec.get()))
                        .unwrap_or_default(),
                ),
            },
            Ok(claim) => model::Unreadable {
                why: format!("status: {}", in_short(error)),
                asked: claim.facts.spec,
            },
        }));
        match by_status {
            Ok(claim) => {
                let claim = Self { unreadable, ..claim };
                (
                    Some(claim),
                    "it cannot be read as a whole, so it is not allocated; what it holds counts",
                )
            }
            Err(_) => {
                let held = parts.status().and_then(Held::of).unwrap_or_default();
                let follows = match held.allocation {
                    Some(_) => "its allocation cannot be read, so each of its devices counts as held whole",
                    None => "its status cannot be read, so what it holds counts as free; delete the claim and its pods",
                };
                let mut claim = Self { unreadable, ..bare };
                claim.facts.status.allocation = held.allocation.map(Arc::new);
                claim.reserved_for = held.reserved_for;
                (Some(claim), follows)
            }
        }
    }
}

/// The requests and constraints of a claim's spec. Parameters are left out, because they may be nested deeper than the
/// decoder goes, and so are capacities that cannot be read: the device then counts whole. `None` if that does not help.
fn asked(spec: &str) -> Option<ClaimSpec> {
    #[derive(Deserialize)]
    struct Spec {
        devices: Devices,
    }
    #[derive(Deserialize)]
    struct Devices {
        requests: Vec<Box<RawValue>>,
        #[serde(default, deserialize_with = "fitted")]
        constraints: Vec<Constraint>,
    }
    let Spec { devices } = serde_json::from_str(spec).ok()?;
    let request = |raw: &RawValue| {
        serde_json::from_str(raw.get()).ok().or_else(|| {
            let mut request: serde_json::Value = serde_json::from_str(raw.get()).ok()?;
            let alternatives = request.get_mut("firstAvailable").and_then(|list| list.as_array_mut());
            let remove = |ask: &mut serde_json::Value| ask.as_object_mut().map(|ask| ask.remove("capacity"));
            alternatives.into_iter().flatten().for_each(|ask| drop(remove(ask)));
            request.get_mut("exactly").map(remove);
            serde_json::from_value(request).ok()
        })
    };
    Some(ClaimSpec {
        devices: DeviceClaim {
            requests: devices.requests.iter().map(|raw| request(raw)).collect::<Option<_>>()?,
            constraints: devices.constraints,
            config: Vec::new(),
        },
    })
}

/// Removes from a claim's status the parameters of its allocation, which are a copy of those in its spec.
fn without_config(status: &str) -> Option<String> {
    #[derive(Deserialize, serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(skip_serializing_if = "Option::is_none")]
        allocation: Option<Allocation>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reserved_for: Option<Box<RawValue>>,
    }
    #[derive(Deserialize, serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Allocation {
        devices: Devices,
        #[serde(skip_serializing_if = "Option::is_none")]
        node_selector: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        allocation_timestamp: Option<Box<RawValue>>,
    }
    #[derive(Deserialize, serde::Serialize)]
    struct Devices {
        #[serde(skip_serializing_if = "Option::is_none")]
        results: Option<Box<RawValue>>,
    }
    serde_json::to_string(&serde_json::from_str::<Status>(status).ok()?).ok()
}

/// The parts of a claim's status that can be decoded one by one.
#[derive(Default)]
struct Held {
    allocation: Option<Allocation>,
    reserved_for: Vec<model::Consumer>,
}

impl Held {
    /// Each device is kept without its share, so that it counts as held whole, and without tolerations. With these the
    /// allocation would count as the controller's, which might then clear it.
    fn of(status: &str) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            allocation: Option<Given>,
            reserved_for: Option<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Given {
            devices: Devices,
            node_selector: Option<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        struct Devices {
            results: Vec<Box<RawValue>>,
        }
        #[derive(Deserialize)]
        struct Place {
            driver: String,
            pool: String,
            device: String,
        }
        let status: Status = serde_json::from_str(status).ok()?;
        let result = |raw: Box<RawValue>| {
            let place: Place = serde_json::from_str(raw.get()).ok()?;
            Some(DeviceResult {
                driver: place.driver,
                pool: place.pool,
                device: place.device,
                ..DeviceResult::default()
            })
        };
        let allocation = status.allocation.map(|given| Allocation {
            devices: DeviceResults {
                results: given.devices.results.into_iter().filter_map(result).collect(),
                config: Vec::new(),
            },
            node_selector: given
                .node_selector
                .and_then(|raw| serde_json::from_str(raw.get()).ok())
                .map(Arc::new),
            allocation_timestamp: None,
        });
        let reserved_for = status.reserved_for.and_then(|raw| serde_json::from_str(raw.get()).ok());
        Some(Self {
            allocation,
            reserved_for: reserved_for.unwrap_or_default(),
        })
    }
}

impl Readable for model::Pod {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, parts.status())
    }

    /// A pod whose needs are unknown gets nothing.
    fn salvage(_: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        (None, "it cannot be read, so it gets nothing")
    }
}

impl Readable for DeviceClass {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, None)
    }

    /// The class with a selector that matches nothing, because it must not select devices that its own selectors
    /// exclude. If only its config is unreadable, the drivers that its own selectors accept are still known.
    fn salvage(parts: &Parts, error: &serde_json::Error) -> (Option<Self>, &'static str) {
        #[derive(Deserialize, serde::Serialize)]
        struct Spec {
            #[serde(skip_serializing_if = "Option::is_none")]
            selectors: Option<Box<RawValue>>,
            #[serde(rename = "extendedResourceName", skip_serializing_if = "Option::is_none")]
            extended_resource_name: Option<Box<RawValue>>,
        }
        let without_config = || {
            let spec: Spec = serde_json::from_str(parts.spec.as_ref()?.get()).ok()?;
            let parts = Parts {
                spec: Some(to_raw_value(&spec).ok()?),
                ..parts.clone()
            };
            parts.whole::<Self>(true, None).ok()
        };
        let Some(mut class) = without_config().or_else(|| parts.whole(false, None).ok()) else {
            return (None, NOTHING);
        };
        let never = CelSelector {
            expression: "false".into(),
        };
        class.spec.selectors = vec![Selector { cel: Some(never) }];
        class.unreadable = Some(in_short(error));
        (
            Some(class),
            "its spec cannot be read, so it selects no device and claims that name it are not allocated",
        )
    }
}

impl Readable for DeviceTaintRule {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, None)
    }

    fn salvage(parts: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        match parts.whole(false, None) {
            Ok(rule) => (Some(rule), "its spec cannot be read, so it taints no device"),
            Err(_) => (None, NOTHING),
        }
    }
}

#[cfg(test)]
mod tests {
    use vgpu_allocator::model::RuleSpec;

    use super::*;

    fn claim(spec: &str, status: &str) -> Option<model::Claim> {
        let text = format!(
            r#"{{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{{"name":"c","namespace":"ns","uid":"u",
            "resourceVersion":"7","finalizers":["resource.kubernetes.io/delete-protection"],"annotations":{{"dra.vgpu/epoch":"e#1"}}}},
            "spec":{spec},"status":{status}}}"#
        );
        serde_json::from_str::<Claim>(&text).unwrap().body
    }

    const SPEC: &str = r#"{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"vgpu"}}]}}"#;

    fn status(config: &str) -> String {
        format!(
            r#"{{"allocation":{{"devices":{{"results":[{{"request":"r","driver":"dra.vgpu","pool":"n","device":"d",
            "consumedCapacity":{{"memory":"1Gi"}}}}],"config":[{config}]}}}},"reservedFor":[{{"resource":"pods","name":"p","uid":"1"}}]}}"#
        )
    }

    #[test]
    fn a_claim_is_read_with_all_that_is_decided_by() {
        let claim = claim(SPEC, &status("")).unwrap();
        assert_eq!((claim.version.0, claim.is_protected), (7, true));
        assert_eq!(claim.epoch.as_deref(), Some("e#1"));
        assert_eq!(claim.reserved_for[0].name, "p");
        assert!(claim.allocation().is_some());
    }

    #[test]
    fn what_a_claim_holds_counts_whatever_its_parameters_are() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let config = format!(r#"{{"opaque":{{"driver":"theirs","parameters":{{"x":{deep}}}}}}}"#);
        let spec = SPEC.replace("}}]}}", &format!("}}}}],\"config\":[{config}]}}}}"));
        let claim = claim(&spec, &status(&config)).unwrap();
        let unreadable = claim.unreadable.as_ref().unwrap();
        assert_eq!(
            unreadable.why, "spec: recursion limit exceeded",
            "never allocated, nor any claim of its pod"
        );
        assert_eq!(claim.asked().devices.requests.len(), 1, "quotas count it all the same");
        assert_eq!(claim.facts.spec.devices.requests.len(), 0);
        let results = &claim.allocation().unwrap().devices.results;
        assert_eq!(results[0].device, "d");
        assert_eq!(claim.reserved_for.len(), 1);
    }

    #[test]
    fn devices_of_an_allocation_that_cannot_be_read_count_as_held_whole() {
        let tolerations = r#""tolerations":[{"key":"dra.vgpu/allocator","value":"controller"}],"consumedCapacity""#;
        let status = status("")
            .replace("1Gi", "1e1005")
            .replace("\"consumedCapacity\"", tolerations);
        let status = status.replace("[{\"request\"", "[{\"device\":7},{\"shareID\":\"s\",\"request\"");
        let claim = claim(SPEC, &status).unwrap();
        assert!(claim.unreadable.as_ref().unwrap().why.starts_with("status: "));
        let results = &claim.allocation().unwrap().devices.results;
        let held = DeviceResult {
            driver: "dra.vgpu".into(),
            pool: "n".into(),
            device: "d".into(),
            ..DeviceResult::default()
        };
        assert_eq!(
            results,
            &[held],
            "without a share, and as nobody's that could take it back"
        );
        assert_eq!(claim.reserved_for[0].name, "p");
    }

    #[test]
    fn a_capacity_that_cannot_be_read_is_as_none() {
        let ask = |capacity: &str| format!(r#"{{"deviceClassName":"vgpu"{capacity}}}"#);
        let odd = ask(r#","capacity":{"requests":{"memory":"a lot"}}"#);
        for (requests, asked) in [
            (format!(r#"[{{"name":"r","exactly":{odd}}}]"#), Some(1)),
            (format!(r#"[{{"name":"r","firstAvailable":[{odd}]}}]"#), Some(1)),
            (r#"[{"name":7}]"#.to_owned(), None),
        ] {
            let claim = claim(&format!(r#"{{"devices":{{"requests":{requests}}}}}"#), "{}").unwrap();
            let requests = &claim.asked().devices.requests;
            assert!(claim.unreadable.is_some());
            assert_eq!((!requests.is_empty()).then_some(requests.len()), asked);
            for request in requests {
                assert!(request.asks().all(|ask| ask.class == "vgpu" && ask.capacity.is_none()));
            }
        }
    }

    #[test]
    fn a_node_that_cannot_be_read_is_known_to_be_such() {
        let text = r#"{"metadata":{"name":"n"},"spec":{"taints":"none"},"status":{"allocatable":{"cpu":"8"}}}"#;
        let node = serde_json::from_str::<Node>(text).unwrap().body.unwrap();
        assert!(node.is_unreadable && node.name() == "n");
        let node = serde_json::from_str::<Node>(&text.replace("\"none\"", "[]")).unwrap();
        assert!(!node.body.unwrap().is_unreadable);
    }

    #[test]
    fn a_version_that_is_no_number_is_no_object() {
        let text = r#"{"metadata":{"name":"c","resourceVersion":"x"},"spec":{}}"#;
        let read: Claim = serde_json::from_str(text).unwrap();
        assert!(read.body.is_none());
        assert_eq!(read.meta().name.as_deref(), Some("c"));
    }

    #[test]
    fn a_claim_is_read_without_what_nobody_needs() {
        let read: Claim = serde_json::from_str(
            r#"{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}], "annotations": {"a": "b"}},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
            "status": {"reservedFor": [{"name": "p"}], "devices": [{"device": "x", "data": {"big": []}}]}}"#,
        )
        .unwrap();
        assert_eq!(read.meta().resource_version.as_deref(), Some("7"));
        assert_eq!((&read.meta().managed_fields, &read.meta().annotations), (&None, &None));
        let claim = read.body.unwrap();
        assert_eq!(claim.key(), "ns/c");
        let request = &claim.facts.spec.devices.requests[0];
        assert_eq!(request.exactly.as_ref().unwrap().class, "vgpu");
        assert_eq!(claim.allocation(), None);
    }

    #[test]
    fn what_is_missing_or_null_is_empty() {
        for text in [
            r#"{"metadata": {"name": "n"}}"#,
            r#"{"metadata": {"name": "n", "labels": null}, "spec": null, "status": null}"#,
        ] {
            let node = serde_json::from_str::<Node>(text).unwrap().body.unwrap();
            assert_eq!((node.name(), node.is_unreadable), ("n", false));
            let rule = serde_json::from_str::<Rule>(text).unwrap().body.unwrap();
            assert_eq!(rule.spec, RuleSpec::default());
        }
    }

    #[test]
    fn a_class_that_cannot_be_read_selects_nothing() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let class = |parameters: &str| {
            let text = format!(
                r#"{{"metadata": {{"name": "c"}}, "spec": {{"config": [{{"opaque": {{"driver": "theirs", "parameters": {parameters}}}}}]}}}}"#
            );
            serde_json::from_str::<Class>(&text).unwrap().body.unwrap()
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
        let error = serde_json::from_str::<RuleSpec>(&long).unwrap_err();
        let text = in_short(&error);
        assert!(
            text.starts_with("invalid type: string") && text.ends_with("...") && text.len() == 200,
            "{text}"
        );
    }

    /// Objects in the form in which lists and watches send them.
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
        let requests = |claim: &Claim| {
            let claim = claim.body.as_ref().unwrap();
            claim
                .unreadable
                .is_none()
                .then_some(claim.facts.spec.devices.requests.len())
        };
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
