//! `vgpu translate`: its input files, the objects that it prints, what it says, and its exit statuses.

#[path = "support/said.rs"]
mod said;

use said::{Files, Said, vgpu_on};
use serde_json::{Value, json};

/// `vgpu translate WORDS` on a file `in.yaml`.
fn translate_in_words(text: &str, words: &str) -> Said {
    let files = Files::new();
    let file = files.write("in.yaml", text);
    vgpu_on(format!("translate {words}").trim_end(), &[file])
}

/// The same, printed in JSON.
fn translate(text: &str, words: &str) -> Said {
    translate_in_words(text, format!("-o json {words}").trim_end())
}

/// The same, with what it has to end with and the number of objects that it prints.
fn translated(text: &str, code: i32, objects: usize) -> Said {
    let said = translate(text, "").ended(code);
    assert_eq!(said.items().len(), objects, "{said:?}");
    said
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
    let said = translated(POD, 0, 2);
    let [template, pod] = &said.items()[..] else {
        panic!("{said:?}");
    };
    let name = template["metadata"]["name"].as_str().unwrap();
    assert_eq!(template["metadata"]["namespace"], "team");
    assert_eq!(
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"],
        json!({"memory": "3000Mi", "cores": "30"})
    );
    let spec = &pod["spec"];
    assert_eq!(spec["schedulerName"], "default-scheduler");
    assert_eq!(spec["futureField"], "stays");
    assert_eq!(
        spec["resourceClaims"],
        json!([{"name": "vgpu-translated-0", "resourceClaimTemplateName": name}])
    );
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"limits": {"cpu": 2}, "claims": [{"name": "vgpu-translated-0"}]})
    );
    said.err_has("Pod team/train: spec: ResourceQuotas for nvidia.com/gpu count 0");
}

/// The output can be used as input again, and is then unchanged.
#[test]
fn the_output_is_input() {
    let first = translate_in_words(POD, "");
    let again = translate_in_words(&first.out, "").ended(0);
    assert_eq!((&*again.out, &*again.err), (&*first.out, ""));
}

#[test]
fn every_workload_has_its_pod_template_translated() {
    let template =
        json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {"volcano.sh/gpu-memory": 1024}}}]}});
    let cron = json!({"jobTemplate": {"spec": {"template": template}}});
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("batch/v1", "Job"),
        ("batch/v1", "CronJob"),
        ("v1", "ReplicationController"),
    ] {
        let (spec, at) = match kind {
            "CronJob" => (cron.clone(), "/spec/jobTemplate/spec/template"),
            _ => (json!({"template": template}), "/spec/template"),
        };
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [object]});
        let items = translated(&list.to_string(), 0, 2).items();
        let pod = items[1].pointer(at).unwrap();
        let claims = &pod["spec"]["containers"][0]["resources"]["claims"];
        assert_eq!(claims[0]["name"], "vgpu-translated-0", "{kind}");
        let annotations = &pod["metadata"]["annotations"];
        assert!(annotations["dra.vgpu/translated"].is_string(), "{kind}");
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
    translated(&pod, 0, 1).err_has("kubectl get resourceslices -o yaml");
    let items = translated(&[SLICE, "---", &pod].concat(), 0, 2).items();
    let alternatives = &items[0]["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"];
    assert_eq!(alternatives[0]["capacity"]["requests"]["memory"], "40779Mi");
}

#[test]
fn a_refusal_is_exit_1_and_names_the_object() {
    let bad = POD
        .replace("nvidia.com/gpumem: 3000", "nvidia.com/gpumem: 1.5")
        .replace("train", "bad");
    let said = translated(&[POD, "---", &bad].concat(), 1, 2);
    let line = "vgpu translate: Pod team/bad: spec.containers[0].resources.limits[nvidia.com/gpumem]: Invalid value: \"1.5\": must be a whole number";
    said.err_has(line);
}

/// A number where Kubernetes requires a string: YAML reads a value without quotes as a number.
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
    let said = translated(&text, 1, 2);
    for words in [
        "in.yaml: Pod unquoted: metadata.annotations[tencent.com/vcuda-core-limit]: 50 is not a text; write it in quotes: \"50\"\n",
        "in.yaml: Deployment d: spec.template.metadata.annotations.gpu-fraction: 0.5 is not a text; write it in quotes: \"0.5\"\n",
        "in.yaml: Pod env: spec.containers[0].env[0].value: true is not a text; write it in quotes: \"true\"\n",
        "in.yaml: Pod number: spec.containers: 1 is not a list; write [1] for a list of it\n",
    ] {
        said.err_has(words);
    }
    let printed = said.items();
    let kinds: Vec<&str> = printed.iter().filter_map(|item| item["kind"].as_str()).collect();
    assert_eq!(kinds, ["ResourceClaimTemplate", "Pod"]);
}

/// Reads like the API server: null is 0, every amount may be a number, and a PodList's items have no kind.
#[test]
fn what_the_api_server_reads_is_read() {
    let container = json!({"name": "c", "image": "i", "resources": {
        "limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "memory": null, "cpu": 0.5}, "requests": null}});
    let spec = json!({"containers": [container], "initContainers": null, "overhead": {"cpu": 1},
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": 1000}}]});
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p", "creationTimestamp": null},
        "spec": spec}]});
    let items = translated(&list.to_string(), 0, 2).items();
    assert_eq!(
        (&items[0]["kind"], &items[1]["kind"]),
        (&json!("ResourceClaimTemplate"), &json!("Pod"))
    );
    let limits = &items[1]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({"memory": null, "cpu": 0.5}));
    let nothing = POD.replace(
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30",
        "nvidia.com/gpu: null",
    );
    translated(&nothing, 0, 1);
    let no_template = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}\n";
    let left = translate(no_template, "").items();
    assert_eq!(left.len(), 1, "the API server's to refuse");
    let octal = POD.replace(
        "  containers:",
        "  volumes: [{name: v, secret: {defaultMode: 0644}}]\n  containers:",
    );
    let items = translate(&octal, "").items();
    assert_eq!(items[1]["spec"]["volumes"][0]["secret"]["defaultMode"], 0o644);
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
    let said = translated(others, 0, 3);
    for line in [
        "ResourceQuota team/q: spec.hard[limits.nvidia.com/gpumem]: is lost: it counts 0",
        "ResourceQuota team/q: spec.hard[requests.tencent.com/vcuda-core]: is lost",
        "Queue default: is lost: kube-scheduler has no queues",
    ] {
        said.err_has(line);
    }
    assert_eq!(said.err.lines().count(), 3, "{said:?}");
}

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    for (text, more, words) in [
        (
            POD,
            "--dialects hammy",
            "--dialects: dialect \"hammy\" is unknown; use one of hami, koordinator",
        ),
        ("kind: [Pod\n", "", "in.yaml: document 1: not YAML"),
        ("[1]", "", "in.yaml: document 1 is a list, not an object"),
    ] {
        let said = translate_in_words(text, more).ended(2);
        said.err_has(words);
        assert_eq!((said.err.lines().count(), &*said.out), (1, ""), "{said:?}");
    }
}

#[test]
fn the_documents_beside_one_that_cannot_be_read_are_printed() {
    let other = POD.replace("train", "other");
    let said = translated(&[POD, "---\nkind: [Pod\n---", &other].concat(), 2, 3);
    said.err_has("in.yaml: document 2: not YAML: ");
    let slice = SLICE.replace("value: 100,", "value: 1x,");
    translated(&[&slice, "---", POD].concat(), 0, 2);
    let slice = slice.replace("driver:", "driver: 1 #");
    let said = translated(&[&slice, "---", POD].concat(), 1, 2);
    said.err_has("in.yaml: ResourceSlice n1-gpus: spec.driver: 1 is not a text; write it in quotes: \"1\"");
}

#[test]
fn flags_choose_dialects_schedulers_and_the_class() {
    let high = POD.replace("nvidia.com/gpucores: 30", "nvidia.com/priority: 0");
    let items = translate(&high, "--high-priority-class vgpu-high").items();
    let class = &items[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"];
    assert_eq!(class, "vgpu-high");
    let kept = translate(POD, "--schedulers volcano").items();
    assert_eq!(kept[1]["spec"]["schedulerName"], "hami-scheduler");
    let other = translate(POD, "--dialects kai,volcano");
    assert_eq!(other.items().len(), 1);
    for key in ["nvidia.com/gpumem", "nvidia.com/gpucores"] {
        let line = format!("Pod team/train: spec.containers[0].resources.limits[{key}]: is not read: its dialect is");
        other.err_has(&line);
    }
    assert_eq!(other.err.lines().count(), 2, "{other:?}");
    let named = POD.replace("nvidia.com/gpu:", "nvidia.com/vgpu:");
    let items = translate(&named, "--resource-names nvidia.com/vgpu=nvidia.com/gpu").items();
    let limits = &items[1]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({"cpu": 2}));
    let wrong = translate_in_words(POD, "--resource-names nvidia.com/vgpu").ended(2);
    wrong.err_has("--resource-names: \"nvidia.com/vgpu\" is not CHOSEN=NAME");
}

/// A kind whose pod template is at an unknown path.
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
        (&limits, "", 1),
        (&kai, "", 1),
        (&none, "", 0),
        (&limits, "--dialects kai", 0),
    ] {
        let said = translate(&object(inner.clone()).to_string(), flags);
        assert_eq!(said.items(), [object(inner.clone())]);
        assert_eq!(said.err.lines().count(), lines, "{inner}: {said:?}");
        if lines > 0 {
            said.err_has("RayCluster r: is printed as it is");
        }
    }
}

#[test]
fn gpusharings_limit_is_a_flag() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
        "resources": {"limits": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4}}}]}});
    for (flags, policy) in [("", Value::Null), ("--limit-vcuda-cores", json!("Guaranteed"))] {
        let items = translate(&pod.to_string(), flags).items();
        let config = &items[0]["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"];
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
    let items = translate(&pod, "").items();
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "team"},
        "spec": items[0]["spec"]["spec"]});
    let second = "  - name: gpu-1\n    allowMultipleAllocations: true\n    attributes: {type: {string: gpu}, uuid: {string: GPU-1}}\n    capacity: *capacity\n";
    for (slice, code) in [(SLICE.to_owned(), 1), ([SLICE, second].concat(), 0)] {
        let files = Files::new();
        let objects = files.write("objects.yaml", &[class, &slice].concat());
        let claim = files.write("claim.json", &claim.to_string());
        vgpu_on("allocate", &[objects, claim]).ended(code);
    }
}
