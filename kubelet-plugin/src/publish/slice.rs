//! Converts GPUs into the devices of ResourceSlices. Pure.
//!
//! Every device has every attribute, because the scheduler treats a selector on a missing attribute as an
//! error. Only values that the machine does not have (PCI root, NUMA node, NVLink) are left out. All values are
//! scalars and integers: lists and fractional ranges depend on feature gates that are off by default.

use crate::publish::inventory::{DynamicGpu, Gpu, Inventory, Unavailable};
use k8s_openapi::api::resource::v1::{
    Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use vgpu_api::capacity::{MEMORY, MULTIPROCESSORS};
use vgpu_api::slice::{self, MAX_DEVICES};
use vgpu_api::{DRIVER_NAME, INSTANCE_PREFIX, MONITOR_SUFFIX, device_type, gpu_of_undivided, pool};
use vgpu_mig::candidates;
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::gpus::Placement;
use vgpu_quantity::format_bytes;

/// The effect of a taint that only informs.
const NO_EFFECT: &str = "None";
/// Kubernetes' limit for a string attribute and for a version.
const MAX_VALUE: usize = 64;

/// How many claims may share a device.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    /// At most so many.
    pub shares: u32,
    /// False: one claim takes an instance whole.
    pub of_instances: bool,
}

/// The content of a ResourceSlice: devices, or counters that devices of its pool take from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// The name of its pool after the node's name and a slash.
    pub pool: String,
    pub devices: Vec<Device>,
    /// Kubernetes takes them in slices without devices alone.
    pub counters: Vec<CounterSet>,
    /// Nothing is known of the pool: what is published of it stays, with the taint of a driver that does not answer.
    pub is_kept: bool,
}

/// Returns the slices: first those of the GPUs by index, which is the order in which the scheduler allocates them, then those of
/// the instances and the monitors. Each kind has a pool of its own, and so has each GPU whose instances claims make. A GPU whose
/// MIG mode they switch is in that pool.
#[must_use]
pub fn slices(inventory: &Inventory, sharing: Sharing) -> Vec<Slice> {
    let mut all = inventory.by_index();
    // Those whose MIG mode claims switch are in the pools of their instances, and have no monitor: who watches a GPU may keep its
    // mode from being switched.
    all.retain(|(name, _)| gpu_of_undivided(name).is_none());
    let held = all.iter().map(|(name, gpu)| Device {
        taints: taints(inventory, &gpu.uuid),
        ..held(name, gpu, sharing)
    });
    let (instances, gpus): (Vec<Device>, Vec<Device>) = held.partition(is_instance);
    let whole = all.iter().filter(|(_, gpu)| gpu.mig.is_none());
    let monitors: Vec<Device> = whole.map(|(name, gpu)| monitor(name, gpu)).collect();
    let pools = [
        (pool::GPUS, &gpus),
        (pool::INSTANCES, &instances),
        (pool::MONITORS, &monitors),
    ];
    let slices = pools.into_iter().flat_map(|(pool, devices)| {
        let slices = devices.chunks(MAX_DEVICES);
        slices.map(|devices| Slice::new(pool, devices.to_vec()))
    });
    let mut slices: Vec<Slice> = slices.collect();
    for dynamic in inventory.dynamic() {
        slices.extend(of_dynamic(inventory, dynamic, sharing));
    }
    slices
}

/// The pool of a GPU on which claims make instances, and which they may have undivided too.
fn of_dynamic(inventory: &Inventory, dynamic: &DynamicGpu, sharing: Sharing) -> Vec<Slice> {
    let DynamicGpu { gpu, pool: offered, .. } = dynamic;
    let pool = format!("{}-{}", pool::INSTANCES, candidates::short(&gpu.uuid));
    if !dynamic.is_surveyed() {
        let is_kept = true;
        return vec![Slice {
            is_kept,
            ..Slice::new(&pool, Vec::new())
        }];
    }
    let counters = Slice {
        counters: vec![CounterSet {
            name: offered.counter_set.clone(),
            counters: counted(&offered.counters),
        }],
        ..Slice::new(&pool, Vec::new())
    };
    let consuming = |counters: &[candidates::Counter]| DeviceCounterConsumption {
        counter_set: offered.counter_set.clone(),
        counters: counted(counters),
        ..DeviceCounterConsumption::default()
    };
    let candidates = offered.candidates.iter().map(|candidate| Device {
        consumes_counters: Some(vec![consuming(&candidate.consumes)]),
        taints: taints_of(inventory, dynamic, candidate),
        ..held(&candidate.name, &dynamic.instance(candidate), sharing)
    });
    let undivided = offered.undivided.iter().map(|undivided| Device {
        consumes_counters: Some(vec![consuming(&undivided.consumes)]),
        taints: overlapped(taints(inventory, &gpu.uuid), !offered.leftovers.is_empty()),
        ..held(&undivided.name, gpu, sharing)
    });
    let devices: Vec<Device> = candidates.chain(undivided).collect();
    let slices = devices.chunks(candidates::MOST_DEVICES);
    let slices = slices.map(|devices| Slice::new(&pool, devices.to_vec()));
    [counters].into_iter().chain(slices).collect()
}

fn counted(counters: &[candidates::Counter]) -> BTreeMap<String, Counter> {
    let value = |counter: &candidates::Counter| match counter.name.as_str() {
        "memory" => format_bytes(counter.value),
        _ => counter.value.to_string(),
    };
    let all = counters.iter().map(|counter| {
        let value = Quantity(value(counter));
        (counter.name.clone(), Counter { value })
    });
    all.collect()
}

/// The taints of a GPU and of its instances.
fn taints(inventory: &Inventory, uuid: &str) -> Option<Vec<DeviceTaint>> {
    tainted(inventory, inventory.unavailable(uuid), uuid)
}

/// A taint for this reason, and those of the GPU's faults.
fn tainted(inventory: &Inventory, why: Option<&Unavailable>, uuid: &str) -> Option<Vec<DeviceTaint>> {
    let why = why.map(|why| taint(why.name(), None, "NoSchedule"));
    let faults = inventory.faults(uuid).iter();
    let faults = faults.map(|fault| taint(fault.reason.name(), Some(&fault.value), fault.effect()));
    let taints: Vec<DeviceTaint> = why.into_iter().chain(faults).collect();
    (!taints.is_empty()).then_some(taints)
}

/// The taints of an instance that claims could make.
fn taints_of(
    inventory: &Inventory,
    dynamic: &DynamicGpu,
    candidate: &candidates::Candidate,
) -> Option<Vec<DeviceTaint>> {
    let uuid = &dynamic.gpu.uuid;
    let of_gpu = tainted(inventory, inventory.unavailable_parts(uuid), uuid);
    overlapped(of_gpu, dynamic.pool.is_left_over(candidate))
}

/// Adds the taint of a device that overlaps an instance whose claims are gone. A GPU that takes no claims needs none.
fn overlapped(taints: Option<Vec<DeviceTaint>>, is_overlapped: bool) -> Option<Vec<DeviceTaint>> {
    let takes_none = |taints: &Vec<DeviceTaint>| taints.iter().any(|taint| taint.effect == "NoSchedule");
    if !is_overlapped || taints.as_ref().is_some_and(takes_none) {
        return taints;
    }
    let mut taints = taints.unwrap_or_default();
    taints.push(taint(Unavailable::Overlap(String::new()).name(), None, "NoSchedule"));
    Some(taints)
}

// === impl Slice ===

impl Slice {
    #[must_use]
    pub fn new(pool: &str, devices: Vec<Device>) -> Self {
        Self {
            pool: pool.to_owned(),
            devices,
            counters: Vec::new(),
            is_kept: false,
        }
    }
}

/// The devices of all slices.
pub fn devices(slices: &[Slice]) -> impl Iterator<Item = &Device> {
    slices.iter().flat_map(|slice| &slice.devices)
}

/// The devices of all slices, to be changed.
pub fn devices_mut(slices: &mut [Slice]) -> impl Iterator<Item = &mut Device> {
    slices.iter_mut().flat_map(|slice| &mut slice.devices)
}

fn is_instance(device: &Device) -> bool {
    device.name.starts_with(INSTANCE_PREFIX)
}

/// Adds the taint of a driver that does not answer to the published devices that lack it.
#[must_use]
pub fn silenced(mut slices: Vec<Slice>) -> Vec<Slice> {
    let silent = taint(Unavailable::Silent(String::new()).name(), None, "NoSchedule");
    for device in devices_mut(&mut slices).filter(|device| is_held(device)) {
        let taints = device.taints.get_or_insert_default();
        if !taints.iter().any(|taint| taint.key == silent.key) {
            taints.push(silent.clone());
        }
    }
    slices
}

/// Returns true for a device that claims hold: GPUs and instances, and no monitors.
#[must_use]
pub fn is_held(device: &Device) -> bool {
    !device.name.ends_with(MONITOR_SUFFIX)
}

/// Removes the GPUs, which need consumable capacity: an API server without it would drop the fields that make them shareable,
/// and the scheduler would allocate a GPU whole. Instances can be allocated whole.
#[must_use]
pub fn without_shared(mut slices: Vec<Slice>) -> Vec<Slice> {
    let without = |device: Device| match device.allow_multiple_allocations {
        Some(true) => is_instance(&device).then(|| whole(device)),
        _ => Some(device),
    };
    for slice in &mut slices {
        slice.devices = std::mem::take(&mut slice.devices)
            .into_iter()
            .filter_map(without)
            .collect();
    }
    slices.retain(|slice| !slice.devices.is_empty() || !slice.counters.is_empty());
    slices
}

/// Removes the pools with counters. An API server without partitionable devices would drop the counters, and the scheduler would
/// allocate instances that exclude each other.
#[must_use]
pub fn without_counters(mut slices: Vec<Slice>) -> Vec<Slice> {
    slices.retain(|slice| {
        let takes = |device: &Device| device.consumes_counters.is_some();
        slice.counters.is_empty() && !slice.devices.iter().any(takes)
    });
    slices
}

/// An instance as a device that one claim takes.
fn whole(mut device: Device) -> Device {
    device.allow_multiple_allocations = None;
    if let Some(capacity) = &mut device.capacity {
        capacity.retain(|name, _| [MEMORY, MULTIPROCESSORS].contains(&name.as_str()));
        capacity.values_mut().for_each(|of| of.request_policy = None);
    }
    device
}

/// Returns true if the API server kept the fields of `sent` that consumable capacity needs.
#[must_use]
pub fn keeps_capacity(sent: &[Device], stored: &[Device]) -> bool {
    sent.iter()
        .filter(|device| device.allow_multiple_allocations == Some(true))
        .all(|sent| {
            let stored = stored.iter().find(|stored| stored.name == sent.name);
            stored.is_some_and(|stored| {
                let policies = |device: &Device| {
                    let all = device.capacity.iter().flat_map(BTreeMap::values);
                    all.filter(|one| one.request_policy.is_some()).count()
                };
                stored.allow_multiple_allocations == Some(true) && policies(stored) == policies(sent)
            })
        })
}

/// Removes the taints with the effect None, which API servers before Kubernetes 1.36 may refuse.
#[must_use]
pub fn without_information(mut slices: Vec<Slice>) -> Vec<Slice> {
    for device in devices_mut(&mut slices) {
        if let Some(taints) = &mut device.taints {
            taints.retain(|taint| taint.effect != NO_EFFECT);
        }
        device.taints.take_if(|taints| taints.is_empty());
    }
    slices
}

/// Returns true if a device has a taint with the effect None.
#[must_use]
pub fn has_information(slices: &[Slice]) -> bool {
    let mut taints = devices(slices).flat_map(|device| device.taints.iter().flatten());
    taints.any(|taint| taint.effect == NO_EFFECT)
}

/// A taint that keeps new claims from a GPU, or that only informs. A GPU has at most one of each name, far fewer than the 16
/// that Kubernetes allows. Its monitor has none: otherwise a claim for the monitors of all GPUs would wait until every GPU
/// is well.
fn taint(name: &str, value: Option<&String>, effect: &str) -> DeviceTaint {
    DeviceTaint {
        key: format!("{DRIVER_NAME}/{name}"),
        value: value.cloned(),
        effect: effect.to_owned(),
        ..DeviceTaint::default()
    }
}

/// The device of a GPU or of an instance.
fn held(name: &str, gpu: &Gpu, Sharing { shares, of_instances }: Sharing) -> Device {
    let is_shared = gpu.mig.is_none() || of_instances;
    let capacity = match &gpu.mig {
        None => slice::capacity(gpu.memory, shares),
        Some(mig) => slice::instance_capacity(gpu.memory, mig.multiprocessors, is_shared.then_some(shares)),
    };
    Device {
        name: name.to_owned(),
        allow_multiple_allocations: is_shared.then_some(true),
        attributes: Some(attributes(type_of(gpu), gpu)),
        capacity: Some(capacity),
        ..Device::default()
    }
}

/// The type of the device that claims hold.
pub(crate) fn type_of(gpu: &Gpu) -> &'static str {
    match gpu.mig {
        None => device_type::GPU,
        Some(_) => device_type::MIG,
    }
}

/// Monitoring has a device of its own, because admin access to a shared device fails once the device is full.
fn monitor(name: &str, gpu: &Gpu) -> Device {
    Device {
        name: format!("{name}{MONITOR_SUFFIX}"),
        attributes: Some(attributes(device_type::MONITOR, gpu)),
        ..Device::default()
    }
}

/// An attribute of both devices of a GPU.
pub(crate) struct Attribute {
    name: &'static str,
    /// Its meaning, for docs/devices.md.
    #[cfg_attr(not(test), expect(dead_code))]
    about: &'static str,
    /// The value, by the device's type; None if the machine does not have it.
    value: fn(&str, &Gpu) -> Option<DeviceAttribute>,
}

/// Every attribute. docs/devices.md is generated from this table.
pub(crate) const ATTRIBUTES: [Attribute; 18] = [
    Attribute {
        name: device_type::ATTRIBUTE,
        about: "`gpu` for a GPU that can be shared, `monitor` for its monitor device, `mig` for an instance of a GPU in MIG mode",
        value: |kind, _| string(kind),
    },
    Attribute {
        name: "uuid",
        about: "the GPU's UUID, as nvidia-smi prints it; of an instance its own, which begins with `MIG-`; of one that a claim makes the GPU's",
        value: |_, gpu| string(&gpu.uuid),
    },
    Attribute {
        name: "parentUUID",
        about: "the UUID of the physical GPU: of an instance its GPU's, of a GPU its own",
        value: |_, gpu| string(gpu.mig.as_ref().map_or(&gpu.uuid, |mig| &mig.parent)),
    },
    Attribute {
        name: "profile",
        about: "an instance's profile, as the driver names it; `none` of a GPU",
        value: |_, gpu| string(gpu.mig.as_ref().map_or("none", |mig| &mig.profile)),
    },
    Attribute {
        name: "placement",
        about: "the first memory slice of an instance, and how many it has; `none` of a GPU",
        value: |_, gpu| {
            let place = gpu.mig.as_ref().and_then(|mig| mig.placement);
            string(&place.map_or("none".into(), |Placement { start, size }| format!("{start}:{size}")))
        },
    },
    Attribute {
        name: "index",
        about: "NVML's index of the GPU, which may change with a reboot",
        value: |_, gpu| int(gpu.index),
    },
    Attribute {
        name: "productName",
        about: "the GPU's product name",
        value: |_, gpu| string(&gpu.name),
    },
    Attribute {
        name: "brand",
        about: "NVML's name of the product line",
        value: |_, gpu| string(&gpu.brand),
    },
    Attribute {
        name: "architecture",
        about: "the GPU's architecture",
        value: |_, gpu| string(&gpu.architecture),
    },
    Attribute {
        name: "cudaComputeCapability",
        about: "the compute capability; the third number is always 0",
        value: |_, gpu| pair(gpu.compute_capability),
    },
    Attribute {
        name: "driverVersion",
        about: "the version of NVIDIA's driver, without leading zeros",
        value: |_, gpu| version(&gpu.driver_version),
    },
    Attribute {
        name: "cudaDriverVersion",
        about: "the newest CUDA version that the driver supports; the third number is always 0",
        value: |_, gpu| pair(gpu.cuda_version),
    },
    Attribute {
        name: "memorySource",
        about: "`nvml`, or `configured` where NVML has no figure of the GPU's memory: `memory` is then the chart's `gpuMemory`, and nothing but the library holds limits",
        value: |_, gpu| string(gpu.memory_source.name()),
    },
    Attribute {
        name: "driverLimit",
        about: "who keeps the driver's own limit of a container's memory: `dmem` (the kernel), `misc` (the driver) or `none`; a cgroup that took a limit and gave it back has shown it",
        value: |_, gpu| string(gpu.driver_limit.as_ref().map_or("none", DriverLimit::name)),
    },
    Attribute {
        name: "resource.kubernetes.io/pciBusID",
        about: "the GPU's PCI address; missing if the machine does not show it",
        value: |_, gpu| string(gpu.pci_bus_id.as_deref()?),
    },
    Attribute {
        name: "resource.kubernetes.io/pcieRoot",
        about: "the PCIe root complex above the GPU, to match devices of other drivers; missing if the machine does not show it",
        value: |_, gpu| string(gpu.pcie_root.as_deref()?),
    },
    Attribute {
        name: "resource.kubernetes.io/numaNode",
        about: "the NUMA node of the GPU; missing on machines with one",
        value: |_, gpu| int(gpu.numa_node?),
    },
    Attribute {
        name: "nvlinkClique",
        about: "equal for GPUs that reach each other over NVLink, directly or through others; missing if the GPU has no NVLink to another one",
        value: |_, gpu| string(gpu.nvlink_clique.as_deref()?),
    },
];

/// The attributes of one of a GPU's devices.
pub(crate) fn attributes(kind: &str, gpu: &Gpu) -> BTreeMap<String, DeviceAttribute> {
    let known = ATTRIBUTES.iter();
    let known = known.filter_map(|attribute| Some((attribute.name.to_owned(), (attribute.value)(kind, gpu)?)));
    known.collect()
}

fn string(text: &str) -> Option<DeviceAttribute> {
    Some(DeviceAttribute {
        string: Some(cut(text).to_owned()),
        ..DeviceAttribute::default()
    })
}

fn int(value: u32) -> Option<DeviceAttribute> {
    Some(DeviceAttribute {
        int: Some(i64::from(value)),
        ..DeviceAttribute::default()
    })
}

fn version(text: &str) -> Option<DeviceAttribute> {
    Some(DeviceAttribute {
        version: Some(semver(text)),
        ..DeviceAttribute::default()
    })
}

fn pair((major, minor): (i32, i32)) -> Option<DeviceAttribute> {
    version(&format!("{major}.{minor}"))
}

/// `535.161.08` as 535.161.8: three numbers without leading zeros. A part that is not a number becomes 0, so
/// that the attribute is never missing.
fn semver(text: &str) -> String {
    let mut parts = text.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    format!("{}.{}.{}", next(), next(), next())
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_VALUE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod document_tests;
#[cfg(test)]
mod dynamic_tests;
#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::publish::inventory::tests::{gpu, instance};

    pub(crate) const WHOLE: Sharing = Sharing {
        shares: 64,
        of_instances: false,
    };

    /// A device as it was accepted by a live 1.37.1 scheduler, with the attributes that have come since.
    const TRIED: &str = r#"{"name":"gpu-3f8a1c20","allowMultipleAllocations":true,"attributes":{
        "type":{"string":"gpu"},"uuid":{"string":"GPU-3f8a1c20-1111-2222-3333-444455556666"},"index":{"int":0},
        "productName":{"string":"NVIDIA H100 80GB HBM3"},"brand":{"string":"Nvidia"},
        "architecture":{"string":"Hopper"},"cudaComputeCapability":{"version":"9.0.0"},
        "driverVersion":{"version":"535.161.8"},"cudaDriverVersion":{"version":"12.2.0"},
        "memorySource":{"string":"nvml"},"driverLimit":{"string":"none"},
        "parentUUID":{"string":"GPU-3f8a1c20-1111-2222-3333-444455556666"},
        "profile":{"string":"none"},"placement":{"string":"none"},
        "resource.kubernetes.io/pciBusID":{"string":"0000:3b:00.0"},
        "resource.kubernetes.io/pcieRoot":{"string":"pci0000:3a"},"resource.kubernetes.io/numaNode":{"int":0},
        "nvlinkClique":{"string":"GPU-3f8a1c20-1111-2222-3333-444455556666"}},
        "capacity":{
        "memory":{"value":"80Gi","requestPolicy":{"default":"80Gi","validRange":{"min":"64Mi","step":"1Mi"}}},
        "cores":{"value":"100","requestPolicy":{"default":"0","validRange":{"min":"0","max":"100","step":"1"}}},
        "shares":{"value":"64","requestPolicy":{"default":"1","validValues":["1"]}}}}"#;

    #[test]
    fn a_gpu_is_the_device_that_was_tried() {
        let slices = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
        let tried: serde_json::Value = serde_json::from_str(TRIED).expect("JSON");
        assert_eq!(serde_json::to_value(&slices[0].devices[0]).expect("JSON"), tried);
        let monitor = &slices[1].devices[0];
        assert_eq!(monitor.name, "gpu-3f8a1c20-monitor");
        assert_eq!(monitor.allow_multiple_allocations, None);
        assert_eq!(monitor.capacity, None);
    }

    #[test]
    fn an_instance_is_a_device_in_a_pool_of_its_own_whole_or_shared() {
        let uuid = "MIG-aaaabbbb-1111-5222-8333-444455556666";
        let inventory = Inventory::new(vec![gpu(0), instance(1, uuid)]);
        let all = slices(&inventory, WHOLE);
        let names = |slice: &Slice| {
            slice
                .devices
                .iter()
                .map(|device| device.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&all[0]), ["gpu-3f8a1c20"]);
        assert_eq!(names(&all[1]), ["mig-aaaabbbb-3g-40gb-4"]);
        assert_eq!(names(&all[2]), ["gpu-3f8a1c20-monitor"], "an instance has none");
        let device = serde_json::to_value(&all[1].devices[0]).expect("JSON");
        assert_eq!(device.get("allowMultipleAllocations"), None);
        let attribute = |name: &str| device["attributes"][name]["string"].clone();
        assert_eq!(attribute("type"), "mig");
        assert_eq!(attribute("uuid"), uuid);
        assert_eq!(attribute("parentUUID"), gpu(1).uuid);
        assert_eq!(attribute("profile"), "3g.40gb");
        assert_eq!(attribute("placement"), "4:4");
        assert_eq!(attribute("productName"), "NVIDIA H100 80GB HBM3");
        let capacity = serde_json::json!({"memory": {"value": "40448Mi"}, "multiprocessors": {"value": "60"}});
        assert_eq!(device["capacity"], capacity);
        let kept = without_shared(all.clone());
        assert_eq!(names(&kept[0]), names(&all[1]), "it needs no consumable capacity");
        let silent = silenced(all);
        assert!(devices(&silent[..2]).all(|device| device.taints.is_some()));

        let of_instances = true;
        let shared = slices(&inventory, Sharing { of_instances, ..WHOLE });
        assert_eq!(
            without_shared(shared.clone()),
            without_shared(slices(&inventory, WHOLE))
        );
        let device = serde_json::to_value(&shared[1].devices[0]).expect("JSON");
        assert_eq!(device["allowMultipleAllocations"], true);
        let capacity = &device["capacity"];
        assert_eq!(capacity["memory"]["value"], "40448Mi");
        assert_eq!(
            capacity["memory"]["requestPolicy"]["default"], "40448Mi",
            "a claim without a request takes all"
        );
        assert_eq!(capacity["multiprocessors"]["value"], "60");
        assert_eq!(
            capacity["multiprocessors"]["requestPolicy"]["default"], "0",
            "no share takes them from others"
        );
        assert_eq!(capacity["shares"]["value"], "64");
        assert_eq!(capacity["cores"]["value"], "100");
    }

    #[test]
    fn gpus_come_by_index_and_slices_hold_at_most_64() {
        let many = |count| {
            (0..count).map(|index| Gpu {
                uuid: format!("GPU-{index:08x}-0"),
                ..gpu(index)
            })
        };
        let slices = slices(&Inventory::new(many(65).rev().collect()), WHOLE);
        assert_eq!(
            slices.iter().map(|slice| slice.devices.len()).collect::<Vec<_>>(),
            [64, 1, 64, 1]
        );
        assert_eq!(slices[0].devices[0].name, "gpu-00000000");
        assert_eq!(slices[1].devices[0].name, "gpu-00000040");
        assert_eq!(slices[3].devices[0].name, "gpu-00000040-monitor");
    }

    #[test]
    fn values_fit_what_the_api_server_takes() {
        assert_eq!(semver("535.161.08"), "535.161.8");
        assert_eq!(semver("570.1"), "570.1.0");
        assert_eq!(semver("1.2.3.4"), "1.2.3");
        assert_eq!(semver("odd"), "0.0.0");
        assert_eq!(cut(&"é".repeat(40)).len(), 64);
        assert_eq!(cut("a".repeat(63).as_str()).len(), 63);
        let odd = Gpu {
            memory: 81_559 << 20,
            ..gpu(0)
        };
        let slices = slices(&Inventory::new(vec![odd]), Sharing { shares: 4, ..WHOLE });
        let capacity = slices[0].devices[0].capacity.as_ref().expect("capacity");
        assert_eq!(capacity["memory"].value.0, "81559Mi");
        assert_eq!(capacity["shares"].value.0, "4");
    }

    #[test]
    fn dropped_fields_are_noticed() {
        let slices = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
        let sent = &slices[0].devices;
        assert!(keeps_capacity(sent, sent));
        let mut stored = sent.clone();
        stored[0].allow_multiple_allocations = None;
        assert!(!keeps_capacity(sent, &stored));
        let mut stored = sent.clone();
        stored[0]
            .capacity
            .as_mut()
            .expect("capacity")
            .get_mut("cores")
            .expect("cores")
            .request_policy = None;
        assert!(!keeps_capacity(sent, &stored));
        assert!(!keeps_capacity(sent, &[]));
        let left = without_shared(slices.clone());
        assert_eq!(left.len(), 1);
        assert!(left[0].devices.iter().all(|device| device.name.ends_with("-monitor")));
    }
}
