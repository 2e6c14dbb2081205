//! Generates docs/devices.md from the devices of a GPU, and fails if the file differs. `UPDATE=1` writes it.

use super::tests::WHOLE;
use super::*;
use crate::publish::inventory::tests::gpu;
use std::fmt::Write as _;
use std::path::Path;
use vgpu_api::capacity;

const HEAD: &str = "# Devices

What a ResourceSlice of `dra.vgpu` says of each GPU. This file is generated from `kubelet-plugin/src/publish/slice.rs` by `UPDATE=1 cargo test -p vgpu-kubelet-plugin --lib publish::slice::document_tests`; a test fails when it is stale.

A GPU is two devices: `gpu-<the UUID's first part>`, which claims share, and `gpu-<...>-monitor` without capacity, for admin access ([using.md](using.md)). The GPUs of node `n` are the pool `n/vgpu`, their monitors the pool `n/vgpu-monitor`: the cluster autoscaler takes a node for used as far as the devices of a pool are allocated, and nobody needs to allocate monitors. At most 64 devices are in one slice.

An instance of a GPU in MIG mode is one device, `mig-<the first part of its UUID>-<profile>-<first slice>`, in the pool `n/vgpu-mig`; its GPU is none ([mig.md](mig.md)). Where claims make instances, each GPU has a pool of its own, `n/vgpu-mig-<8 digits of its UUID>`, with all that it could have; where they switch its MIG mode, the GPU is in that pool too, as `gpu-<8 digits>-undivided`, and has no monitor.

## Attributes

All devices have the same attributes. Those of an instance are its GPU's, but for `type`, `uuid`, `profile` and `placement`; `nvlinkClique` is missing. In a CEL selector, a name without a domain is below `device.attributes['dra.vgpu']`: `device.attributes['dra.vgpu'].productName.matches('H100')`; others are below their domain: `device.attributes['resource.kubernetes.io'].numaNode == 0`. `vgpu-controller` and `vgpu explain` evaluate them as kube-scheduler does.

| name | type | example | meaning |
|---|---|---|---|
";

const CAPACITY: &str = "
## Capacity

The monitor device has none. An instance also has `multiprocessors`, for selectors: no request takes a part of them. An instance that one claim takes whole has `memory` and `multiprocessors` alone. A request is rounded up to the next step; a request without this capacity gets the default.

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

const UNIFIED: &str = "
## GPUs with the system's memory

GB10 (DGX Spark) and Jetson's Thor have no memory of their own, and NVML answers NOT_SUPPORTED for its size. Such a GPU is left out until the chart's values say how much of the system's memory shares may have, for example `gpuMemory: {NVIDIA GB10: 96Gi}`.

| | |
|---|---|
| which product | the name that `nvidia-smi -L` prints |
| which size | what pods without a share, the system and the page cache do not need: of 128 GB rather 96Gi than 110Gi. Nothing checks it: CUDA's memory there is in no memory cgroup, and the kernel ends processes when the system has none left |
| a size for a GPU whose memory NVML knows | is taken if it is less than NVML's figure; for GH200 and GB200 without CDMM, whose memory is also NUMA nodes that the system may fill |
| a product without a size | its GPUs are left out. The plugin's log, the VgpuNode's condition `DriverFound`, `vgpu doctor` and, if no other GPU is there, `/readyz` name the GPU, the product and the value to set |
| `memorySource` | `configured`; `nvml` where NVML has a figure, also if a smaller size is taken. The size is not asked of CUDA: its figure is all of the system's memory |
| the limit | the library's ledger alone. `MemoryEnforced` is Unknown with the reason `LedgerOnly`, never True, and False if the driver's figures of processes show a breach ([truth.md](truth.md)) |
| what programs see | the share: `cuMemGetInfo`, `cuDeviceTotalMem`, and both versions of `nvmlDeviceGetMemoryInfo`, which then answer although the driver does not. `cuMemGetInfo`'s free memory is what is left of the share: an integrated GPU's own figure leaves out what the page cache would give back |
| a size that is changed | a GPU with claims keeps its size until they have ended and the plugin has started again |
| `vgpu run` | `--gpu-memory 'NVIDIA GB10=96Gi'` |
| HAMi's variables ([hami.md](hami.md)) | give no share of such a GPU: there is no size that it could be a part of |

**Not seen on such hardware.** The software GPU plays one beside ordinary ones (`unified` in its [profile](software-gpu.md)).
";

const NVLINK: &str = "
## NVLink

GPUs with the same `nvlinkClique` reach each other over NVLink. On a machine with switches, or with bridges between pairs, a program with two of them does not go through PCI Express; in a mesh two may be joined through a third one only. For two GPUs of one island in one claim, whoever allocates:

```
devices:
  requests:
  - {name: one, exactly: {deviceClassName: gpu}}
  - {name: other, exactly: {deviceClassName: gpu}}
  constraints:
  - {matchAttribute: dra.vgpu/nvlinkClique}
```

That is a must: GPUs without the attribute do not match, and the pod waits. In controller mode `allocationPolicy: nvlink` is a wish: one island if it can be, else few ([allocate.md](allocate.md)). [An example](../deploy/examples/nvlink/README.md) can be applied.

| the machine | `nvlinkClique` |
|---|---|
| GPUs on NVSwitches (HGX) | one value for all that have a switch in common |
| bridges between pairs | one value for each pair |
| a mesh without a switch (DGX-1) | one value for all that links join, also through another GPU |
| a fabric of several machines (GB200) | `<cluster UUID>.<clique>` by NVML, as GPU Feature Discovery's label `nvidia.com/gpu.clique`. It is the same on all nodes of the clique; a claim's devices are on one node all the same |
| PCI Express alone; one GPU; no NVLink that is active | missing |
| GPU A says that it has a link to B, and B nothing of it | missing for both. The plugin's log, the VgpuNode's condition `DriverFound` (reason `LinksContradict`) and `vgpu doctor` name the two |

Within one machine the value is the UUID of the island's first GPU, so it may change with the GPUs that the driver lists. NVIDIA's own DRA driver has no such attribute ([its issue 214](https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/214) asks for one). **Not seen on GPUs with NVLink**: the software GPU plays switches, pairs and contradictions (`nvlink` in its profile).
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
    let slices = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
    let mut text = HEAD.to_owned();
    let attributes = slices[0].devices[0].attributes.as_ref().expect("attributes");
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
    let all = slices[0].devices[0].capacity.as_ref().expect("capacity");
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
    text + UNIFIED + NVLINK + TAINTS
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
