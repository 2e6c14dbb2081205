//! The use of shares, from the VgpuUsage of their namespace.

use serde::Deserialize as _;
use serde_json::Value;
use vgpu_api::usage::{ClaimUse, USAGE_NAME, VgpuUsage};
use vgpu_planner::explain::Explanation;

use crate::cluster::ReadError;
use crate::offline::now;
use crate::usage::figures::stale;

/// Adds what the subject's devices use, or says why it is not known.
pub(super) fn add(explanation: &mut Explanation, usages: Result<&[Value], &ReadError>) {
    let usages = match usages {
        Ok(usages) => usages,
        Err(error) => return explanation.notes.push(format!("what it uses is not known: {error}")),
    };
    let is_it = |usage: &&Value| {
        usage["metadata"]["namespace"]
            .as_str()
            .is_none_or(|of| of == explanation.namespace)
    };
    let usage = usages
        .iter()
        .filter(is_it)
        .find(|usage| usage["metadata"]["name"] == USAGE_NAME);
    let usage = usage.and_then(|usage| VgpuUsage::deserialize(usage).ok());
    let status = usage.and_then(|usage| usage.status).unwrap_or_default();
    let claims: &[ClaimUse] = &status.claims;
    for device in &mut explanation.devices {
        let claim = device.claim.rsplit('/').next().unwrap_or_default();
        let found = claims
            .iter()
            .find(|of| of.claim == claim && of.device == device.device && !of.without_claim);
        match found {
            Some(found) => device.used = Some(found.usage.clone()),
            None => explanation.notes.push(format!(
                "what it uses of {} is not known: VgpuUsage {USAGE_NAME} of the namespace does not list claim {claim}; it is \
                 written once a minute, while vgpu-controller and the node's plugin run",
                device.device
            )),
        }
    }
    if explanation.devices.iter().any(|device| device.used.is_some()) {
        explanation.notes.extend(stale(&status.as_of, now()));
    }
}
