//! `vgpu allocate`: its input files, the List that it prints, and its exit statuses.

#[path = "support/said.rs"]
mod said;

use std::io::Write;
use std::process::Stdio;

use said::{Files, Said, vgpu, vgpu_on};
use serde_json::{Value, json};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: vgpu}
spec:
  selectors:
  - cel: {expression: 'device.driver == "dra.vgpu" && device.attributes["dra.vgpu"].type == "gpu"'}
---
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
    attributes: {type: {string: gpu}}
    capacity:
      memory: {value: 80Gi, requestPolicy: {default: 80Gi, validRange: {min: 64Mi, step: 1Mi}}}
      cores: {value: 100, requestPolicy: {default: 0, validRange: {min: 0, max: 100, step: 1}}}
---
"#;

fn claim(memory: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: c, namespace: ns}}\nspec:\n  devices:\n    \
         requests:\n    - name: gpu\n      exactly: {{deviceClassName: vgpu, capacity: {{requests: {{memory: {memory}}}}}}}\n"
    )
}

#[test]
fn what_fits_is_a_list_with_allocations_and_exit_0() {
    let files = Files::new();
    let objects = files.write("objects.yaml", OBJECTS);
    let claim = files.write("claim.yaml", &claim("20Gi"));
    let said = vgpu_on("allocate -o json", &[&objects, &claim]).ended(0);
    assert_eq!(said.err, "");
    let allocation = &said.items()[0]["status"]["allocation"];
    let result = &allocation["devices"]["results"][0];
    assert_eq!(result["device"], "gpu-0");
    assert_eq!(result["consumedCapacity"]["memory"], "20Gi");
    assert_eq!(result["shareID"].as_str().unwrap().len(), 36);
    let term = &allocation["nodeSelector"]["nodeSelectorTerms"][0];
    assert_eq!(term["matchFields"][0]["values"][0], "n1");

    // The output is valid input: the claim is allocated now, and the List is a file like others.
    let answer = files.write("answer.json", &said.out);
    let second = files.write("second.yaml", &super_claim("70Gi"));
    vgpu_on("allocate", &[&objects, &answer, &second]).ended(1);
}

/// A claim other than [`claim`]'s.
fn super_claim(memory: &str) -> String {
    claim(memory).replace("name: c,", "name: second,")
}

#[test]
fn what_does_not_fit_has_reasons_in_the_list_and_in_words_and_exit_1() {
    let files = Files::new();
    let file = files.write("all.yaml", &[OBJECTS, &claim("100Gi")].concat());
    for format in ["json", "yaml"] {
        let said = vgpu_on(&format!("allocate --output {format}"), &[&file]).ended(1);
        let list: Value = match format {
            "json" => said.json(),
            _ => serde_saphyr::from_str(&said.out).unwrap(),
        };
        assert_eq!(list["items"][0].get("status"), None);
        assert_eq!(list["reasons"][0]["reason"], "Capacity");
        assert_eq!(
            said.err,
            "vgpu allocate: claim ns/c, request gpu, node n1, pool n1, device gpu-0: Capacity: memory: 100Gi wanted, 80Gi of 80Gi free\n"
        );
    }
}

/// File, further arguments, what the line says.
const MISTAKES: &str = r#"
missing.yaml |                                   | missing.yaml:
bad.yaml     |                                   | bad.yaml: document 1: not YAML: unclosed bracket '[' at line 1, column 7
bad.json     |                                   | bad.json: document 1: not JSON: line 1 column 9: EOF
field.yaml   |                                   | field.yaml: ResourceClaim ns/c: spec.devices.requests[0].exactly.capacity.requests.memory: "20GB" is not a quantity
good.yaml    | --node n2                         | node "n2" is not in the input, which has n1
good.yaml    | --policy best                     | --policy: policy "best" is unknown
good.yaml    | --feature-gates DRANothing=true   | --feature-gates: feature gate "DRANothing"
"#;

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    let files = Files::new();
    files.write("good.yaml", &[OBJECTS, &claim("1Gi")].concat());
    files.write("bad.yaml", "kind: [Node\n");
    files.write("bad.json", "{\"kind\": ");
    files.write("field.yaml", &[OBJECTS, &claim("20GB")].concat());
    for row in MISTAKES.trim().lines() {
        let [file, more, words] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let said = vgpu_on(format!("allocate {more}").trim_end(), &[files.path(file)]).ended(2);
        said.err_has(words);
        assert_eq!((said.err.lines().count(), &*said.out), (1, ""), "{row}: {said:?}");
    }
}

/// Each mistake is a line, and the answer is about the rest.
#[test]
fn the_documents_beside_one_that_cannot_be_read_are_allocated() {
    let files = Files::new();
    let sound = claim("1Gi").replace("memory: 1Gi", "memory: 1073741824, cores: null");
    let text = [OBJECTS, &sound, "---\nkind: [\n---\n", &super_claim("20GB")].concat();
    let list = r#"{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n2"}}]}"#;
    let (file, list) = (files.write("all.yaml", &text), files.write("nodes.json", list));
    let said = vgpu_on("allocate -o json", &[file, list]).ended(2);
    assert_eq!(said.err.lines().count(), 2, "{said:?}");
    said.err_has("all.yaml: document 5: not YAML");
    said.err_has("ResourceClaim ns/second: spec.devices.requests[0]");
    let result = &said.items()[0]["status"]["allocation"]["devices"]["results"][0];
    assert_eq!(result["consumedCapacity"], json!({"memory": "1Gi", "cores": "0"}));
}

#[test]
fn gates_policies_and_standard_input_are_taken() {
    let all = [OBJECTS, &claim("1Gi")].concat();
    let words = "allocate -f - --node n1 --policy first-fit --feature-gates DRAConsumableCapacity=false";
    let mut command = vgpu(words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(all.as_bytes()).unwrap();
    let said = Said::from(child.wait_with_output().unwrap()).ended(2);
    said.err_has("DRAConsumableCapacity, which is off");
}

/// Nine of sixteen devices are requested, and the last two must share an attribute value, but no two devices do: every
/// combination of the others is tried.
#[test]
fn a_question_without_end_ends_with_no_answer_and_exit_1() {
    let devices: Vec<Value> = (0..16)
        .map(|at| json!({"name": format!("gpu-{at}"), "attributes": {"own": {"int": at}}}))
        .collect();
    let requests: Vec<Value> = (0..9)
        .map(|at| json!({"name": format!("r{at}"), "exactly": {"deviceClassName": "gpu"}}))
        .collect();
    let resource = "resource.k8s.io/v1";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
        {"apiVersion": resource, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {"apiVersion": resource, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "drv",
            "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": devices}},
        {"apiVersion": resource, "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {
            "requests": requests, "constraints": [{"requests": ["r7", "r8"], "matchAttribute": "drv/own"}]}}},
    ]});
    let files = Files::new();
    let file = files.write("objects.json", &objects.to_string());
    let printed = vgpu_on("allocate -o json", &[file]).ended(1);
    let list = printed.json();
    let reasons = list["reasons"].as_array().unwrap();
    let [reason] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    let said = "no answer after 3000000 steps; ask for fewer devices in one claim, or with fewer constraints";
    for (field, value) in [
        ("claim", "ns/c"),
        ("reason", "Constraint"),
        ("node", ""),
        ("message", said),
    ] {
        assert_eq!(reason[field], value);
    }
    assert_eq!(printed.err, format!("vgpu allocate: claim ns/c: Constraint: {said}\n"));
}

#[test]
fn an_object_given_twice_and_no_claim_at_all_are_told() {
    let files = Files::new();
    let objects = files.write("objects.yaml", OBJECTS);
    let again = files.write("again.yaml", OBJECTS);
    let said = vgpu_on("allocate", &[&objects, &again]).ended(2);
    said.err_has("again.yaml: Node n1: is given twice, in ");
    said.err_has("objects.yaml too");
    let said = vgpu_on("allocate", &[&objects]).ended(0);
    said.err_has("no claim in the input waits");
}
