//! The API's objects, decoded into the planner's own types.
//!
//! How it fails: as in [`crate::wire`], a part that cannot be read is left out, with a line in the log, and no other
//! object suffers. Of a claim the status stays as long as it goes, and without its spec it is never allocated: what it
//! holds must count although its owner wrote parameters that nobody can read.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use vgpu_allocator::model::{Allocation, DeviceResult, DeviceResults};
use vgpu_planner::model;

use crate::convert;
use crate::wire::{Body, Object, Parts, in_short};

/// An object of kind `K`, as a `T` if it can be read.
pub type Planned<K, T> = Object<K, Option<T>>;

pub type Pod = Planned<core::Pod, PodObject>;
pub type Node = Planned<core::Node, model::Node>;
pub type Slice = Planned<resource::ResourceSlice, model::Slice>;
pub type Claim = Planned<resource::ResourceClaim, model::Claim>;

/// A pod for the planner, and for the explanation if it waits.
#[derive(Debug, Clone)]
pub struct PodObject {
    pub(crate) planned: model::Pod,
    pub(crate) waiting: Option<crate::model::Pod>,
}

/// What can be made of an object of which not every part can be read.
pub trait Readable: Sized {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error>;

    /// What is left without what keeps it from being read, and what follows from that, for the log.
    fn salvage(parts: &Parts, error: &serde_json::Error) -> (Option<Self>, &'static str);
}

impl<T: Readable> Body for Option<T> {
    fn read(parts: &Parts, unread: &mut dyn FnMut(&str, serde_json::Error)) -> Self {
        T::read(parts).map(Some).unwrap_or_else(|error| {
            let (left, follows) = T::salvage(parts, &error);
            unread(follows, error);
            left
        })
    }
}

/// Of an object without a name or a version nothing is made.
const NOTHING: &str = "its metadata cannot be read, so what was known of it stays";

impl Parts {
    fn whole<T: DeserializeOwned>(&self, spec: bool, status: Option<&str>) -> Result<T, serde_json::Error> {
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

    fn status(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.get())
    }
}

impl Readable for model::Node {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, parts.status())
    }

    /// A node that nothing fits on.
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

    /// A slice without devices.
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
        let of_spec = parts.whole::<Self>(true, None).err();
        let unreadable = Some(match &of_spec {
            Some(error) => format!("spec: {}", in_short(error)),
            None => format!("status: {}", in_short(error)),
        });
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
                claim.asked.status.allocation = held.allocation;
                claim.reserved_for = held.reserved_for;
                (Some(claim), follows)
            }
        }
    }
}

/// A claim's status without the parameters of its allocation, which come from its spec.
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

/// What is left of a claim's status when more than the parameters cannot be read.
#[derive(Default)]
struct Held {
    allocation: Option<Allocation>,
    reserved_for: Vec<model::Consumer>,
}

impl Held {
    /// Each device without a share, so it counts as held whole; and without tolerations, by which the allocation would
    /// count as the controller's, to be taken back by what else the status says.
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
            node_selector: given.node_selector.and_then(|raw| serde_json::from_str(raw.get()).ok()),
            allocation_timestamp: None,
        });
        let reserved_for = status.reserved_for.and_then(|raw| serde_json::from_str(raw.get()).ok());
        Some(Self {
            allocation,
            reserved_for: reserved_for.unwrap_or_default(),
        })
    }
}

impl Readable for PodObject {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Phase {
            phase: Option<String>,
        }
        let planned: model::Pod = parts.whole(true, parts.status())?;
        let phase: Phase = parts
            .status()
            .map(serde_json::from_str)
            .transpose()?
            .unwrap_or_default();
        let may_wait = planned.node.is_none() && phase.phase.as_deref() == Some("Pending");
        let waiting = may_wait
            .then(|| parts.whole::<core::Pod>(true, parts.status()))
            .transpose()?;
        Ok(Self {
            waiting: waiting.map(convert::pod),
            planned,
        })
    }

    /// A pod whose needs are not known gets nothing.
    fn salvage(_: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        (None, "it cannot be read, so it gets nothing")
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;

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
        let why = claim.unreadable.as_deref();
        assert_eq!(
            why,
            Some("spec: recursion limit exceeded"),
            "never allocated, nor any claim of its pod"
        );
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
        assert!(claim.unreadable.unwrap().starts_with("status: "));
        let results = &claim.asked.status.allocation.unwrap().devices.results;
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
    fn a_pod_is_explained_only_while_it_waits() {
        let pod = |more: &str, phase: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"p","namespace":"ns","uid":"u"}},"spec":{{"containers":[]{more}}},"status":{{"phase":"{phase}"}}}}"#
            );
            serde_json::from_str::<Pod>(&text).unwrap().body.unwrap()
        };
        assert!(pod("", "Pending").waiting.is_some());
        assert!(pod(r#","nodeName":"n""#, "Pending").waiting.is_none());
        assert!(pod(r#","nodeName":"n""#, "Running").planned.node.is_some());
    }
}
