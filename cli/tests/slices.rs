//! `vgpu slices`: templates of a node's slices.

#[path = "support/said.rs"]
mod said;

use std::collections::BTreeSet;
use std::path::Path;

use said::{Files, Said, vgpu_on};
use serde_json::{Value, json};

fn device(gpu: &str, index: u32, suffix: &str) -> Value {
    json!({"name": format!("{gpu}{suffix}"), "allowMultipleAllocations": suffix.is_empty(),
        "attributes": {"uuid": {"string": format!("GPU-{gpu}")}, "index": {"int": index},
            "nvlinkClique": {"string": "GPU-of-one-machine"}, "resource.kubernetes.io/numaNode": {"int": index}},
        "capacity": {"memory": {"value": "80Gi"}}, "nodeAllocatableResources": {"memory": {"kept": true}},
        "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule"}]})
}

fn slice(node: &str, pool: &str, generation: u32, name: &str, count: u32, devices: &[Value]) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": {
        "driver": "dra.vgpu", "nodeName": node, "devices": devices,
        "pool": {"name": format!("{node}/{pool}"), "generation": generation, "resourceSliceCount": count}}})
}

/// Two nodes: n1 has an outdated slice beside its new ones, n2 lacks one of two.
fn cluster() -> Vec<Value> {
    let (a, b) = ("gpu-aaaa", "gpu-bbbb");
    let monitors = [device(a, 0, "-monitor"), device(b, 1, "-monitor")];
    vec![
        slice("n1", "vgpu", 3, "s2", 2, &[device(b, 1, "")]),
        slice("n1", "vgpu", 2, "s0", 1, &[device("gpu-gone", 0, "")]),
        slice("n1", "vgpu", 3, "s1", 2, &[device(a, 0, "")]),
        slice("n1", "vgpu-monitor", 1, "s3", 1, &monitors),
        slice("n2", "vgpu", 1, "s4", 2, &[device(a, 0, "")]),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "other"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "n3", "devices": [], "pool": {"name": "n3"}}}),
    ]
}

fn like(words: &str) -> Said {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": cluster()});
    let files = Files::new();
    vgpu_on(words, &[files.write("all.json", &list.to_string())])
}

#[test]
fn the_slices_of_a_node_become_those_of_any() {
    let items = like("slices --like n1 --name new -o json").ended(0).items();
    let pools = items.iter().map(|slice| slice["spec"]["pool"].clone());
    let pool = |name: &str| json!({"name": format!("new/{name}"), "generation": 1, "resourceSliceCount": 1});
    assert_eq!(pools.collect::<Vec<_>>(), [pool("vgpu"), pool("vgpu-monitor")]);
    let wanted = |index: u32, suffix: &str| {
        let mut device = device(&format!("gpu-{index}"), index, suffix);
        device.as_object_mut().unwrap().remove("taints");
        device["attributes"]["uuid"] = json!({"string": "template"});
        device["attributes"]["nvlinkClique"] = json!({"string": "clique-0"});
        device
    };
    for (slice, suffix) in items.iter().zip(["", "-monitor"]) {
        assert_eq!(slice["spec"]["nodeName"], "new");
        assert_eq!(slice["spec"]["devices"], json!([wanted(0, suffix), wanted(1, suffix)]));
    }
}

/// Counters name the machine's GPU, and a copy of them would leave a pool that no allocator takes.
#[test]
fn a_gpu_that_claims_divide_is_copied_as_a_whole_gpu_or_not_at_all() {
    let takes = |name: &str, kind: &str| {
        let mut device = device(name, 0, "");
        device["attributes"]["type"] = json!({"string": kind});
        device["consumesCounters"] = json!([{"counterSet": "mig-3f8a1c20", "counters": {"ofa": {"value": "1"}}}]);
        device
    };
    let mut counters = slice("n1", "vgpu-mig-3f8a1c20", 1, "s1", 2, &[]);
    counters["spec"]["sharedCounters"] = json!([{"name": "mig-3f8a1c20", "counters": {"ofa": {"value": "1"}}}]);
    let devices = [
        takes("mig-of-3f8a1c20-1g-10gb-6", "mig"),
        takes("gpu-3f8a1c20-undivided", "gpu"),
    ];
    let all = [counters, slice("n1", "vgpu-mig-3f8a1c20", 1, "s2", 2, &devices)];
    let files = Files::new();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
    let said = vgpu_on(
        "slices --like n1 --name new -o json",
        &[files.write("all.json", &list.to_string())],
    );
    let said = said.ended(0);
    said.err_has("left out: 1 instances that claims could make");
    let [slice] = &said.items()[..] else {
        panic!("one slice")
    };
    assert_eq!(slice["spec"]["pool"]["name"], "new/vgpu");
    let device = &slice["spec"]["devices"][0];
    assert_eq!(
        (&device["name"], device.get("consumesCounters")),
        (&json!("gpu-0"), None)
    );
}

#[test]
fn what_cannot_be_copied_or_made_is_said() {
    for (words, said) in [
        (
            "slices --like n3",
            "--like n3: no ResourceSlice of dra.vgpu is of this node; these nodes have some: n1, n2",
        ),
        (
            "slices --like n2",
            "--like n2: pool n2/vgpu has 1 of its 2 slices; try again in a minute",
        ),
    ] {
        like(words).ended(2).err_has(said);
    }
    let none: [&Path; 0] = [];
    let unknown = vgpu_on("slices --gpu H100:8", &none).ended(2);
    let (_, known) = unknown
        .err
        .split_once("not a product of the table, which has ")
        .unwrap();
    let (known, _) = known.split_once(';').unwrap();
    vgpu_on("slices --help", &none).out_has(&format!("Products:\n  {known}\n"));
    let files = Files::new();
    let slices = cluster().into_iter().map(|slice| format!("---\n{slice}\n"));
    let damaged = slices.collect::<String>() + "---\nkind: [\n";
    let said = vgpu_on("slices --like n1", &[files.write("damaged.json", &damaged)]).ended(2);
    said.out_has("name: gpu-1-monitor");
    said.err_has("document 7: not YAML");
    vgpu_on("slices --like n1", &[files.write("none.json", "")])
        .ended(2)
        .err_has("without a node that has such GPUs, take --gpu");
}

/// Every attribute that a slice has, by the table in docs/devices.md, but those that only a machine knows.
fn documented() -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/devices.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, table) = text.split_once("## Attributes").unwrap();
    let (table, _) = table.split_once("## Capacity").unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, rest)| (name.to_owned(), rest.contains("missing")))
        .filter_map(|(name, may_be_missing)| (!may_be_missing).then_some(name))
        .collect()
}

#[test]
fn a_product_has_every_attribute_and_its_pods_fit() {
    let none: [&Path; 0] = [];
    let words = "slices --gpu h100-80gb:2 --gpu L4:1 --driver 580.95.5 --cuda 13.0.0 -o json";
    let made = vgpu_on(words, &none).ended(0);
    let left_out = "vgpu slices: left out: nvlinkClique, numaNode, pcieRoot, pciBusID; for";
    assert!(made.err.starts_with(left_out), "{}", made.err);
    let mut items = made.items();
    assert_eq!(items.len(), 2);
    let devices = items[0]["spec"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 3);
    for device in devices {
        let names = device["attributes"].as_object().unwrap().keys().cloned();
        assert_eq!(names.collect::<BTreeSet<_>>(), documented());
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "template"}});
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "vgpu"}, "spec": {
        "selectors": [{"cel": {"expression": "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'gpu'"}}]}});
    let claims = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "part"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": {"memory": "38Gi"}}}}]}}}});
    let pod = json!({"containers": [{"name": "main", "image": "train"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "part"}]});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
        "spec": {"parallelism": 9, "completions": 9, "template": {"spec": pod}}});
    items.extend([node, class, claims, job]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let files = Files::new();
    let fits = vgpu_on("fit", &[files.write("all.json", &list.to_string())]).ended(1);
    fits.out_has("4 of 9 pods");
}
