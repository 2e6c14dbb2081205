//! The fields of each kind that are included in the bundle. Unlisted fields are left out: environments, arguments and
//! images of tenants, their labels, addresses of nodes.

use serde_json::Value;

use crate::doctor::{DRIVER, is_labelled, text};

/// The fields that are kept of every object.
const METADATA: [&str; 8] = [
    "metadata/name",
    "metadata/namespace",
    "metadata/uid",
    "metadata/generation",
    "metadata/creationTimestamp",
    "metadata/deletionTimestamp",
    "metadata/finalizers",
    "metadata/resourceVersion",
];
/// The labels and annotations whose keys begin like this are kept: users do not write names into their values.
const KEYS: [&str; 3] = ["dra.vgpu/", "nvidia.com/", "pod-security.kubernetes.io/"];
/// Labels with this beginning are kept only on the chart's objects: on others their values name tenants.
const CHART: &str = "app.kubernetes.io/";
/// Where the parameters of drivers are, in classes, claims, templates and allocations.
const CONFIGS: [&str; 4] = [
    "/spec/config",
    "/spec/devices/config",
    "/spec/spec/devices/config",
    "/status/allocation/devices/config",
];

/// The fields that are kept of a pod. `*` stands for each element of a list.
const POD: &[&str] = &[
    "spec/nodeName",
    "spec/schedulerName",
    "spec/schedulingGates",
    "spec/priority",
    "spec/resourceClaims",
    "spec/containers/*/name",
    "spec/containers/*/resources",
    "spec/initContainers/*/name",
    "spec/initContainers/*/resources",
    "status/phase",
    "status/reason",
    "status/conditions",
    "status/resourceClaimStatuses",
    "status/containerStatuses/*/name",
    "status/containerStatuses/*/ready",
    "status/containerStatuses/*/restartCount",
    "status/containerStatuses/*/state/running",
    "status/containerStatuses/*/state/waiting/reason",
    "status/containerStatuses/*/state/terminated/reason",
    "status/containerStatuses/*/state/terminated/exitCode",
    "status/containerStatuses/*/state/terminated/finishedAt",
];

fn fields(plural: &str) -> &'static [&'static str] {
    match plural {
        "nodes" => &[
            "spec/unschedulable",
            // Taints' values are left out: they name the tenants that the node is reserved for.
            "spec/taints/*/key",
            "spec/taints/*/effect",
            "status/capacity",
            "status/allocatable",
            "status/conditions",
            "status/nodeInfo",
        ],
        "pods" => POD,
        "daemonsets" | "deployments" => &[
            "spec/replicas",
            "spec/template/spec/containers/*/image",
            "spec/template/spec/containers/*/args",
            "spec/template/spec/containers/*/resources",
            "status",
        ],
        "events" => &[
            "regarding",
            "related",
            "reason",
            "note",
            "type",
            "action",
            "eventTime",
            "series",
            "deprecatedCount",
            "deprecatedFirstTimestamp",
            "deprecatedLastTimestamp",
            "reportingController",
        ],
        // Other drivers' device data is left out: it may contain addresses.
        "resourceclaims" => &[
            "spec",
            "status/allocation",
            "status/reservedFor",
            "status/devices/*/driver",
            "status/devices/*/pool",
            "status/devices/*/device",
            "status/devices/*/shareID",
            "status/devices/*/conditions",
        ],
        // Without the labels and annotations that its claims get.
        "resourceclaimtemplates" => &["spec/spec"],
        _ => &["spec", "status"],
    }
}

pub(super) fn of(plural: &str, object: &Value) -> Value {
    let paths: Vec<&str> = METADATA.iter().chain(fields(plural)).copied().collect();
    let mut kept = keep(object, &paths);
    for path in CONFIGS {
        for config in kept
            .pointer_mut(path)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let is_ours = text(config, "/opaque/driver") == DRIVER;
            if let Some(opaque) = config.pointer_mut("/opaque").and_then(Value::as_object_mut) {
                // Parameters of other drivers may be anything.
                opaque.retain(|key, _| is_ours || key != "parameters");
            }
        }
    }
    let devices = kept.pointer_mut("/status/devices").and_then(Value::as_array_mut);
    for device in devices
        .into_iter()
        .flatten()
        .filter(|device| device["driver"] != DRIVER)
    {
        // Words of other drivers may have addresses.
        if let Some(conditions) = device.get_mut("conditions") {
            conditions.take();
        }
    }
    for map in ["labels", "annotations"] {
        let entries = object["metadata"][map].as_object().into_iter().flatten();
        let known = entries.filter(|(key, _)| {
            KEYS.iter().any(|start| key.starts_with(start)) || (key.starts_with(CHART) && is_labelled(object))
        });
        let known: Value = known.map(|(key, value)| (key.clone(), value.clone())).collect();
        if known.as_object().is_some_and(|known| !known.is_empty()) {
            kept["metadata"][map] = known;
        }
    }
    kept
}

fn keep(value: &Value, paths: &[&str]) -> Value {
    if paths.contains(&"") {
        return value.clone();
    }
    match value {
        Value::Array(items) => items.iter().map(|item| keep(item, &below(paths, "*"))).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter_map(|(key, value)| {
                let inner = below(paths, key);
                (!inner.is_empty()).then(|| (key.clone(), keep(value, &inner)))
            });
            kept.collect()
        }
        // An object was expected here, so this value is something unknown.
        _ => Value::Null,
    }
}

fn below<'p>(paths: &[&'p str], key: &str) -> Vec<&'p str> {
    let inner = paths.iter().filter_map(|path| {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        (first == key).then_some(rest)
    });
    inner.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_a_pod_only_the_listed_fields_are_kept() {
        let pod = json!({
            "metadata": {"name": "p", "labels": {"customer": "acme", "dra.vgpu/x": "1"}, "managedFields": [1],
                "ownerReferences": [{"name": "acme"}], "annotations": {"acme.example/token": "t"}},
            "spec": {"nodeName": "n1", "volumes": [{"secret": {"secretName": "acme"}}], "containers": [{"name": "main",
                "image": "acme/train", "args": ["--password=x"], "env": [{"name": "TOKEN", "value": "x"}],
                "resources": {"claims": [{"name": "gpu"}]}}]},
            "status": {"podIP": "10.0.0.1", "containerStatuses": [{"name": "main", "state": {
                "terminated": {"exitCode": 1, "message": "acme"}}}]},
        });
        assert_eq!(
            of("pods", &pod),
            json!({"metadata": {"name": "p", "labels": {"dra.vgpu/x": "1"}},
                "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]},
                "status": {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]}})
        );
        let node =
            json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"address": "10.0.0.2"}], "nodeInfo": {}}});
        assert_eq!(
            of("nodes", &node),
            json!({"metadata": {"name": "n1"}, "status": {"nodeInfo": {}}})
        );
        assert_eq!(of("nodes", &json!({"spec": "hostile"})), json!({"spec": null}));
        let node = json!({"spec": {"taints": [{"key": "dedicated", "value": "acme", "effect": "NoSchedule"}]}});
        assert_eq!(
            of("nodes", &node),
            json!({"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
        );
    }

    #[test]
    fn labels_of_charts_stay_of_ours_alone() {
        let pod = |name: &str| json!({"metadata": {"labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "acme"}}});
        assert_eq!(of("pods", &pod("train")), json!({"metadata": {}}));
        assert_eq!(of("pods", &pod("dra-driver-vgpu")), pod("dra-driver-vgpu"));
    }

    #[test]
    fn other_drivers_parameters_and_what_claims_of_a_template_get_are_left_out() {
        let config = |driver: &str| json!({"opaque": {"driver": driver, "parameters": {"token": "s3cret"}}});
        let devices = json!({"config": [config(DRIVER), config("net.example")]});
        let kept = json!({"config": [config(DRIVER), {"opaque": {"driver": "net.example"}}]});
        let template = json!({"spec": {"metadata": {"labels": {"customer": "acme"}}, "spec": {"devices": devices}}});
        assert_eq!(
            of("resourceclaimtemplates", &template),
            json!({"spec": {"spec": {"devices": kept}}})
        );
        let claim = json!({"spec": {"devices": devices}, "status": {"allocation": {"devices": devices}}});
        assert_eq!(
            of("resourceclaims", &claim),
            json!({"spec": {"devices": kept}, "status": {"allocation": {"devices": kept}}})
        );
        let claim =
            json!({"status": {"devices": [{"driver": "net.example", "conditions": [{"message": "10.0.0.3"}]}]}});
        assert_eq!(
            of("resourceclaims", &claim),
            json!({"status": {"devices": [{"driver": "net.example", "conditions": null}]}})
        );
        assert_eq!(of("deviceclasses", &json!({"spec": devices})), json!({"spec": kept}));
    }
}
