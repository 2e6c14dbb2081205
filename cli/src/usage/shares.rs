//! Shares of a namespace, with the pods, template and request that their claims belong to.

use serde_json::Value;
use vgpu_api::DRIVER_NAME;
use vgpu_api::usage::ClaimUse;
use vgpu_quantity::read_bytes;

use super::seen::{Seen, list, results};

/// The name in a pod's `spec.resourceClaims` of a claim that was created from a template.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
const TRANSLATED: &str = "dra.vgpu/translated";

/// A share, and what is known of its claim. Nothing is known if the claim is gone.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Share {
    pub(super) usage: ClaimUse,
    pub(super) pods: Vec<String>,
    /// The owners of the pods, such as `deployment/train`.
    pub(super) workloads: Vec<String>,
    /// The template of the claim.
    pub(super) template: Option<String>,
    /// True if the pod was written for another system, so the template is generated and no user writes it.
    pub(super) is_translated: bool,
    /// True if kube-scheduler made the claim for an extended resource.
    pub(super) is_extended: bool,
    pub(super) request: Option<String>,
    /// Memory of the whole GPU.
    pub(super) gpu_memory: Option<u64>,
}

/// Returns the namespace's shares, the largest first.
pub(super) fn of(seen: &Seen) -> Vec<Share> {
    let usages = seen.usage.iter().flat_map(|(_, status)| &status.claims);
    let mut shares: Vec<Share> = usages.map(|usage| joined(usage, seen)).collect();
    shares.sort_by_cached_key(|share| {
        let usage = &share.usage;
        let largest =
            [&usage.usage.memory, &usage.usage.memory_used].map(|memory| std::cmp::Reverse(read_bytes(memory)));
        (largest, usage.claim.clone(), usage.device.clone())
    });
    shares
}

fn joined(usage: &ClaimUse, seen: &Seen) -> Share {
    let mut share = Share {
        usage: usage.clone(),
        gpu_memory: gpu_memory(usage, &seen.slices),
        ..Share::default()
    };
    // A newer claim of the same name is a different claim.
    let claim = seen
        .claims
        .iter()
        .find(|claim| claim["metadata"]["name"] == usage.claim.as_str());
    let Some(claim) = claim.filter(|_| !usage.without_claim) else {
        return share;
    };
    let holders = list(&claim["status"]["reservedFor"]).filter(|holder| holder["resource"] == "pods");
    share.pods = holders
        .filter_map(|holder| Some(holder["name"].as_str()?.to_owned()))
        .collect();
    let mut on_device = results(claim).filter(|result| result["device"] == usage.device.as_str());
    // Two requests of one claim on one GPU cannot be told apart.
    if let (Some(result), None) = (on_device.next(), on_device.next()) {
        share.request = result["request"].as_str().map(str::to_owned);
    }
    let pods: Vec<&Value> = seen
        .pods
        .iter()
        .filter(|pod| share.pods.iter().any(|name| pod["metadata"]["name"] == name.as_str()))
        .collect();
    share.workloads = pods.iter().filter_map(|pod| workload(pod)).collect();
    share.workloads.dedup();
    share.is_translated = pods
        .iter()
        .any(|pod| !pod["metadata"]["annotations"][TRANSLATED].is_null());
    let annotations = &claim["metadata"]["annotations"];
    share.is_extended = annotations[EXTENDED] == "true";
    let entry = &annotations[POD_CLAIM_NAME];
    share.template = pods.iter().find_map(|pod| {
        let mut entries = list(&pod["spec"]["resourceClaims"]);
        let entry = entries.find(|named| entry.is_string() && named["name"] == *entry)?;
        Some(entry["resourceClaimTemplateName"].as_str()?.to_owned())
    });
    share
}

/// Returns the controller of a pod. A Deployment's ReplicaSet is named after the Deployment and the pod's hash.
fn workload(pod: &Value) -> Option<String> {
    let metadata = &pod["metadata"];
    let owner = list(&metadata["ownerReferences"]).find(|owner| owner["controller"] == true)?;
    let (kind, name) = (owner["kind"].as_str()?.to_lowercase(), owner["name"].as_str()?);
    let hash = metadata["labels"]["pod-template-hash"].as_str();
    let deployment = hash.and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
    Some(match deployment.filter(|_| kind == "replicaset") {
        Some(deployment) => format!("deployment/{deployment}"),
        None => format!("{kind}/{name}"),
    })
}

/// Returns the memory of the GPU by its slice.
fn gpu_memory(usage: &ClaimUse, slices: &[Value]) -> Option<u64> {
    let here =
        |slice: &&Value| slice["spec"]["driver"] == DRIVER_NAME && slice["spec"]["nodeName"] == usage.node.as_str();
    let mut devices = slices
        .iter()
        .filter(here)
        .flat_map(|slice| list(&slice["spec"]["devices"]));
    let device = devices.find(|device| device["name"] == usage.device.as_str())?;
    read_bytes(device["capacity"]["memory"]["value"].as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use vgpu_api::usage::VgpuUsageStatus;

    fn seen(claims: Value) -> Seen {
        let usage = VgpuUsageStatus {
            claims: serde_json::from_value(claims).unwrap(),
            ..VgpuUsageStatus::default()
        };
        Seen {
            knows_claims: true,
            usage: Some((Value::Null, usage)),
            claims: vec![
                json!({"metadata": {"name": "train-gpu-x", "annotations": {POD_CLAIM_NAME: "gpu"}},
                "status": {"reservedFor": [{"resource": "pods", "name": "train-abc-1"}],
                    "allocation": {"devices": {"results": [{"driver": DRIVER_NAME, "request": "part", "device": "gpu-0"}]}}}}),
            ],
            pods: vec![
                json!({"metadata": {"name": "train-abc-1", "labels": {"pod-template-hash": "abc"},
                    "ownerReferences": [{"controller": true, "kind": "ReplicaSet", "name": "train-abc"}]},
                "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}}),
            ],
            slices: vec![json!({"spec": {"driver": DRIVER_NAME, "nodeName": "n1", "devices": [
                {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}]}})],
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_share_has_the_names_of_its_claims_pod_template_request_and_workload() {
        let shares = of(&seen(
            json!([{"claim": "train-gpu-x", "node": "n1", "device": "gpu-0"}]),
        ));
        let [share] = &shares[..] else { panic!("{shares:?}") };
        assert_eq!(share.pods, ["train-abc-1"]);
        assert_eq!(share.workloads, ["deployment/train"]);
        assert_eq!(
            (share.template.as_deref(), share.request.as_deref()),
            (Some("t"), Some("part"))
        );
        assert_eq!(share.gpu_memory, Some(80 << 30));
    }

    #[test]
    fn a_share_whose_claim_is_gone_has_nothing_of_a_new_claim_with_that_name() {
        let gone = json!([{"claim": "train-gpu-x", "node": "n1", "device": "gpu-0", "withoutClaim": true}]);
        let shares = of(&seen(gone));
        assert!(shares[0].pods.is_empty() && shares[0].template.is_none());
    }

    #[test]
    fn the_largest_share_is_first_and_an_unknown_size_is_last() {
        let shares = of(&seen(
            json!([{"claim": "b", "memory": "1Gi"}, {"claim": "c"}, {"claim": "a", "memory": "1024Mi",
            "memoryUsed": "1Mi"}, {"claim": "d", "memory": "3Gi"}]),
        ));
        let names: Vec<&str> = shares.iter().map(|share| share.usage.claim.as_str()).collect();
        assert_eq!(names, ["d", "a", "b", "c"]);
    }
}
