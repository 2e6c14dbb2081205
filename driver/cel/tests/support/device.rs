//! Devices for tests, as JSON that Kubernetes can also read.

use serde_json::{Value, json};
use vgpu_cel::{Attribute, Device, Quantity};

/// Sample devices, one of each kind that a selector may meet.
pub(crate) fn samples() -> Vec<Value> {
    vec![
        json!({
            "driver": "dra.vgpu",
            "allowMultipleAllocations": true,
            "attributes": {
                "type": {"string": "gpu"},
                "index": {"int": 3},
                "shared": {"bool": true},
                "driverVersion": {"version": "535.161.8"},
                "dra.vgpu/productName": {"string": "NVIDIA H100 80GB HBM3"},
                "links": {"strings": ["a", "b", "gpu"]},
                "numbers": {"ints": [3, 1, 2]},
                "resource.kubernetes.io/numaNode": {"int": 0},
                "x.y/type": {"string": "other"},
            },
            "capacity": {"memory": "80Gi", "cores": "100", "x.y/memory": "1500m"},
        }),
        json!({"driver": "dra.vgpu", "allowMultipleAllocations": false, "attributes": {"type": {"string": "monitor"}}, "capacity": {}}),
        json!({
            "driver": "x.y",
            "allowMultipleAllocations": false,
            "attributes": {
                "dra.vgpu/type": {"int": 7},
                "dra.vgpu/index": {"string": "text"},
                "dra.vgpu/shared": {"bools": [true, false]},
                "dra.vgpu/driverVersion": {"versions": ["1.2.3", "1.0.0-rc.1"]},
                "dra.vgpu/links": {"string": "gpu"},
                "type": {"version": "1.2.3"},
            },
            "capacity": {"dra.vgpu/memory": "9223372036854775807", "dra.vgpu/cores": "1e3"},
        }),
    ]
}

/// Converts the JSON to our device.
pub(crate) fn read(text: &Value) -> Device {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let strings = |of: &Value| list(of).iter().map(|v| v.as_str().unwrap().to_owned()).collect();
    let entries = |of: &Value| of.as_object().cloned().unwrap_or_default();
    Device {
        driver: text["driver"].as_str().unwrap_or("").to_owned(),
        allow_multiple_allocations: text["allowMultipleAllocations"].as_bool().unwrap_or(false),
        attributes: entries(&text["attributes"])
            .into_iter()
            .map(|(name, value)| {
                let (kind, value) = value.as_object().and_then(|kinds| kinds.iter().next()).unwrap();
                let attribute = match kind.as_str() {
                    "string" => Attribute::String(value.as_str().unwrap().to_owned()),
                    "int" => Attribute::Int(value.as_i64().unwrap()),
                    "bool" => Attribute::Bool(value.as_bool().unwrap()),
                    "version" => Attribute::Version(value.as_str().unwrap().to_owned()),
                    "strings" => Attribute::Strings(strings(value)),
                    "versions" => Attribute::Versions(strings(value)),
                    "ints" => Attribute::Ints(list(value).iter().map(|v| v.as_i64().unwrap()).collect()),
                    "bools" => Attribute::Bools(list(value).iter().map(|v| v.as_bool().unwrap()).collect()),
                    other => panic!("no such attribute: {other}"),
                };
                (name, attribute)
            })
            .collect(),
        capacity: entries(&text["capacity"])
            .into_iter()
            .map(|(name, value)| (name, Quantity::parse(value.as_str().unwrap()).unwrap()))
            .collect(),
    }
}
