//! Which nodes kube-scheduler would accept for a pod, claims aside.
//!
//! ```text
//!  pod ─► check(node): what depends on pod and node alone ─► what is the same for all nodes (topologies of ─► Refusal
//!                                                            other pods), computed for the first node that gets here
//! ```
//!
//! Each filter plugin of kube-scheduler has a file here. Bound pods count, and pods for which a hold keeps devices. Not
//! modelled: preemption (a pod that would evict others waits), volumes, labels of namespaces (a `namespaceSelector`
//! that is not empty counts as every namespace in anti-affinity and as none in affinity), images, extenders, and devices
//! that are themselves CPU or memory (`mapping` of `nodeAllocatableResources`). If
//! this accepts a node that kube-scheduler refuses, the hold expires and the node is avoided. If it refuses a node that
//! kube-scheduler would accept, the pod waits for another.

mod affinity;
mod node;
mod pods;
mod ports;
mod refusal;
mod resources;
mod spread;
mod taints;

use std::cell::OnceCell;

use crate::cluster::Cluster;
use crate::model::{Pod, Requests};
use pods::Neighbours;
pub use refusal::Refusal;
use refusal::Work;
use spread::Spreads;

/// The checks for one pod, on any node.
pub(crate) struct Filters<'a> {
    cluster: &'a Cluster,
    pod: &'a Pod,
    key: String,
    neighbours: OnceCell<Neighbours<'a>>,
    spreads: OnceCell<Spreads<'a>>,
    pub(crate) work: Work,
}

impl<'a> Filters<'a> {
    pub(crate) fn new(cluster: &'a Cluster, pod: &'a Pod) -> Self {
        Self {
            cluster,
            pod,
            key: pod.key(),
            neighbours: OnceCell::new(),
            spreads: OnceCell::new(),
            work: Work::default(),
        }
    }

    /// Checks a node, the cheap checks first.
    pub(crate) fn check(&self, name: &str) -> Result<(), Refusal> {
        self.work.add(1);
        let node = self.cluster.node(name).ok_or(Refusal::Unknown)?;
        node::check(self.pod, node)?;
        affinity::check(self.pod, node)?;
        taints::check(self.pod, node)?;
        resources::check(self.pod, &self.key, node, self.cluster)?;
        let load = self.cluster.load(name);
        if !self.pod.ports.is_empty() {
            self.work.add(load.map_or(0, |load| load.pods.len()));
        }
        ports::check(self.pod, &self.key, load, self.cluster)?;
        let (cluster, pod, work) = (self.cluster, self.pod, &self.work);
        let neighbours = self.neighbours.get_or_init(|| Neighbours::new(cluster, pod, work));
        neighbours.check(node)?;
        let spreads = self.spreads.get_or_init(|| Spreads::new(cluster, pod, work));
        spreads.check(node)
    }

    /// Checks a node that [`Self::check`] accepted, for what the pod's devices would take of its resources.
    pub(crate) fn check_taken(&self, name: &str, taken: &Requests) -> Result<(), Refusal> {
        let node = self.cluster.node(name).ok_or(Refusal::Unknown)?;
        resources::check_taken(self.pod, &self.key, node, self.cluster, taken)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::Node;

    pub(crate) fn node(name: &str, more: &str) -> Node {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","labels":{{"kubernetes.io/hostname":"{name}","zone":"{}"}}}},
                "status":{{"allocatable":{{"cpu":"4","memory":"8Gi","pods":"3"}}}}{more}}}"#,
            &name[..1]
        );
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn pod(name: &str, labels: &str, spec: &str) -> Pod {
        let text =
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","labels":{{{labels}}}}},"spec":{{{spec}}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    /// Nodes a1, a2 of zone a and b1 of zone b.
    pub(crate) fn cluster(pods: &[(Pod, &str)]) -> Cluster {
        let mut cluster = Cluster::default();
        for name in ["a1", "a2", "b1"] {
            cluster.set_node(node(name, ""));
        }
        for (pod, at) in pods {
            let mut pod = pod.clone();
            pod.node = Some((*at).to_owned());
            cluster.set_pod(pod);
        }
        cluster
    }

    pub(crate) fn refusals(cluster: &Cluster, pod: &Pod) -> Vec<Option<Refusal>> {
        let filters = Filters::new(cluster, pod);
        ["a1", "a2", "b1"]
            .iter()
            .map(|node| filters.check(node).err())
            .collect()
    }

    #[test]
    fn a_pod_that_wants_nothing_goes_anywhere_that_is() {
        let cluster = cluster(&[]);
        let pod = pod("p", "", "");
        assert_eq!(refusals(&cluster, &pod), [None, None, None]);
        assert_eq!(Filters::new(&cluster, &pod).check("c1"), Err(Refusal::Unknown));
    }
}
