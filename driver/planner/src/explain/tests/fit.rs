//! How many pods of a workload fit.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vgpu_allocator::offline::Options;

use super::super::*;
use super::objects::{claim, class, gpu, node, objects, slice};

/// Two nodes of 80 GiB.
fn cluster() -> Vec<Value> {
    vec![
        node("n1"),
        node("n2"),
        class(),
        slice("n1", [gpu("a", "80Gi")]),
        slice("n2", [gpu("a", "80Gi")]),
    ]
}

fn workload(pods: usize, memory: &[&str]) -> Workload {
    let specs = memory.iter().enumerate().map(|(at, memory)| {
        let spec = claim("c", json!({"capacity": {"requests": {"memory": memory}}}))["spec"].take();
        (format!("c{at}"), serde_json::from_value(spec).unwrap())
    });
    Workload {
        namespace: "ns".to_owned(),
        pods,
        claims: specs.collect(),
    }
}

fn fit_of(all: Vec<Value>, workload: &Workload) -> Fit {
    fit(&objects(all), workload, &Options::default(), Time::default()).unwrap()
}

fn on(nodes: &[(&str, usize)]) -> BTreeMap<String, usize> {
    nodes.iter().map(|(node, pods)| ((*node).to_owned(), *pods)).collect()
}

#[test]
fn pods_are_counted_until_no_node_has_room() {
    let found = fit_of(cluster(), &workload(20, &["30Gi"]));
    assert_eq!((found.fits, found.nodes), (4, on(&[("n1", 2), ("n2", 2)])));
    let said = found.summary.join(" ");
    assert!(said.contains("would fit: memory 20Gi"), "{said}");
    let found = fit_of(cluster(), &workload(3, &["30Gi"]));
    assert_eq!((found.fits, found.summary), (3, Vec::new()));
    assert_eq!(found.nodes, on(&[("n1", 2), ("n2", 1)]));
}

#[test]
fn the_claims_of_a_pod_are_on_one_node() {
    let found = fit_of(cluster(), &workload(4, &["50Gi", "20Gi"]));
    assert_eq!((found.fits, found.nodes), (2, on(&[("n1", 1), ("n2", 1)])));
}

#[test]
fn what_never_fits_and_nodes_that_are_not_ready_are_said() {
    let found = fit_of(cluster(), &workload(1, &["100Gi"]));
    assert_eq!(found.fits, 0);
    assert!(found.summary.join(" ").contains("never fits"), "{:?}", found.summary);
    let mut all = cluster();
    all[0]["spec"] = json!({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]});
    assert_eq!(fit_of(all, &workload(4, &["30Gi"])).nodes, on(&[("n2", 2)]));
}
