//! `vgpu explain`: from files, and from a cluster through a kubectl that this test writes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "vgpu"}, "spec": {}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
    "driver": "dra.vgpu", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "devices": [{"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {
      "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
      "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}}}]}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine", "namespace": "team"},
   "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
     "capacity": {"requests": {"memory": "100Gi", "cores": "25"}}}}]}}}
]}"#;

const PODS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "team"},
   "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}}
]}"#;

const WORDS: &str = "\
pod team/train waits for team/mine, which does not fit on node n1
  claim team/mine, request gpu, node n1, pool n1, device gpu-0: Capacity: memory: 100Gi wanted, 80Gi of 80Gi free
most memory that one device has, with the cores asked for: 80Gi (request gpu of claim team/mine; node n1, device gpu-0)
no eligible GPU has free cores together with the requested memory
";

fn explain(path: Option<&Path>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.arg("explain").args(args).stdin(Stdio::null());
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn files_are_answered_in_words_json_and_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let (objects, pods) = (folder.path().join("objects.json"), folder.path().join("pods.json"));
    std::fs::write(&objects, OBJECTS).unwrap();
    std::fs::write(&pods, PODS).unwrap();
    let files = [
        "-f",
        objects.to_str().unwrap(),
        "-f",
        pods.to_str().unwrap(),
        "-n",
        "team",
    ];
    let with = |more: &[&str]| explain(None, &[&files, more].concat());

    let output = with(&["pod/train"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        (WORDS.to_owned(), String::new())
    );

    for format in ["json", "yaml"] {
        let output = with(&["train", "-o", format]);
        let answer: Value = match format {
            "json" => serde_json::from_slice(&output.stdout).unwrap(),
            _ => serde_saphyr::from_str(&text(&output.stdout)).unwrap(),
        };
        assert_eq!(answer["largest"]["memory"]["amount"], "80Gi");
        assert_eq!(answer["reasons"][0]["reason"], "Capacity");
    }

    let output = with(&["pod/none"]);
    assert_eq!(output.status.code(), Some(2));
    let words = "vgpu explain: pod none not found in namespace team; give the object too, and its namespace by -n\n";
    assert_eq!(text(&output.stderr), words);
}

/// A folder with a kubectl that prints `kinds` for everything but pods and rules.
fn kubectl(kinds: &str, rules: &str) -> tempfile::TempDir {
    let none = "echo 'error: the server doesn'\\''t have a resource type \"vgpuquotas\"' >&2; exit 1";
    kubectl_with(kinds, rules, none)
}

fn kubectl_with(kinds: &str, rules: &str, quota: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("kinds"), kinds).unwrap();
    std::fs::write(folder.path().join("pods"), PODS).unwrap();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n\
         'get nodes,'*' --output json --all-namespaces') exec /bin/cat '{folder}/kinds' ;;\n\
         'get devicetaintrules.v1.resource.k8s.io --output json') {rules} ;;\n\
         'get pods --output json --namespace team') exec /bin/cat '{folder}/pods' ;;\n\
         'get vgpuquotas.v1alpha1.dra.vgpu --output json --namespace team') {quota} ;;\n\
         'get resourcequotas --output json --namespace team') echo '{{\"items\": []}}' ;;\n\
         *) echo \"unexpected: $*\" >&2; exit 1 ;;\nesac\n",
        folder = folder.path().display()
    );
    let program = folder.path().join("kubectl");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn without_files_the_cluster_is_asked_by_kubectl() {
    let none = "echo 'error: the server doesn'\\''t have a resource type \"devicetaintrules\"' >&2; exit 1";
    let folder = kubectl(OBJECTS, none);
    let output = explain(Some(folder.path()), &["pod/train", "-n", "team"]);
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        (WORDS.to_owned(), String::new())
    );

    let list = r#"{"items": [{"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {}, "status": {"hard": {"shares": 1},
        "used": {"memory": "1Gi", "cores": 0, "gpus": "0", "shares": 1}}}]}"#;
    for (quota, line) in [
        (
            format!("echo '{list}'"),
            "VgpuQuota vgpu of namespace team: shares 1 of 1 used\n",
        ),
        ("echo '{\"items\": []}'".to_owned(), ""),
        (
            "echo 'Error from server (Forbidden): no' >&2; exit 1".to_owned(),
            "the VgpuQuota of namespace team is not known: kubectl get vgpuquotas.v1alpha1.dra.vgpu: Error from server (Forbidden): no\n",
        ),
    ] {
        let folder = kubectl_with(OBJECTS, none, &quota);
        let output = explain(Some(folder.path()), &["pod/train", "-n", "team"]);
        assert_eq!(text(&output.stdout), format!("{WORDS}{line}"));
    }

    let quota =
        r#"{"items": [{"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {"hard": {"memory": "80Gi"}}}]}"#;
    let gated = PODS.replace(
        r#""spec": {"#,
        r#""spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}], "#,
    );
    let typed = OBJECTS.replace(
        r#""name": "gpu-0","#,
        r#""name": "gpu-0", "attributes": {"type": {"string": "gpu"}},"#,
    );
    let folder = kubectl_with(&typed, none, &format!("echo '{quota}'"));
    std::fs::write(folder.path().join("pods"), gated).unwrap();
    let output = explain(Some(folder.path()), &["pod/train", "-n", "team", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let words = "pod train: never fits into VgpuQuota vgpu: memory 100Gi wanted, and the ceiling is 80Gi; ask for less, or have spec.hard.memory raised";
    assert_eq!(answer["quota"][1], words);
    // Who may not list ResourceQuotas still reads what is used.
    let program = folder.path().join("kubectl");
    let script = std::fs::read_to_string(&program).unwrap();
    let forbidden = script.replace("echo '{\"items\": []}' ;;", "echo 'Forbidden: no' >&2; exit 1 ;;");
    assert_ne!(forbidden, script);
    std::fs::write(&program, forbidden).unwrap();
    let said = text(&explain(Some(folder.path()), &["pod/train", "-n", "team"]).stdout);
    assert!(said.contains("VgpuQuota vgpu of namespace team: "), "{said}");
    let words = "whether pod train waits for it is not known: kubectl get resourcequotas: Forbidden: no\n";
    assert!(said.ends_with(words), "{said}");

    let folder = kubectl(OBJECTS, "echo 'error: You must be logged in' >&2; exit 1");
    let output = explain(Some(folder.path()), &["pod/train", "-n", "team"]);
    assert_eq!(output.status.code(), Some(2));
    let words = "vgpu explain: kubectl get devicetaintrules.v1.resource.k8s.io: error: You must be logged in\n";
    assert_eq!(text(&output.stderr), words);

    let folder = kubectl("<html>", none);
    let output = explain(Some(folder.path()), &["pod/train", "-n", "team"]);
    assert!(text(&output.stderr).contains("its output is not JSON"), "{output:?}");

    let empty = tempfile::tempdir().unwrap();
    let output = explain(Some(empty.path()), &["pod/train"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("give the objects in files by -f"),
        "{output:?}"
    );
}

/// The objects with that taint on the GPU, for a claim that fits.
fn tainted(value: &str, added: &str) -> String {
    let taint = format!(
        r#""taints": [{{"key": "dra.vgpu/allocator", "value": "{value}", "effect": "NoSchedule", "timeAdded": "{added}"}}], "#
    );
    OBJECTS
        .replace(r#""name": "gpu-0", "#, &format!(r#""name": "gpu-0", {taint}"#))
        .replace("100Gi", "20Gi")
}

const LONG_AGO: &str = "2026-01-02T03:04:05Z";
const LONG_FROM_NOW: &str = "2999-01-02T03:04:05Z";

#[test]
fn in_controller_mode_devices_are_seen_as_the_controller_sees_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    let ask = |objects: String| {
        std::fs::write(&file, objects).unwrap();
        explain(None, &["claim/mine", "-n", "team", "-f", file.to_str().unwrap()])
    };

    let output = ask(tainted("controller", LONG_AGO));
    let fits = "claim team/mine fits on 1 of 1 nodes: n1. As far as devices go it could run\n";
    assert_eq!((text(&output.stdout), output.status.code()), (fits.to_owned(), Some(0)));

    // The controller allocates the GPU, which has too little memory: the taint is not the reason.
    let output = ask(tainted("controller", LONG_AGO).replace("20Gi", "100Gi"));
    assert!(text(&output.stdout).contains("memory: 100Gi wanted, 80Gi of 80Gi free"));
    assert!(!text(&output.stdout).contains("taint"), "{output:?}");

    for (value, added, means) in [
        (
            "controller",
            LONG_FROM_NOW,
            "its taint dra.vgpu/allocator=controller is not yet 30 s old, and nobody allocates it before",
        ),
        (
            "controller",
            "soon",
            "its taint dra.vgpu/allocator=controller has no timeAdded that can be read, so nobody allocates it",
        ),
        (
            "released",
            LONG_AGO,
            "its taint dra.vgpu/allocator says that it is on its way back to kube-scheduler, and nobody allocates it \
             before that taint is gone",
        ),
    ] {
        let output = ask(tainted(value, added));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let words = format!(
            "claim team/mine does not fit on node n1\n  \
             claim team/mine, request gpu, node n1, pool n1, device gpu-0: Taint: {means}\n"
        );
        assert!(text(&output.stdout).starts_with(&words), "{output:?}");
    }
}

#[test]
fn in_controller_mode_kube_schedulers_devices_and_claims_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    // A second node whose GPU is kube-scheduler's.
    let mut objects: Value = serde_json::from_str(&tainted("controller", LONG_AGO)).unwrap();
    let items = objects["items"].as_array_mut().unwrap();
    let mut slice = items
        .iter()
        .find(|item| item["kind"] == "ResourceSlice")
        .unwrap()
        .clone();
    slice["metadata"]["name"] = "s2".into();
    slice["spec"]["nodeName"] = "n2".into();
    slice["spec"]["pool"]["name"] = "n2".into();
    slice["spec"]["devices"][0]["taints"] = Value::Null;
    let mut node = items[0].clone();
    node["metadata"]["name"] = "n2".into();
    items.extend([slice, node]);
    let ask = |objects: &Value| {
        std::fs::write(&file, objects.to_string()).unwrap();
        explain(
            None,
            &["claim/mine", "-n", "team", "-f", file.to_str().unwrap(), "--node", "n2"],
        )
    };
    let output = ask(&objects);
    let means = "Taint: it does not bear the taint dra.vgpu/allocator=controller, so kube-scheduler allocates it and not \
                 vgpu-controller";
    assert!(text(&output.stdout).contains(means), "{output:?}");

    // Neither allocator accepts a claim that tolerates the taint.
    let claims = objects["items"].as_array_mut().unwrap().iter_mut();
    for claim in claims.filter(|item| item["kind"] == "ResourceClaim") {
        claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = serde_json::json!([{"operator": "Exists"}]);
    }
    let output = ask(&objects);
    let words = "claim team/mine can have nothing: claim team/mine tolerates the taint dra.vgpu/allocator, so \
                 kube-scheduler might allocate it too; remove the toleration\n";
    assert_eq!(
        (text(&output.stdout), output.status.code()),
        (words.to_owned(), Some(1))
    );
}

/// A pod whose claim is allocated, and what its node and GPU say.
const HELD: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": []}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "vgpu"}, "spec": {"selectors": [
    {"cel": {"expression": "device.driver == 'dra.vgpu'"}}]}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
    "driver": "dra.vgpu", "nodeName": "n1", "pool": {"name": "n1/vgpu", "generation": 1, "resourceSliceCount": 1},
    "devices": [{"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "80Gi"}}, "taints": []}]}},
  {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine", "namespace": "team"},
   "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
   "status": {"allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu",
     "device": "gpu-0", "shareID": "11111111-1111-1111-1111-111111111111", "consumedCapacity": {"memory": "20Gi"}}]}}}},
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "team"},
   "spec": {"nodeName": "n1", "schedulingGates": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}],
     "initContainers": [{"name": "fetch"}],
     "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]}}
]}"#;

fn ask_about(subject: &str, objects: &Value) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, objects.to_string()).unwrap();
    let output = explain(None, &[subject, "-n", "team", "-f", file.to_str().unwrap()]);
    assert_eq!(text(&output.stderr), "");
    (text(&output.stdout), output.status.code())
}

const NODE: usize = 0;
const CLASS: usize = 1;
const SLICE: usize = 2;
const CLAIM: usize = 3;
const POD: usize = 4;

/// The objects after a change.
fn changed(change: impl FnOnce(&mut Vec<Value>)) -> Value {
    let mut objects: Value = serde_json::from_str(HELD).unwrap();
    change(objects["items"].as_array_mut().unwrap());
    objects
}

#[test]
fn what_keeps_a_pod_from_its_gpu_is_never_everything() {
    let (said, code) = ask_about("pod/train", &changed(|_| {}));
    let words = "pod team/train has everything: claim team/mine has gpu-0 of pool n1/vgpu\n";
    assert_eq!((said.as_str(), code), (words, Some(0)));

    type Change = fn(&mut Vec<Value>);
    let cases: [(&str, Change, &str); 13] = [
        (
            "a lost GPU",
            |all| {
                all[SLICE]["spec"]["devices"][0]["taints"] = json!([{"key": "dra.vgpu/lost", "effect": "NoSchedule"}])
            },
            "gpu-0 of pool n1/vgpu, which claim team/mine has, has the taint dra.vgpu/lost:NoSchedule: the GPU is not well",
        ),
        (
            "a GPU that is not published",
            |all| all[SLICE]["spec"]["devices"][0]["name"] = "gpu-1".into(),
            "gpu-0 of pool n1/vgpu, which claim team/mine has, is not published any more",
        ),
        (
            "a container that names no claim",
            |all| all[POD]["spec"]["containers"][0]["resources"] = json!({}),
            "no container names its claim gpu, so none gets the GPU: add resources.claims: [{name: gpu}]",
        ),
        (
            "only an init container",
            |all| {
                let named = all[POD]["spec"]["containers"][0]["resources"].take();
                all[POD]["spec"]["initContainers"][0]["resources"] = named;
            },
            "only init container fetch names its claim gpu",
        ),
        (
            "Terminating",
            |all| all[POD]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into(),
            "is being deleted (Terminating), so it gets nothing more; if it stays, see that kubelet and \
             vgpu-kubelet-plugin run on node n1",
        ),
        (
            "a node that is gone",
            |all| all[NODE]["metadata"]["name"] = "n2".into(),
            "node n1 does not exist any more",
        ),
        (
            "a node that is not ready",
            |all| {
                all[NODE]["spec"]["taints"] = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])
            },
            "node n1 is not ready (taint node.kubernetes.io/unreachable)",
        ),
        (
            "spec.nodeName",
            |all| all[CLAIM]["status"] = json!({}),
            "was put on node n1 by spec.nodeName, so no scheduler allocates its claim team/mine, and it never starts: leave \
             out nodeName, and use nodeSelector {kubernetes.io/hostname: n1}",
        ),
        (
            "a claim that is being deleted",
            |all| {
                all[CLAIM]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
                all[POD]["spec"]["nodeName"] = Value::Null;
            },
            "claim team/mine is being deleted, so it is given to no pod any more",
        ),
        (
            "a gate of somebody else's",
            |all| {
                all[POD]["spec"]["nodeName"] = Value::Null;
                all[POD]["spec"]["schedulingGates"] = json!([{"name": "example.com/later"}]);
            },
            "has the scheduling gate example.com/later: no scheduler looks at it",
        ),
        (
            "it would fit on a node that is not ready",
            |all| {
                all[CLAIM]["status"] = json!({});
                all[POD]["spec"]["nodeName"] = Value::Null;
                all[NODE]["spec"]["taints"] = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
            },
            "it fits only on nodes that are not ready: n1",
        ),
        (
            "a pod that has ended",
            |all| all[POD]["status"] = json!({"phase": "Succeeded"}),
            "has ended; only a new pod gets devices",
        ),
        (
            "a pod that nobody translated",
            |all| {
                all[POD]["spec"]["resourceClaims"] = Value::Null;
                all[POD]["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpumem": "3000"}});
            },
            "it asks by nvidia.com/gpumem and has no claim, so dra.vgpu gives it nothing: pods of namespace team are \
             translated only if",
        ),
    ];
    for (case, change, words) in cases {
        let (said, code) = ask_about("pod/train", &changed(change));
        assert_eq!(code, Some(1), "{case}: {said}");
        assert!(said.starts_with(&format!("pod team/train: {words}")), "{case}: {said}");
        assert!(
            !said.contains("has everything") && !said.contains("has no claims"),
            "{case}: {said}"
        );
    }
    // `explain claim/NAME` says the same as `explain pod/NAME`.
    let lost = changed(cases[0].1);
    let (said, code) = ask_about("claim/mine", &lost);
    assert!(said.starts_with("claim team/mine: gpu-0 of pool n1/vgpu"), "{said}");
    assert_eq!(code, Some(1));
}

/// Beside a container with the GPU one without is usual, so that is a note.
#[test]
fn a_container_beside_that_has_no_gpu_is_a_note() {
    let objects = changed(|all| {
        all[POD]["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "beside"}))
    });
    let (said, code) = ask_about("pod/train", &objects);
    let words = "pod team/train has everything: claim team/mine has gpu-0 of pool n1/vgpu\n  \
                 container beside names none of its claims, so it has no GPU\n";
    assert_eq!((said.as_str(), code), (words, Some(0)));
}

#[test]
fn a_class_that_does_not_exist_is_the_reason_and_no_other() {
    let objects = changed(|all| {
        all[CLASS]["metadata"]["name"] = "vgpu-large".into();
        all[CLAIM]["status"] = json!({});
    });
    let (said, code) = ask_about("claim/mine", &objects);
    let words = "claim team/mine fits nowhere: it names a DeviceClass that does not exist\n  \
                 claim team/mine, request gpu: UnknownClass: deviceClassName \"vgpu\": there is no such DeviceClass; install \
                 dra-driver-vgpu's chart, or name another class\n";
    assert_eq!((said.as_str(), code), (words, Some(1)));
}
