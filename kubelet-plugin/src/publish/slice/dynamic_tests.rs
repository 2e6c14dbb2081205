//! The slices of a GPU on which claims make instances.

use super::tests::WHOLE;
use super::*;
use crate::publish::inventory::dynamic::tests::{divided, switched};
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{Fault, Faults, Reason};
use serde_json::{Value, json};
use vgpu_mig::candidates::Place;

fn inventory(dynamic: DynamicGpu) -> Inventory {
    Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], BTreeMap::new())
}

/// Name and value of each counter.
fn counters(of: &BTreeMap<String, Counter>) -> BTreeMap<&str, &str> {
    let all = of.iter();
    all.map(|(name, counter)| (name.as_str(), counter.value.0.as_str()))
        .collect()
}

fn json_of(device: &Device) -> Value {
    serde_json::to_value(device).expect("JSON")
}

#[test]
fn an_h100_is_a_slice_of_counters_and_one_of_all_placements_in_a_pool_of_its_own() {
    let all = slices(&inventory(divided(&[], &[])), WHOLE);
    let pools: Vec<&str> = all.iter().map(|slice| slice.pool.as_str()).collect();
    assert_eq!(
        pools,
        ["vgpu", "vgpu-monitor", "vgpu-mig-3f8a1c20", "vgpu-mig-3f8a1c20"]
    );
    let (set, offered) = (&all[2].counters[0], &all[3].devices);
    assert_eq!(
        (all[2].devices.len(), offered.len(), set.name.as_str()),
        (0, 25, "mig-3f8a1c20")
    );
    let expected = "compute-slices 7, decoders 7, jpeg 7, memory 81152Mi, memory-slice-0 1, memory-slice-1 1, memory-slice-2 1, \
                    memory-slice-3 1, memory-slice-4 1, memory-slice-5 1, memory-slice-6 1, memory-slice-7 1, ofa 1";
    let said: Vec<String> = counters(&set.counters)
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    assert_eq!(said.join(", "), expected);
    assert_eq!(
        offered[0].name, "mig-of-3f8a1c20-1g-10gb-6",
        "small ones, from the last place on"
    );
    let half = offered.iter().find(|device| device.name == "mig-of-3f8a1c20-3g-40gb-4");
    let half = json_of(half.expect("a half"));
    assert_eq!(
        half["consumesCounters"],
        json!([{"counterSet": "mig-3f8a1c20", "counters": {
            "compute-slices": {"value": "3"}, "decoders": {"value": "3"}, "jpeg": {"value": "3"},
            "memory": {"value": "40448Mi"}, "memory-slice-4": {"value": "1"}, "memory-slice-5": {"value": "1"},
            "memory-slice-6": {"value": "1"}, "memory-slice-7": {"value": "1"}}}])
    );
    let attribute = |name: &str| half["attributes"][name]["string"].clone();
    assert_eq!(
        (attribute("type"), attribute("profile")),
        ("mig".into(), "3g.40gb".into())
    );
    assert_eq!(
        (attribute("placement"), attribute("uuid")),
        ("4:4".into(), gpu(0).uuid.into())
    );
    let capacity = json!({"memory": {"value": "40448Mi"}, "multiprocessors": {"value": "60"}});
    assert_eq!(
        (&half["capacity"], half.get("allowMultipleAllocations")),
        (&capacity, None)
    );
    let of_instances = true;
    let shared = slices(&inventory(divided(&[], &[])), Sharing { of_instances, ..WHOLE });
    let device = json_of(&shared[3].devices[0]);
    assert_eq!(
        (
            &device["allowMultipleAllocations"],
            &device["capacity"]["shares"]["value"]
        ),
        (&json!(true), &json!("64"))
    );
    assert!(device["consumesCounters"].is_array(), "with the first share");
}

#[test]
fn no_counter_changes_whatever_is_made_and_what_is_held_stays_published() {
    let before = slices(&inventory(divided(&[], &[])), WHOLE);
    let placement = Placement { start: 4, size: 4 };
    let mine = [Place { profile: 9, placement }];
    assert_eq!(slices(&inventory(divided(&[], &mine)), WHOLE), before);
    let administrators = [Place { profile: 9, placement }];
    let beside = slices(&inventory(divided(&administrators, &[])), WHOLE);
    assert_eq!(beside[2], before[2]);
    let names: Vec<&str> = beside[3].devices.iter().map(|device| device.name.as_str()).collect();
    assert!(names.contains(&"mig-of-3f8a1c20-3g-40gb-0"), "{names:?}");
    for overlapping in ["1g-10gb-4", "1g-10gb-6", "2g-20gb-4", "3g-40gb-4", "7g-80gb-0"] {
        assert!(
            !names.contains(&&*format!("mig-of-3f8a1c20-{overlapping}")),
            "{names:?}"
        );
    }
}

#[test]
fn faults_of_the_gpu_and_a_silent_driver_taint_every_device() {
    let fault = Fault {
        reason: Reason::Xid,
        value: "79".into(),
        blocks: true,
    };
    let faulty = inventory(divided(&[], &[])).with_faults(&Faults::from([(gpu(0).uuid, vec![fault])]));
    let is_tainted = |device: &Device, key: &str| device.taints.iter().flatten().any(|taint| taint.key == key);
    let all = slices(&faulty, WHOLE);
    assert!(all[3].devices.iter().all(|device| is_tainted(device, "dra.vgpu/xid")));
    assert!(
        all[0].devices.iter().all(|device| device.taints.is_none()),
        "another GPU's"
    );
    let silent = silenced(all.clone());
    assert!(
        silent[3]
            .devices
            .iter()
            .all(|device| is_tainted(device, "dra.vgpu/silent"))
    );
    assert_eq!(silent[2], all[2], "counters have no taint");
    let without = without_counters(all);
    assert!(
        without.iter().all(|slice| !slice.pool.starts_with("vgpu-mig-")),
        "{without:?}"
    );
}

/// The pool of a GPU whose mode claims switch, and the undivided GPU in it.
fn undivided(dynamic: DynamicGpu, unavailable: BTreeMap<String, Unavailable>) -> (Vec<Slice>, Device) {
    let inventory = Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], unavailable);
    let all = slices(&inventory, WHOLE);
    let last = all
        .last()
        .and_then(|slice| slice.devices.last())
        .expect("a device")
        .clone();
    (all, last)
}

#[test]
fn a_gpu_whose_mode_claims_switch_is_the_last_device_of_its_pool_and_takes_all_of_it() {
    let (all, device) = undivided(switched(), BTreeMap::new());
    let count = |slice: &Slice| (slice.pool.clone(), slice.devices.len());
    let pools: Vec<(String, usize)> = all.iter().map(count).collect();
    let pool = "vgpu-mig-3f8a1c20".to_owned();
    // The monitor is the other GPU's.
    let expected = [
        ("vgpu".into(), 1),
        ("vgpu-monitor".into(), 1),
        (pool.clone(), 0),
        (pool, 26),
    ];
    assert_eq!(pools, expected);
    assert_eq!(
        all[2],
        slices(&inventory(divided(&[], &[])), WHOLE)[2],
        "the same counters"
    );
    let takes = &device.consumes_counters.as_ref().expect("counters")[0].counters;
    assert_eq!(
        counters(takes),
        counters(&all[2].counters[0].counters),
        "all that there is"
    );
    let as_gpu = slices(&Inventory::new(vec![gpu(0)]), WHOLE)[0].devices[0].clone();
    let bare = Device {
        name: as_gpu.name.clone(),
        consumes_counters: None,
        ..device.clone()
    };
    assert_eq!((bare, device.name.as_str()), (as_gpu, "gpu-3f8a1c20-undivided"));
    // The API server may drop these fields.
    let kept = without_shared(all.clone());
    assert_eq!(
        kept.last().map(|slice| slice.devices.len()),
        Some(25),
        "instances need no shares"
    );
    assert!(
        without_counters(all)
            .iter()
            .all(|slice| !slice.pool.starts_with("vgpu-mig-"))
    );
}

#[test]
fn a_reason_of_the_undivided_gpu_is_a_taint_of_that_device_alone() {
    let tainted = |(all, _): (Vec<Slice>, Device)| {
        let devices = &all.last().expect("a slice").devices;
        devices.iter().filter(|device| device.taints.is_some()).count()
    };
    let mut dynamic = switched();
    dynamic.undivided_unavailable = Some(Unavailable::Mig);
    let (all, device) = undivided(dynamic.clone(), BTreeMap::new());
    let keys: Vec<&str> = device.taints.iter().flatten().map(|taint| taint.key.as_str()).collect();
    assert_eq!((tainted((all, device.clone())), keys), (1, vec!["dra.vgpu/mig"]));
    let lost = BTreeMap::from([(gpu(0).uuid, Unavailable::Lost(String::new()))]);
    assert_eq!(tainted(undivided(dynamic, lost)), 26);
}
#[test]
fn places_that_overlap_an_instance_without_claims_have_a_taint_and_no_counter_changes() {
    let before = slices(&inventory(divided(&[], &[])), WHOLE);
    let mut dynamic = divided(&[], &[]);
    dynamic.pool.leftovers = vec![Placement { start: 4, size: 4 }];
    let after = slices(&inventory(dynamic.clone()), WHOLE);
    assert_eq!(after[2], before[2]);
    let keys = |device: &Device| -> Vec<String> {
        let taints = device.taints.iter().flatten();
        taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
    };
    let mut free = 0;
    for device in &after[3].devices {
        let place = dynamic.pool.find(&device.name).expect("a candidate").placement;
        let expected = match place.start + place.size > 4 {
            true => vec!["dra.vgpu/overlap:NoSchedule"],
            false => vec![],
        };
        free += usize::from(expected.is_empty());
        assert_eq!(keys(device), expected, "{}", device.name);
    }
    // Four of 1g and of 1g+me, two of 1g.20gb and of 2g, 3g and 4g.
    assert_eq!((after[3].devices.len(), free), (25, 14));
    let silent = BTreeMap::from([(gpu(0).uuid, Unavailable::Silent("NVML hangs".into()))]);
    let silent = Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], silent);
    let all = slices(&silent, WHOLE);
    assert!(
        all[2]
            .devices
            .iter()
            .chain(&all[3].devices)
            .all(|device| keys(device) == ["dra.vgpu/silent:NoSchedule"])
    );
}
