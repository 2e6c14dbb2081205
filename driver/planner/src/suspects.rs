//! Pods that resemble one that was not bound in time go after the others.
//!
//! A pod that nobody can bind is recognised only after it has kept devices for one hold. With many such pods, each
//! would keep some for a whole hold while other pods wait. So the first hold that a pod loses casts suspicion on pods
//! with the same traits: its namespace, its scheduler, and volumes that have to be bound. Pods with more of these
//! traits go later. Suspicion ends two holds after the last such loss. A pod that loses further holds gives no new
//! information about others.
//!
//! Schedulers that have bound no pod in this cluster count as one: a tenant can write any name. Bound pods show which
//! ones are at work. A tenant can forge that with `spec.nodeName`; then the namespace is the trait that remains.
//!
//! Kept in memory only: after a restart the first holds show it again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::model::Pod;
use crate::time::Time;

/// How many holds suspicion lasts.
const HOLDS: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// When suspicion of a trait ends.
    traits: HashMap<Trait, Time>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Trait {
    Namespace(String),
    /// `None` for `default-scheduler`.
    Scheduler(Option<Box<str>>),
    /// A scheduler that has bound no pod.
    UnknownScheduler,
    ClaimedVolumes,
}

/// The schedulers that have bound pods.
pub(crate) struct Schedulers<'a>(HashSet<Option<&'a str>>);

impl<'a> Schedulers<'a> {
    pub(crate) fn of(cluster: &'a Cluster) -> Self {
        let bound = cluster.pods().filter(|(_, pod)| pod.node.is_some());
        Self(bound.map(|(_, pod)| pod.scheduler.as_deref()).collect())
    }

    fn traits(&self, pod: &Pod) -> impl Iterator<Item = Trait> {
        let scheduler = match pod.scheduler.as_deref() {
            name if self.0.contains(&name) => Trait::Scheduler(pod.scheduler.clone()),
            None => Trait::Scheduler(None),
            Some(_) => Trait::UnknownScheduler,
        };
        let volumes = pod.has_claimed_volumes.then_some(Trait::ClaimedVolumes);
        [Trait::Namespace(pod.namespace.clone()), scheduler]
            .into_iter()
            .chain(volumes)
    }
}

impl Suspects {
    /// The pod was not bound in time, for the first time.
    pub(crate) fn add(&mut self, pod: &Pod, schedulers: &Schedulers<'_>, hold: Duration, now: Time) {
        self.traits.retain(|_, until| now < *until);
        let until = now.after(hold.saturating_mul(HOLDS));
        self.traits.extend(schedulers.traits(pod).map(|of_it| (of_it, until)));
    }

    /// The number of the pod's traits that are under suspicion.
    pub(crate) fn count(&self, pod: &Pod, schedulers: &Schedulers<'_>, now: Time) -> usize {
        if self.traits.is_empty() {
            return 0;
        }
        let is_suspect = |of_it: &Trait| self.traits.get(of_it).is_some_and(|until| now < *until);
        schedulers.traits(pod).filter(is_suspect).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, scheduler: Option<&str>, volumes: bool) -> Pod {
        Pod {
            namespace: namespace.into(),
            name: "p".into(),
            scheduler: scheduler.map(Into::into),
            has_claimed_volumes: volumes,
            ..Pod::default()
        }
    }

    #[test]
    fn suspicion_is_of_what_pods_share_and_ends() {
        let mut cluster = Cluster::default();
        let mut bound = pod("ns", Some("known"), false);
        bound.node = Some("n".into());
        cluster.set_pod(bound);
        let schedulers = Schedulers::of(&cluster);
        let at = |seconds: i64| Time::from_millis(seconds * 1_000);
        let mut suspects = Suspects::default();
        suspects.add(
            &pod("a", Some("nobody-1"), true),
            &schedulers,
            Duration::from_secs(30),
            at(0),
        );
        let count = |of_it: &Pod, now| suspects.count(of_it, &schedulers, at(now));
        assert_eq!(count(&pod("a", Some("nobody-1"), true), 1), 3);
        assert_eq!(
            count(&pod("b", Some("nobody-2"), false), 1),
            1,
            "another name that nobody serves"
        );
        assert_eq!(count(&pod("a", Some("known"), false), 1), 1);
        assert_eq!(count(&pod("b", None, false), 1), 0);
        assert_eq!(
            (count(&pod("a", None, true), 59), count(&pod("a", None, true), 60)),
            (2, 0)
        );
    }
}
