//! `vgpu allocate`: its input files, the List that it prints, and its exit statuses.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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

fn allocate<A: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command
        .arg("allocate")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn list(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn what_fits_is_a_list_with_allocations_and_exit_0() {
    let files = Files::new();
    let objects = files.write("objects.yaml", OBJECTS);
    let claim = files.write("claim.yaml", &claim("20Gi"));
    let output = allocate(
        [objects.as_os_str(), claim.as_os_str()]
            .into_iter()
            .flat_map(|file| ["-f".as_ref(), file])
            .chain(["-o".as_ref(), "json".as_ref()]),
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let list = list(&output);
    let allocation = &list["items"][0]["status"]["allocation"];
    let result = &allocation["devices"]["results"][0];
    assert_eq!(
        (&result["device"], &result["consumedCapacity"]["memory"]),
        (&"gpu-0".into(), &"20Gi".into())
    );
    assert_eq!(result["shareID"].as_str().unwrap().len(), 36);
    assert_eq!(
        allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0],
        "n1"
    );

    // The output is valid input: the claim is allocated now, and the List is a file like others.
    let answer = files.write("answer.json", std::str::from_utf8(&output.stdout).unwrap());
    let second = files.write("second.yaml", &super_claim("70Gi"));
    let output = allocate(
        [&objects, &answer, &second]
            .into_iter()
            .flat_map(|file| ["-f".as_ref(), file.as_os_str()]),
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
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
        let output = allocate(["-f".as_ref(), file.as_os_str(), "--output".as_ref(), format.as_ref()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let list: Value = match format {
            "json" => list(&output),
            _ => serde_saphyr::from_str(std::str::from_utf8(&output.stdout).unwrap()).unwrap(),
        };
        assert_eq!(list["items"][0].get("status"), None);
        assert_eq!(list["reasons"][0]["reason"], "Capacity");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            words,
            "vgpu allocate: claim ns/c, request gpu, node n1, pool n1, device gpu-0: Capacity: memory: 100Gi wanted, 80Gi of 80Gi free\n"
        );
    }
}

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    let files = Files::new();
    let good = files.write("good.yaml", &[OBJECTS, &claim("1Gi")].concat());
    let yaml = files.write("bad.yaml", "kind: [Node\n");
    let json = files.write("bad.json", "{\"kind\": ");
    let field = files.write("field.yaml", &[OBJECTS, &claim("20GB")].concat());
    let missing = files.0.path().join("missing.yaml");
    let with = |file: &PathBuf, more: &[&str]| {
        let mut args = vec!["-f".to_owned(), file.display().to_string()];
        args.extend(more.iter().map(ToString::to_string));
        args
    };
    for (args, words) in [
        (with(&missing, &[]), "missing.yaml: "),
        (
            with(&yaml, &[]),
            "bad.yaml: document 1: not YAML: unclosed bracket '[' at line 1, column 7",
        ),
        (with(&json, &[]), "bad.json: document 1: not JSON: line 1 column 9: EOF"),
        (
            with(&field, &[]),
            "field.yaml: ResourceClaim ns/c: spec.devices.requests[0].exactly.capacity.requests.memory: \"20GB\" is not a quantity",
        ),
        (
            with(&good, &["--node", "n2"]),
            "node \"n2\" is not in the input, which has n1",
        ),
        (
            with(&good, &["--policy", "best"]),
            "--policy: policy \"best\" is unknown",
        ),
        (
            with(&good, &["--feature-gates", "DRANothing=true"]),
            "--feature-gates: feature gate \"DRANothing\"",
        ),
    ] {
        let output = allocate(&args);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {line}");
        assert!(line.contains(words), "{args:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(output.stdout.is_empty(), "{args:?}");
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
    let output = allocate([
        "-o".as_ref(),
        "json".as_ref(),
        "-f".as_ref(),
        file.as_os_str(),
        "-f".as_ref(),
        list.as_os_str(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 2), "{said}");
    for words in [
        "all.yaml: document 5: not YAML",
        "ResourceClaim ns/second: spec.devices.requests[0]",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = &list["items"][0]["status"]["allocation"]["devices"]["results"][0];
    assert_eq!(result["consumedCapacity"], json!({"memory": "1Gi", "cores": "0"}));
}

#[test]
fn gates_policies_and_standard_input_are_taken() {
    let all = [OBJECTS, &claim("1Gi")].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command
        .args([
            "allocate",
            "-f",
            "-",
            "--node",
            "n1",
            "--policy",
            "first-fit",
            "--feature-gates",
            "DRAConsumableCapacity=false",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(all.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("DRAConsumableCapacity, which is off"), "{line}");
}

/// Nine of sixteen devices, of which the last two must have an equal attribute, and no two devices have: every
/// choice of the others is tried.
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
    let output = allocate(["-o".as_ref(), "json".as_ref(), "-f".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let list = list(&output);
    let reasons = list["reasons"].as_array().unwrap();
    let [reason] = &reasons[..] else {
        panic!("{reasons:?}");
    };
    assert_eq!(
        (&reason["claim"], &reason["reason"], &reason["node"]),
        (&json!("ns/c"), &json!("Constraint"), &json!(""))
    );
    let said = "no answer after 3000000 steps; ask for fewer devices in one claim, or with fewer constraints";
    assert_eq!(reason["message"], said);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("vgpu allocate: claim ns/c: Constraint: {said}\n")
    );
}

#[test]
fn an_object_given_twice_and_no_claim_at_all_are_told() {
    let files = Files::new();
    let objects = files.write("objects.yaml", OBJECTS);
    let again = files.write("again.yaml", OBJECTS);
    let output = allocate(["-f".as_ref(), objects.as_os_str(), "-f".as_ref(), again.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for words in ["again.yaml: Node n1: is given twice, in ", "objects.yaml too"] {
        assert!(said.contains(words), "{said}");
    }
    let output = allocate(["-f".as_ref(), objects.as_os_str()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no claim in the input waits"),
        "{output:?}"
    );
}
