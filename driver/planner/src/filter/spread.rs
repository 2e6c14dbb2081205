//! Topology spread constraints with `whenUnsatisfiable: DoNotSchedule`.

use std::collections::HashMap;

use super::refusal::{Refusal, Work};
use crate::cluster::Cluster;
use crate::model::{Node, Pod, Spread};

pub(super) struct Spreads<'a> {
    pod: &'a Pod,
    constraints: Vec<Counted<'a>>,
}

struct Counted<'a> {
    spread: &'a Spread,
    /// The number of matching pods of each topology that counts.
    matching: HashMap<&'a str, i64>,
    least: i64,
}

impl<'a> Spreads<'a> {
    pub(super) fn new(cluster: &'a Cluster, pod: &'a Pod, work: &Work) -> Self {
        let hard: Vec<&Spread> = pod
            .spread
            .iter()
            .filter(|spread| spread.when_unsatisfiable == "DoNotSchedule")
            .collect();
        let constraints = hard.iter().map(|spread| {
            let counts = |node: &Node| {
                hard.iter().all(|spread| node.label(&spread.topology_key).is_some()) && is_eligible(spread, pod, node)
            };
            let mut matching = HashMap::new();
            for node in cluster.nodes() {
                work.add(1);
                if !counts(node) {
                    continue;
                }
                let Some(topology) = node.label(&spread.topology_key) else {
                    continue;
                };
                let neighbours = cluster.load(node.name()).into_iter().flat_map(|load| &load.pods);
                let found = neighbours.filter_map(|key| cluster.pod(key)).filter(|other| {
                    work.add(1);
                    other.namespace == pod.namespace
                        && !other.is_deleted
                        && other.name != pod.name
                        && selects(spread, other)
                });
                *matching.entry(topology).or_default() += i64::try_from(found.count()).unwrap_or(i64::MAX);
            }
            let least = match matching.len() < spread.min_domains.unwrap_or(1) {
                true => 0,
                false => matching.values().copied().min().unwrap_or(0),
            };
            Counted {
                spread,
                matching,
                least,
            }
        });
        Self {
            pod,
            constraints: constraints.collect(),
        }
    }

    pub(super) fn check(&self, node: &Node) -> Result<(), Refusal> {
        for counted in &self.constraints {
            let spread = counted.spread;
            let refusal = || Refusal::Spread(spread.topology_key.clone());
            let topology = node.label(&spread.topology_key).ok_or_else(refusal)?;
            let here = counted.matching.get(topology).copied().unwrap_or(0);
            let with_it = here + i64::from(selects(spread, self.pod));
            if with_it - counted.least > spread.max_skew {
                return Err(refusal());
            }
        }
        Ok(())
    }
}

fn selects(spread: &Spread, pod: &Pod) -> bool {
    let selector = spread.label_selector.as_ref();
    selector.is_some_and(|selector| selector.matches(&pod.labels))
}

/// By default nodes that the pod's affinity excludes do not count, and tainted nodes do; the constraint can change
/// both.
fn is_eligible(spread: &Spread, pod: &Pod, node: &Node) -> bool {
    (spread.node_affinity_policy == "Ignore" || super::affinity::matches(pod, node))
        && (spread.node_taints_policy != "Honor" || super::taints::check(pod, node).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{cluster, pod, refusals};

    fn spreads(more: &str) -> String {
        format!(
            r#""topologySpreadConstraints":[{{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule",
               "labelSelector":{{"matchLabels":{{"app":"x"}}}}{more}}}]"#
        )
    }

    const X: &str = r#""app":"x""#;

    #[test]
    fn no_topology_runs_ahead() {
        let no = || Some(Refusal::Spread("zone".into()));
        let one = cluster(&[(pod("x", X, ""), "a1")]);
        assert_eq!(refusals(&one, &pod("p", X, &spreads(""))), [no(), no(), None]);
        assert_eq!(
            refusals(&one, &pod("p", "", &spreads(""))),
            [None, None, None],
            "it does not count itself"
        );
        assert_eq!(
            refusals(&one, &pod("x", X, &spreads(""))),
            [None, None, None],
            "it moves"
        );
        let none = cluster(&[]);
        assert_eq!(refusals(&none, &pod("p", X, &spreads(""))), [None, None, None]);
        let few = spreads(r#","minDomains":3"#);
        let even = cluster(&[(pod("x", X, ""), "a1"), (pod("y", X, ""), "b1")]);
        assert_eq!(refusals(&even, &pod("p", X, &spreads(""))), [None, None, None]);
        assert_eq!(refusals(&even, &pod("p", X, &few)), [no(), no(), no()]);
    }

    #[test]
    fn nodes_that_the_pod_cannot_have_do_not_count() {
        let one = cluster(&[(pod("x", X, ""), "a1")]);
        let only_a = format!(r#""nodeSelector":{{"zone":"a"}},{}"#, spreads(""));
        assert_eq!(
            refusals(&one, &pod("p", X, &only_a)),
            [None, None, Some(Refusal::Affinity)]
        );
        let all = format!(
            r#""nodeSelector":{{"zone":"a"}},{}"#,
            spreads(r#","nodeAffinityPolicy":"Ignore""#)
        );
        assert_eq!(
            refusals(&one, &pod("p", X, &all))[0],
            Some(Refusal::Spread("zone".into()))
        );
        let soft = spreads("").replace("DoNotSchedule", "ScheduleAnyway");
        assert_eq!(refusals(&one, &pod("p", X, &soft)), [None, None, None]);
    }
}
