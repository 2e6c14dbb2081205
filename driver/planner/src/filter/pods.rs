//! Required pod affinity and anti-affinity, by any topology key.

use std::collections::{HashMap, HashSet};

use super::refusal::{Refusal, Work};
use crate::cluster::Cluster;
use crate::model::{Node, Pod, PodTerm};

/// The topologies that a pod needs or must avoid because of other pods, by its own terms and theirs.
pub(super) struct Neighbours<'a> {
    /// For each affinity term the topologies with a matching pod. `None` allows all topologies, for the first pod of a
    /// kind.
    wanted: Vec<(&'a PodTerm, Option<HashSet<&'a str>>)>,
    /// For each anti-affinity term the topologies to avoid.
    shunned: Vec<(&'a PodTerm, HashSet<&'a str>)>,
    /// By topology key, the topologies whose pods have anti-affinity to this pod.
    closed: HashMap<&'a str, HashSet<&'a str>>,
}

impl<'a> Neighbours<'a> {
    pub(super) fn new(cluster: &'a Cluster, pod: &'a Pod, work: &Work) -> Self {
        let is_other = |other: &Pod| (&other.namespace, &other.name) != (&pod.namespace, &pod.name);
        let placed = |(other, node): (&'a Pod, &str)| {
            work.add(1);
            let node = cluster.node(node).filter(|_| is_other(other))?;
            Some((other, node))
        };
        // A pod with affinity terms is compared with all pods of the cluster, any other only with those whose anti-affinity may
        // match it.
        let minds = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty();
        let others: Vec<(&Pod, &Node)> = match minds {
            true => cluster.placed().filter_map(placed).collect(),
            false => Vec::new(),
        };
        let topologies = |term: &PodTerm, against: bool| -> HashSet<&'a str> {
            work.add(others.len());
            let matching = others.iter().filter(|(other, _)| matches(term, pod, other, against));
            matching
                .filter_map(|(_, node)| node.label(&term.topology_key))
                .collect()
        };
        let mut wanted: Vec<_> = pod
            .affinity
            .iter()
            .map(|term| (term, Some(topologies(term, false))))
            .collect();
        // If all terms refer only to the pod's own group, the first pod of that group can run anywhere.
        let nowhere = wanted
            .iter()
            .all(|(_, found)| found.as_ref().is_some_and(HashSet::is_empty));
        if nowhere && pod.affinity.iter().all(|term| matches(term, pod, pod, false)) {
            wanted.iter_mut().for_each(|(_, found)| *found = None);
        }
        let mut closed: HashMap<&str, HashSet<&str>> = HashMap::new();
        for (other, node) in cluster.repelling().filter_map(placed) {
            work.add(other.anti_affinity.len());
            for term in other
                .anti_affinity
                .iter()
                .filter(|term| matches(term, other, pod, true))
            {
                if let Some(value) = node.label(&term.topology_key) {
                    closed.entry(&term.topology_key).or_default().insert(value);
                }
            }
        }
        Self {
            closed,
            shunned: pod
                .anti_affinity
                .iter()
                .map(|term| (term, topologies(term, true)))
                .collect(),
            wanted,
        }
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Refusal> {
        for (term, found) in &self.wanted {
            let here = node.label(&term.topology_key);
            let is_there = here.is_some_and(|here| found.as_ref().is_none_or(|found| found.contains(here)));
            if !is_there {
                return Err(Refusal::PodAffinity(term.topology_key.clone()));
            }
        }
        let shunned = self.shunned.iter();
        let mut shunned = shunned.filter(|(term, found)| {
            let here = node.label(&term.topology_key);
            here.is_some_and(|here| found.contains(here))
        });
        if let Some((term, _)) = shunned.next() {
            return Err(Refusal::PodAntiAffinity(term.topology_key.clone()));
        }
        let mut closed = self.closed.iter();
        match closed.find(|(key, values)| node.label(key).is_some_and(|value| values.contains(value))) {
            Some((key, _)) => Err(Refusal::PodAntiAffinity((*key).to_owned())),
            None => Ok(()),
        }
    }
}

/// Returns true if `owner`'s term selects `other`. Labels of namespaces are not known: in anti-affinity a namespace
/// selector counts as every namespace, in affinity only if it is empty.
fn matches(term: &PodTerm, owner: &Pod, other: &Pod, against: bool) -> bool {
    let by_selector = term
        .namespace_selector
        .as_ref()
        .is_some_and(|selector| against || selector.is_empty());
    let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
    let in_namespace =
        by_selector || term.namespaces.contains(&other.namespace) || own && owner.namespace == other.namespace;
    in_namespace
        && term
            .label_selector
            .as_ref()
            .is_some_and(|selector| selector.matches(&other.labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{cluster, pod, refusals};

    fn term(kind: &str, key: &str, more: &str) -> String {
        format!(
            r#""affinity":{{"{kind}":{{"requiredDuringSchedulingIgnoredDuringExecution":[
               {{"topologyKey":"{key}","labelSelector":{{"matchLabels":{{"app":"x"}}}}{more}}}]}}}}"#
        )
    }

    const X: &str = r#""app":"x""#;

    #[test]
    fn affinity_goes_where_such_pods_are_or_begins_anywhere() {
        let with = term("podAffinity", "zone", "");
        let no = || Some(Refusal::PodAffinity("zone".into()));
        let some = cluster(&[(pod("x", X, ""), "a1")]);
        assert_eq!(refusals(&some, &pod("p", "", &with)), [None, None, no()]);
        let none = cluster(&[]);
        assert_eq!(refusals(&none, &pod("p", "", &with)), [no(), no(), no()]);
        assert_eq!(
            refusals(&none, &pod("p", X, &with)),
            [None, None, None],
            "the first of its kind"
        );
        let elsewhere = term("podAffinity", "zone", r#","namespaces":["other"]"#);
        assert_eq!(refusals(&some, &pod("p", "", &elsewhere)), [no(), no(), no()]);
        let nowhere = term("podAffinity", "rack", "");
        assert_eq!(
            refusals(&none, &pod("p", X, &nowhere))[0],
            Some(Refusal::PodAffinity("rack".into())),
            "a node without the label is in no topology"
        );
    }

    #[test]
    fn other_pods_are_looked_at_only_if_somebody_minds() {
        let mut many = cluster(&[]);
        for at in 0..1_000 {
            let mut other = pod(&format!("other-{at}"), X, "");
            other.node = Some("a1".into());
            many.set_pod(other);
        }
        let visited = |cluster: &crate::cluster::Cluster, pod: &Pod| {
            let work = Work::default();
            Neighbours::new(cluster, pod, &work);
            work.done()
        };
        assert_eq!(visited(&many, &pod("p", X, "")), 0);
        let host = term("podAntiAffinity", "kubernetes.io/hostname", "");
        let mut loud = pod("loud", "", &host);
        loud.node = Some("a2".into());
        many.set_pod(loud);
        assert_eq!(visited(&many, &pod("p", X, "")), 2, "the one that minds, and its term");
        assert!(visited(&many, &pod("p", X, &host)) > 1_000);
        let loud_one = Some(Refusal::PodAntiAffinity("kubernetes.io/hostname".into()));
        assert_eq!(refusals(&many, &pod("p", X, ""))[1..], [loud_one, None]);
    }

    #[test]
    fn anti_affinity_holds_both_ways() {
        let host = term("podAntiAffinity", "kubernetes.io/hostname", "");
        let no = |key: &str| Some(Refusal::PodAntiAffinity(key.into()));
        let quiet = cluster(&[(pod("x", X, ""), "a1")]);
        assert_eq!(
            refusals(&quiet, &pod("p", "", &host)),
            [no("kubernetes.io/hostname"), None, None]
        );
        let zone = term(
            "podAntiAffinity",
            "zone",
            r#","namespaceSelector":{"matchLabels":{"any":"thing"}}"#,
        );
        let loud = cluster(&[(pod("x", "", &zone), "a1")]);
        assert_eq!(refusals(&loud, &pod("p", X, "")), [no("zone"), no("zone"), None]);
        assert_eq!(refusals(&loud, &pod("p", "", "")), [None, None, None]);
        assert_eq!(
            refusals(&quiet, &pod("x", X, &host)),
            [None, None, None],
            "not against itself"
        );
    }
}
