//! `vgpu fit` on files.

use std::process::{Command, Output, Stdio};

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

fn fit(more: Value, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json");
    let mut all = cluster();
    all.push(more);
    std::fs::write(
        &file,
        json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string(),
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.args(["fit", "-f"]).arg(&file).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_pods_of_each_kind_of_workload_are_counted() {
    let template = json!({"spec": from_template()});
    for (more, wanted, code) in [
        (
            workload("v1", "Pod", from_template()),
            "1 of 1 pods fit now: 1 on n1\n",
            0,
        ),
        (
            workload("apps/v1", "Deployment", json!({"replicas": 2, "template": template})),
            "2 of 2 pods fit now: 2 on n1\n",
            0,
        ),
        (
            workload("apps/v1", "StatefulSet", json!({"template": template})),
            "1 of 1 pods fit now: 1 on n1\n",
            0,
        ),
        (
            workload(
                "batch/v1",
                "Job",
                json!({"parallelism": 20, "completions": 100, "template": template}),
            ),
            "2 of 20 pods fit now: 2 on n1\n  the next one: ",
            1,
        ),
        (
            workload(
                "batch/v1",
                "CronJob",
                json!({"jobTemplate": {"spec": {"parallelism": 3, "template": template}}}),
            ),
            "2 of 3 pods fit now: 2 on n1\n  the next one: ",
            1,
        ),
    ] {
        let output = fit(more, &[]);
        let (text, errors) = said(&output);
        assert!(text.contains(wanted), "{wanted}: {text}{errors}");
        assert_eq!((errors.as_str(), output.status.code()), ("", Some(code)), "{text}");
    }
    let job = workload("batch/v1", "Job", json!({"parallelism": 3, "template": template}));
    let (text, _) = said(&fit(job.clone(), &[]));
    assert!(text.contains("would fit: memory 20Gi"), "{text}");
    let answer: Value = serde_json::from_slice(&fit(job, &["-o", "json"]).stdout).unwrap();
    assert_eq!(answer["workloads"][0]["fit"]["nodes"], json!({"n1": 2}));
}

#[test]
fn what_cannot_be_counted_is_named_and_why() {
    let template = |claim| json!({"spec": pod(claim)});
    for (more, words) in [
        (
            workload("apps/v1", "DaemonSet", json!({"template": {"spec": from_template()}})),
            "a DaemonSet has a pod on each node",
        ),
        (
            workload(
                "apps/v1",
                "Deployment",
                json!({"template": template(json!({"name": "gpu", "resourceClaimName": "c"}))}),
            ),
            "/spec/template/spec/resourceClaims[gpu]: resourceClaimName is one claim for all pods",
        ),
        (
            workload(
                "v1",
                "Pod",
                pod(json!({"name": "gpu", "resourceClaimTemplateName": "other"})),
            ),
            "ResourceClaimTemplate team/other is not in the files, nor among those of the cluster that may be read",
        ),
        (
            workload("v1", "Pod", json!({"containers": []})),
            "its pods have no claims; for another system's resources: vgpu translate",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}),
            "no Pod, Deployment,",
        ),
    ] {
        let output = fit(more, &[]);
        let (text, errors) = said(&output);
        assert!(errors.contains(words), "{words}: {text}{errors}");
        assert_eq!(output.status.code(), Some(2), "{words}");
    }
}
