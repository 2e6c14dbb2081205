//! Decides when a hold is released, and when an allocation that no pod uses is cleared.
//!
//! ```text
//!  allocated by the controller
//!    held ─┬─ a bound pod uses it, or a pod has reserved it and
//!          │  was not bound within the hold timeout ───────────► release the hold
//!          ├─ a pod has reserved it and is being bound ─────────► wait
//!          └─ not reserved, and the pod is gone, the node is
//!             gone, the claim is deleted, or the hold is too
//!             old (or that of another pod of its gang) ─────────► clear allocation and hold
//!    not held ─┬─ reserved ─────────────────────────────────────► nothing: kube-controller-manager clears it
//!              └─ not reserved, and no pod uses the claim, or
//!                 not reserved for the hold timeout ────────────► clear the allocation
//! ```
//!
//! A claim has one hold. Any other hold was added by somebody else, and is released first.
//!
//! An allocation that a pod has reserved is never cleared, because the pod may be bound at any moment. Each clear
//! applies only to the version of the claim that it was decided on, and a reservation makes a new version. If
//! kube-scheduler reserved the claim and then forgot it (it was restarted), only the hold is released; then
//! kube-scheduler can deallocate the claim.

use std::time::Duration;

use crate::allocation::{hold_of, is_hold, is_ours, node_of};
use crate::claims::Known;
use crate::cluster::Cluster;
use crate::model::{Claim, Consumer, Pod};
use crate::time::Time;
use crate::verdict::Verdict;
use crate::write::Intent;

/// A write that a claim needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Duty {
    pub(crate) intent: Intent,
    pub(crate) why: Option<Verdict>,
    pub(crate) slow: Option<Slow>,
}

/// The pod whose hold expired.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slow {
    /// `namespace/name`.
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) node: String,
}

impl Slow {
    fn of(pod: &Pod, node: &str) -> Self {
        Self {
            pod: pod.key(),
            uid: pod.uid.clone(),
            node: node.to_owned(),
        }
    }
}

/// The inputs of the decisions other than the claim.
pub(crate) struct HoldExpiry<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) timeout: Duration,
    pub(crate) now: Time,
}

/// The hold of a claim that no pod has reserved yet: its pod, and when it expires.
pub(crate) struct Held<'a> {
    pub(crate) pod: Option<&'a Pod>,
    pub(crate) until: Time,
}

impl<'a> HoldExpiry<'a> {
    /// Returns the hold, if no pod has reserved the claim yet.
    pub(crate) fn held(&self, known: &Known) -> Option<Held<'a>> {
        let claim = &known.claim;
        let allocation = claim.allocation().filter(|allocation| is_ours(allocation))?;
        let hold = hold_of(claim).filter(|_| claim.reserved_for.iter().all(is_hold))?;
        let written = allocation.allocation_timestamp.as_deref().and_then(Time::parse);
        let since = written.map_or(known.since, |written| written.min(known.since));
        Some(Held {
            pod: self.pod_of(claim, hold),
            until: since.after(self.timeout),
        })
    }

    /// The write that the claim needs now, if any. `lapsed`: a hold of its gang has expired.
    pub(crate) fn duty(&self, known: &Known, lapsed: bool, users: &mut dyn Iterator<Item = &'a Pod>) -> Option<Duty> {
        let claim = &known.claim;
        let hold = hold_of(claim);
        let Some(allocation) = claim.allocation() else {
            // The controller never writes a hold without an allocation.
            return hold.map(|hold| release(hold, None));
        };
        if !is_ours(allocation) {
            return None;
        }
        let mut forged = claim.reserved_for.iter().filter(|consumer| is_hold(consumer));
        if let Some(forged) = forged.find(|entry| Some(*entry) != hold) {
            return Some(release(forged, None));
        }
        let node = node_of(allocation).unwrap_or_default();
        let mut others = claim
            .reserved_for
            .iter()
            .filter(|consumer| !is_hold(consumer))
            .peekable();
        let Some(hold) = hold else {
            let is_idle = others.peek().is_none()
                && (users.next().is_none() || self.now >= known.since.after(self.timeout) || claim.is_deleted);
            return is_idle.then(|| clear(None, None));
        };
        if others.peek().is_some() {
            if others.any(|consumer| self.bound(claim, consumer).is_some()) {
                return Some(release(hold, None));
            }
            return (self.now >= known.since.after(self.timeout)).then(|| self.release_late(claim, hold, node));
        }
        if claim.is_deleted {
            return Some(clear(Some(hold), Some(Verdict::HeldClaimDeleted)));
        }
        if self.cluster.node(node).is_none() {
            let node = node.to_owned();
            return Some(clear(Some(hold), Some(Verdict::NodeGone { node })));
        }
        let held = self.held(known)?;
        let Some(pod) = held.pod else {
            let pod = hold.name.clone();
            return Some(clear(Some(hold), Some(Verdict::PodGone { pod })));
        };
        if self.now < held.until && !lapsed {
            return None;
        }
        let why = Verdict::TooSlow {
            pod: pod.name.clone(),
            node: node.to_owned(),
        };
        let mut duty = clear(Some(hold), Some(why));
        duty.slow = Some(Slow::of(pod, node));
        Some(duty)
    }

    fn release_late(&self, claim: &Claim, hold: &Consumer, node: &str) -> Duty {
        let why = Verdict::NotBound {
            pod: hold.name.clone(),
            node: node.to_owned(),
        };
        let mut duty = release(hold, Some(why));
        duty.slow = self.pod_of(claim, hold).map(|pod| Slow::of(pod, node));
        duty
    }

    /// The pod that the hold is for, if it may still be bound.
    fn pod_of(&self, claim: &Claim, hold: &Consumer) -> Option<&'a Pod> {
        let namespace = &claim.facts.metadata.namespace;
        let pod = self.cluster.pod(&format!("{namespace}/{}", hold.name))?;
        let uses = pod.claim_keys().any(|key| key == claim.key());
        (uses && !pod.is_deleted && !pod.is_finished).then_some(pod)
    }

    /// The pod of an entry in `reservedFor`, if it is bound.
    fn bound(&self, claim: &Claim, consumer: &Consumer) -> Option<&'a Pod> {
        let namespace = &claim.facts.metadata.namespace;
        let pod = self.cluster.pod(&format!("{namespace}/{}", consumer.name))?;
        let is_pod = consumer.api_group.is_empty() && consumer.resource == "pods";
        (is_pod && pod.uid == consumer.uid && pod.node.is_some()).then_some(pod)
    }
}

fn release(hold: &Consumer, why: Option<Verdict>) -> Duty {
    Duty {
        intent: Intent::Release { hold: hold.clone() },
        why,
        slow: None,
    }
}

fn clear(hold: Option<&Consumer>, why: Option<Verdict>) -> Duty {
    Duty {
        intent: Intent::Clear { hold: hold.cloned() },
        why,
        slow: None,
    }
}
