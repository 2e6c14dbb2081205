use super::*;
use crate::publish::inventory::dynamic::tests::divided;
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{DynamicGpu, Inventory};
use crate::publish::slice::tests::WHOLE;
use crate::publish::slice::{Slice, slices};

pub(crate) fn owner() -> Owner {
    Owner {
        node: "n1".into(),
        node_uid: "node-uid".into(),
        pools: Pools::of("n1"),
    }
}

/// Slices of one GPU each, and one slice of all monitors.
fn wanted(count: u32) -> Vec<Slice> {
    let mut all: Vec<Slice> = (0..count).map(|index| of(index).swap_remove(0)).collect();
    let monitors: Vec<Device> = (0..count).flat_map(|index| of(index).swap_remove(1).devices).collect();
    all.extend((count > 0).then(|| Slice::new("vgpu-monitor", monitors)));
    all
}

/// The slices of a node with one GPU: the GPU's, and its monitor's.
fn of(index: u32) -> Vec<Slice> {
    slices(&Inventory::new(vec![gpu(index)]), WHOLE)
}

/// An API server that carries out a whole plan.
fn done(plan: &Plan, existing: &[ResourceSlice]) -> Vec<ResourceSlice> {
    let uid = |slice: &ResourceSlice| slice.metadata.uid.clone();
    let gone: Vec<_> = plan.delete.iter().chain(&plan.update).map(uid).collect();
    let kept = existing.iter().filter(|slice| !gone.contains(&uid(slice))).cloned();
    let created = plan.create.iter().enumerate().map(|(at, slice)| {
        let mut slice = slice.clone();
        slice.metadata.uid = Some(format!("{}-{at}", slice.spec.pool.generation));
        slice
    });
    kept.chain(plan.update.iter().cloned()).chain(created).collect()
}

fn generations(slices: &[ResourceSlice]) -> Vec<i64> {
    slices.iter().map(|slice| slice.spec.pool.generation).collect()
}

/// Asserts that after one plan nothing is left to do, and the pool is complete.
fn settles(wanted: &[Slice], existing: &[ResourceSlice]) -> Vec<ResourceSlice> {
    let after = done(&plan(&owner(), wanted, existing, &Stored::new()), existing);
    assert!(plan(&owner(), wanted, &after, &Stored::new()).is_empty());
    assert_eq!(after.len(), wanted.len());
    for slice in &after {
        let of_pool = || {
            after
                .iter()
                .filter(|other| other.spec.pool.name == slice.spec.pool.name)
        };
        assert_eq!(slice.spec.pool.resource_slice_count, of_pool().count() as i64);
        assert!(of_pool().all(|other| other.spec.pool.generation == slice.spec.pool.generation));
        for device in devices(slice) {
            assert_eq!(owner().pools.of_device(&device.name), slice.spec.pool.name);
        }
    }
    after
}

#[test]
fn nothing_published_creates_all_with_their_owner() {
    let first = plan(&owner(), &wanted(2), &[], &Stored::new());
    assert_eq!((first.create.len(), first.update.len(), first.delete.len()), (3, 0, 0));
    assert_eq!(generations(&first.create), [1, 1, 1]);
    let slice = &first.create[0];
    assert_eq!(
        slice.metadata.owner_references.as_ref().expect("an owner")[0].uid,
        "node-uid"
    );
    assert_eq!(slice.spec.node_name.as_deref(), Some("n1"));
    settles(&wanted(2), &[]);
}

#[test]
fn one_change_keeps_the_generation_and_more_take_a_new_one() {
    let existing = settles(&wanted(2), &[]);
    let mut changed = wanted(2);
    changed[1].devices[0].attributes = None;
    let one = plan(&owner(), &changed, &existing, &Stored::new());
    assert_eq!((one.update.len(), generations(&one.update)[0]), (1, 1));
    assert_eq!(one.update[0].metadata.uid, existing[1].metadata.uid);
    settles(&changed, &existing);
    changed[0].devices[0].attributes = None;
    let two = plan(&owner(), &changed, &existing, &Stored::new());
    assert_eq!(generations(&two.update), [2, 2]);
    settles(&changed, &existing);
    let grown = plan(&owner(), &wanted(3), &existing, &Stored::new());
    assert_eq!((grown.update.len(), grown.create.len()), (3, 1));
    settles(&wanted(3), &existing);
    let shrunk = plan(&owner(), &wanted(1), &existing, &Stored::new());
    assert_eq!((shrunk.update.len(), shrunk.delete.len()), (2, 1));
    settles(&wanted(1), &existing);
    assert_eq!(settles(&[], &existing), []);
}

#[test]
fn a_wiped_slice_is_created_again() {
    let existing = settles(&wanted(2), &[]);
    settles(&wanted(2), &existing[1..]);
    settles(&wanted(2), &[]);
}

#[test]
fn older_generations_other_pools_and_doubles_go() {
    let existing = settles(&wanted(1), &[]);
    let mut old = existing[0].clone();
    (old.spec.pool.generation, old.metadata.uid) = (0, Some("old".into()));
    let mut other = existing[0].clone();
    (other.spec.pool.name, other.metadata.uid) = ("n1".into(), Some("other".into()));
    let all = [&existing[..], &[old, other]].concat();
    let cleaned = plan(&owner(), &wanted(1), &all, &Stored::new());
    assert_eq!(
        (cleaned.delete.len(), cleaned.update.len(), cleaned.create.len()),
        (2, 0, 0)
    );
    let mut double = existing[0].clone();
    double.metadata.uid = Some("double".into());
    settles(&wanted(1), &[&existing[..], &[double]].concat());
}

#[test]
fn what_the_server_writes_differently_is_adopted() {
    let existing = settles(&wanted(1), &[]);
    let mut answers = existing;
    answers[0].spec.devices.as_mut().expect("devices")[0].binds_to_node = Some(false);
    let again = plan(&owner(), &wanted(1), &answers, &Stored::new());
    assert_eq!(again.update.len(), 1, "not known yet");
    let mut stored = Stored::new();
    learn(&mut stored, &again.update[0], &answers[0]);
    assert!(plan(&owner(), &wanted(1), &answers, &stored).is_empty());
}

/// As an instance from before the monitors had a pool of their own published it.
#[test]
fn a_pool_with_gpus_and_monitors_is_split() {
    let both: Vec<Device> = wanted(2).into_iter().flat_map(|slice| slice.devices).collect();
    let mixed = slice(&owner(), "n1/vgpu", &Slice::new("vgpu", both.clone()), 4, 1);
    let existing = [mixed];
    // While the driver is silent, the devices are written back as they are.
    let used = used_slices(&owner(), &existing).expect("whole");
    assert!(plan(&owner(), &used, &existing, &Stored::new()).is_empty());
    let split = [
        Slice::new("vgpu", both[..2].to_vec()),
        Slice::new("vgpu-monitor", both[2..].to_vec()),
    ];
    let steps = plan(&owner(), &split, &existing, &Stored::new());
    assert_eq!(generations(&steps.update), [4], "the GPUs are never gone");
    assert_eq!(generations(&steps.create), [1]);
    settles(&split, &existing);
}

/// Each GPU on which claims make instances has a pool of its own, whose generation is no other pool's.
#[test]
fn a_pool_with_counters_is_planned_as_the_others_and_read_back_while_the_driver_is_silent() {
    let dynamic = vec![divided(&[], &[])];
    let inventory = Inventory::new(vec![gpu(1)]).with_dynamic(dynamic, BTreeMap::new());
    let wanted = slices(&inventory, WHOLE);
    let existing = settles(&wanted, &[]);
    let pools: BTreeSet<&str> = existing.iter().map(|slice| slice.spec.pool.name.as_str()).collect();
    assert_eq!(
        pools,
        BTreeSet::from(["n1/vgpu", "n1/vgpu-mig-3f8a1c20", "n1/vgpu-monitor"])
    );
    let mut used = used_slices(&owner(), &existing).expect("whole");
    used.sort_by_key(|slice| wanted.iter().position(|other| other == slice));
    assert_eq!(used, wanted);
    // One counter fewer is one update; one of two slices gone, and the pool is written anew.
    let mut changed = wanted.clone();
    changed[2].counters[0].counters.remove("ofa");
    let one = plan(&owner(), &changed, &existing, &Stored::new());
    assert_eq!((one.update.len(), one.create.len(), one.delete.len()), (1, 0, 0));
    let without: Vec<ResourceSlice> = existing
        .iter()
        .filter(|slice| counters(slice).is_empty())
        .cloned()
        .collect();
    assert_eq!(used_slices(&owner(), &without), None, "a pool that is not whole");
    settles(&wanted, &without);
    // The feature is switched off: the pool goes.
    settles(&wanted[..2], &existing);
}

#[test]
fn a_pool_of_which_nothing_is_known_stays_with_a_taint_and_no_other_one_has_it() {
    let with = |dynamic| {
        slices(
            &Inventory::new(vec![gpu(1)]).with_dynamic(vec![dynamic], BTreeMap::new()),
            WHOLE,
        )
    };
    let before = settles(&with(divided(&[], &[])), &[]);
    let unsurveyed = with(DynamicGpu {
        gpu: gpu(0),
        ..DynamicGpu::default()
    });
    let wanted = |existing: &[ResourceSlice]| with_kept(&owner(), &unsurveyed, existing);
    let after = settles(&wanted(&before), &before);
    let all_counters = |slices: &[ResourceSlice]| slices.iter().flat_map(counters).cloned().collect::<Vec<_>>();
    assert_eq!(all_counters(&after), all_counters(&before));
    let (mut silent, mut others) = (0, 0);
    for device in after.iter().flat_map(devices) {
        let keys: Vec<&str> = device.taints.iter().flatten().map(|taint| taint.key.as_str()).collect();
        match device.consumes_counters.is_some() {
            true => assert_eq!(keys, ["dra.vgpu/silent"]),
            false => assert_eq!(keys, [""; 0]),
        }
        *(if keys.is_empty() { &mut others } else { &mut silent }) += 1;
    }
    assert_eq!((silent, others), (25, 2));
    assert!(plan(&owner(), &wanted(&after), &after, &Stored::new()).is_empty());
    assert_eq!(wanted(&[]).len(), 2, "kubelet has deleted the slices");
    settles(&with(divided(&[], &[])), &after);
}

proptest::proptest! {
    /// From any state, one plan leads to the wanted one.
    #[test]
    fn any_state_settles(have in 0u32..6, lost in proptest::collection::vec(0usize..6, 0..4), want in 0u32..6) {
        let mut existing = settles(&wanted(have), &[]);
        for at in lost {
            if at < existing.len() {
                existing.remove(at);
            }
        }
        settles(&wanted(want), &existing);
    }
}
