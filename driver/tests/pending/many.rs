//! Many pods, and many nodes.

use serde_json::{Value, json};
use vgpu_planner::Change;
use vgpu_planner::explain::{Answer, MOST_TURNS, Question, message};
use vgpu_planner::model::Pod;

use crate::world::{World, claims_of, exactly, gpu};

/// A cluster of `nodes` nodes whose GPUs are full, and pods that wait for `asks` different things.
fn crowd(nodes: usize, pods: usize, asks: usize) -> World {
    let mut world = World::bare();
    for at in 0..nodes {
        let node = format!("n{at:04}");
        world.node(&node);
        let mut full = gpu("gpu-0000000a");
        full["capacity"]["memory"]["value"] = "1Gi".into();
        world.slice(&node, 1, 1, json!([full]));
    }
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    for at in 0..pods {
        let memory = format!("{}Gi", 2 + at % asks);
        world.claim(
            &format!("c{at}"),
            exactly("vgpu", json!({"memory": memory})),
            Value::Null,
        );
        let pod = json!({"metadata": {"name": format!("p{at}"), "namespace": "default"},
            "spec": claims_of(&[&format!("c{at}")]), "status": {"conditions": conditions}});
        world.set_pod(&pod);
    }
    world
}

#[test]
fn pods_that_ask_alike_share_an_answer_that_names_each() {
    let mut world = crowd(3, 10, 2);
    world.look();
    assert_eq!(world.answers.len(), 2);
    let mut texts: Vec<String> = world
        .state
        .pods()
        .map(|pod| message(pod, &world.state, &world.answers).unwrap().text)
        .collect();
    texts.sort();
    for (at, text) in texts.iter().enumerate() {
        let asked = format!(
            "claim default/c{at}, request gpu: asked for memory {}Gi, cores 0; no GPU of the cluster that matches has \
             more memory than 1Gi, ",
            2 + at % 2
        );
        assert!(text.starts_with(&asked), "{text}");
        assert!(text.ends_with(&format!("pod/p{at} -n default")), "{text}");
    }
    // No pod waits any more.
    let pods: Vec<_> = world.state.pods().map(Pod::key).collect();
    for key in pods {
        world.apply(Change::PodGone { key });
    }
    world.look();
    assert!(world.answers.is_empty());
}

#[test]
fn answers_are_given_in_turns_and_again_only_when_something_has_changed() {
    let mut world = crowd(30, 4, 4);
    world.answers.update_queue(&world.state);
    // One node per turn: after the turns of each shape, the answer is based on the nodes checked so far.
    let mut turns = 0;
    while !world.answers.work(&mut world.state, &mut || false) {
        turns += 1;
        assert!(turns < 1000, "it ends");
    }
    assert_eq!(turns + 1, 4 * MOST_TURNS);
    let pod = world.state.pods().next().unwrap().clone();
    let text = message(&pod, &world.state, &world.answers).unwrap().text;
    assert!(
        text.contains(&format!("; {MOST_TURNS} of 32 nodes were looked at; every device: ")),
        "{text}"
    );
    let shape = Question::of(&pod, &world.state).unwrap().shape;

    // Nothing has changed, so no node is checked.
    let mut looks = 0;
    let mut counted = |world: &mut World| {
        world.answers.update_queue(&world.state);
        let before = looks;
        assert!(world.answers.work(&mut world.state, &mut || {
            looks += 1;
            true
        }));
        looks - before
    };
    assert_eq!(counted(&mut world), 0);
    world.node("n0001");
    assert_eq!(counted(&mut world), 0, "a heartbeat is no change");
    world.share("another", "gpu-elsewhere", "1Gi", "0");
    assert!(counted(&mut world) >= 4 * 31, "now all nodes are");
    assert!(matches!(
        world.answers.get(&pod, &shape),
        Some(Answer::Not {
            looked_at: 32,
            nodes: 32,
            ..
        })
    ));
}
