//! Pods for which finding a place takes long.

use serde_json::{Value, json};

use crate::desk::{Desk, said};

/// Only the last two GPUs share a value, which the search finds only after trying everything else.
fn owns(gpus: i64) -> impl Iterator<Item = i64> {
    (0..gpus).map(move |at| at.min(gpus - 2))
}

#[test]
fn a_place_that_takes_long_to_find_is_taken() {
    let mut desk = Desk::new(1);
    desk.publish("hard", 0, owns(28));
    desk.pair("c", 4, [0, 3]);
    desk.pod("p", &["c"], json!({}));
    let begin = desk.now;
    let verdicts = desk.wait_for(&["c"], 300_000);
    assert_eq!(said(&verdicts), ["NoAnswerInTime"]);
    let paused = desk.now - begin;
    assert!(
        paused >= 7_000,
        "after {paused} ms, it takes less than 250,000 steps and tests little"
    );
}

/// A member of a gang of two that can only run on this node.
fn member(node: usize) -> Value {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [format!("n{node}")]}]});
    json!({"metadata": {"annotations": {"dra.vgpu/gang": "g", "dra.vgpu/gang-size": "2"}},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term]}}}}})
}

#[test]
fn a_gang_of_which_two_take_long_gets_its_places() {
    let mut desk = Desk::new(2);
    for (node, name) in ["a", "b"].into_iter().enumerate() {
        desk.publish(&format!("hard-{name}"), node, owns(18));
        desk.pair(name, 4, [0, 3]);
        desk.pod(name, &[name], member(node));
    }
    let mut told = Vec::new();
    for _ in 0..60 {
        // Something changes all the time.
        desk.list();
        told.extend(desk.settle().1);
        desk.now += 500;
    }
    let waits = "gang g does not fit as a whole: no answer was found in time";
    let is_told = told.iter().any(|(_, verdict)| verdict.to_string().starts_with(waits));
    assert!(is_told, "it is found at once and tests little: {told:?}");
    assert!(desk.node_of("a").is_some() && desk.node_of("b").is_some());
}

#[test]
fn what_is_looked_at_for_many_pods_ends_a_round_and_all_have_their_turn() {
    let mut desk = Desk::new(1);
    for at in 0..2_000 {
        desk.pod(&format!("bound-{at}"), &[], json!({"spec": {"nodeName": "n0"}}));
    }
    // For each of these, all bound pods are checked, and no node fits.
    let term = json!({"topologyKey": "nowhere", "labelSelector": {"matchLabels": {"app": "x"}}});
    let minds =
        json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
    for at in 0..400 {
        let name = format!("p{at}");
        desk.fraction(&name, 1);
        desk.pod(&name, &[&name], minds.clone());
    }
    desk.fraction("z", 8);
    desk.pod("z", &["z"], json!({}));
    for write in desk.plan().writes {
        desk.perform(&write);
    }
    let first = desk.plan();
    assert!(
        !first.verdicts.is_empty() && first.verdicts.len() < 400,
        "{}",
        first.verdicts.len()
    );
    assert_eq!(first.wake, Some(desk.time()), "it goes on");
    let mut verdicts = first.verdicts;
    for _ in 0..10 {
        let plan = desk.plan();
        for write in &plan.writes {
            desk.perform(write);
        }
        verdicts.extend(plan.verdicts);
        if plan.wake != Some(desk.time()) {
            break;
        }
    }
    assert_eq!(said(&verdicts), ["NoNodeFits"; 400], "each is told once");
    assert!(desk.node_of("z").is_some());
    // An allocation is a change: all pods have their turn once more, and then nothing is left to do.
    let now = desk.time();
    let more = (0..10).map(|_| desk.plan()).find(|plan| plan.wake > Some(now));
    assert!(more.is_some_and(|plan| plan.writes.is_empty()));
}
