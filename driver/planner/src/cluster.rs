//! Nodes, and which pods count on them: bound pods, and pods for which a hold keeps devices on the node. As in
//! kube-scheduler, the latter are assumed to be there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::{Node, Pod, Requests};

/// Nodes by name, pods by key.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    nodes: BTreeMap<String, Node>,
    /// Boxed, because a map allocates room for about twice its entries.
    pods: BTreeMap<String, Box<Pod>>,
    /// By node, including unknown nodes, which may be added later.
    loads: HashMap<String, Load>,
    /// The seats of pods that have a hold on a node. They count until the pod is bound.
    assumed: HashMap<String, Seat>,
    /// Pods on nodes that have required anti-affinity.
    repelling: BTreeSet<String>,
}

/// Where a pod with a hold will be bound.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) node: String,
    /// The amounts that its devices add to its requests: see [`crate::device_overhead`].
    pub(crate) overhead: Requests,
}

/// The pods of a node, bound or assumed, and the sum of their requests.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) used: Requests,
    pub(crate) pods: BTreeSet<String>,
}

impl Cluster {
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    #[must_use]
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = (&String, &Pod)> {
        self.pods.iter().map(|(key, pod)| (key, pod.as_ref()))
    }

    #[must_use]
    pub(crate) fn pod(&self, key: &str) -> Option<&Pod> {
        self.pods.get(key).map(Box::as_ref)
    }

    #[must_use]
    pub(crate) fn load(&self, node: &str) -> Option<&Load> {
        self.loads.get(node)
    }

    /// The pods that are bound to a node or assumed on one, and the node.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&Pod, &str)> {
        self.pods
            .iter()
            .filter_map(|(key, pod)| Some((pod.as_ref(), self.node_of(key, pod)?)))
    }

    /// The pods in [`Self::placed`] that have required anti-affinity. In most clusters there are few.
    pub(crate) fn repelling(&self) -> impl Iterator<Item = (&Pod, &str)> {
        let repelling = self.repelling.iter();
        repelling.filter_map(|key| {
            let pod = self.pod(key)?;
            Some((pod, self.node_of(key, pod)?))
        })
    }

    /// Inserts or replaces a node. Returns true if it has changed; a heartbeat does not count as a change.
    pub(crate) fn set_node(&mut self, node: Node) -> bool {
        let is_new = self.nodes.get(node.name()) != Some(&node);
        if is_new {
            self.nodes.insert(node.name().to_owned(), node);
        }
        is_new
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Inserts or replaces a pod. Returns true if it has changed. kube-scheduler's Unschedulable condition is stored,
    /// but is no change, because no decision depends on it.
    pub(crate) fn set_pod(&mut self, pod: Pod) -> bool {
        let key = pod.key();
        if let Some(known) = self.pods.get_mut(&key) {
            known.is_unschedulable = pod.is_unschedulable;
            if **known == pod {
                return false;
            }
        }
        self.uncount(&key);
        self.pods.insert(key.clone(), Box::new(pod));
        self.count(&key);
        true
    }

    pub(crate) fn remove_pod(&mut self, key: &str) {
        self.uncount(key);
        self.pods.remove(key);
        self.assumed.remove(key);
    }

    /// Assumes an unbound pod on a node; `None` ends the assumption.
    pub(crate) fn assume(&mut self, key: &str, seat: Option<Seat>) {
        if self.assumed.get(key) == seat.as_ref() {
            return;
        }
        self.uncount(key);
        match seat {
            Some(seat) => self.assumed.insert(key.to_owned(), seat),
            None => self.assumed.remove(key),
        };
        self.count(key);
    }

    /// The node to which a pod is bound or on which it is assumed.
    fn node_of<'a>(&'a self, key: &str, pod: &'a Pod) -> Option<&'a str> {
        let node = pod
            .node
            .as_ref()
            .or_else(|| self.assumed.get(key).map(|seat| &seat.node));
        node.filter(|_| !pod.is_finished).map(String::as_str)
    }

    /// The amounts that a pod that is bound or assumed takes of its node.
    pub(crate) fn taken_by(&self, key: &str, pod: &Pod) -> Requests {
        let mut taken = pod.requests.clone();
        if let Some(seat) = self.assumed.get(key).filter(|_| pod.node.is_none()) {
            taken.add(&seat.overhead);
        }
        taken
    }

    fn count(&mut self, key: &str) {
        let Some((pod, node)) = self.placed_pod(key) else {
            return;
        };
        let (requests, repels, node) = (self.taken_by(key, pod), !pod.anti_affinity.is_empty(), node.to_owned());
        let load = self.loads.entry(node).or_default();
        load.used.add(&requests);
        load.pods.insert(key.to_owned());
        if repels {
            self.repelling.insert(key.to_owned());
        }
    }

    /// Undoes [`Self::count`]. Call it before the pod or its node changes.
    fn uncount(&mut self, key: &str) {
        let Some((pod, node)) = self.placed_pod(key) else {
            return;
        };
        let (requests, node) = (self.taken_by(key, pod), node.to_owned());
        self.repelling.remove(key);
        if let Some(load) = self.loads.get_mut(&node) {
            load.used.subtract(&requests);
            load.pods.remove(key);
            if load.pods.is_empty() {
                self.loads.remove(&node);
            }
        }
    }

    fn placed_pod(&self, key: &str) -> Option<(&Pod, &str)> {
        let pod = self.pod(key)?;
        Some((pod, self.node_of(key, pod)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>, cpu: &str) -> Pod {
        Pod {
            namespace: "ns".into(),
            name: name.into(),
            node: node.map(str::to_owned),
            requests: Requests([("cpu".to_owned(), cpu.parse().unwrap())].into_iter().collect()),
            ..Pod::default()
        }
    }

    fn seat(overhead: &str) -> Option<Seat> {
        let overhead = Requests([("cpu".to_owned(), overhead.parse().unwrap())].into_iter().collect());
        let node = "n".to_owned();
        Some(Seat { node, overhead })
    }

    fn cpu(cluster: &Cluster, node: &str) -> String {
        cluster
            .load(node)
            .map_or_else(String::new, |load| load.used.0.get("cpu").unwrap().to_string())
    }

    #[test]
    fn a_pod_counts_once_wherever_it_sits() {
        let mut cluster = Cluster::default();
        cluster.set_pod(pod("a", None, "1"));
        assert!(cluster.load("n").is_none());
        cluster.assume("ns/a", seat("100m"));
        cluster.set_pod(pod("b", Some("n"), "500m"));
        assert_eq!(cpu(&cluster, "n"), "1600m");
        assert!(!cluster.set_pod(pod("b", Some("n"), "500m")));
        cluster.set_pod(pod("a", Some("m"), "2"));
        assert_eq!((cpu(&cluster, "n"), cpu(&cluster, "m")), ("500m".into(), "2".into()));
        cluster.assume("ns/a", None);
        assert_eq!(cpu(&cluster, "m"), "2", "bound is bound");
        let mut finished = pod("b", Some("n"), "500m");
        finished.is_finished = true;
        cluster.set_pod(finished);
        cluster.remove_pod("ns/a");
        assert!(cluster.load("n").is_none() && cluster.load("m").is_none());
        assert_eq!(cluster.placed().count(), 0);
    }

    #[test]
    fn who_repels_others_is_known_while_it_sits_somewhere() {
        let mut cluster = Cluster::default();
        let mut loud = pod("a", Some("n"), "1");
        loud.anti_affinity.push(crate::model::PodTerm::default());
        cluster.set_pod(loud.clone());
        cluster.set_pod(pod("b", Some("n"), "1"));
        let repelling = |cluster: &Cluster| cluster.repelling().map(|(pod, _)| pod.name.clone()).collect::<Vec<_>>();
        assert_eq!(repelling(&cluster), ["a"]);
        cluster.set_pod(pod("a", Some("n"), "1"));
        assert!(repelling(&cluster).is_empty(), "it gave that up");
        loud.is_finished = true;
        cluster.set_pod(loud.clone());
        assert!(repelling(&cluster).is_empty(), "it is over");
        loud.is_finished = false;
        cluster.set_pod(loud);
        cluster.remove_pod("ns/a");
        assert!(repelling(&cluster).is_empty() && cluster.repelling.is_empty());
    }

    #[test]
    fn a_seat_may_come_before_its_pod() {
        let mut cluster = Cluster::default();
        cluster.assume("ns/a", seat("0"));
        cluster.set_pod(pod("a", None, "1"));
        assert_eq!(cpu(&cluster, "n"), "1");
    }
}
