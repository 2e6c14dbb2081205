use proptest::prelude::*;
use serde_json::{Value, json};

use super::choose::Question;
use super::*;
use crate::budget::Budget;
use crate::explain::Answer;
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn slice(node: usize, sizes: &[u8]) -> ResourceSlice {
    let gpus: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| gpu(index, *size))
        .collect();
    read(json!({"metadata": {"name": format!("s{node}")}, "spec": {
        "driver": "drv", "nodeName": format!("n{node}"), "pool": {"name": format!("p{node}"), "resourceSliceCount": 1},
        "devices": gpus,
    }}))
}

fn gpu(index: usize, size: u8) -> Value {
    json!({"name": format!("gpu-{index}"), "allowMultipleAllocations": true, "attributes": {"model": {"int": size % 2}}, "capacity": {
        "memory": {"value": size, "requestPolicy": {"default": "1", "validRange": {"min": "1"}}},
        "cores": {"value": 10, "requestPolicy": {"default": "0", "validRange": {"min": "0"}}},
    }})
}

fn stray(size: u8) -> ResourceSlice {
    read(json!({"metadata": {"name": "net"}, "spec": {
        "driver": "drv", "allNodes": true, "pool": {"name": "net", "resourceSliceCount": 1}, "devices": [gpu(9, size)],
    }}))
}

fn node(index: usize) -> Node {
    read(json!({"metadata": {"name": format!("n{index}")}}))
}

/// `first`: memory of an alternative that is tried before the one with `memory`; `None` for an exact request.
fn claim(name: usize, first: Option<u8>, memory: u8, cores: u8, count: u8, model: u8) -> ResourceClaim {
    let selectors = match model {
        0 | 1 => json!([{"cel": {"expression": format!("device.attributes[\"drv\"].model == {model}")}}]),
        _ => json!([]),
    };
    let ask = |name: &str, memory: u8| {
        json!({"name": name, "deviceClassName": "gpu", "count": count, "selectors": selectors,
            "capacity": {"requests": {"memory": memory, "cores": cores}}})
    };
    let request = match first {
        Some(first) => json!({"name": "r", "firstAvailable": [ask("a", first), ask("b", memory)]}),
        None => json!({"name": "r", "exactly": ask("", memory)}),
    };
    read(json!({"metadata": {"name": format!("c{name}")}, "spec": {"devices": {"requests": [request]}}}))
}

/// An event in a cluster.
#[derive(Debug, Clone)]
enum Step {
    Allocate {
        first: Option<u8>,
        memory: u8,
        cores: u8,
        count: u8,
        model: u8,
        policy: usize,
    },
    Release(usize),
    Republish(usize, Vec<u8>),
    SliceGone(usize),
    NodeGone(usize),
    NodeBack(usize),
    /// A device that every node can use, of a model that some claims want.
    Stray(u8),
    StrayGone,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::option::of(1..9u8), 1..8u8, 0..6u8, 1..3u8, 0..4u8, 0..6usize)
            .prop_map(|(first, memory, cores, count, model, policy)| Step::Allocate { first, memory, cores, count, model, policy }),
        // Equal claims, so that the stored comparison with the last one is used.
        4 => (0..6usize).prop_map(|policy| Step::Allocate { first: None, memory: 2, cores: 1, count: 1, model: 2, policy }),
        3 => (0..20usize).prop_map(Step::Release),
        1 => (0..4usize, prop::collection::vec(1..12u8, 0..4)).prop_map(|(node, sizes)| Step::Republish(node, sizes)),
        1 => (0..4usize).prop_map(Step::SliceGone),
        1 => (0..4usize).prop_map(Step::NodeGone),
        1 => (0..4usize).prop_map(Step::NodeBack),
        1 => (2..12u8).prop_map(Step::Stray),
        1 => Just(Step::StrayGone),
    ]
}

/// Returns true if no device gives more than it has.
fn is_sound(index: &Index) -> bool {
    index.inventory.all().all(|slice| {
        slice.spec.devices.iter().all(|device| {
            let usage = index.allocated.usage("drv", &slice.spec.pool.name, &device.name);
            let used = usage.and_then(|usage| usage.consumed().get("memory").cloned());
            used.unwrap_or_default() <= device.capacity.get("memory").unwrap().value
        })
    })
}

/// Returns true if the sums of free capacity equal those computed from every device.
fn adds_up(index: &Index) -> bool {
    let mut sum = Free::default();
    for slice in index.inventory.all().filter(|slice| slice.spec.node_name.is_some()) {
        for device in &slice.spec.devices {
            let usage = index.allocated.usage("drv", &slice.spec.pool.name, &device.name);
            sum.replace(Free::default(), Free::of(device, "drv", usage));
        }
    }
    index.free("drv") == sum
}

/// A small number, unless PROPTEST_CASES sets it.
fn cases() -> u32 {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default().cases,
        None => 64,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// After any sequence of events, the free index and stored comparisons agree with a comparison of every node, and
    /// nothing is allocated twice.
    #[test]
    fn the_index_agrees_with_a_look_at_everything(steps in prop::collection::vec(step(), 1..40)) {
        let mut index = Index::new(Features::default());
        let mut cache = SelectorCache::default();
        index.set_class(read(json!({"metadata": {"name": "gpu"}})));
        for at in 0..4 {
            index.set_node(node(at));
            index.set_slice(slice(at, &[4, 8, 8]));
        }
        let mut held: Vec<ResourceClaim> = Vec::new();
        let mut grown = false;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate { first, memory, cores, count, model, policy } => {
                    let mut claim = claim(number, first, memory, cores, count, model);
                    let policy = AllocationPolicy::ALL[policy];
                    let one = index.allocate(&[&claim], policy, &mut cache, &mut || "s".into());
                    let kept = std::mem::take(&mut index.rankings);
                    let all = index.by_rank(Question {
                        claims: &[&claim],
                        policy,
                        allowed: &mut |_| true,
                        budget: &mut Budget::default(),
                        cache: &mut cache,
                        share_id: &mut || "s".into(),
                    });
                    index.rankings = kept;
                    prop_assert_eq!(&one, &all);
                    if let Some(placement) = one.unwrap() {
                        claim.status.allocation = placement.allocations.into_iter().next().map(Arc::new);
                        index.set_claim(&claim.key(), claim.status.allocation.as_ref());
                        held.push(claim);
                    }
                }
                Step::Release(at) if !held.is_empty() => {
                    let claim = held.swap_remove(at % held.len());
                    index.remove_claim(&claim.key());
                }
                Step::Release(_) => {}
                // A driver that shrinks a device in use overdraws it itself.
                Step::Republish(at, sizes) => {
                    grown |= !held.is_empty();
                    index.set_slice(slice(at, &sizes));
                }
                Step::SliceGone(at) => index.remove_slice(&format!("s{at}")),
                Step::NodeGone(at) => index.remove_node(&format!("n{at}")),
                Step::NodeBack(at) => index.set_node(node(at)),
                Step::Stray(size) => {
                    grown |= !held.is_empty();
                    index.set_slice(stray(size));
                }
                Step::StrayGone => index.remove_slice("net"),
            }
            prop_assert!(grown || is_sound(&index));
            prop_assert!(adds_up(&index));
        }
        for claim in held {
            index.remove_claim(&claim.key());
        }
        prop_assert!(index.claims.is_empty());
    }
}

#[test]
fn other_policies_and_network_devices_are_answered_too() {
    let mut index = Index::new(Features::default());
    index.set_class(read(json!({"metadata": {"name": "gpu"}})));
    for at in 0..2 {
        index.set_node(node(at));
        index.set_slice(slice(at, &[4, 8]));
    }
    let mut cache = SelectorCache::default();
    let claim = claim(0, None, 2, 0, 1, 2);
    let mut place = |index: &mut Index, policy| {
        let placement = index
            .allocate(&[&claim], policy, &mut cache, &mut || "s".into())
            .unwrap()
            .unwrap();
        (
            placement.node,
            placement.allocations[0].devices.results[0].device.clone(),
        )
    };
    assert_eq!(
        place(&mut index, AllocationPolicy::Binpack),
        ("n0".to_owned(), "gpu-0".to_owned())
    );
    assert_eq!(
        place(&mut index, AllocationPolicy::Spread),
        ("n0".to_owned(), "gpu-1".to_owned())
    );
    index.set_slice(stray(3));
    assert_eq!(
        place(&mut index, AllocationPolicy::Binpack),
        ("n0".to_owned(), "gpu-9".to_owned())
    );
    index.remove_slice("net");
    index.remove_node("n0");
    assert_eq!(
        place(&mut index, AllocationPolicy::Binpack),
        ("n1".to_owned(), "gpu-0".to_owned())
    );
    let rule = json!({"spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "k", "effect": "NoSchedule"}}});
    index.set_rules(vec![read(rule)]);
    assert_eq!(
        place(&mut index, AllocationPolicy::Binpack),
        ("n1".to_owned(), "gpu-1".to_owned())
    );
}

#[test]
fn a_node_is_answered_for_and_what_changes_nothing_is_no_news() {
    let mut index = Index::new(Features::default());
    let mut cache = SelectorCache::default();
    type Change = Box<dyn FnOnce(&mut Index)>;
    let changes = || -> [Change; 5] {
        let mut held = claim(1, None, 6, 0, 1, 2);
        let result = json!({"request": "r", "driver": "drv", "pool": "p0", "device": "gpu-1", "shareID": "s",
            "consumedCapacity": {"memory": "6", "cores": "0"}});
        held.status = read(json!({"allocation": {"devices": {"results": [result]}}}));
        let rule =
            json!({"spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "k", "effect": "NoSchedule"}}});
        [
            Box::new(|index| index.set_class(read(json!({"metadata": {"name": "gpu"}})))),
            Box::new(|index| index.set_node(node(0))),
            Box::new(|index| index.set_slice(slice(0, &[4, 8]))),
            Box::new(move |index| index.set_claim(&held.key(), held.status.allocation.as_ref())),
            Box::new(|index| index.set_rules(vec![read(rule)])),
        ]
    };
    for change in changes() {
        let before = index.version();
        change(&mut index);
        assert!(index.version() > before);
    }
    let version = index.version();
    changes().into_iter().for_each(|change| change(&mut index));
    index.set_claim("c2", None);
    index.remove_claim("c2");
    index.remove_slice("s7");
    assert_eq!(index.version(), version, "all of it was known, or holds nothing");

    let large = claim(2, None, 4, 0, 1, 2);
    let Ok(Some(Answer::Not(why))) = index.answer(&[&large], "n0", 30_000, &mut cache) else {
        panic!("4 of 2 are free");
    };
    let said: Vec<_> = why.reasons.iter().map(|reason| reason.message.as_str()).collect();
    assert_eq!(
        said,
        ["taint k:NoSchedule is not tolerated", "memory: 4 wanted, 2 of 8 free"]
    );
    assert_eq!(why.reasons[1].holders, ["c1".into()]);
    assert_eq!(why.reasons[1].shortages[0].total, "8".parse().unwrap());
    let small = claim(2, None, 2, 0, 1, 2);
    assert!(matches!(
        index.answer(&[&small], "n0", 30_000, &mut cache),
        Ok(Some(Answer::Fits(_)))
    ));
    assert_eq!(index.answer(&[&small], "n1", 30_000, &mut cache), Ok(None));
    index.remove_claim("c1");
    assert!(index.version() > version);
}

#[test]
fn nodes_that_are_not_allowed_are_passed_over() {
    let mut index = Index::new(Features::default());
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [
        {"cel": {"expression": "device.attributes['drv'].model == 0"}}]}});
    index.set_class(read(class));
    for at in 0..3 {
        index.set_node(node(at));
        index.set_slice(slice(at, &[8, 7]));
    }
    let mut cache = SelectorCache::default();
    let claim = claim(0, None, 2, 0, 1, 2);
    for policy in AllocationPolicy::ALL {
        let mut asked = Vec::new();
        let mut allowed = |node: &str| {
            asked.push(node.to_owned());
            node == "n2"
        };
        let placed = index.allocate_where(&[&claim], policy, &mut allowed, &mut cache, &mut || "s".into());
        assert_eq!(placed.unwrap().unwrap().node, "n2", "{policy:?}");
        asked.sort_unstable();
        assert_eq!(asked, ["n0", "n1", "n2"], "{policy:?}: each is asked about once");
        let none = index.allocate_where(&[&claim], policy, &mut |_| false, &mut cache, &mut || "s".into());
        assert_eq!(none, Ok(None));
    }
    assert_eq!(index.devices_of_class("gpu", "s1", &mut cache), [true, false]);
    assert_eq!(index.devices_of_class("gpu", "gone", &mut cache), [false; 0]);
}

/// Nine requests of which the last two must share an attribute value, which no two devices do: on each node the search
/// takes millions of steps.
fn without_end(name: &str) -> ResourceClaim {
    let pair = |at: usize| json!({"name": format!("r{at}"), "exactly": {"deviceClassName": "gpu"}});
    let requests: Vec<Value> = (0..9).map(pair).collect();
    let constraints = json!([{"requests": ["r7", "r8"], "matchAttribute": "drv/own"}]);
    read(json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}))
}

fn large_cluster(nodes: usize) -> Index {
    let mut index = Index::new(Features::default());
    index.set_class(read(json!({"metadata": {"name": "gpu"}})));
    for at in 0..nodes {
        index.set_node(node(at));
        let gpus: Vec<Value> = (0..16)
            .map(|gpu| json!({"name": format!("gpu-{gpu}"), "attributes": {"own": {"int": gpu}}}))
            .collect();
        index.set_slice(read(json!({"metadata": {"name": format!("s{at}")}, "spec": {"driver": "drv",
            "nodeName": format!("n{at}"), "pool": {"name": format!("p{at}"), "resourceSliceCount": 1}, "devices": gpus}})));
    }
    index
}

#[test]
fn a_search_without_end_costs_the_same_on_any_number_of_nodes() {
    let mut cache = SelectorCache::default();
    let claim = without_end("c");
    let mut index = large_cluster(40);
    for policy in AllocationPolicy::ALL {
        let mut budget = Budget::new(100_000);
        let mut asked = 0;
        let mut allowed = |_: &str| {
            asked += 1;
            true
        };
        let placed = index.allocate_within(&[&claim], policy, &mut allowed, &mut budget, &mut cache, &mut || {
            "s".into()
        });
        assert!(
            matches!(placed, Err(AllocateError::Exhausted { .. })),
            "{policy:?}: {placed:?}"
        );
        assert!(budget.spent() <= 100_000, "{policy:?}");
        assert!(asked > 10, "{policy:?}: a node takes a part: {asked}");
    }
    let Ok(Some(Answer::Not(why))) = index.answer(&[&claim], "n0", 30_000, &mut cache) else {
        panic!("an answer says that there is none");
    };
    assert!(
        why.reasons[0].message.starts_with("no answer after 30000 steps"),
        "{why:?}"
    );
}

#[test]
fn a_node_without_an_answer_does_not_hide_one_that_has_it() {
    let mut cache = SelectorCache::default();
    let claim = without_end("c");
    let mut index = large_cluster(3);
    let all_alike: Vec<Value> = (0..16)
        .map(|gpu| json!({"name": format!("gpu-{gpu}"), "attributes": {"own": {"int": 7}}}))
        .collect();
    index.set_slice(read(json!({"metadata": {"name": "s2"}, "spec": {"driver": "drv",
        "nodeName": "n2", "pool": {"name": "p2", "resourceSliceCount": 1}, "devices": all_alike}})));
    for policy in AllocationPolicy::ALL {
        let placed = index.allocate_within(
            &[&claim],
            policy,
            &mut |_| true,
            &mut Budget::new(50_000),
            &mut cache,
            &mut || "s".into(),
        );
        assert_eq!(placed.unwrap().unwrap().node, "n2", "{policy:?}");
    }
}

#[test]
fn selectors_are_paid_for() {
    let mut cache = SelectorCache::default();
    let mut index = large_cluster(8);
    // The expression ends with an error, so its result is not cached.
    let numbers = (0..40).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let costly = format!("[{numbers}].all(a, [{numbers}].all(b, a + b >= 0)) && device.attributes['drv'].nothing == 1");
    let claim: ResourceClaim = read(json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": costly}}]}}]}}}));
    for policy in AllocationPolicy::ALL {
        let mut budget = Budget::new(10_000);
        let placed = index.allocate_within(&[&claim], policy, &mut |_| true, &mut budget, &mut cache, &mut || {
            "s".into()
        });
        assert!(
            matches!(placed, Err(AllocateError::Exhausted { .. })),
            "{policy:?}: {placed:?}"
        );
    }
}
