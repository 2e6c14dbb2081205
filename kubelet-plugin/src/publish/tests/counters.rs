//! Servers with and without partitionable devices.

use super::*;
use crate::publish::inventory::dynamic::tests::divided;

/// As a server does whose gate is off.
pub(super) fn drop_from(slice: &mut ResourceSlice) {
    slice.spec.shared_counters = None;
    for device in slice.spec.devices.iter_mut().flatten() {
        device.consumes_counters = None;
    }
}

/// GPU 1, and the instances that claims can make of GPU 0.
fn with_counters() -> Vec<Slice> {
    let dynamic = vec![divided(&[], &[])];
    slices(
        &Inventory::new(vec![gpu(1)]).with_dynamic(dynamic, BTreeMap::new()),
        WHOLE,
    )
}

fn pools(api: &Memory) -> Vec<String> {
    let mut pools: Vec<String> = api.all().into_iter().map(|slice| slice.spec.pool.name).collect();
    pools.sort();
    pools
}

const ALL: [&str; 4] = [
    "n1/vgpu",
    "n1/vgpu-mig-3f8a1c20",
    "n1/vgpu-mig-3f8a1c20",
    "n1/vgpu-monitor",
];

#[tokio::test]
async fn a_server_that_drops_counters_gets_no_instances_that_exclude_each_other() {
    let (api, mut publisher) = (Memory::default(), synced());
    api.with(|state| state.no_counters = true);
    for _ in 0..3 {
        publisher.publish(&api, &with_counters()).await;
        assert_eq!(pools(&api), ["n1/vgpu", "n1/vgpu-monitor"]);
    }
    assert_eq!((publisher.writes, api.with(|state| state.dry_runs)), (2, 2), "no loop");
    let said = publisher.missing_feature().expect_err("it drops them");
    assert!(said.contains("DRAPartitionableDevices"), "{said}");
    // The gate is switched on, and the dry run is repeated.
    api.with(|state| state.no_counters = false);
    publisher.ask_again();
    publisher.publish(&api, &with_counters()).await;
    assert_eq!(
        (pools(&api), publisher.missing_feature()),
        (ALL.map(String::from).into(), Ok(()))
    );
    let before = publisher.writes;
    publisher.publish(&api, &with_counters()).await;
    assert_eq!(publisher.writes, before);
}

#[tokio::test]
async fn counters_that_a_server_drops_later_are_missed_at_once() {
    let (api, mut publisher) = (Memory::default(), synced());
    publisher.publish(&api, &with_counters()).await;
    assert_eq!(pools(&api), ALL);
    api.with(|state| state.no_counters = true);
    let mut changed = with_counters();
    changed[3].devices.pop();
    publisher.publish(&api, &changed).await;
    assert_eq!(pools(&api), ["n1/vgpu", "n1/vgpu-monitor"]);
}
