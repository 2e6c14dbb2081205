//! Generates docs/devices.md from the devices of a GPU, and fails if the file differs. `UPDATE=1` writes it.

use super::*;
use crate::publish::inventory::tests::gpu;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# Devices

What a ResourceSlice of `dra.vgpu` says of each GPU. This file is generated from `kubelet-plugin/src/publish/slice.rs` by `UPDATE=1 cargo test -p vgpu-kubelet-plugin --lib publish::slice::document_tests`; a test fails when it is stale.

A GPU is two devices: `gpu-<the UUID's first part>`, which claims share, and `gpu-<...>-monitor` without capacity, for admin access ([using.md](using.md)). The GPUs of node `n` are the pool `n/vgpu`, their monitors the pool `n/vgpu-monitor`: the cluster autoscaler takes a node for used as far as the devices of a pool are allocated, and nobody needs to allocate monitors. At most 64 devices are in one slice.

## Attributes

Both devices have the same attributes. In a CEL selector, a name without a domain is below `device.attributes['dra.vgpu']`: `device.attributes['dra.vgpu'].productName.matches('H100')`; others are below their domain: `device.attributes['resource.kubernetes.io'].numaNode == 0`. `vgpu-controller` and `vgpu explain` evaluate them as kube-scheduler does.

| name | type | example | meaning |
|---|---|---|---|
";

const CAPACITY: &str = "
## Capacity

The monitor device has none. A request is rounded up to the next step; a request without this capacity gets the default.

A request may also write `dra.vgpu/memory`, `dra.vgpu/cores` and `dra.vgpu/shares`: Kubernetes takes both names for one from 1.38 on, and `vgpu-controller` does in controller mode. kube-scheduler 1.36 and 1.37 find no GPU for the long name, so there the admission policy refuses it; it goes by the version that Helm saw at the last install or upgrade of the chart. A map with both names of one capacity is an error. Slices have the short name.

| name | of an 80 GiB GPU | default | a request may be | meaning |
|---|---|---|---|---|
";

const IN_THE_CONTAINER: &str = "
## In the container

The file of [device metadata](injection.md#device-metadata) has all attributes of the device, and of a share these too; a monitor has none of them.

| name | type | meaning |
|---|---|---|
";

const TAINTS: &str = "
## Taints

The shareable device has a taint `dra.vgpu/<name>` if its GPU is unavailable, and for each fault of it ([health.md](health.md)).

## Add an attribute

1. If the driver has to be asked, add a field to `Gpu` in `kubelet-plugin/node/src/gpus.rs`, and read it there (NVML) or in `gpus/sysfs.rs` (the kernel). A field that an older record lacks needs `#[serde(default)]`.
2. Add a row to `ATTRIBUTES` in `kubelet-plugin/src/publish/slice.rs`: name, meaning, value. A value that every machine has is never missing, because kube-scheduler treats a selector on a missing attribute as an error.
3. Add the value to `TRIED` in the tests of `slice.rs`: the device as a scheduler has accepted it. Containers see it in their metadata too, which can have at most 32 attributes.
4. Run the command above, and `cargo test -p vgpu-kubelet-plugin --lib publish::slice`.
";

const CAPACITIES: [(&str, &str); 3] = [
    (capacity::MEMORY, "device memory of the share, which is its limit"),
    (
        capacity::CORES,
        "percent of the GPU's time that the share is guaranteed",
    ),
    (
        capacity::SHARES,
        "the number of claims that may share the GPU (`plugin.shares`); each takes one",
    ),
];

fn document() -> String {
    let slices = slices(&Inventory::new(vec![gpu(0)]), 64);
    let mut text = HEAD.to_owned();
    let attributes = slices[0][0].attributes.as_ref().expect("attributes");
    for Attribute { name, about, .. } in &ATTRIBUTES {
        let value = &attributes[*name];
        let (kind, example) = match (&value.string, value.int, &value.version) {
            (Some(string), ..) => ("string", string.clone()),
            (_, Some(int), _) => ("int", int.to_string()),
            (_, _, Some(version)) => ("version", version.clone()),
            _ => panic!("{name} has no value"),
        };
        let _ = writeln!(text, "| `{name}` | {kind} | `{example}` | {about} |");
    }
    text.push_str(CAPACITY);
    let all = slices[0][0].capacity.as_ref().expect("capacity");
    assert_eq!(all.len(), CAPACITIES.len());
    for (name, about) in CAPACITIES {
        let one = &all[name];
        let policy = one.request_policy.as_ref().expect("a policy");
        let allowed = match (&policy.valid_range, &policy.valid_values) {
            (Some(range), _) => {
                let max = range.max.as_ref().unwrap_or(&one.value);
                let step = range.step.as_ref().expect("a step");
                format!("{} to {} in steps of {}", range.min.0, max.0, step.0)
            }
            (_, values) => values.iter().flatten().map(|value| value.0.clone()).collect(),
        };
        let default = &policy.default.as_ref().expect("a default").0;
        let _ = writeln!(text, "| `{name}` | {} | {default} | {allowed} | {about} |", one.value.0);
    }
    text.push_str(IN_THE_CONTAINER);
    for own in &crate::dra::metadata::OWN {
        let value = (own.value)(&crate::dra::share::tests::share("s1"));
        let kind = if value.int.is_some() { "int" } else { "string" };
        let _ = writeln!(text, "| `{}` | {kind} | {} |", own.name, own.about);
    }
    text + TAINTS
}

#[test]
fn the_document_says_what_is_published() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/devices.md");
    let document = document();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &document).expect("written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == document,
        "docs/devices.md is stale: run UPDATE=1 cargo test -p vgpu-kubelet-plugin --lib publish::slice::document_tests"
    );
}
