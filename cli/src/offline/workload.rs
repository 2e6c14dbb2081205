//! Finds the pod template in a workload, the number of its pods, and the claims of each.

use std::collections::BTreeMap;

use serde_json::Value;
use vgpu_allocator::model::ClaimSpec;
use vgpu_api::decode::decode;
use vgpu_planner::explain::Workload;

use super::documents::Object;

pub(super) fn group_of(object: &Value) -> &str {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    version.split_once('/').map_or("", |(group, _)| group)
}

/// JSON pointer to the pod in an object. `None` for an object without one.
pub(super) fn pod_path(object: &Value) -> Option<&'static str> {
    Some(match (group_of(object), object["kind"].as_str()?) {
        ("", "Pod") => "",
        ("", "ReplicationController") => "/spec/template",
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") => "/spec/template",
        ("batch", "Job") => "/spec/template",
        ("batch", "CronJob") => "/spec/jobTemplate/spec/template",
        _ => return None,
    })
}

/// How many of its pods run at a time. `None` for a DaemonSet, which has one on each node.
pub(super) fn pods_at_a_time(object: &Value) -> Option<usize> {
    let count = match object["kind"].as_str()? {
        "DaemonSet" => return None,
        "Job" => &object["spec"]["parallelism"],
        "CronJob" => &object["spec"]["jobTemplate"]["spec"]["parallelism"],
        _ => &object["spec"]["replicas"],
    };
    Some(count.as_u64().and_then(|count| count.try_into().ok()).unwrap_or(1))
}

/// ResourceClaimTemplates by namespace and name.
pub(super) struct Templates(BTreeMap<(String, String), Value>);

impl Templates {
    /// Objects without a namespace belong to `default`.
    pub(super) fn of<'v>(templates: impl Iterator<Item = &'v Object>, default: &str) -> Self {
        let entry = |object: &Object| {
            let name = object.value["metadata"]["name"].as_str().unwrap_or_default();
            let key = (namespace_of(&object.value, default).to_owned(), name.to_owned());
            (key, object.value["spec"]["spec"].clone())
        };
        Self(templates.map(entry).collect())
    }
}

fn namespace_of<'v>(object: &'v Value, default: &'v str) -> &'v str {
    object["metadata"]["namespace"].as_str().unwrap_or(default)
}

/// Reads a workload, or says why it cannot be counted.
pub(super) fn workload(object: &Object, templates: &Templates, default: &str) -> Result<Workload, String> {
    let value = &object.value;
    let path = pod_path(value).unwrap_or_default();
    let pods = pods_at_a_time(value).ok_or("a DaemonSet has a pod on each node; try its pod as a Pod, by --node")?;
    let namespace = namespace_of(value, default).to_owned();
    let entries = value.pointer(&format!("{path}/spec/resourceClaims"));
    let entries = entries.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut claims = Vec::new();
    for entry in entries {
        let name = entry["name"].as_str().unwrap_or_default();
        let Some(template) = entry["resourceClaimTemplateName"].as_str() else {
            return Err(format!(
                "{path}/spec/resourceClaims[{name}]: resourceClaimName is one claim for all pods; \
                 `vgpu explain claim/NAME` says where it is"
            ));
        };
        let spec = templates
            .0
            .get(&(namespace.clone(), template.to_owned()))
            .ok_or_else(|| {
                format!("ResourceClaimTemplate {namespace}/{template} is not in the files, nor among those of the cluster that may be read")
            })?;
        let spec: ClaimSpec = decode(spec).map_err(|error| format!("ResourceClaimTemplate {template}: {error}"))?;
        claims.push((name.to_owned(), spec));
    }
    if claims.is_empty() {
        return Err("its pods have no claims; for another system's resources: \
                    vgpu translate -f FILE | vgpu fit -f -"
            .to_owned());
    }
    Ok(Workload {
        namespace,
        pods,
        claims,
    })
}
