//! The documented example at run time: its pods, their claims, and their allocations.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::kube::Kube;
use crate::wait::wait;

/// A pod with one claim of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub pod: String,
    pub claim: String,
    pub claim_uid: String,
    /// The allocated GPU.
    pub device: Option<String>,
}

/// The manifests of an example, as one text.
pub fn manifests(example: &Path) -> Result<String> {
    let entries = std::fs::read_dir(example).with_context(|| format!("cannot read {}", example.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    ensure!(!files.is_empty(), "{} holds no manifest", example.display());
    let mut text = String::new();
    for file in files {
        let one = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        text.push_str(&one);
        text.push_str("\n---\n");
    }
    Ok(text)
}

/// Every pod of the namespace with its claim.
pub fn shares(kube: &Kube<'_>) -> Result<Vec<Share>> {
    Ok(shares_of(&kube.get(&["pods"])?, &kube.get(&["resourceclaims"])?))
}

fn shares_of(pods: &Value, claims: &Value) -> Vec<Share> {
    let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let by_name: BTreeMap<String, Value> = items(claims)
        .into_iter()
        .filter_map(|claim| Some((text(&claim["metadata"]["name"])?, claim)))
        .collect();
    items(pods)
        .iter()
        .filter_map(|pod| {
            let claim = text(&pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])?;
            let found = by_name.get(&claim)?;
            Some(Share {
                pod: text(&pod["metadata"]["name"])?,
                claim_uid: text(&found["metadata"]["uid"])?,
                device: text(&found["status"]["allocation"]["devices"]["results"][0]["device"]),
                claim,
            })
        })
        .collect()
}

/// Waits until exactly `running` pods of the namespace are running and `pending` are Pending. Returns the names of
/// both.
pub fn settle(kube: &Kube<'_>, running: usize, pending: usize, limit: Duration) -> Result<(Vec<String>, Vec<String>)> {
    let what = format!("{running} pods to run and {pending} to wait");
    wait(limit, &what, || {
        let of = |wanted: &str, phases: &[(String, String)]| -> Vec<String> {
            phases
                .iter()
                .filter(|(_, phase)| phase == wanted)
                .map(|(name, _)| name.clone())
                .collect()
        };
        let phases = kube.phases()?;
        let (now_running, now_pending) = (of("Running", &phases), of("Pending", &phases));
        if (now_running.len(), now_pending.len(), phases.len()) == (running, pending, running + pending) {
            return Ok(Some((now_running, now_pending)));
        }
        bail!(
            "{} run, {} wait, {} in all",
            now_running.len(),
            now_pending.len(),
            phases.len()
        )
    })
    .map_err(|error| error.context(kube.dump()))
}

/// The number of these pods on each GPU.
#[must_use]
pub fn by_device(shares: &[Share]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for share in shares {
        if let Some(device) = &share.device {
            found.entry(device.clone()).or_default().push(share.pod.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_joined_with_their_claims() {
        let pods = json!({"items": [
            {"metadata": {"name": "a"}, "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a-gpu-x"}]}},
            {"metadata": {"name": "plain"}, "status": {}},
        ]});
        let claims = json!({"items": [{"metadata": {"name": "a-gpu-x", "uid": "u"},
            "status": {"allocation": {"devices": {"results": [{"device": "gpu-1"}]}}}}]});
        let found = shares_of(&pods, &claims);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].pod.as_str(), found[0].device.as_deref()),
            ("a", Some("gpu-1"))
        );
        assert_eq!(by_device(&found)["gpu-1"], ["a"]);
    }
}
