//! `vgpu fit` on files.

#[path = "support/said.rs"]
mod said;

use said::{Files, Said, vgpu_on};
use serde_json::{Value, json};

/// One GPU of 80 GiB, and a template for 30.
fn cluster() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "vgpu"}, "spec": {}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
            "driver": "dra.vgpu", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "80Gi",
                "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}}}}]}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "part", "namespace": "team"}, "spec": {"spec": {"devices": {"requests": [{"name": "gpu",
            "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "30Gi"}}}}]}}}}),
    ]
}

fn pod(claim: Value) -> Value {
    json!({"containers": [{"name": "main", "image": "train"}], "resourceClaims": [claim]})
}

fn from_template() -> Value {
    pod(json!({"name": "gpu", "resourceClaimTemplateName": "part"}))
}

fn workload(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "train", "namespace": "team"}, "spec": spec})
}

fn fit(more: Value, words: &str) -> Said {
    let mut all = cluster();
    all.push(more);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
    let files = Files::new();
    vgpu_on(words, &[files.write("all.json", &list.to_string())])
}

#[test]
fn the_pods_of_each_kind_of_workload_are_counted() {
    let template = json!({"spec": from_template()});
    let cron = json!({"jobTemplate": {"spec": {"parallelism": 3, "template": template}}});
    let job = json!({"parallelism": 20, "completions": 100, "template": template});
    for (version, kind, spec, wanted, code) in [
        ("v1", "Pod", from_template(), "1 of 1", 0),
        (
            "apps/v1",
            "Deployment",
            json!({"replicas": 2, "template": template}),
            "2 of 2",
            0,
        ),
        ("apps/v1", "StatefulSet", json!({"template": template}), "1 of 1", 0),
        ("batch/v1", "Job", job, "2 of 20", 1),
        ("batch/v1", "CronJob", cron, "2 of 3", 1),
    ] {
        let said = fit(workload(version, kind, spec), "fit").ended(code);
        let (fit, _) = wanted.split_once(' ').unwrap();
        let next = if code == 0 { "" } else { "  the next one: " };
        said.out_has(&format!("{wanted} pods fit now: {fit} on n1\n{next}"));
        assert_eq!(said.err, "");
    }
    let job = workload("batch/v1", "Job", json!({"parallelism": 3, "template": template}));
    fit(job.clone(), "fit").out_has("would fit: memory 20Gi");
    let answer = fit(job, "fit -o json").json();
    assert_eq!(answer["workloads"][0]["fit"]["nodes"], json!({"n1": 2}));
}

#[test]
fn what_cannot_be_counted_is_named_and_why() {
    let template = |spec: Value| json!({"template": {"spec": spec}});
    let one_claim = pod(json!({"name": "gpu", "resourceClaimName": "c"}));
    let other = pod(json!({"name": "gpu", "resourceClaimTemplateName": "other"}));
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    for (more, words) in [
        (
            workload("apps/v1", "DaemonSet", template(from_template())),
            "a DaemonSet has a pod on each node",
        ),
        (
            workload("apps/v1", "Deployment", template(one_claim)),
            "/spec/template/spec/resourceClaims[gpu]: resourceClaimName is one claim for all pods",
        ),
        (
            workload("v1", "Pod", other),
            "ResourceClaimTemplate team/other is not in the files, nor among those of the cluster that may be read",
        ),
        (
            workload("v1", "Pod", json!({"containers": []})),
            "its pods have no claims; for another system's resources: vgpu translate",
        ),
        (config, "no Pod, Deployment,"),
    ] {
        fit(more, "fit").ended(2).err_has(words);
    }
}
