//! `vgpu translate`: its input files, the objects that it prints, what it says, and its exit statuses.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn vgpu(command: &str, files: &[PathBuf], more: &[&str]) -> Output {
    let mut vgpu = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    vgpu.arg(command).args(more).stdin(Stdio::null());
    for file in files {
        vgpu.arg("-f").arg(file);
    }
    vgpu.output().unwrap()
}

fn translate(text: &str, more: &[&str]) -> Output {
    let files = Files::new();
    vgpu("translate", &[files.write("in.yaml", text)], more)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The printed objects.
fn items(output: &Output) -> Vec<Value> {
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    list["items"].as_array().unwrap().clone()
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: team}
spec:
  schedulerName: hami-scheduler
  futureField: stays
  containers:
  - name: main
    image: i
    resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30, cpu: 2}}
";

#[test]
fn a_pod_is_printed_with_its_template() {
    let output = translate(POD, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [template, pod] = &items(&output)[..] else {
        panic!("{output:?}");
    };
    let name = template["metadata"]["name"].as_str().unwrap();
    assert_eq!(template["metadata"]["namespace"], "team");
    assert_eq!(
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"],
        json!({"memory": "3000Mi", "cores": "30"})
    );
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["schedulerName"], &spec["futureField"]),
        (&json!("default-scheduler"), &json!("stays"))
    );
    assert_eq!(
        spec["resourceClaims"],
        json!([{"name": "vgpu-translated-0", "resourceClaimTemplateName": name}])
    );
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"limits": {"cpu": 2}, "claims": [{"name": "vgpu-translated-0"}]})
    );
    assert!(stderr(&output).contains("Pod team/train: spec: ResourceQuotas for nvidia.com/gpu count 0"));
}

/// What is printed can be given again, and changes no more.
#[test]
fn the_output_is_input() {
    let files = Files::new();
    let first = translate(POD, &[]);
    let again = vgpu(
        "translate",
        &[files.write("again.yaml", std::str::from_utf8(&first.stdout).unwrap())],
        &[],
    );
    assert_eq!((again.status.code(), stderr(&again).as_str()), (Some(0), ""));
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        String::from_utf8_lossy(&first.stdout)
    );
}

#[test]
fn every_workload_has_its_pod_template_translated() {
    let template =
        json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {"volcano.sh/gpu-memory": 1024}}}]}});
    for (version, kind, spec) in [
        ("apps/v1", "Deployment", json!({"template": template})),
        ("apps/v1", "ReplicaSet", json!({"template": template})),
        ("apps/v1", "StatefulSet", json!({"template": template})),
        ("apps/v1", "DaemonSet", json!({"template": template})),
        ("batch/v1", "Job", json!({"template": template})),
        (
            "batch/v1",
            "CronJob",
            json!({"jobTemplate": {"spec": {"template": template}}}),
        ),
        ("v1", "ReplicationController", json!({"template": template})),
    ] {
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [object]});
        let output = translate(&list.to_string(), &["-o", "json"]);
        let items = items(&output);
        assert_eq!((output.status.code(), items.len()), (Some(0), 2), "{output:?}");
        let pod = match kind {
            "CronJob" => &items[1]["spec"]["jobTemplate"]["spec"]["template"],
            _ => &items[1]["spec"]["template"],
        };
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["claims"][0]["name"], "vgpu-translated-0",
            "{kind}"
        );
        assert!(
            pod["metadata"]["annotations"]["dra.vgpu/translated"].is_string(),
            "{kind}"
        );
    }
}

const SLICE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpus}
spec:
  driver: dra.vgpu
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    allowMultipleAllocations: true
    attributes: {type: {string: gpu}, uuid: {string: GPU-0}, productName: {string: NVIDIA H100 80GB HBM3}}
    capacity: &capacity
      memory: {value: 81559Mi, requestPolicy: {default: 81559Mi, validRange: {min: 64Mi, step: 1Mi}}}
      cores: {value: 100, requestPolicy: {default: 0, validRange: {min: 0, max: 100, step: 1}}}
"#;

#[test]
fn percent_need_the_gpus() {
    let pod = POD.replace("nvidia.com/gpumem: 3000", "nvidia.com/gpumem-percentage: 50");
    let without = translate(&pod, &["-o", "json"]);
    assert_eq!((without.status.code(), items(&without).len()), (Some(0), 1));
    assert!(
        stderr(&without).contains("kubectl get resourceslices -o yaml"),
        "{without:?}"
    );
    let with = translate(&[SLICE, "---", &pod].concat(), &["-o", "json"]);
    let items = items(&with);
    assert_eq!(items.len(), 2, "{with:?}");
    let alternatives = &items[0]["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"];
    assert_eq!(alternatives[0]["capacity"]["requests"]["memory"], "40779Mi");
}

#[test]
fn a_refusal_is_exit_1_and_names_the_object() {
    let bad = POD
        .replace("nvidia.com/gpumem: 3000", "nvidia.com/gpumem: 1.5")
        .replace("train", "bad");
    let output = translate(&[POD, "---", &bad].concat(), &["-o", "json"]);
    assert_eq!((output.status.code(), items(&output).len()), (Some(1), 2), "{output:?}");
    let said = stderr(&output);
    let line = "vgpu translate: Pod team/bad: spec.containers[0].resources.limits[nvidia.com/gpumem]: Invalid value: \"1.5\": must be a whole number";
    assert!(said.contains(line), "{said}");
}

/// A number where Kubernetes wants a text, which YAML makes of a value without quotes.
#[test]
fn a_value_of_the_wrong_type_names_file_and_field_and_the_other_pods_are_printed() {
    let template = "{metadata: {annotations: {gpu-fraction: 0.5}}, spec: {containers: [{name: c, image: i}]}}";
    let text = format!(
        "{POD}---\n{{apiVersion: v1, kind: Pod, metadata: {{name: unquoted, annotations: {{tencent.com/vcuda-core-limit: 50}}}}, \
         spec: {{containers: [{{name: c, image: i}}]}}}}\n---\n{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d}}, \
         spec: {{template: {template}}}}}\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: env}}, spec: {{containers: \
         [{{name: c, image: i, env: [{{name: A, value: true}}]}}, {{name: d, image: [i]}}]}}}}\n---\n{{apiVersion: v1, kind: \
         Pod, metadata: {{name: number}}, spec: {{containers: 1}}}}\n"
    );
    let output = translate(&text, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for words in [
        "in.yaml: Pod unquoted: metadata.annotations[tencent.com/vcuda-core-limit]: 50 is not a text; write it in quotes: \"50\"\n",
        "in.yaml: Deployment d: spec.template.metadata.annotations.gpu-fraction: 0.5 is not a text; write it in quotes: \"0.5\"\n",
        "in.yaml: Pod env: spec.containers[0].env[0].value: true is not a text; write it in quotes: \"true\"\n",
        "in.yaml: Pod number: spec.containers: 1 is not a list; write [1] for a list of it\n",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let printed = items(&output);
    let kinds: Vec<&str> = printed.iter().filter_map(|item| item["kind"].as_str()).collect();
    assert_eq!(kinds, ["ResourceClaimTemplate", "Pod"]);
}

/// As the API server does: null is 0, an amount may be a number wherever it stands, and a PodList's items have no kind.
#[test]
fn what_the_api_server_reads_is_read() {
    let container = json!({"name": "c", "image": "i", "resources": {
        "limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "memory": null, "cpu": 0.5}, "requests": null}});
    let spec = json!({"containers": [container], "initContainers": null, "overhead": {"cpu": 1},
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": 1000}}]});
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p", "creationTimestamp": null},
        "spec": spec}]});
    let output = translate(&list.to_string(), &["-o", "json"]);
    let kinds: Vec<Value> = items(&output).iter().map(|item| item["kind"].clone()).collect();
    assert_eq!(
        (output.status.code(), kinds),
        (Some(0), vec![json!("ResourceClaimTemplate"), json!("Pod")])
    );
    let limits = &items(&output)[1]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({"memory": null, "cpu": 0.5}));
    let nothing = POD.replace(
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30",
        "nvidia.com/gpu: null",
    );
    let output = translate(&nothing, &["-o", "json"]);
    assert_eq!((output.status.code(), items(&output).len()), (Some(0), 1), "{output:?}");
    let no_template = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}\n";
    assert_eq!(
        items(&translate(no_template, &["-o", "json"])).len(),
        1,
        "the API server's to refuse"
    );
    let octal = POD.replace(
        "  containers:",
        "  volumes: [{name: v, secret: {defaultMode: 0644}}]\n  containers:",
    );
    let output = translate(&octal, &["-o", "json"]);
    assert_eq!(items(&output)[1]["spec"]["volumes"][0]["secret"]["defaultMode"], 0o644);
}

#[test]
fn what_is_lost_is_said() {
    let others = "
apiVersion: v1
kind: ResourceQuota
metadata: {name: q, namespace: team}
spec: {hard: {limits.nvidia.com/gpumem: 10000, requests.tencent.com/vcuda-core: 100, requests.cpu: 10}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: default}
---
apiVersion: v1
kind: Service
metadata: {name: s}
";
    let output = translate(others, &["-o", "json"]);
    assert_eq!((output.status.code(), items(&output).len()), (Some(0), 3), "{output:?}");
    let said = stderr(&output);
    for line in [
        "ResourceQuota team/q: spec.hard[limits.nvidia.com/gpumem]: is lost: it counts 0",
        "ResourceQuota team/q: spec.hard[requests.tencent.com/vcuda-core]: is lost",
        "Queue default: is lost: kube-scheduler has no queues",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    for (text, more, words) in [
        (
            POD,
            &["--dialects", "hammy"][..],
            "--dialects: dialect \"hammy\" is unknown; use one of hami, koordinator",
        ),
        ("kind: [Pod\n", &[], "in.yaml: document 1: not YAML"),
        ("[1]", &[], "in.yaml: document 1 is a list, not an object"),
    ] {
        let output = translate(text, more);
        let line = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.contains(words) && line.lines().count() == 1, "{line}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn the_documents_beside_one_that_cannot_be_read_are_printed() {
    let output = translate(
        &[POD, "---\nkind: [Pod\n---", &POD.replace("train", "other")].concat(),
        &["-o", "json"],
    );
    assert_eq!((output.status.code(), items(&output).len()), (Some(2), 3), "{output:?}");
    assert!(
        stderr(&output).contains("in.yaml: document 2: not YAML: "),
        "{output:?}"
    );
    let slice = SLICE.replace("value: 100,", "value: 1x,");
    let output = translate(&[&slice, "---", POD].concat(), &["-o", "json"]);
    assert_eq!((output.status.code(), items(&output).len()), (Some(0), 2), "{output:?}");
    let output = translate(
        &[&slice.replace("driver:", "driver: 1 #"), "---", POD].concat(),
        &["-o", "json"],
    );
    assert_eq!((output.status.code(), items(&output).len()), (Some(1), 2), "{output:?}");
    let line = "in.yaml: ResourceSlice n1-gpus: spec.driver: 1 is not a text; write it in quotes: \"1\"";
    assert!(stderr(&output).contains(line), "{output:?}");
}

#[test]
fn flags_choose_dialects_schedulers_and_the_class() {
    let high = POD.replace("nvidia.com/gpucores: 30", "nvidia.com/priority: 0");
    let output = translate(&high, &["-o", "json", "--high-priority-class", "vgpu-high"]);
    let class = &items(&output)[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"];
    assert_eq!(class, "vgpu-high");
    let kept = translate(POD, &["-o", "json", "--schedulers", "volcano"]);
    assert_eq!(items(&kept)[1]["spec"]["schedulerName"], "hami-scheduler");
    let other = translate(POD, &["-o", "json", "--dialects", "kai,volcano"]);
    assert_eq!(items(&other).len(), 1);
    let said = stderr(&other);
    for key in ["nvidia.com/gpumem", "nvidia.com/gpucores"] {
        let line = format!("Pod team/train: spec.containers[0].resources.limits[{key}]: is not read: its dialect is");
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!(said.lines().count(), 2, "{said}");
    let named = POD.replace("nvidia.com/gpu:", "nvidia.com/vgpu:");
    let named = translate(
        &named,
        &["-o", "json", "--resource-names", "nvidia.com/vgpu=nvidia.com/gpu"],
    );
    let limits = &items(&named)[1]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({"cpu": 2}));
    let wrong = translate(POD, &["--resource-names", "nvidia.com/vgpu"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("--resource-names: \"nvidia.com/vgpu\" is not CHOSEN=NAME"),
        "{wrong:?}"
    );
}

/// A kind of which nobody knows here where its pods are.
#[test]
fn an_unknown_kind_that_asks_is_said_to_be_printed_as_it_is() {
    let object = |inner: Value| {
        let spec = json!({"workers": [{"template": inner}]});
        json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r"}, "spec": spec})
    };
    let limits = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 3000}}}]}});
    let kai = json!({"metadata": {"annotations": {"gpu-fraction": "0.5"}}});
    let none = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}]}});
    for (inner, flags, lines) in [
        (&limits, &[][..], 1),
        (&kai, &[], 1),
        (&none, &[], 0),
        (&limits, &["--dialects", "kai"], 0),
    ] {
        let text = object(inner.clone()).to_string();
        let output = translate(&text, &[&["-o", "json"], flags].concat());
        assert_eq!(items(&output), [object(inner.clone())]);
        let said = stderr(&output);
        assert_eq!(said.lines().count(), lines, "{inner}: {said}");
        assert!(
            lines == 0 || said.contains("RayCluster r: is printed as it is"),
            "{said}"
        );
    }
}

#[test]
fn gpusharings_limit_is_a_flag() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
        "resources": {"limits": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4}}}]}});
    for (flags, policy) in [(&[][..], Value::Null), (&["--limit-vcuda-cores"], json!("Guaranteed"))] {
        let output = translate(&pod.to_string(), &[&["-o", "json"], flags].concat());
        let config = &items(&output)[0]["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"];
        assert_eq!(config["computePolicy"], policy);
    }
}

/// Several GPUs of one container are different ones: the allocator never gives a claim two shares of one.
#[test]
fn two_gpus_are_not_two_shares_of_one() {
    let class = "
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: vgpu}
spec: {}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
";
    let pod = POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 2");
    let output = translate(&pod, &["-o", "json"]);
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "team"},
        "spec": items(&output)[0]["spec"]["spec"]});
    let second = "  - name: gpu-1\n    allowMultipleAllocations: true\n    attributes: {type: {string: gpu}, uuid: {string: GPU-1}}\n    capacity: *capacity\n";
    for (slice, code) in [(SLICE.to_owned(), 1), ([SLICE, second].concat(), 0)] {
        let files = Files::new();
        let objects = files.write("objects.yaml", &[class, &slice].concat());
        let claim = files.write("claim.json", &claim.to_string());
        let output = vgpu("allocate", &[objects, claim], &[]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}
