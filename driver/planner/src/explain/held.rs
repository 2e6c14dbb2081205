//! The devices that a pod or claim has: where they are, their taints and limits, and the conditions that the node
//! reports.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vgpu_allocator::model::{DeviceResult, or_default};
use vgpu_api::capacity;
use vgpu_api::usage::ShareUse;
use vgpu_quantity::Quantity;

use crate::model::Claim;
use crate::names::{DRIVER, TAINT_KEY};
use crate::obstacle::taint_text;
use crate::state::State;

/// A device of ours that a claim has.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldDevice {
    /// `namespace/name`.
    pub claim: String,
    pub request: String,
    pub pool: String,
    pub device: String,
    /// Absent if neither pod nor slice says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
    /// As `key=value:effect`.
    pub taints: Vec<String>,
    /// The conditions that the node reports for the share.
    pub conditions: Vec<HeldCondition>,
    /// The enforcer of the memory limit. Absent while it is not known, and while the limit is not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_enforced_by: Option<MemoryWall>,
    /// Absent while it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<ShareUse>,
}

/// The enforcer of a memory limit: the reason of the condition MemoryEnforced while it is True (docs/truth.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum MemoryWall {
    /// libvgpu.so in the container.
    Library,
    /// The driver too, by a limit of its own for each container.
    DriverAndLibrary,
}

/// A condition of the claim's `status.devices`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldCondition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
}

/// Returns the devices of ours that a claim has. `document` is the claim as it was given, and `node` the node of its pod.
pub(super) fn devices(claim: &Claim, document: Option<&Value>, node: Option<&str>, state: &State) -> Vec<HeldDevice> {
    let results = claim.allocation().into_iter().flat_map(|of| &of.devices.results);
    let ours = results.filter(|result| result.driver == DRIVER);
    let held = |result: &DeviceResult| {
        let (taints, of_slice) = match state.device(&result.pool, &result.device) {
            // The taint that says who allocates the device is left out: it does not affect claims that already have it.
            Some((device, of_slice)) => {
                let taints = device.taints.iter().filter(|taint| taint.key != TAINT_KEY);
                (taints.map(taint_text).collect(), of_slice)
            }
            None => (Vec::new(), None),
        };
        let limit = |name: &str| result.consumed_capacity.get(name).map(Quantity::to_string);
        let conditions = conditions(document, result);
        HeldDevice {
            claim: claim.key(),
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            node: of_slice.or_else(|| node.map(str::to_owned)),
            memory: limit(capacity::MEMORY),
            cores: limit(capacity::CORES),
            taints,
            memory_enforced_by: MemoryWall::by(&conditions),
            conditions,
            used: None,
        }
    };
    ours.map(held).collect()
}

fn conditions(document: Option<&Value>, result: &DeviceResult) -> Vec<HeldCondition> {
    let devices = document.and_then(|claim| claim["status"]["devices"].as_array());
    let is_it = |device: &&Value| {
        device["driver"] == DRIVER
            && device["pool"] == *result.pool
            && device["device"] == *result.device
            && device["shareID"].as_str() == result.share_id.as_deref()
    };
    let conditions = devices.and_then(|devices| devices.iter().find(is_it)?["conditions"].as_array());
    let conditions = conditions.into_iter().flatten();
    conditions
        .filter_map(|found| HeldCondition::deserialize(found).ok())
        .collect()
}

// === impl MemoryWall ===

impl MemoryWall {
    fn by(conditions: &[HeldCondition]) -> Option<Self> {
        let is_it = |of: &&HeldCondition| of.kind == "MemoryEnforced" && of.status == "True";
        match conditions.iter().find(is_it)?.reason.as_str() {
            "Library" => Some(Self::Library),
            "DriverAndLibrary" => Some(Self::DriverAndLibrary),
            // A plugin of another release.
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Library => "memory held by libvgpu.so",
            Self::DriverAndLibrary => "memory held by libvgpu.so and the driver",
        }
    }
}

// === impl HeldDevice ===

impl HeldDevice {
    /// Limit and use in one line, then one line for each problem of the device or the share.
    pub(super) fn lines(&self) -> Vec<String> {
        let limits = [("memory", &self.memory), ("cores", &self.cores)];
        let limits: Vec<String> = limits
            .iter()
            .filter_map(|(name, limit)| limit.as_ref().map(|limit| format!("{name} {limit}")))
            .collect();
        let mut parts = Vec::new();
        parts.extend(self.node.as_ref().map(|node| format!("on node {node}")));
        parts.extend((!limits.is_empty()).then(|| format!("limit {}", limits.join(", "))));
        parts.extend(self.memory_enforced_by.map(|wall| wall.text().to_owned()));
        parts.extend(self.used.as_ref().map(used));
        parts.extend((!self.taints.is_empty()).then(|| format!("taints {}", self.taints.join(", "))));
        let mut lines = Vec::new();
        if !parts.is_empty() {
            lines.push(format!("{}: {}", self.device, parts.join("; ")));
        }
        let broken = self.conditions.iter().filter(|condition| condition.status == "False");
        lines.extend(broken.map(
            |HeldCondition {
                 kind, reason, message, ..
             }| { format!("claim {}: {kind} is False ({reason}): {message}", self.claim) },
        ));
        lines
    }
}

fn used(used: &ShareUse) -> String {
    let readable = |amount: &str| match amount {
        "" => "not known".to_owned(),
        amount => Quantity::parse(amount).map_or_else(|_| amount.to_owned(), |known| known.readable()),
    };
    let mut text = format!(
        "uses memory {}, at most {} so far",
        readable(&used.memory_used),
        readable(&used.memory_peak)
    );
    if let Some(percent) = used.gpu_time_percent {
        text.push_str(&format!(", GPU time {percent} %"));
    }
    if let Some(refusals) = used.refusals.filter(|refusals| *refusals > 0) {
        text.push_str(&format!(", memory refused {refusals} times"));
    }
    text
}

/// Returns `claim ns/name has gpu-0 of pool n1`, with the devices of all drivers.
pub(super) fn sentence(claim: &Claim) -> String {
    let results = claim.allocation().into_iter().flat_map(|of| &of.devices.results);
    let devices: Vec<String> = results
        .map(|result| format!("{} of pool {}", result.device, result.pool))
        .collect();
    format!("claim {} has {}", claim.key(), devices.join(", "))
}
