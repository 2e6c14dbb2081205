//! Measures the webhook's answer in process, without the network: `cargo run --release -p vgpu-bench --bin
//! bench-reviews`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_controller::webhook::review::{Mode, review};
use vgpu_dialects::Settings;

const ROUNDS: usize = 20_000;

/// A pod as the API server sends it: with defaults, the token's volume and managed fields.
fn pod(containers: usize, limits: &Value) -> Value {
    let container = |number: usize| {
        let variables: Vec<Value> = (0..8)
            .map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "some value"}))
            .collect();
        json!({"name": format!("c-{number}"), "image": "registry.example/team/trainer:1.2.3", "env": variables,
            "resources": {"limits": limits, "requests": limits},
            "volumeMounts": [{"name": "token", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent"})
    };
    let managed = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {
        "k:{\"name\":\"c-0\"}": {".": {}, "f:env": {}, "f:image": {}, "f:name": {}, "f:resources": {"f:limits": {}}}}}});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "trainer-7c9f-", "namespace": "team", "labels": {"app": "trainer"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainer-7c9f", "uid": "u"}],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": managed}]},
        "spec": {"containers": (0..containers).map(container).collect::<Vec<_>>(),
            "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "default-scheduler", "securityContext": {}}})
}

fn body(pod: &Value) -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "namespace": "team",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod, "oldObject": null, "dryRun": false}})
    .to_string()
    .into_bytes()
}

fn main() {
    let settings = Settings::default();
    let hami = json!({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000",
        "nvidia.com/gpucores": "30"});
    let bad = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"});
    for (what, containers, limits) in [
        ("one container that asks as for HAMi", 1, &hami),
        ("eight such containers", 8, &hami),
        ("a pod that is refused", 1, &bad),
        ("a pod that asks for nothing", 1, &json!({"cpu": "4"})),
    ] {
        let body = body(&pod(containers, limits));
        let mut times: Vec<Duration> = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let answer = black_box(review(black_box(&body), &settings, Mode::Translate));
            times.push(begun.elapsed());
            if let Err(why) = answer {
                return eprintln!("{what}: {why}");
            }
        }
        times.sort_unstable();
        let (median, late) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
        println!(
            "{median:?} a review, 99 of 100 within {late:?}: {what} ({} bytes)",
            body.len()
        );
    }
}
