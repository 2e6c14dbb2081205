//! Devices that take memory of their node (KEP-5517): kube-scheduler would refuse a node that lacks it.

use serde_json::{Value, json};
use vgpu_planner::Change;

use super::desk::{Desk, read, said, slice};

/// Nodes n0 with 100Mi and n1 with 200Mi. If `takes`, each container with a share takes 8Mi of its node.
fn desk(takes: bool) -> Desk {
    let mut desk = Desk::new(2);
    for (at, memory) in ["100Mi", "200Mi"].iter().enumerate() {
        let (name, allocatable) = (format!("n{at}"), json!({"cpu": "8", "memory": memory}));
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}});
        desk.tell(Change::Node(read(node)));
        let mut slice = slice(at);
        if takes {
            slice["spec"]["devices"][0]["nodeAllocatableResources"] =
                json!({"memory": {"overhead": {"perContainer": "8Mi"}}});
        }
        desk.published.insert(format!("s{at}"), slice);
        desk.answer(&format!("s{at}"));
    }
    desk.list();
    desk
}

/// A pod that requests memory, and of which so many containers name its claim.
fn pod(desk: &mut Desk, name: &str, memory: &str, containers: usize, more: Value) {
    desk.fraction(name, 1);
    let container = |_| json!({"resources": {"claims": [{"name": name}]}});
    let mut containers: Vec<Value> = (0..containers).map(container).collect();
    containers.push(json!({"resources": {"requests": {"memory": memory}}}));
    let mut spec = json!({"containers": containers});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    desk.pod(name, &[name], json!({"spec": spec}));
    desk.settle();
}

fn node(desk: &Desk, claim: &str) -> String {
    desk.node_of(claim).expect("it is allocated")
}

#[test]
fn a_pod_needs_the_memory_of_its_devices_too() {
    for (takes, memory, containers, expected) in [
        (false, "100Mi", 2, "n0"),
        (true, "84Mi", 2, "n0"),
        (true, "85Mi", 2, "n1"),
        (true, "92Mi", 1, "n0"),
        (true, "93Mi", 1, "n1"),
        (true, "100Mi", 0, "n0"),
    ] {
        let mut desk = desk(takes);
        pod(&mut desk, "p", memory, containers, json!({}));
        assert_eq!(node(&desk, "p"), expected, "{takes} {memory} {containers}");
    }
}

#[test]
fn each_request_that_a_container_lists_counts() {
    let mut desk = desk(true);
    desk.fraction("p", 1);
    let names = json!([{"name": "p", "request": "a"}, {"name": "p", "request": "b"}]);
    let resources = json!({"claims": names, "requests": {"memory": "85Mi"}});
    desk.pod("p", &["p"], json!({"spec": {"containers": [{"resources": resources}]}}));
    desk.settle();
    assert_eq!(node(&desk, "p"), "n1");
}

#[test]
fn a_pod_with_a_hold_counts_with_its_devices() {
    for (takes, expected) in [(false, "n0"), (true, "n1")] {
        let mut desk = desk(takes);
        pod(&mut desk, "a", "46Mi", 1, json!({}));
        assert_eq!(node(&desk, "a"), "n0");
        pod(&mut desk, "b", "46Mi", 1, json!({}));
        assert_eq!(node(&desk, "b"), expected);
    }
}

#[test]
fn a_bound_pod_counts_with_what_its_status_says() {
    let taken = json!([{"resourceClaimName": "a", "containers": ["x", "y"],
        "mapping": [{"name": "memory", "quantity": "1Mi"}],
        "overhead": [{"name": "memory", "perPod": "1Mi", "perContainer": "3Mi"}]}]);
    for (bound, status, memory, expected) in [
        (true, Value::Null, "92Mi", "n0"),
        (true, taken.clone(), "84Mi", "n0"),
        (true, taken.clone(), "85Mi", "n1"),
        (false, taken, "92Mi", "n0"),
    ] {
        let mut desk = desk(true);
        let mut spec = json!({"containers": [{"name": "x"}]});
        if bound {
            spec["nodeName"] = json!("n0");
        }
        let a = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "uid-a"}, "spec": spec,
            "status": {"nodeAllocatableResourceClaimStatuses": status}});
        desk.tell(Change::Pod(read(a)));
        pod(&mut desk, "b", memory, 1, json!({}));
        assert_eq!(node(&desk, "b"), expected, "{bound} {memory}");
    }
}

#[test]
fn a_request_at_pod_level_is_for_containers_and_devices_together() {
    let level = |memory: &str| json!({"resources": {"requests": {"memory": memory}}});
    let mut whole = desk(true);
    pod(&mut whole, "p", "92Mi", 1, level("100Mi"));
    assert_eq!(node(&whole, "p"), "n0", "8Mi are in it");
    let mut tight = desk(true);
    tight.fraction("p", 1);
    let resources = json!({"claims": [{"name": "p"}], "requests": {"memory": "92Mi"}});
    let mut spec = level("99Mi");
    spec["containers"] = json!([{"resources": resources}]);
    tight.pod("p", &["p"], json!({"spec": spec}));
    let (_, verdicts) = tight.settle();
    assert_eq!(said(&verdicts), ["NoNodeFits"]);
    assert!(
        verdicts[0]
            .1
            .to_string()
            .contains("2 with too little memory in spec.resources.requests"),
        "{}",
        verdicts[0].1
    );
}

#[test]
fn a_pod_that_fits_nowhere_is_told_what_takes_the_memory() {
    let mut desk = desk(true);
    desk.fraction("p", 1);
    let resources = json!({"claims": [{"name": "p"}], "requests": {"memory": "199Mi"}});
    desk.pod("p", &["p"], json!({"spec": {"containers": [{"resources": resources}]}}));
    let (_, verdicts) = desk.settle();
    assert_eq!(
        verdicts[0].1.to_string(),
        "no node has both the devices and what else the pod needs; of those with devices: 1 not enough memory, 1 not \
         enough memory for the pod and what its devices take (nodeAllocatableResources of the ResourceSlice)"
    );
    assert_eq!(desk.node_of("p"), None);
}
