//! Holds of pods that have lost a hold before give way to pods that never have.
//!
//! ```text
//!  a pod or gang that never lost a hold fits nowhere ─► set aside the holds of pods that did ─► fits? ─► clear those on
//!                                                                                                        its nodes
//! ```
//!
//! A hold is only cleared if that helps. The waiting pods are placed in a later pass, when the claims are seen without
//! their allocations. A claim that kube-scheduler has reserved meanwhile has a newer version, so the write fails.

use std::collections::BTreeSet;

use vgpu_allocator::Budget;

use super::{Plan, Planner};
use crate::gang;
use crate::hold_expiry::HoldExpiry;
use crate::term::Term;
use crate::time::Time;
use crate::verdict::{About, Verdict};
use crate::write::Intent;

/// A hold that may be cleared for other pods.
struct Weak {
    claim: String,
    pod: String,
    node: String,
    gang: Option<gang::Name>,
}

impl Planner {
    /// Clears the holds that keep these pods from being placed together. Returns false if there are none.
    pub(super) fn take_weak_holds(
        &mut self,
        term: &Term,
        pods: &[String],
        budget: &mut Budget,
        now: Time,
        plan: &mut Plan,
    ) -> bool {
        let is_weak = |key: &String| self.strikes(key) > 0;
        if pods.iter().any(is_weak) {
            return false;
        }
        let weak = self.weak_holds(now);
        if weak.is_empty() {
            return false;
        }
        for hold in &weak {
            self.state.index.remove_claim(&hold.claim);
            self.state.cluster.assume(&hold.pod, None);
        }
        let mut left = pods.len();
        let found = self.one_by_one(term, pods, false, &mut left, budget, now);
        let mut nodes = BTreeSet::new();
        for step in found.into_iter().flatten().rev() {
            self.cancel_writes(&step.writes);
            nodes.extend(step.node);
        }
        for hold in &weak {
            self.state.recount(&hold.claim);
        }
        let on_nodes = weak.iter().filter(|hold| nodes.contains(&hold.node));
        let gangs: BTreeSet<gang::Name> = on_nodes.filter_map(|hold| hold.gang.clone()).collect();
        let cleared = weak.iter().filter(|hold| {
            let is_of_gang = hold.gang.as_ref().is_some_and(|gang| gangs.contains(gang));
            nodes.contains(&hold.node) || is_of_gang
        });
        for hold in cleared {
            self.clear_weak(term, hold, now, plan);
        }
        !nodes.is_empty()
    }

    fn strikes(&self, key: &str) -> u32 {
        let pod = self.state.cluster.pod(key);
        pod.map_or(0, |pod| self.penalties.count(&pod.uid))
    }

    fn weak_holds(&self, now: Time) -> Vec<Weak> {
        let expiry = HoldExpiry {
            cluster: &self.state.cluster,
            timeout: self.settings.hold,
            now,
        };
        let claims = self.state.claims.iter();
        let idle = claims.filter(|(_, known)| known.in_flight.is_none() && !known.is_paused(now));
        let weak = idle.filter_map(|(key, known)| {
            let pod = expiry
                .held(known)?
                .pod
                .filter(|pod| self.penalties.count(&pod.uid) > 0)?;
            Some(Weak {
                claim: key.clone(),
                pod: pod.key(),
                node: crate::allocation::node_of(known.allocation()?)?.to_owned(),
                gang: gang::of(pod),
            })
        });
        weak.collect()
    }

    fn clear_weak(&mut self, term: &Term, hold: &Weak, now: Time, plan: &mut Plan) {
        let Some(known) = self.state.claims.get(&hold.claim) else {
            return;
        };
        let about = About::claim(&known.claim);
        let held_by = known.hold().cloned();
        let verdict = Verdict::GaveWay {
            pod: hold
                .pod
                .split_once('/')
                .map_or_else(String::new, |(_, name)| name.to_owned()),
            node: hold.node.clone(),
        };
        plan.verdicts.push((about, verdict));
        self.write(term, &hold.claim, Intent::Clear { hold: held_by }, now, plan);
    }
}
