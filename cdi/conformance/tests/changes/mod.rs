//! The corpus: a base document, and good and bad values for each of its fields.

use serde_json::{Value, json};

/// A value for a field of the base document, or a new field.
#[derive(Debug)]
pub(crate) struct Change {
    /// JSON pointer of the object and the field.
    pub(crate) pointer: String,
    value: Value,
    /// True if the document stays valid.
    pub(crate) good: bool,
}

impl Change {
    pub(crate) fn apply(&self, document: &mut Value) {
        let (parent, field) = self.pointer.rsplit_once('/').expect("a pointer");
        match document.pointer_mut(parent) {
            Some(Value::Object(object)) => drop(object.insert(field.to_owned(), self.value.clone())),
            Some(Value::Array(array)) => match field.parse::<usize>() {
                Ok(index) if index < array.len() => array[index] = self.value.clone(),
                _ => array.push(self.value.clone()),
            },
            // An earlier change removed it.
            _ => (),
        }
    }
}

/// A spec like the plugin's, with a value for every field that 0.7.0 has.
pub(crate) fn base() -> Value {
    json!({
        "cdiVersion": "1.0.0",
        "kind": "dra.vgpu/claim",
        "annotations": {"dra.vgpu/pod": "default/train"},
        "devices": [{
            "name": "7f0e-gpu-0a1b2c3d",
            "annotations": {"share": "gpu-0a1b2c3d"},
            "containerEdits": edits(),
        }],
        "containerEdits": edits(),
    })
}

fn edits() -> Value {
    json!({
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{
            "path": "/dev/nvidia0", "hostPath": "/run/driver/dev/nvidia0", "type": "c", "major": 195, "minor": 0,
            "fileMode": 438, "permissions": "rwm", "uid": 0, "gid": 0,
        }],
        "mounts": [{
            "hostPath": "/run/vgpu/claims/7f0e/s", "containerPath": "/run/vgpu/s", "type": "bind",
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        }],
        "hooks": [{
            "hookName": "createContainer", "path": "/var/lib/vgpu/0ab1/vgpu-cdi-hook",
            "args": ["vgpu-cdi-hook", "preload"], "env": ["A=b"], "timeout": 10,
        }],
        "additionalGids": [44],
        "intelRdt": {"closID": "vgpu", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50", "enableCMT": true},
    })
}

/// The changes: of the document's fields, and of edits in both places that have them.
pub(crate) fn changes() -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |pointer: String, good: bool, values: Value| {
        let Value::Array(values) = values else {
            panic!("a list of values")
        };
        changes.extend(values.into_iter().map(|value| Change {
            pointer: pointer.clone(),
            value,
            good,
        }));
    };
    for (pointer, good, values) in document() {
        add(pointer.to_owned(), good, values);
    }
    for edits in ["/containerEdits", "/devices/0/containerEdits"] {
        for (pointer, good, values) in of_edits() {
            add(format!("{edits}{pointer}"), good, values);
        }
    }
    changes
}

type Values = (&'static str, bool, Value);

fn document() -> Vec<Values> {
    let long = "a".repeat(64);
    vec![
        ("/cdiVersion", true, json!(["0.7.0", "0.8.0"])),
        (
            "/cdiVersion",
            false,
            json!(["0.3.0", "0.6.0", "1.1.0", "0.1.0", "2.0.0", "v1.0.0", "", null, 1]),
        ),
        ("/kind", true, json!(["a/b", "Vendor.com/gpu.v1", "a-b_c.d/e"])),
        (
            "/kind",
            false,
            json!(["", "a", "a/", "/b", "a/b/c", "1a/b", "a_/b", "a b/c", "a/b-", null]),
        ),
        ("/annotations", true, json!([{}, {"a.b/C": ""}])),
        (
            "/annotations",
            false,
            json!([null, [], {"a b": "c"}, {"A.b/c": "d"}, {"a/b/c": "d"}, {"": ""}, {"a": 1}]),
        ),
        (
            "/annotations",
            false,
            json!([{long: "x"}, {"a": "x".repeat(256 << 10)}, {"a": "\u{0}"}]),
        ),
        (
            "/devices",
            false,
            json!([null, [], {}, [{"name": "a"}], [{"containerEdits": {"env": ["A=b"]}}]]),
        ),
        (
            "/devices/1",
            true,
            json!([{"name": "other", "containerEdits": {"env": ["A=b"]}}]),
        ),
        (
            "/devices/1",
            false,
            json!([{"name": "7f0e-gpu-0a1b2c3d", "containerEdits": {"env": ["A=b"]}}]),
        ),
        (
            "/devices/1",
            false,
            json!([{"name": "x", "containerEdits": {}}, {"name": "x", "containerEdits": {"env": []}}]),
        ),
        ("/devices/0/name", true, json!(["a", "0", "a:b", "GPU.0_1"])),
        (
            "/devices/0/name",
            false,
            json!(["", "-a", "a-", "a=b", "a/b", "a b", "ä", null]),
        ),
        ("/devices/0/Name", false, json!(["a"])),
        ("/devices/0/annotations", false, json!([{"a b": "c"}, null])),
        ("/containerEdits", true, json!([{}])),
        ("/containerEdits", false, json!([null, [], {"envs": []}])),
        ("/containeredits", false, json!([{}])),
        ("/unknown", false, json!([1])),
    ]
}

fn of_edits() -> Vec<Values> {
    let net = |host: &str, name: &str| json!({"hostInterfaceName": host, "name": name});
    vec![
        ("/env", true, json!([[], ["A="], ["A=b=c", "B=\t\n"]])),
        (
            "/env",
            false,
            json!([
                null,
                "A=b",
                ["A"],
                ["=b"],
                [""],
                ["A=1", "A=2"],
                ["A B=c"],
                ["A=\u{7f}"],
                ["A=\u{2028}"],
                [1]
            ]),
        ),
        (
            "/deviceNodes/0/path",
            false,
            json!(["", "dev/x", "/", "/dev/../x", "/dev//x", null]),
        ),
        ("/deviceNodes/0/hostPath", true, json!(["/", "/dev/x"])),
        ("/deviceNodes/0/hostPath", false, json!(["", "dev/x", null])),
        ("/deviceNodes/0/type", true, json!(["b", "u"])),
        (
            "/deviceNodes/0/type",
            false,
            json!(["", "x", "p", null, 1, {"c": null}]),
        ),
        (
            "/deviceNodes/0/major",
            false,
            json!([-1, 4294967296_u64, 1.5, "1", null]),
        ),
        ("/deviceNodes/0/fileMode", true, json!([0, 384])),
        ("/deviceNodes/0/fileMode", false, json!([-1, 4096, "0666", null])),
        ("/deviceNodes/0/permissions", true, json!(["r", "mw"])),
        (
            "/deviceNodes/0/permissions",
            false,
            json!(["", "x", "rr", "none ", null]),
        ),
        ("/deviceNodes/0/uid", false, json!([-1, 4294967296_u64, "0", null])),
        ("/deviceNodes/0/gid", false, json!([-1, 4294967296_u64])),
        ("/deviceNodes/0/hostpath", false, json!(["/dev/x"])),
        (
            "/deviceNodes/1",
            false,
            json!([{"path": "/dev/nvidia0", "fileMode": 438}, {"path": "/dev/x"}, {}]),
        ),
        ("/mounts/0/hostPath", false, json!(["", "run", "./run", "/a/./b", null])),
        (
            "/mounts/0/containerPath",
            false,
            json!(["", "run", "/", "/a/..", "/a/", null]),
        ),
        ("/mounts/0/type", true, json!(["tmpfs"])),
        ("/mounts/0/type", false, json!(["", null, 1])),
        ("/mounts/0/options", true, json!([[], ["ro"]])),
        (
            "/mounts/0/options",
            false,
            json!([null, "ro", [""], ["ro,nosuid"], ["r o"], [1]]),
        ),
        ("/mounts/1", true, json!([{"hostPath": "/a", "containerPath": "/b"}])),
        (
            "/mounts/1",
            false,
            json!([{"hostPath": "/a", "containerPath": "/run/vgpu/s"}, {"hostPath": "/a"}]),
        ),
        (
            "/hooks/0/hookName",
            true,
            json!(["prestart", "createRuntime", "startContainer", "poststart", "poststop"]),
        ),
        (
            "/hooks/0/hookName",
            false,
            json!(["", "CreateContainer", "create", null, {"prestart": null}]),
        ),
        ("/hooks/0/path", false, json!(["", "hook", "/a/../hook", null])),
        ("/hooks/0/args", true, json!([[], ["a b"]])),
        ("/hooks/0/args", false, json!([null, "a", ["\u{1}"], [1]])),
        ("/hooks/0/env", false, json!([["A"], null])),
        ("/hooks/0/timeout", true, json!([1, 4294967295_u64])),
        ("/hooks/0/timeout", false, json!([0, -1, 4294967296_u64, 1.5, null])),
        ("/additionalGids", true, json!([[], [1, 2]])),
        (
            "/additionalGids",
            false,
            json!([null, [0], [1, 1], [-1], [4294967296_u64], ["1"]]),
        ),
        ("/additionalGIDs", false, json!([[1]])),
        ("/netDevices", true, json!([[]])),
        // Valid only from 1.1.0 on, and the base has a lower version.
        (
            "/netDevices",
            false,
            json!([
                [net("eth0", "net1")],
                [net("", "a")],
                [net("a", "b"), net("a", "c")],
                null
            ]),
        ),
        ("/intelRdt", true, json!([{"closID": "a"}, {"enableMBM": false}])),
        (
            "/intelRdt",
            false,
            json!([{}, null, {"closID": ".."}, {"closID": "a/b"}, {"closID": "a\n"}, {"closId": "a"}]),
        ),
        (
            "/intelRdt",
            false,
            json!([{"schemata": ["L3:0=f"]}, {"enableMonitoring": true}, {"closID": "a".repeat(4096)}]),
        ),
        (
            "/intelRdt",
            false,
            json!([{"l3CacheSchema": ""}, {"enableCMT": true, "enableMonitoring": true}]),
        ),
        ("/unknown", false, json!([1])),
    ]
}
