//! Gangs: pods that get devices together or not at all.

use serde_json::{Value, json};
use vgpu_planner::{Change, Read};

use crate::desk::{Desk, kinds, read, said, slice};

#[test]
fn a_gang_gets_all_or_nothing() {
    let gang = |size: &str| json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": size}}});
    let mut desk = Desk::new(2);
    for name in ["a", "b", "c"] {
        desk.fraction(name, 8);
    }
    desk.pod("a", &["a"], gang("2"));
    let (writes, verdicts) = desk.settle();
    assert_eq!((kinds(&writes), said(&verdicts)), (vec!["mark"; 3], vec!["GangWaits"]));
    desk.pod("b", &["b"], gang("2"));
    assert_eq!(kinds(&desk.settle().0), ["allocate", "allocate"]);
    desk.now += 30_000;
    desk.tell(Change::NodeGone { name: "n1".into() });
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["clear", "clear"], "one node is too small for both");
    assert!(said(&verdicts).contains(&"GangWaits"));
    desk.pod("c", &["c"], gang("3"));
    assert!(said(&desk.settle().1).contains(&"GangSize"));
}

#[test]
fn a_pod_with_gates_waits_and_its_gang_with_it() {
    let gated = |gang: bool, gates: usize| {
        let gates: Vec<Value> = (0..gates).map(|_| json!({"name": "quota"})).collect();
        let annotations = match gang {
            true => json!({"dra.vgpu/gang": "g", "dra.vgpu/gang-size": "2"}),
            false => json!({}),
        };
        json!({"metadata": {"annotations": annotations}, "spec": {"schedulingGates": gates}})
    };
    let mut desk = Desk::new(2);
    for name in ["a", "b", "alone"] {
        desk.fraction(name, 3);
    }
    desk.pod("alone", &["alone"], gated(false, 1));
    desk.pod("a", &["a"], gated(true, 0));
    desk.pod("b", &["b"], gated(true, 1));
    let (writes, verdicts) = desk.settle();
    assert_eq!(kinds(&writes), ["mark"; 3]);
    let [(_, verdict)] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    assert_eq!(
        verdict.to_string(),
        "gang g has 1 of 2 pods, and 1 more with spec.schedulingGates"
    );
    desk.pod("alone", &["alone"], gated(false, 0));
    assert_eq!(kinds(&desk.settle().0), ["allocate"]);
    desk.pod("b", &["b"], gated(true, 0));
    assert_eq!(kinds(&desk.settle().0), ["allocate"; 2]);
}

/// A member of gang g with this size that can only run on these nodes.
fn member(size: usize, nodes: &[usize]) -> Value {
    let term =
        |at: &usize| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [format!("n{at}")]}]});
    let terms = json!({"nodeSelectorTerms": nodes.iter().map(term).collect::<Vec<_>>()});
    json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": size.to_string()}},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}})
}

/// Returns true if each member can have its own node; tries everything.
fn can_be_matched(wanted: &[Vec<usize>], taken: &mut Vec<usize>) -> bool {
    let Some(nodes) = wanted.get(taken.len()) else {
        return true;
    };
    nodes.iter().any(|node| {
        if taken.contains(node) {
            return false;
        }
        taken.push(*node);
        let fits = can_be_matched(wanted, taken);
        taken.pop();
        fits
    })
}

#[test]
fn a_gang_of_four_on_four_nodes_gets_places_whenever_there_are() {
    let (mut fitted, mut greedy) = (0, 0);
    for seed in 0..120_u64 {
        // Each member can go to two nodes or one.
        let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let node = |at: u32| (bits >> (16 + 2 * at) & 3) as usize;
        let wanted: Vec<Vec<usize>> = (0..4).map(|at| vec![node(2 * at), node(2 * at + 1)]).collect();
        let mut desk = Desk::new(4);
        for (at, nodes) in wanted.iter().enumerate() {
            let name = format!("m{at}");
            desk.fraction(&name, 8);
            desk.pod(&name, &[&name], member(4, nodes));
        }
        let (writes, verdicts) = desk.settle();
        let allocated = kinds(&writes).iter().filter(|kind| **kind == "allocate").count();
        let expected = can_be_matched(&wanted, &mut Vec::new());
        assert_eq!(allocated, if expected { 4 } else { 0 }, "{wanted:?}");
        assert_eq!(said(&verdicts).is_empty(), expected, "{wanted:?}");
        fitted += usize::from(expected);
        let mut taken = Vec::new();
        for nodes in &wanted {
            let mut nodes = nodes.clone();
            nodes.sort_unstable();
            taken.extend(nodes.into_iter().find(|node| !taken.contains(node)));
        }
        greedy += usize::from(taken.len() == 4);
    }
    assert!(
        fitted < 120 && greedy + 10 < fitted,
        "{fitted} fit, {greedy} one by one: it tests little"
    );
}

#[test]
fn a_gang_reads_all_its_slices_at_once() {
    let mut desk = Desk::new(6);
    desk.now += 10_000;
    for at in 0..6 {
        let name = format!("m{at}");
        desk.fraction(&name, 8);
        desk.pod(&name, &[&name], member(6, &[0, 1, 2, 3, 4, 5]));
    }
    let marks = desk.plan();
    for write in &marks.writes {
        desk.perform(write);
    }
    let reads = desk.plan().reads;
    assert_eq!(reads.len(), 6, "{reads:?}");
    for wanted in reads {
        let Read::Slice(name) = wanted else { panic!("a list") };
        let slice = read(slice(name[1..].parse().unwrap()));
        let read = Some(desk.time());
        desk.tell(Change::Slice { slice, read });
    }
    assert_eq!(kinds(&desk.plan().writes), ["allocate"; 6]);
}

#[test]
fn a_gang_that_does_not_fit_is_not_searched_for_all_the_time() {
    let mut desk = Desk::new(3);
    for at in 0..8 {
        let name = format!("m{at}");
        desk.fraction(&name, 8);
        desk.pod(&name, &[&name], member(8, &[0, 1, 2][at % 2..]));
    }
    let (writes, verdicts) = desk.settle();
    assert_eq!((kinds(&writes), said(&verdicts)), (vec!["mark"; 8], vec!["GangWaits"]));
    let wake = desk.plan().wake.expect("it is searched for again");
    assert!(wake.millis() > desk.now + 100, "{wake:?}");
}
