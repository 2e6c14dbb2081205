//! CPU, memory, extended resources, and the number of pods of a node.

use vgpu_quantity::{Format, Quantity};

use super::refusal::Refusal;
use crate::cluster::Cluster;
use crate::model::{Node, Pod, Requests};

const PODS: &str = "pods";

pub(super) fn check(pod: &Pod, key: &str, node: &Node, cluster: &Cluster) -> Result<(), Refusal> {
    let load = cluster.load(node.name());
    let sits_here = load.is_some_and(|load| load.pods.contains(key));
    let others = load.map_or(0, |load| load.pods.len() - usize::from(sits_here));
    if let Some(most) = node.allocatable.0.get(PODS)
        && Quantity::with_format(i64::try_from(others).unwrap_or(i64::MAX), Format::Decimal) >= *most
    {
        return Err(Refusal::Resource(PODS.to_owned()));
    }
    for (name, wanted) in pod.requests.0.iter().filter(|(_, wanted)| !wanted.is_zero()) {
        if *wanted > free(name, key, node, cluster) {
            return Err(Refusal::Resource(name.clone()));
        }
    }
    Ok(())
}

/// Checks the pod's requests together with what its devices would take of the node: see [`crate::device_overhead`].
pub(super) fn check_taken(
    pod: &Pod,
    key: &str,
    node: &Node,
    cluster: &Cluster,
    taken: &Requests,
) -> Result<(), Refusal> {
    let left = &pod.unusual().left_at_pod_level.0;
    let too_much = taken
        .0
        .iter()
        .find(|(name, taken)| left.get(*name).is_some_and(|left| *taken > left));
    if let Some((name, _)) = too_much {
        return Err(Refusal::PodLevel(name.clone()));
    }
    let added = pod.added_by(taken);
    for (name, added) in added.0.iter().filter(|(_, added)| !added.is_zero()) {
        let mut wanted = pod.requests.0.get(name).cloned().unwrap_or_default();
        wanted.add(added);
        if wanted > free(name, key, node, cluster) {
            return Err(Refusal::DeviceOverhead(name.clone()));
        }
    }
    Ok(())
}

/// The amount of a resource that is free on the node for the pod with this key, which may be there already.
fn free(name: &str, key: &str, node: &Node, cluster: &Cluster) -> Quantity {
    let mut free = node.allocatable.0.get(name).cloned().unwrap_or_default();
    let Some(load) = cluster.load(node.name()) else {
        return free;
    };
    if let Some(used) = load.used.0.get(name) {
        free.subtract(used);
    }
    if load.pods.contains(key)
        && let Some(taken) = cluster
            .pod(key)
            .and_then(|pod| cluster.taken_by(key, pod).0.get(name).cloned())
    {
        free.add(&taken);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{cluster, pod, refusals};

    fn asks(name: &str, resource: &str, amount: &str) -> Pod {
        let spec = format!(r#""containers":[{{"resources":{{"requests":{{"{resource}":"{amount}"}}}}}}]"#);
        pod(name, "", &spec)
    }

    #[test]
    fn what_is_used_counts_and_what_a_node_does_not_have_is_none() {
        let cluster = cluster(&[(asks("x", "cpu", "3"), "a1"), (asks("y", "cpu", "1500m"), "a2")]);
        let no = |name: &str| Some(Refusal::Resource(name.into()));
        assert_eq!(refusals(&cluster, &asks("p", "cpu", "2500m")), [no("cpu"), None, None]);
        assert_eq!(
            refusals(&cluster, &asks("p", "example.com/fpga", "1")),
            [no("example.com/fpga"), no("example.com/fpga"), no("example.com/fpga")]
        );
        assert_eq!(
            refusals(&cluster, &asks("x", "cpu", "4")),
            [None, no("cpu"), None],
            "beside itself"
        );
    }

    #[test]
    fn a_node_takes_so_many_pods() {
        let three: Vec<_> = ["x", "y", "z"].map(|name| (pod(name, "", ""), "a1")).into();
        let cluster = cluster(&three);
        let no = || Some(Refusal::Resource(PODS.into()));
        assert_eq!(refusals(&cluster, &pod("p", "", "")), [no(), None, None]);
        assert_eq!(refusals(&cluster, &pod("x", "", "")), [None, None, None]);
    }
}
