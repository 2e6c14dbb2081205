//! The legacy view of a bound pod, from the pod and its claims as they were just read.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde_json::{Value, json};
use vgpu_api::{DRIVER_NAME, capacity};
use vgpu_dialects::{Bound, GpuShare, Record, legacy_view};

use crate::gpus::Gpus;

/// The annotation that records that the pod's annotations were written; its value is the pod's UID. A pod that was
/// copied from another pod's manifest has that pod's UID, or none.
pub const LEGACY_VIEW: &str = "dra.vgpu/legacy-view";
/// The longest value of a label. A node's name may be longer.
const LABEL_MAX: usize = 63;

/// Why a pod has no legacy view yet. Each reason ends by itself, or with the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotYet {
    #[error("{0}")]
    Annotation(String),
    #[error("it is not bound")]
    NotBound,
    #[error("status.resourceClaimStatuses does not name the claim of {0}")]
    NoClaim(String),
    #[error("claim {0} is not there, is not allocated, or is not reserved for the pod")]
    NotAllocated(String),
    #[error("no ResourceSlice has device {device} of pool {pool}")]
    NoDevice { pool: String, device: String },
    #[error("claim {claim} has no readable {key} of device {device}")]
    NoAmount {
        claim: String,
        key: &'static str,
        device: String,
    },
}

/// The names of the pod's claims that were made from templates.
pub fn claim_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten());
    statuses.filter_map(|status| status.resource_claim_name.as_deref())
}

/// The merge patch with the pod's annotations; `None` if it has them, or was not translated.
///
/// # Errors
/// What is missing.
pub fn legacy_patch(pod: &Pod, claims: &[ResourceClaim], gpus: &Gpus) -> Result<Option<Value>, NotYet> {
    let record = Record::of(pod).map_err(|problem| NotYet::Annotation(problem.to_string()))?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let annotations = pod.metadata.annotations.as_ref();
    let mark = annotations.and_then(|all| all.get(LEGACY_VIEW)).map(String::as_str);
    let Some(record) = record.filter(|_| mark != Some(uid)) else {
        return Ok(None);
    };
    let view = legacy_view(pod, &record, &bound(pod, &record, claims, gpus)?);
    let mut annotations = view.annotations;
    annotations.insert(LEGACY_VIEW.to_owned(), uid.to_owned());
    let mut labels = view.labels;
    labels.retain(|_, value| value.len() <= LABEL_MAX);
    let mut metadata = json!({"uid": uid, "annotations": annotations});
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    Ok(Some(json!({ "metadata": metadata })))
}

fn bound(pod: &Pod, record: &Record, claims: &[ResourceClaim], gpus: &Gpus) -> Result<Bound, NotYet> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node = node.filter(|node| !node.is_empty()).ok_or(NotYet::NotBound)?;
    let mut containers = BTreeMap::new();
    for asked in &record.containers {
        let Some(claim) = &asked.claim else { continue };
        let is_whole = record.request(&asked.name).is_some_and(|request| request.is_whole());
        let shares = shares(pod, claim, is_whole, claims, gpus)?;
        containers.insert(asked.name.clone(), shares);
    }
    Ok(Bound {
        node,
        at: bound_at(pod).ok_or(NotYet::NotBound)?,
        containers,
    })
}

/// When kube-scheduler bound the pod, according to the API server: every caller gets the same time.
fn bound_at(pod: &Pod) -> Option<Duration> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut scheduled = conditions
        .iter()
        .filter(|one| one.type_ == "PodScheduled" && one.status == "True");
    let time = &scheduled.next()?.last_transition_time.as_ref()?.0;
    Some(Duration::from_secs(u64::try_from(time.as_second()).ok()?))
}

/// The GPUs of one claim of the pod, in the order of its results.
fn shares(
    pod: &Pod,
    claim: &str,
    is_whole: bool,
    claims: &[ResourceClaim],
    gpus: &Gpus,
) -> Result<Vec<GpuShare>, NotYet> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let name = statuses
        .filter(|status| status.name == claim)
        .find_map(|status| status.resource_claim_name.as_deref());
    let name = name.ok_or_else(|| NotYet::NoClaim(claim.to_owned()))?;
    let named = claims.iter().find(|one| one.metadata.name.as_deref() == Some(name));
    let status = named.and_then(|claim| claim.status.as_ref());
    let consumers = status
        .into_iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    let is_reserved = consumers
        .into_iter()
        .any(|one| Some(&one.uid) == pod.metadata.uid.as_ref());
    let allocation = status
        .and_then(|status| status.allocation.as_ref())
        .filter(|_| is_reserved);
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref());
    let results = results.ok_or_else(|| NotYet::NotAllocated(name.to_owned()))?;
    let ours = results.iter().filter(|result| result.driver == DRIVER_NAME);
    ours.map(|result| share(name, result, is_whole, gpus)).collect()
}

fn share(claim: &str, result: &DeviceRequestAllocationResult, whole: bool, gpus: &Gpus) -> Result<GpuShare, NotYet> {
    let (pool, device) = (&result.pool, &result.device);
    let published = gpus.device(pool, device).ok_or_else(|| NotYet::NoDevice {
        pool: pool.clone(),
        device: device.clone(),
    })?;
    let amount = |key: &'static str| {
        // With both names Prepare has refused the claim.
        let consumed = result.consumed_capacity.as_ref();
        let consumed = consumed.and_then(|consumed| capacity::find(key, |name| consumed.get(name)).ok().flatten());
        let amount = consumed.and_then(|amount| u64::try_from(vgpu_quantity::whole(&amount.0).ok()?).ok());
        amount.ok_or_else(|| NotYet::NoAmount {
            claim: claim.to_owned(),
            key,
            device: device.clone(),
        })
    };
    // An instance that is not shared has no consumed capacity.
    let (memory, cores) = match published.gpu.parent.is_some() && result.consumed_capacity.is_none() {
        true => (published.gpu.memory, 100),
        false => (amount(capacity::MEMORY)?, amount(capacity::CORES)?),
    };
    Ok(GpuShare {
        uuid: published.gpu.uuid.clone(),
        index: published.index,
        memory,
        device_memory: published.gpu.memory,
        // Class gpu consumes no cores: it gives all of them.
        cores: if whole {
            100
        } else {
            u32::try_from(cores).unwrap_or(100)
        },
        whole,
    })
}
