//! `vgpu explain`: from files, and from a cluster whose API server is a stand-in.

#[path = "support/api.rs"]
mod api;
#[path = "support/said.rs"]
mod said;

use std::process::{Command, Stdio};

use api::Api;
use said::Said;
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

const TEMPLATES: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "resource.k8s.io/v1",
  "kind": "ResourceClaimTemplate", "metadata": {"name": "quarter", "namespace": "team"}, "spec": {"spec": {}}}]}"#;

const WORDS: &str = "\
pod team/train: claim team/mine, request gpu: asked for a device of class vgpu; no GPU of the cluster that matches has more \
memory than 80Gi, so this never fits, however long it waits: ask for at most that, or add a GPU with more; on 1 of 1 \
devices: Capacity: memory: 100Gi wanted, 80Gi of 80Gi free (n1 gpu-0)
  claim team/mine, request gpu, node n1, pool n1, device gpu-0: Capacity: memory: 100Gi wanted, 80Gi of 80Gi free
";

fn vgpu_explain(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.arg("explain").args(args);
    command
}

fn explain(args: &[&str]) -> Said {
    Said::of(&mut vgpu_explain(args))
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
    let with = |more: &[&str]| explain(&[&files, more].concat());

    let output = with(&["pod/train"]).ended(1);
    assert_eq!((&*output.out, &*output.err), (WORDS, ""));

    for format in ["json", "yaml"] {
        let output = with(&["train", "-o", format]);
        let answer: Value = match format {
            "json" => output.json(),
            _ => serde_saphyr::from_str(&output.out).unwrap(),
        };
        assert_eq!(answer["largest"]["memory"]["amount"], "80Gi");
        assert_eq!(answer["reasons"][0]["reason"], "Capacity");
    }

    let output = with(&["pod/none"]).ended(2);
    let words = "vgpu explain: pod none not found in namespace team; give the object too, and its namespace by -n\n";
    assert_eq!(output.err, words);

    // The monitor's device beside the GPU belongs to another class, and gets no line.
    let mut beside: Value = serde_json::from_str(OBJECTS).unwrap();
    beside["items"][1]["spec"]["selectors"] =
        json!([{"cel": {"expression": "device.attributes['dra.vgpu'].type == 'gpu'"}}]);
    let devices = &mut beside["items"][2]["spec"]["devices"];
    devices[0]["attributes"] =
        json!({"type": {"string": "gpu"}, "profile": {"string": "none"}, "placement": {"string": "none"}});
    let monitor = json!({"name": "gpu-0-monitor", "attributes": {"type": {"string": "monitor"}}});
    devices.as_array_mut().unwrap().push(monitor);
    std::fs::write(&objects, beside.to_string()).unwrap();
    let said = with(&["pod/train"]).out;
    assert!(
        said.contains("device gpu-0: Capacity") && !said.contains("monitor"),
        "{said}"
    );
}

const NODES: &str = "/api/v1/nodes";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
const OWN_CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const RULES: &str = "/apis/resource.k8s.io/v1/devicetaintrules";
const PODS_OF_TEAM: &str = "/api/v1/namespaces/team/pods";
const TEMPLATES_OF_TEAM: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/team/events";
const QUOTAS: &str = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuquotas";
const RESOURCE_QUOTAS: &str = "/api/v1/namespaces/team/resourcequotas";

/// The items of `list` of that kind, as the API server answers them.
fn of_kind(list: &str, kind: &str) -> String {
    let list: Value = serde_json::from_str(list).unwrap();
    let items = list["items"].as_array().unwrap();
    let items = items.iter().filter(|item| item["kind"] == kind).cloned();
    let without_kind = |mut item: Value| {
        item.as_object_mut()
            .unwrap()
            .retain(|key, _| key != "kind" && key != "apiVersion");
        item
    };
    let version = items
        .clone()
        .find_map(|item| item["apiVersion"].as_str().map(str::to_owned));
    let items: Vec<Value> = items.map(without_kind).collect();
    json!({"apiVersion": version, "kind": format!("{kind}List"), "metadata": {}, "items": items}).to_string()
}

/// An API server with these objects and pods.
fn serving(objects: &str, pods: &str) -> Api {
    let api = Api::start();
    api.set(NODES, of_kind(objects, "Node"));
    api.set(
        "/apis/resource.k8s.io/v1/deviceclasses",
        of_kind(objects, "DeviceClass"),
    );
    api.set(SLICES, of_kind(objects, "ResourceSlice"));
    api.set(CLAIMS, of_kind(objects, "ResourceClaim"));
    api.set(OWN_CLAIMS, of_kind(objects, "ResourceClaim"));
    api.set(PODS_OF_TEAM, of_kind(pods, "Pod"));
    api.set(RESOURCE_QUOTAS, r#"{"kind": "ResourceQuotaList", "items": []}"#);
    api.set(TEMPLATES_OF_TEAM, of_kind(TEMPLATES, "ResourceClaimTemplate"));
    api
}

/// Asks the cluster about a pod.
fn ask(api: &Api, args: &[&str]) -> Said {
    of_cluster(api, &[&["pod/train"], args].concat())
}

fn of_cluster(api: &Api, args: &[&str]) -> Said {
    Said::of(vgpu_explain(args).env("KUBECONFIG", api.kubeconfig()))
}

#[test]
fn without_files_the_cluster_is_asked_in_the_contexts_namespace() {
    let api = serving(OBJECTS, PODS);
    for args in [&[][..], &["-n", "team"], &["--context", "other", "-n", "team"]] {
        let output = ask(&api, args);
        assert_eq!((&*output.out, &*output.err), (WORDS, ""), "{args:?}");
    }
    api.set("/api/v1/namespaces/other/pods", r#"{"kind": "PodList", "items": []}"#);
    ask(&api, &["--context", "other"]).err_has("pod train not found in namespace other");
    assert!(api.users().is_empty());
    ask(&api, &["--as", "jane", "--as-group", "team"]);
    assert_eq!(api.users().first().map(String::as_str), Some("jane"));
    let output = ask(&api, &["--context", "none"]).ended(2);
    let words = "vgpu explain: --context none: the kubeconfig has no such context; it has here, other\n";
    assert_eq!(output.err, words);
    let output = ask(&api, &["--kubeconfig", "/nowhere/config"]);
    let said = &output.err;
    assert!(
        said.starts_with("vgpu explain: --kubeconfig /nowhere/config: "),
        "{said}"
    );
}

#[test]
fn a_template_where_a_claim_belongs_is_named_also_with_rights_in_the_namespace_alone() {
    let api = serving(OBJECTS, &PODS.replace("mine", "quarter"));
    let words = "pod team/train: claim team/quarter does not exist: that is a ResourceClaimTemplate, so write \
                 resourceClaimTemplateName: quarter in place of resourceClaimName\n";
    let output = ask(&api, &[]);
    assert_eq!((&*output.out, output.code), (words, Some(1)));
    api.refuse(NODES, 403);
    let output = ask(&api, &[]).ended(1);
    assert!(output.out.starts_with(words), "{output:?}");
}

#[test]
fn the_quota_of_the_namespace_is_part_of_the_answer() {
    let api = serving(OBJECTS, PODS);
    api.set(
        QUOTAS,
        r#"{"items": [{"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {}, "status": {"hard": {"shares": 1},
        "used": {"memory": "1Gi", "cores": 0, "gpus": "0", "shares": 1}}}]}"#,
    );
    let line = "VgpuQuota vgpu of namespace team: shares 1 of 1 used\n";
    assert_eq!(ask(&api, &[]).out, format!("{WORDS}{line}"));
    api.set(QUOTAS, r#"{"items": []}"#);
    assert_eq!(ask(&api, &[]).out, WORDS);
    api.refuse(QUOTAS, 403);
    let line = "the VgpuQuota of namespace team is not known: the right to list vgpuquotas.dra.vgpu in namespace team is missing\n";
    assert_eq!(ask(&api, &[]).out, format!("{WORDS}{line}"));
}

#[test]
fn a_gated_pod_is_told_why_it_waits_for_its_quota() {
    let gated = PODS.replace(
        r#""spec": {"#,
        r#""spec": {"schedulingGates": [{"name": "dra.vgpu/quota"}], "#,
    );
    let typed = OBJECTS.replace(
        r#""name": "gpu-0","#,
        r#""name": "gpu-0", "attributes": {"type": {"string": "gpu"}},"#,
    );
    let api = serving(&typed, &gated);
    api.set(
        QUOTAS,
        r#"{"items": [{"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {"hard": {"memory": "80Gi"}}}]}"#,
    );
    let output = ask(&api, &["-o", "json"]).ended(1);
    let answer: Value = output.json();
    let words = "pod train: never fits into VgpuQuota vgpu: memory 100Gi wanted, and the ceiling is 80Gi; ask for less, or have spec.hard.memory raised";
    assert_eq!(answer["quota"][1], words);
    assert_eq!(
        (&answer["state"], &answer["reason"]),
        (&json!("Never"), &json!("QuotaExceeded"))
    );
    let output = of_cluster(&api, &[]);
    let said = &output.out;
    assert!(
        said.contains("1 pod (team/train): QuotaExceeded\n") && said.contains("\n  never fits into VgpuQuota vgpu"),
        "{said}"
    );
    assert!(
        said.ends_with("\nVgpuQuota vgpu of namespace team: no ceiling, no budget\n"),
        "{said}"
    );
    // A user who may not list ResourceQuotas still sees what is used.
    api.refuse(RESOURCE_QUOTAS, 403);
    let said = ask(&api, &[]);
    said.out_has("VgpuQuota vgpu of namespace team: ");
    let words =
        "whether pod train waits for it is not known: the right to list resourcequotas in namespace team is missing\n";
    assert!(said.out.ends_with(words), "{said:?}");
}

#[test]
fn rights_in_the_pods_namespace_are_enough_for_what_was_said_of_it() {
    let api = serving(OBJECTS, PODS);
    for path in [NODES, CLAIMS, SLICES] {
        api.refuse(path, 403);
    }
    api.set(
        EVENTS,
        json!({"kind": "EventList", "items": [
            {"reportingController": "dra.vgpu/controller", "reason": "VgpuClaimPending", "note": "fits nowhere",
             "eventTime": "2026-01-02T00:00:00Z", "regarding": {"kind": "Pod", "name": "train"}},
            {"reportingController": "kubelet", "reason": "Pulled", "note": "other",
             "regarding": {"kind": "Pod", "name": "train"}}]})
        .to_string(),
    );
    let output = ask(&api, &[]).ended(1);
    let words = "pod team/train waits for team/mine\n  VgpuClaimPending (2026-01-02T00:00:00Z): fits nowhere\n\
        not known, what is free on the GPUs: the right to list nodes in all namespaces is missing; \
        the right to list resourceslices.resource.k8s.io in all namespaces is missing; \
        the right to list resourceclaims.resource.k8s.io in all namespaces is missing\n";
    assert_eq!((&*output.out, &*output.err), (words, ""));
    let answer: Value = ask(&api, &["-o", "json"]).json();
    assert_eq!(answer["waiting"], json!(["team/mine"]));
    assert_eq!(answer["unknown"].as_array().map(Vec::len), Some(3));

    api.refuse(PODS_OF_TEAM, 403);
    let output = ask(&api, &[]).ended(2);
    let words = "vgpu explain: the right to list pods in namespace team is missing\n";
    assert_eq!(output.err, words);
}

#[test]
fn a_server_that_gives_no_answer_is_an_error_that_names_it() {
    let api = serving(OBJECTS, PODS);
    api.refuse(RULES, 401);
    ask(&api, &[]).err_has(" refused the login: ");
    api.refuse(RULES, 500);
    let said = ask(&api, &[]).err;
    let words = "vgpu explain: list devicetaintrules.resource.k8s.io in all namespaces: ";
    assert!(said.starts_with(words), "{said}");
    api.set(RULES, "<html>");
    ask(&api, &[]).err_has("is not JSON");

    let config = std::fs::read_to_string(api.kubeconfig()).unwrap();
    // Nobody listens on port 1.
    let start = config.find("http://127.0.0.1:").unwrap() + "http://127.0.0.1:".len();
    let end = start + config[start..].find('"').unwrap();
    std::fs::write(api.kubeconfig(), format!("{}1{}", &config[..start], &config[end..])).unwrap();
    let output = ask(&api, &[]).ended(2);
    output.err_has("http://127.0.0.1:1 does not answer: ");
    output.err_has("kubectl config get-contexts");

    std::fs::remove_file(api.kubeconfig()).unwrap();
    let output = ask(&api, &[]).ended(2);
    output.err_has("give the objects in files by -f");
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
        explain(&["claim/mine", "-n", "team", "-f", file.to_str().unwrap()])
    };

    let output = ask(tainted("controller", LONG_AGO));
    let fits = "claim team/mine: node n1 has room (gpu-0 for claim team/mine, request gpu), so it does not wait for devices; \
                see the scheduler's own event on the pod\n  fits on 1 of 1 nodes: n1\n";
    assert_eq!((output.out, output.code), (fits.to_owned(), Some(0)));

    // The controller allocates the GPU, which has too little memory: the taint is not the reason.
    let output = ask(tainted("controller", LONG_AGO).replace("20Gi", "100Gi"));
    assert!(output.out.contains("memory: 100Gi wanted, 80Gi of 80Gi free"));
    assert!(!output.out.contains("taint"), "{output:?}");

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
        let output = ask(tainted(value, added)).ended(1);
        let words = format!(
            "on 1 of 1 devices: Taint: {means} (n1 gpu-0)\n  \
             claim team/mine, request gpu, node n1, pool n1, device gpu-0: Taint: {means}\n"
        );
        assert!(output.out.ends_with(&words), "{output:?}");
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
        explain(&["claim/mine", "-n", "team", "-f", file.to_str().unwrap(), "--node", "n2"])
    };
    let output = ask(&objects);
    let means = "Taint: it does not bear the taint dra.vgpu/allocator=controller, so kube-scheduler allocates it and not \
                 vgpu-controller";
    assert!(output.out.contains(means), "{output:?}");

    // Neither allocator accepts a claim that tolerates the taint.
    let claims = objects["items"].as_array_mut().unwrap().iter_mut();
    for claim in claims.filter(|item| item["kind"] == "ResourceClaim") {
        claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = serde_json::json!([{"operator": "Exists"}]);
    }
    let output = ask(&objects);
    let words = "claim team/mine tolerates the taint dra.vgpu/allocator, so \
                 kube-scheduler might allocate it too; remove the toleration\n";
    assert_eq!((output.out, output.code), (words.to_owned(), Some(1)));
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
    let output = explain(&[subject, "-n", "team", "-f", file.to_str().unwrap()]);
    assert_eq!(output.err, "");
    (output.out, output.code)
}

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

/// Each line: a field of an object, the value that the test sets, and the first words of the answer.
const KEPT_AWAY: &str = r#"
SLICE/spec/devices/0/taints = [{"key": "dra.vgpu/lost", "effect": "NoSchedule"}] | gpu-0 of pool n1/vgpu, which claim team/mine has, has the taint dra.vgpu/lost:NoSchedule: the GPU is not well (the driver does not list it any more). Delete the pod if
SLICE/spec/devices/0/name = "gpu-1" | gpu-0 of pool n1/vgpu, which claim team/mine has, is not published any more
POD/spec/containers/0/resources = {} | no container names its claim gpu, so none gets the GPU: add resources.claims: [{name: gpu}]
POD/spec/containers/0/resources = {} & POD/spec/initContainers/0/resources = {"claims": [{"name": "gpu"}]} | only init container fetch names its claim gpu
POD/metadata/deletionTimestamp = "2026-01-02T03:04:05Z" | is being deleted (Terminating), so it gets nothing more; if it stays, see that kubelet and vgpu-kubelet-plugin run on node n1
NODE/metadata/name = "n2" | node n1 does not exist any more
NODE/spec/taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}] | node n1 is not ready (taint node.kubernetes.io/unreachable)
CLAIM/status = {} | was put on node n1 by spec.nodeName, so no scheduler allocates its claim team/mine, and it never starts: leave out nodeName, and use nodeSelector {kubernetes.io/hostname: n1}
CLAIM/metadata/deletionTimestamp = "2026-01-02T03:04:05Z" & POD/spec/nodeName = null | claim team/mine is being deleted, so it is given to no pod any more
POD/spec/nodeName = null & POD/spec/schedulingGates = [{"name": "example.com/later"}] | has the scheduling gate example.com/later: no scheduler looks at it
CLAIM/status = {} & POD/spec/nodeName = null & NODE/spec/taints = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}] | it fits only on nodes that are not ready: n1
POD/status = {"phase": "Succeeded"} | has ended; only a new pod gets devices
CLAIM/status = {} & POD/spec/nodeName = null & CLAIM/spec/devices/requests/0/exactly/capacity = {"requests": {"memory": "20"}} | claim team/mine, request gpu: spec.devices.requests[0].exactly.capacity.requests[memory]: "20" is less than the smallest share
POD/spec/resourceClaims = null & POD/spec/containers/0/resources = {"limits": {"nvidia.com/gpumem": "3000"}} | it asks by nvidia.com/gpumem and has no claim, so dra.vgpu gives it nothing: pods of namespace team are translated only if"#;

/// Sets what sentences as `POD/spec/nodeName = null & ...` say.
fn set(all: &mut [Value], sets: &str) {
    for set in sets.split(" & ") {
        let (place, value) = set.split_once(" = ").expect(set);
        let (place, field) = place.rsplit_once('/').expect(set);
        let (object, pointer) = place.split_at(place.find('/').unwrap_or(place.len()));
        let kinds = ["NODE", "CLASS", "SLICE", "CLAIM", "POD"];
        let at = kinds.iter().position(|kind| *kind == object).expect(set);
        let parent = all[at].pointer_mut(pointer).expect(set);
        parent[field] = serde_json::from_str(value).expect(set);
    }
}

#[test]
fn what_keeps_a_pod_from_its_gpu_is_never_everything() {
    let (said, code) = ask_about("pod/train", &changed(|_| {}));
    let words = "pod team/train has everything: claim team/mine has gpu-0 of pool n1/vgpu\n  \
                 gpu-0: on node n1; limit memory 20Gi\n";
    assert_eq!((said.as_str(), code), (words, Some(0)));

    for row in KEPT_AWAY.trim().lines() {
        let (sets, words) = row.split_once(" | ").expect("two cells");
        let (said, code) = ask_about("pod/train", &changed(|all| set(all, sets)));
        assert_eq!(code, Some(1), "{sets}: {said}");
        assert!(said.starts_with(&format!("pod team/train: {words}")), "{sets}: {said}");
        assert!(
            !said.contains("has everything") && !said.contains("has no claims"),
            "{sets}: {said}"
        );
    }
    // `explain claim/NAME` says the same as `explain pod/NAME`.
    let lost = KEPT_AWAY.trim().split(" | ").next().unwrap();
    let lost = changed(|all| set(all, lost));
    let (said, code) = ask_about("claim/mine", &lost);
    assert!(said.starts_with("claim team/mine: gpu-0 of pool n1/vgpu"), "{said}");
    assert_eq!(code, Some(1));
}

/// `explain` without a name does not say of a pod on a lost GPU that it waits.
#[test]
fn a_pod_that_runs_on_a_lost_gpu_does_not_wait() {
    let lost = KEPT_AWAY.trim().split(" | ").next().unwrap();
    let objects = changed(|all| set(all, lost)).to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, objects).unwrap();
    let said = explain(&["-n", "team", "-f", file.to_str().unwrap()]).ended(1);
    let start = "no pod of namespace team waits for a share of a GPU\n1 pod has its share, and something else is wrong\n\
                 1 pod (team/train): ";
    assert!(said.out.starts_with(start), "{}", said.out);
    assert_eq!(
        said.out.matches("has the taint dra.vgpu/lost").count(),
        1,
        "{}",
        said.out
    );
}

/// A container without the GPU beside one with it is usual, so that is only a note.
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
                 container beside names none of its claims, so it has no GPU\n  gpu-0: on node n1; limit memory 20Gi\n";
    assert_eq!((said.as_str(), code), (words, Some(0)));
}

#[test]
fn of_a_claim_with_many_devices_twenty_lines_are_printed() {
    let objects = changed(|all| {
        let results = &mut all[CLAIM]["status"]["allocation"]["devices"]["results"];
        let mut more = vec![results[0].clone(); 30];
        results.as_array_mut().unwrap().append(&mut more);
    });
    let (said, _) = ask_about("pod/train", &objects);
    assert_eq!(said.lines().count(), 20, "{said}");
    assert!(
        said.ends_with(" more lines: --all prints them, and -o json has all\n"),
        "{said}"
    );
}

#[test]
fn a_class_that_does_not_exist_is_the_reason_and_no_other() {
    let objects = changed(|all| {
        all[CLASS]["metadata"]["name"] = "vgpu-large".into();
        all[CLAIM]["status"] = json!({});
    });
    let (said, code) = ask_about("claim/mine", &objects);
    let words = "claim team/mine, request gpu: asked for a device of class vgpu; UnknownClass: deviceClassName \"vgpu\": there is no such DeviceClass; the \
                 classes of dra-driver-vgpu here are vgpu-large\n";
    assert_eq!((said.as_str(), code), (words, Some(1)));
    let objects = changed(|all| {
        all[CLASS]["metadata"]["name"] = "nic".into();
        all[CLASS]["spec"] = json!({"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]});
        all[CLAIM]["status"] = json!({});
    });
    let (said, _) = ask_about("claim/mine", &objects);
    assert!(
        said.ends_with("; install dra-driver-vgpu's chart, or name another class\n"),
        "{said}"
    );
}

#[test]
fn a_pod_whose_class_does_not_exist_is_among_those_that_wait() {
    let mut lost = claim("lost", "20Gi");
    lost["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "vgpus".into();
    let (said, ..) = ask_files(&team(&[lost, made("lost", "lost", Value::Null)]), &["-n", "team"]);
    assert!(
        said.starts_with("1 pod of namespace team waits for its share of a GPU\n1 pod (team/lost): UnknownClass\n"),
        "{said}"
    );
}

/// Objects with waiting pods, running pods and workloads, from files and from the API server.
fn team(more: &[Value]) -> String {
    let mut all: Value = serde_json::from_str(HELD).unwrap();
    let items = all["items"].as_array_mut().unwrap();
    items[CLASS]["spec"]["selectors"][0]["cel"]["expression"] =
        "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'gpu'".into();
    let device = &mut items[SLICE]["spec"]["devices"][0];
    device["attributes"] =
        json!({"type": {"string": "gpu"}, "profile": {"string": "none"}, "placement": {"string": "none"}});
    device["capacity"] = json!({"memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}});
    items.extend(more.iter().cloned());
    all.to_string()
}

fn claim(name: &str, memory: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": memory, "cores": "25"}}}}]}}})
}

/// A pod whose claim a template has made.
fn made(name: &str, claim: &str, owner: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": name, "ownerReferences": [owner]},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]},
        "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}})
}

fn waiting(count: usize) -> Vec<Value> {
    let of = |at: usize| {
        let (pod, claim) = (format!("train-{at}"), format!("train-{at}-gpu-x"));
        [self::claim(&claim, "70Gi"), made(&pod, &claim, Value::Null)]
    };
    (0..count).flat_map(of).collect()
}

fn ask_files(objects: &str, args: &[&str]) -> (String, String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, objects).unwrap();
    let said = explain(&[args, &["-f", file.to_str().unwrap()]].concat());
    (said.out, said.err, said.code)
}

#[test]
fn pods_that_wait_for_the_same_have_one_text() {
    let mut more = waiting(5);
    more.extend([claim("huge", "100Gi"), {
        let mut pod = made("huge", "huge", Value::Null);
        pod["metadata"]["namespace"] = "other".into();
        pod
    }]);
    more[10]["metadata"]["namespace"] = "other".into();
    let objects = team(&more);
    let (said, _, code) = ask_files(&objects, &["-n", "team"]);
    let words = "5 pods of namespace team wait for their shares of GPUs, for one reason\n\
                 5 pods (team/train-0, team/train-1, team/train-2 and 2 more): Capacity\n  \
                 claim gpu, request gpu: asked for memory 70Gi, cores 25; on 1 of 1 devices: Capacity: memory: 70Gi \
                 wanted, 60Gi of 80Gi free, held by team/mine (n1 gpu-0)\n  \
                 would fit: memory 60Gi with the cores asked for (n1 gpu-0)\n";
    assert_eq!((said.as_str(), code), (words, Some(1)));

    let (said, _, _) = ask_files(&objects, &["-A"]);
    assert!(
        said.starts_with("6 pods of all namespaces wait for their shares of GPUs, for 2 reasons\n"),
        "{said}"
    );
    assert!(said.contains("1 pod (other/huge): NeverFits\n"), "{said}");

    let (said, _, _) = ask_files(&objects, &["-A", "-o", "json"]);
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["waiting"], 6);
    let groups = answer["groups"].as_array().unwrap();
    assert_eq!(
        (&groups[0]["state"], &groups[1]["state"]),
        (&json!("Waits"), &json!("Never"))
    );
    assert_eq!(groups[0]["requested"][0]["memory"], "70Gi");
    assert_eq!(groups[0]["blocked"][0]["devices"], 1);
    assert_eq!(groups[0]["pods"].as_array().map(Vec::len), Some(5));

    let (said, _, code) = ask_files(&team(&[]), &["-n", "team"]);
    assert_eq!(
        (said.as_str(), code),
        ("no pod of namespace team waits for a share of a GPU\n", Some(0))
    );
}

/// A monitor is not a share, and does not keep other claims from getting one.
#[test]
fn a_monitor_is_no_share_that_waits() {
    let mut monitor = claim("look", "1Gi");
    monitor["spec"]["devices"]["requests"][0]["exactly"] = json!({"deviceClassName": "vgpu", "adminAccess": true,
        "allocationMode": "All", "selectors": [{"cel": {"expression": "false"}}]});
    let mut more = waiting(1);
    more.extend([monitor, made("look", "look", Value::Null)]);
    let (said, _, code) = ask_files(&team(&more), &["-n", "team"]);
    assert!(
        said.starts_with("1 pod of namespace team waits for its share of a GPU\n1 pod (team/train-0)"),
        "{said}"
    );
    assert!(said.contains("\n1 monitor (team/look): "), "{said}");
    assert_eq!(code, Some(1));
}

#[test]
fn an_answer_has_twenty_lines_unless_all_are_wanted() {
    // Each waits for another amount, so none of them share a text.
    let more = (0..30).flat_map(|at: usize| {
        let (pod, claim) = (format!("train-{at}"), format!("train-{at}-gpu-x"));
        [
            self::claim(&claim, &format!("{}Gi", 61 + at % 15)),
            made(&pod, &claim, Value::Null),
        ]
    });
    let objects = team(&more.collect::<Vec<_>>());
    let lines = |args: &[&str]| ask_files(&objects, &[&["-n", "team"], args].concat()).0;
    let short = lines(&[]);
    assert!(short.lines().count() <= 20, "{short}");
    let last = short.lines().last().unwrap();
    assert!(
        last.starts_with("and ") && last.ends_with(" more, for other reasons: --all prints them"),
        "{last}"
    );
    let all = lines(&["--all"]);
    assert_eq!(
        all.lines().filter(|line| line.starts_with("2 pods (")).count(),
        15,
        "{all}"
    );

    let mut objects: Value = serde_json::from_str(&objects).unwrap();
    let devices = &mut objects["items"][SLICE]["spec"]["devices"];
    let device = devices[0].clone();
    let more = (1..40).map(|at: usize| {
        let mut device = device.clone();
        device["name"] = format!("gpu-{at}").into();
        device["taints"] = json!([{"key": "example.com/off", "effect": "NoSchedule"}]);
        device
    });
    devices.as_array_mut().unwrap().extend(more);
    let objects = objects.to_string();
    let (short, _, _) = ask_files(&objects, &["pod/train-0", "-n", "team"]);
    assert_eq!(short.lines().count(), 20, "{short}");
    assert!(
        short.ends_with(" more lines: --all prints them, and -o json has all\n"),
        "{short}"
    );
    let (all, _, _) = ask_files(&objects, &["pod/train-0", "-n", "team", "--all"]);
    assert!(
        all.lines().filter(|line| line.contains(", device gpu-")).count() == 40,
        "{all}"
    );
}

#[test]
fn a_pod_that_runs_has_limits_use_taints_and_what_the_node_says() {
    let mut objects: Value = serde_json::from_str(&team(&[])).unwrap();
    objects["items"][SLICE]["spec"]["devices"][0]["taints"] = json!([
        {"key": "example.com/odd", "value": "1", "effect": "NoSchedule"},
        {"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule"}]);
    let claim = &mut objects["items"][CLAIM];
    claim["status"]["devices"] = json!([{"driver": "dra.vgpu", "pool": "n1/vgpu", "device": "gpu-0",
        "shareID": "11111111-1111-1111-1111-111111111111", "conditions": [
            {"type": "MemoryEnforced", "status": "True", "reason": "Enforced", "message": "fine"},
            {"type": "MemoryGranted", "status": "False", "reason": "RefusedByLimit", "message": "\u{1b}[31m30Gi asked"}]}]);
    let objects = objects.to_string();
    let api = serving(&objects, &objects);
    let usages = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuusages";
    let first = "pod team/train has everything: claim team/mine has gpu-0 of pool n1/vgpu\n";
    let start = "  gpu-0: on node n1; limit memory 20Gi; ";
    let ends = "taints example.com/odd=1:NoSchedule\n  \
                claim team/mine: MemoryGranted is False (RefusedByLimit):  [31m30Gi asked\n";
    let note = |why: &str| format!("{first}  what it uses {why}\n{start}{ends}");
    let said = || {
        let output = ask(&api, &[]).ended(0);
        output.out
    };
    assert_eq!(said(), note("is not known: the cluster has no vgpuusages"));
    api.refuse(usages, 403);
    assert_eq!(
        said(),
        note("is not known: the right to list vgpuusages.dra.vgpu in namespace team is missing")
    );
    let usage = |device: &str| {
        json!({"kind": "VgpuUsageList", "items": [{"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {}, "status": {
            "asOf": "2999-01-01T00:00:00Z", "claims": [{"claim": "mine", "node": "n1", "device": device, "memory": "20Gi", "memoryUsed": "12800Mi",
                "memoryPeak": "18Gi", "gpuTimePercent": 40, "refusals": 3}]}}]})
    };
    api.set(usages, usage("gpu-0").to_string());
    let used = "uses memory 12.5Gi, at most 18Gi so far, GPU time 40 %, memory refused 3 times; ";
    assert_eq!(said(), format!("{first}{start}{used}{ends}"));
    let old = usage("gpu-0").to_string().replace("2999", "2001");
    api.set(usages, old);
    assert!(
        said().contains("\n  figures of ") && said().contains(", stale: "),
        "{}",
        said()
    );
    api.set(usages, usage("gpu-0").to_string());
    let answer: Value = ask(&api, &["-o", "json"]).json();
    let device = &answer["devices"][0];
    assert_eq!(
        (&device["node"], &device["memory"], &device["used"]["refusals"]),
        (&json!("n1"), &json!("20Gi"), &json!(3))
    );
    assert_eq!(device["conditions"][1]["reason"], "RefusedByLimit");
    assert!(device["memoryEnforcedBy"].is_null(), "the reason is not known");
    assert_eq!(
        (&answer["state"], &answer["reason"]),
        (&json!("HasDevices"), &json!(""))
    );
    api.set(usages, usage("gpu-1").to_string());
    assert!(
        said().contains("what it uses of gpu-0 is not known: VgpuUsage vgpu of the namespace does not list claim mine")
    );
}

#[test]
fn a_pod_that_runs_shows_which_wall_holds_its_memory() {
    for (status, reason, said, field) in [
        ("True", "Library", "; memory held by libvgpu.so\n", json!("Library")),
        (
            "True",
            "DriverAndLibrary",
            "; memory held by libvgpu.so and the driver\n",
            json!("DriverAndLibrary"),
        ),
        (
            "False",
            "OverLimit",
            "MemoryEnforced is False (OverLimit): \n",
            json!(null),
        ),
        ("Unknown", "NoHostPid", "limit memory 20Gi\n", json!(null)),
    ] {
        let mut objects: Value = serde_json::from_str(&team(&[])).unwrap();
        objects["items"][CLAIM]["status"]["devices"] = json!([{"driver": "dra.vgpu", "pool": "n1/vgpu", "device": "gpu-0",
            "shareID": "11111111-1111-1111-1111-111111111111",
            "conditions": [{"type": "MemoryEnforced", "status": status, "reason": reason}]}]);
        let objects = objects.to_string();
        let (text, _, _) = ask_files(&objects, &["pod/train", "-n", "team"]);
        assert!(text.contains(said), "{text}");
        let (answer, _, _) = ask_files(&objects, &["pod/train", "-n", "team", "-o", "json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["devices"][0]["memoryEnforcedBy"], field, "{reason}");
    }
}

/// Every field that docs/allocate.md names.
#[test]
fn the_fields_of_an_answer_are_stable() {
    let (said, _, _) = ask_files(&team(&waiting(1)), &["pod/train-0", "-n", "team", "-o", "json"]);
    let answer: Value = serde_json::from_str(&said).unwrap();
    let mut fields: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let docs =
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/allocate.md")).unwrap();
    let start = docs.find("### Fields of the JSON answer").unwrap();
    let rows = docs[start..]
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    let first = |row: &str| row.split(" | ").next().unwrap_or_default().replace("| ", "");
    let rows: Vec<String> = rows.map(first).collect();
    let mut documented: Vec<&str> = rows
        .iter()
        .flat_map(|row| row.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    documented.sort_unstable();
    assert_eq!(fields, documented);
    let of = |field: &str| answer[field].as_str().unwrap().to_owned();
    assert_eq!(
        ["kind", "namespace", "name", "state", "reason"].map(of),
        ["pod", "team", "train-0", "Waits", "Capacity"]
    );
    assert_eq!(
        answer["requested"],
        json!([{"claim": "team/train-0-gpu-x", "request": "gpu", "class": "vgpu", "count": 1, "memory": "70Gi", "cores": "25"}])
    );
    assert_eq!(answer["blocked"][0]["reason"], "Capacity");
}

fn deployment(replicas: u64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train", "namespace": "team", "uid": "d"},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]}}}})
}

fn replica_set() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "train-7f", "namespace": "team", "uid": "rs",
            "ownerReferences": [{"kind": "Deployment", "name": "train", "uid": "d"}]},
        "spec": {"replicas": 3}, "status": {"conditions": [{"type": "ReplicaFailure", "status": "True",
            "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota: gpus"}]}})
}

fn template(memory: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "quarter", "namespace": "team"}, "spec": {"spec": claim("x", memory)["spec"]}})
}

#[test]
fn a_workload_says_which_pods_wait_and_why_others_are_missing() {
    let owner = json!({"kind": "ReplicaSet", "name": "train-7f", "uid": "rs"});
    let mut other = made(
        "else",
        "mine",
        json!({"kind": "ReplicaSet", "name": "train-7f", "uid": "before"}),
    );
    other["spec"]["nodeName"] = "n1".into();
    let more = [
        deployment(4),
        replica_set(),
        template("20Gi"),
        claim("a", "70Gi"),
        claim("b", "70Gi"),
        made("train-7f-a", "a", owner.clone()),
        made("train-7f-b", "b", owner),
        other,
    ];
    let objects = team(&more);
    for words in [
        &["deploy/train"][..],
        &["deployment", "train"],
        &["deployments.apps/train"],
    ] {
        let (said, errors, code) = ask_files(&objects, &[words, &["-n", "team"]].concat());
        let start = "Deployment team/train: 2 of 4 wanted pods exist, and 0 wait for no GPU\n\
                     2 pods (team/train-7f-a, team/train-7f-b): Capacity\n  \
                     claim gpu, request gpu: asked for memory 70Gi, cores 25; ";
        assert!(said.starts_with(start), "{said}{errors}");
        let ends = "  ReplicaSet team/train-7f: ReplicaFailure is True (FailedCreate): pods is forbidden: exceeded quota: gpus\n  \
                    of the 2 missing pods 2 would have their GPUs now\n";
        assert!(said.ends_with(ends), "{said}");
        assert_eq!(code, Some(1));
    }
    let (said, _, _) = ask_files(&objects, &["rs/train-7f", "-n", "team", "-o", "json"]);
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&answer["wanted"], &answer["pods"], &answer["missing"]),
        (&json!(3), &json!(2), &json!(1))
    );

    let (said, _, code) = ask_files(&team(&[deployment(0)]), &["deploy/train", "-n", "team"]);
    let words = "Deployment team/train: 0 of 0 wanted pods exist, and 0 wait for no GPU\n  spec.replicas is 0, so it wants no pod\n";
    assert_eq!((said.as_str(), code), (words, Some(0)));

    let (_, errors, code) = ask_files(&objects, &["deploy/tran", "-n", "team"]);
    let words = "vgpu explain: Deployment tran not found in namespace team; did you mean train?; give the object too, and its namespace by -n\n";
    assert_eq!((errors.as_str(), code), (words, Some(2)));
}

#[test]
fn a_job_without_pods_says_what_its_events_say() {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "fit", "namespace": "team", "uid": "j"},
        "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [{"name": "main",
            "resources": {"limits": {"nvidia.com/gpumem": "3000"}}}]}}}});
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "team"},
        "type": "Warning", "reason": "FailedCreate", "note": "no room in the quota\u{1b}[2J", "eventTime": "2026-01-02T00:00:00Z",
        "regarding": {"kind": "Job", "name": "fit", "namespace": "team"}});
    let (said, _, code) = ask_files(&team(&[job.clone(), event]), &["job/fit", "-n", "team"]);
    let words = "Job team/fit: 0 of 2 wanted pods exist, and 0 wait for no GPU\n  \
                 Job team/fit: FailedCreate (2026-01-02T00:00:00Z): no room in the quota [2J\n  \
                 whether the missing pods would fit: its pods have no claims; for another system's resources: vgpu translate \
                 -f FILE | vgpu fit -f -\n";
    assert_eq!((said.as_str(), code), (words, Some(1)));
    let mut suspended = job;
    suspended["spec"]["suspend"] = true.into();
    let (said, _, code) = ask_files(&team(&[suspended]), &["job/fit", "-n", "team"]);
    assert!(said.ends_with("  spec.suspend is true, so it makes no pod\n"), "{said}");
    assert_eq!(code, Some(0));
}

#[test]
fn a_template_says_what_it_asks_for_who_uses_it_and_what_is_wrong() {
    let of = |template: Value| {
        let mut more = waiting(1);
        more.push(template);
        ask_files(&team(&more), &["template/quarter", "-n", "team"])
    };
    let (said, _, code) = of(template("20Gi"));
    let words = "template team/quarter is used by train-0\n  request gpu: 1 of class vgpu, memory 20Gi, cores 25\n";
    assert!(
        said.starts_with(words) && said.ends_with("  fits on 1 of 1 nodes: n1\n"),
        "{said}"
    );
    assert_eq!(code, Some(0));
    let (said, _, code) = of(template("20"));
    assert!(
        said.contains("template team/quarter: claim team/made from quarter, request gpu: spec.devices.requests[0]"),
        "{said}"
    );
    assert!(said.contains("\"20\" is less than the smallest share"), "{said}");
    assert_eq!(code, Some(1));
    let mut malformed = template("20Gi");
    malformed["spec"]["spec"]["devices"]["requests"] = "none".into();
    let (said, _, code) = of(malformed);
    assert!(said.contains("spec.spec.devices.requests"), "{said}");
    assert_eq!(code, Some(1));
}

#[test]
fn a_pod_with_extended_resources_waits_for_its_class_gate_or_translation() {
    let extended = |resource: &str, gates: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ext", "namespace": "team"},
            "spec": {"schedulingGates": gates, "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}})
    };
    let ours = "deviceclass.resource.kubernetes.io/vgpu";
    let (said, _, code) = ask_files(&team(&[extended(ours, json!([]))]), &["pod/ext", "-n", "team"]);
    assert!(
        said.contains("container main, resource deviceclass.resource.kubernetes.io/vgpu: asked for "),
        "{said}"
    );
    assert_eq!(code, Some(1));
    let gate = "pod team/ext: has the scheduling gate dra.vgpu/quota, which vgpu-controller takes off when ";
    let (said, _, code) = ask_files(
        &team(&[extended(ours, json!([{"name": "dra.vgpu/quota"}]))]),
        &["pod/ext", "-n", "team"],
    );
    assert!(said.starts_with(gate), "{said}");
    assert_eq!(code, Some(1));

    let (said, _, _) = ask_files(&team(&[extended("nvidia.com/gpumem", json!([]))]), &["-A"]);
    assert!(
        said.contains("1 pod (team/ext): Untranslated\n  it asks by nvidia.com/gpumem"),
        "{said}"
    );
    let (said, _, _) = ask_files(&team(&[extended("example.com/other", json!([{"name": "g"}]))]), &["-A"]);
    assert!(said.starts_with("no pod "), "it asks for no GPU: {said}");

    // The same with rights in the namespace alone.
    for (resource, gates, words) in [
        (ours, json!([{"name": "dra.vgpu/quota"}]), gate),
        (
            ours,
            json!([{"name": "example.com/later"}]),
            "pod team/ext: has the scheduling gate example.com/later: ",
        ),
        (
            "nvidia.com/gpumem",
            json!([]),
            "pod team/ext: it asks by nvidia.com/gpumem and has no claim, ",
        ),
    ] {
        let objects = team(&[extended(resource, gates)]);
        let api = serving(&objects, &objects);
        api.refuse(NODES, 403);
        let output = of_cluster(&api, &["ext"]);
        let said = &output.out;
        assert!(said.starts_with(words) && !said.contains("has no claims"), "{said}");
        assert_eq!(output.code, Some(1), "{said}");
    }
}

#[test]
fn rights_in_the_namespace_alone_group_pods_by_what_was_said_of_them() {
    let objects = team(&waiting(3));
    let api = serving(&objects, &objects);
    api.refuse(NODES, 403);
    let event = |pod: &str| {
        json!({"reportingController": "dra.vgpu/controller", "reason": "VgpuClaimPending",
            "note": format!("claim team/{pod}-gpu-x, request gpu: fits nowhere"), "eventTime": format!("2026-01-02T00:00:0{}Z", &pod[6..]),
            "regarding": {"kind": "Pod", "name": pod, "namespace": "team"}})
    };
    api.set(
        EVENTS,
        json!({"kind": "EventList", "items": [event("train-0"), event("train-1")]}).to_string(),
    );
    let output = of_cluster(&api, &[]);
    let words = "3 pods of namespace team wait for their shares of GPUs, for 2 reasons\n\
                 2 pods (team/train-0, team/train-1):\n  claim gpu, request gpu: fits nowhere\n\
                 1 pod (team/train-2):\n  its claims are not allocated, and nobody has said why yet\n\
                 not known, what is free on the GPUs: the right to list nodes in all namespaces is missing\n";
    assert_eq!((&*output.out, output.code), (words, Some(1)));
    let held = team(&[]);
    let other = serving(&held, &held);
    other.refuse(NODES, 403);
    let said = ask(&other, &[]).out;
    assert!(
        said.starts_with("pod team/train has its devices: claim team/mine has gpu-0 of pool n1/vgpu\n  what it uses ")
            && said.contains("\n  gpu-0: on node n1; limit"),
        "whether the GPU is well is not known: {said}"
    );
    // A user who may not list all namespaces learns which right is missing.
    api.refuse("/api/v1/pods", 403);
    let output = of_cluster(&api, &["-A"]);
    let words = "vgpu explain: the right to list pods in all namespaces is missing\n";
    assert_eq!((&*output.err, output.code), (words, Some(2)));
}

#[test]
fn names_that_may_be_meant_are_said_and_hostile_ones_are_harmless() {
    let objects = team(&waiting(1));
    let (_, errors, code) = ask_files(&objects, &["pod/trian", "-n", "team"]);
    assert!(
        errors.contains("pod trian not found in namespace team; did you mean train?; "),
        "{errors}"
    );
    assert_eq!(code, Some(2));
    let (_, errors, _) = ask_files(&objects, &["pod/a\u{1b}]0;b", "-n", "te\nam"]);
    assert!(!errors.contains('\u{1b}') && errors.lines().count() == 1, "{errors:?}");
    let hostile = objects.replace("train-0", "train-0\\u001b[2J\\n");
    let (said, _, _) = ask_files(&hostile, &["-A"]);
    assert!(
        !said.contains('\u{1b}') && said.contains("team/train-0 [2J ): "),
        "{said:?}"
    );

    // If kubectl calls it, its help names `kubectl vgpu`.
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-vgpu");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vgpu"), &plugin).unwrap();
    let help = Said::of(Command::new(&plugin).args(["explain", "--help"]));
    assert!(help.out.contains("Usage: kubectl vgpu explain "), "{help:?}");
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(&file, team(&waiting(1))).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = vgpu_explain(&["-n", "team", "-f", file.to_str().unwrap()]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(1), Vec::new()));
}
