//! `vgpu doctor`, its probe and `vgpu bundle`, on a cluster whose API server is a stand-in.

#[path = "support/api.rs"]
mod api;
#[path = "support/said.rs"]
mod said;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use api::Api;
use said::Said;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/team/pods";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates";
const PROBE: &str = "doctor --probe --image=registry.example/vgpu:1 --timeout 1";

fn command(api: &Api, words: &str) -> Command {
    let mut command = said::vgpu(words);
    command.arg("--kubeconfig").arg(api.kubeconfig());
    command
}

fn vgpu(api: &Api, words: &str) -> Said {
    Said::of(&mut command(api, words))
}

/// `vgpu WORDS -o PATH`.
fn bundle(api: &Api, words: &str, path: &Path) -> Said {
    Said::of(command(api, words).arg("-o").arg(path))
}

/// An API server that lists no pods and no templates in namespace team.
fn api() -> Api {
    let api = Api::start();
    for path in [PODS, TEMPLATES] {
        api.set(path, r#"{"items": []}"#);
    }
    api
}

#[test]
fn a_login_that_expired_and_missing_rights_are_named_and_nothing_is_called_well() {
    let api = api();
    api.refuse("/api/v1/nodes", 401);
    vgpu(&api, "doctor")
        .ended(2)
        .err_has("refused the login: no; log in again");

    api.refuse("/api/v1/nodes", 403);
    let said = vgpu(&api, "doctor").ended(2);
    said.out_has("not checked: the right to list nodes in all namespaces is missing");
    let end = "too little can be read to say that all is well\n";
    assert!(said.out.ends_with(end), "{said:?}");

    let said = vgpu(&api, "doctor --context none").ended(2);
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
}

#[test]
fn a_right_that_an_account_lacks_is_asked_of_the_api_server() {
    let api = api();
    let daemon_set = json!({"metadata": {"name": "vgpu-plugin", "namespace": "vgpu"}, "spec": {"template": {"spec": {
        "serviceAccountName": "vgpu-plugin", "containers": [{"image": "plugin:1"}]}}}});
    api.set("/apis/apps/v1/daemonsets", json!({"items": [daemon_set]}).to_string());
    let reviews = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";
    api.set(reviews, r#"{"status": {"allowed": false}}"#);
    let answer = vgpu(&api, "doctor -o json").ended(1).json();
    let found = &answer["findings"][0];
    assert_eq!(found["object"], "ServiceAccount vgpu/vgpu-plugin");
    assert!(found["value"].as_str().unwrap().contains("list pods"), "{found}");

    api.answer(reviews, 403, "jane cannot create resource");
    let line = "not checked: rights of the ServiceAccounts: the right to create subjectaccessreviews.authorization.k8s.io \
                in all namespaces is missing\n";
    vgpu(&api, "doctor").out_has(line);
}

/// The status of a pod whose container has ended.
fn ended(code: i64, message: &str) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    json!({"node": "n1", "phase": phase, "containerStatuses": [{"state": {"terminated": {"exitCode": code, "message": message}}}]})
}

#[test]
fn a_probe_says_how_far_it_came_and_leaves_nothing() {
    let api = api();
    for (status, code, words) in [
        (
            ended(0, "67108864 bytes of GPU-1"),
            0,
            "the probe ran on node n1: 67108864 bytes of GPU-1\nnothing was found\n",
        ),
        (
            ended(1, "limits file not mounted: \u{1b}[31m"),
            1,
            " on node n1: ran without its limit: limits file not mounted:  [31m\n",
        ),
        (
            json!({"phase": "Pending"}),
            1,
            ": not allocated: no scheduler has looked at it\n",
        ),
    ] {
        api.set_status(status);
        vgpu(&api, PROBE).ended(code).out_has(words);
        let (paths, left) = api.created();
        for path in [PODS, TEMPLATES] {
            assert!(paths.iter().any(|one| one == path), "{paths:?}");
        }
        // A real API server does not store the questions about rights.
        let left: Vec<_> = left.iter().filter(|one| one["kind"] != "SubjectAccessReview").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_probe_that_may_not_create_its_pod_names_the_right_and_one_that_is_refused_says_by_what() {
    let api = api();
    let left = |api: &Api| api.created().1.iter().any(|one| one["kind"] == "ResourceClaimTemplate");
    let pods = format!("POST {PODS}");
    let forbidden = "pods is forbidden: User jane cannot create resource pods";
    api.answer(&pods, 403, forbidden);
    let said = vgpu(&api, PROBE).ended(2);
    let words = "vgpu doctor: the probe: the right to create pods in namespace team is missing\n";
    assert!(said.err.ends_with(words), "{said:?}");
    assert!(!left(&api));

    // The user may not delete pods, either.
    api.refuse_deletes(PODS);
    let said = vgpu(&api, PROBE);
    assert!(said.err.ends_with(words), "{said:?}");
    said.err_has("the right to delete pods");
    assert!(!left(&api));

    api.answer(&pods, 403, "exceeded quota: small");
    let said = vgpu(&api, PROBE).ended(1);
    said.out_has("refused: create pods in namespace team: exceeded quota: small");
    assert!(!left(&api));
}

#[test]
fn without_an_image_and_the_right_to_find_one_the_flag_is_named() {
    let api = api();
    api.set("/apis/apps/v1/namespaces/team/deployments", r#"{"items": []}"#);
    let said = vgpu(&api, "doctor --probe").ended(2);
    said.err_has("--image: which image has /usr/bin/vgpu?");
    assert!(!api.created().0.contains(&PODS.to_owned()));
}

/// Waits until the probe has created its pod.
fn started(api: &Api, probe: &mut Child) {
    while !api.created().0.contains(&PODS.to_owned()) {
        assert_eq!(probe.try_wait().unwrap(), None, "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_probe_that_is_interrupted_deletes_its_pod() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let api = api();
        let mut probe = command(&api, &PROBE.replace("--timeout 1", "--timeout 600"));
        let mut probe = probe.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        started(&api, &mut probe);
        let sent = Command::new("kill").args([signal, &probe.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let said = Said::from(probe.wait_with_output().unwrap()).ended(2);
        said.err_has("interrupted; the probe's pod and template are deleted");
        assert!(api.created().1.iter().all(|one| one["kind"] == "SubjectAccessReview"));
    }
}

#[test]
fn what_a_killed_probe_left_is_deleted_once_it_is_old() {
    let api = api();
    let object = |name: &str, created: &str| json!({"metadata": {"name": name, "creationTimestamp": created}, "status": {"phase": "Pending"}});
    let fresh = jiff::Timestamp::now().to_string();
    let listed =
        json!({"items": [object("vgpu-probe-old", "2026-01-01T00:00:00Z"), object("vgpu-probe-other", &fresh)]});
    api.set(PODS, listed.to_string());
    api.set(&format!("DELETE {PODS}/vgpu-probe-other"), "not to be deleted");
    api.answer(&format!("DELETE {PODS}/vgpu-probe-old"), 403, "it cannot be");
    vgpu(&api, PROBE).err_has("the right to delete pods in namespace team is missing");
    api.set(&format!("DELETE {PODS}/vgpu-probe-old"), "{}");
    vgpu(&api, PROBE).ended(1).out_has("not allocated");
}

#[test]
fn ages_are_by_the_servers_clock() {
    let api = cluster_of_tenants();
    let stale = |api: &Api| vgpu(api, "doctor").out.contains("VgpuNode n1: was written");
    assert!(stale(&api));
    api.set("date", "Fri, 02 Jan 2026 00:00:10 GMT");
    assert!(!stale(&api));
}

/// Names of tenants that a bundle must not contain. One of them is not a name that Kubernetes would accept.
const TENANTS: [&str; 6] = [
    "acme",
    "train-7d9",
    "acme-gpu",
    "quarter",
    "<script>alert(1)</script>",
    "s3cret",
];

fn cluster_of_tenants() -> Api {
    let api = Api::start();
    let meta = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace});
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "quarter"}]);
    let pod = json!({"metadata": meta("train-7d9", "acme"), "spec": {"resourceClaims": claims, "containers": [
        {"name": "main", "env": [{"name": "TOKEN", "value": "s3cret"}], "args": ["s3cret"], "image": "s3cret"}]}});
    let mut plugin = json!({"metadata": meta("vgpu-plugin-a", "vgpu"), "spec": {"nodeName": "n1"}, "status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"restartCount": 0}]}});
    let labels = json!({"app.kubernetes.io/name": "dra-driver-vgpu", "app.kubernetes.io/component": "plugin"});
    plugin["metadata"]["labels"] = labels;
    let beside = json!({"metadata": meta("vgpu-dashboard", "vgpu"), "spec": {}});
    let claim = json!({"metadata": meta("acme-gpu", "acme"), "spec": {}});
    let template = json!({"metadata": meta("quarter", "acme"), "spec": {}});
    let hostile = "<script>alert(1)</script>";
    let shares = json!([{"namespace": "acme", "claim": "acme-gpu", "device": "gpu-0", "memory": "20Gi", "memoryUsed": "1Gi"},
        {"namespace": hostile, "claim": hostile, "device": "gpu-0", "memory": "10Gi"}]);
    let node = json!({"metadata": {"name": "n1"}, "status": {"asOf": "2026-01-02T00:00:00Z", "shares": shares,
        "gpus": [{"device": "gpu-0", "model": "NVIDIA <b>", "memory": "80Gi", "memoryUsed": "2Gi"}]}});
    let event = json!({"metadata": meta("e", "acme"), "reportingController": "dra.vgpu/controller", "reason": "VgpuClaimPending",
        "regarding": {"kind": "Pod", "name": "train-7d9", "namespace": "acme"}, "note": "pod acme/train-7d9: claim acme/acme-gpu, before gone-claim"});
    let other =
        json!({"metadata": meta("f", "acme"), "reportingController": "kubelet", "reason": "Pulled", "note": "s3cret"});
    let daemon_set = json!({"metadata": meta("vgpu-plugin", "vgpu"), "spec": {"template": {"spec": {
        "containers": [{"image": "plugin:1", "env": [{"name": "TOKEN", "value": "s3cret"}]}]}}}});
    let account = json!({"kind": "ServiceAccount", "name": "vgpu-plugin", "namespace": "vgpu"});
    for (path, items) in [
        ("/api/v1/pods", json!([pod, plugin, beside])),
        (
            "/api/v1/nodes",
            json!([{"metadata": {"name": "n1"}, "status": {"addresses": [{"address": "10.9.8.7"}]}}]),
        ),
        ("/apis/resource.k8s.io/v1/resourceclaims", json!([claim])),
        ("/apis/resource.k8s.io/v1/resourceclaimtemplates", json!([template])),
        ("/apis/dra.vgpu/v1alpha1/vgpunodes", json!([node])),
        ("/apis/events.k8s.io/v1/events", json!([event, other])),
        ("/apis/apps/v1/daemonsets", json!([daemon_set])),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!([{"roleRef": {"name": "vgpu-plugin"}, "subjects": [account]}]),
        ),
    ] {
        api.set(path, json!({"items": items}).to_string());
    }
    api.set(
        "/api/v1/namespaces/vgpu/pods/vgpu-plugin-a/log",
        "prepared claim acme/acme-gpu\nof gone-claim\nwith \u{1b}[31m gone-team/gone-claim\n",
    );
    api.set("/api/v1/namespaces/vgpu/pods/vgpu-dashboard/log", "token: s3cret");
    api
}

/// The files of an archive.
fn files(archive: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(std::fs::File::open(archive).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.trim_start_matches("vgpu-bundle/").to_owned(), text)
    });
    entries.collect()
}

#[test]
fn a_bundle_has_objects_logs_and_a_page_and_no_name_of_a_tenant() {
    let api = cluster_of_tenants();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.tar");
    let said = bundle(&api, "bundle", &path).ended(0);
    said.out_has("b.tar; tenants' names are replaced");
    let files = files(&path);
    for (name, text) in &files {
        for tenant in TENANTS.iter().chain(&["gone-team", "gone-claim", "10.9.8.7"]) {
            assert!(!text.contains(tenant), "{name} has {tenant}: {text}");
        }
    }
    // A name is replaced by the same pseudonym everywhere, whether it names a namespace or a claim.
    for (file, words) in [
        ("logs/vgpu-vgpu-plugin-a.txt", "prepared claim namespace-1/claim-1\n"),
        (
            "objects/events.json",
            "pod namespace-1/pod-1: claim namespace-1/claim-1, before name-1",
        ),
        ("objects/vgpunodes.json", "\"claim\": \"claim-1\""),
        ("page.html", "namespace-1/claim-1: 20Gi held, 1Gi used"),
        ("page.html", "NVIDIA &lt;b&gt;; 30Gi of 80Gi held, 2Gi used, 50Gi free"),
        ("objects/pods.json", "\"name\": \"vgpu-plugin-a\""),
        ("read.txt", "pods: 2 objects\n"),
        ("read.txt", "not read: the cluster has no vgpuquotas"),
        ("doctor.txt", "finding"),
    ] {
        assert!(files[file].contains(words), "{file}: {}", files[file]);
    }
    assert!(!files["objects/events.json"].contains("Pulled"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    bundle(&api, "bundle", &path).ended(2).err_has("File exists");

    // Without this right it is not known whether a namespace whose DaemonSet has the chart's label is a tenant's.
    api.refuse("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", 403);
    let path = folder.path().join("c.tar");
    bundle(&api, "bundle", &path);
    let names = crate::files(&path).into_keys().filter(|name| name.starts_with("logs/"));
    assert_eq!(names.count(), 0);
}

#[test]
fn with_names_they_stay_and_are_text_in_the_page() {
    let api = cluster_of_tenants();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.tar");
    bundle(&api, "bundle --names", &path).ended(0);
    let files = files(&path);
    assert!(files["logs/vgpu-vgpu-plugin-a.txt"].contains("acme/acme-gpu"));
    assert!(files["page.html"].contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(!files["page.html"].contains("<script"));
    assert!(
        files.values().all(|text| !text.contains("s3cret")),
        "values of variables"
    );
}

#[test]
fn a_bundle_of_a_cluster_that_does_not_answer_is_not_written() {
    let api = Api::start();
    api.refuse("/api/v1/nodes", 401);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.tar");
    bundle(&api, "bundle", &path).ended(2);
    assert!(!path.exists());
}
