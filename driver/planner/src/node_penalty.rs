//! Avoids a node for a pod that had devices there and was not bound in time. Kept in memory only: a new leader tries
//! the node once more.

use std::collections::HashMap;
use std::time::Duration;

use crate::time::Time;

const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct NodePenalties {
    /// By the pod's uid, then by node.
    pods: HashMap<String, HashMap<String, Strikes>>,
}

#[derive(Debug, Clone, Copy)]
struct Strikes {
    count: u32,
    until: Time,
}

impl NodePenalties {
    pub(crate) fn add(&mut self, pod: &str, node: &str, now: Time) {
        let nodes = self.pods.entry(pod.to_owned()).or_default();
        let strikes = nodes.entry(node.to_owned()).or_insert(Strikes { count: 0, until: now });
        let pause = FIRST.saturating_mul(1 << strikes.count.min(10)).min(LONGEST);
        strikes.count = strikes.count.saturating_add(1);
        strikes.until = now.after(pause);
    }

    pub(crate) fn is_avoided(&self, pod: &str, node: &str, now: Time) -> bool {
        let strikes = self.pods.get(pod).and_then(|nodes| nodes.get(node));
        strikes.is_some_and(|strikes| now < strikes.until)
    }

    /// How often the pod was not bound in time. Pods with a lower count go first.
    pub(crate) fn count(&self, pod: &str) -> u32 {
        let nodes = self.pods.get(pod).into_iter().flat_map(HashMap::values);
        nodes.fold(0, |sum, strikes| sum.saturating_add(strikes.count))
    }

    pub(crate) fn forget(&mut self, pod: &str) {
        self.pods.remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_avoided_for_longer_each_time() {
        let mut penalties = NodePenalties::default();
        let at = |seconds: i64| Time::from_millis(seconds * 1_000);
        penalties.add("p", "n", at(0));
        assert!(penalties.is_avoided("p", "n", at(29)) && !penalties.is_avoided("p", "n", at(30)));
        assert!(!penalties.is_avoided("p", "m", at(1)) && !penalties.is_avoided("q", "n", at(1)));
        penalties.add("p", "n", at(100));
        assert!(penalties.is_avoided("p", "n", at(159)) && !penalties.is_avoided("p", "n", at(160)));
        for _ in 0..40 {
            penalties.add("p", "n", at(1_000));
        }
        assert!(penalties.is_avoided("p", "n", at(1_599)) && !penalties.is_avoided("p", "n", at(1_600)));
        assert_eq!(penalties.count("p"), 42);
        penalties.forget("p");
        assert!(!penalties.is_avoided("p", "n", at(1_001)));
    }
}
