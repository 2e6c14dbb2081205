//! Places one pod: chooses the node, and the devices for each claim of the pod that the controller allocates.
//!
//! All unallocated claims of the pod are placed together. Claims of other drivers, which kube-scheduler will allocate
//! when it binds the pod, are part of the search, so that the node has devices for them too; nothing is written to
//! them. A claim that is allocated already limits the pod to the nodes of its node selector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vgpu_allocator::model::{Allocation, NodeSelector, ResourceClaim};
use vgpu_allocator::{AllocateError, Budget, Index, Placement, SelectorCache, node_selector};
use vgpu_api::config::AllocationPolicy;

use crate::allocation::{as_controller, as_scheduler, hold, node_of};
use crate::claims::{Claims, Known};
use crate::cluster::Cluster;
use crate::device_overhead;
use crate::device_ownership::{ClaimAllocator, DeviceOwnership};
use crate::filter::{Filters, Refusal};
use crate::model::{Consumer, Pod, PodClaim, Requests};
use crate::names::DRIVER;
use crate::node_penalty::NodePenalties;
use crate::policy;
use crate::term::Term;
use crate::time::Time;
use crate::verdict::Verdict;

/// The fixed cost of a search in steps, in addition to its own steps and the objects that it checks.
const SEARCH_COST: usize = 100;

/// A node for a pod, with the allocations of its claims there.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) node: String,
    /// Slices that must be read again before anything is written.
    pub(crate) stale: Vec<String>,
    /// When the oldest read of the other slices was begun: the age of the decision.
    pub(crate) as_of: Time,
    pub(crate) policy: AllocationPolicy,
    /// The claim's key, its allocation and its hold.
    pub(crate) allocations: Vec<(String, Allocation, Consumer)>,
}

/// Why a pod is not placed now.
#[derive(Debug)]
pub(crate) enum Waits {
    /// A claim is missing or has a write in flight: nothing to report.
    Quietly,
    /// The pod has no claim to allocate.
    Done,
    /// These slices must be read again first.
    ForSlices(Vec<String>),
    /// Other pods have their turn; the last verdict still holds.
    Until(Time),
    For(Box<Verdict>),
}

impl Waits {
    /// Returns true if the search ended without an answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::For(why) if **why == Verdict::Unanswered)
    }

    /// Returns true if no node has room for the pod now.
    pub(crate) fn is_no_fit(&self) -> bool {
        matches!(self, Self::For(why) if matches!(**why, Verdict::NoFit(_) | Verdict::NoMatch { .. }))
    }
}

impl From<Verdict> for Waits {
    fn from(verdict: Verdict) -> Self {
        Self::For(Box::new(verdict))
    }
}

/// Everything that placing a pod reads or uses up.
pub(crate) struct Placing<'a, 's> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) claims: &'a Claims,
    pub(crate) ownership: &'a DeviceOwnership,
    pub(crate) penalties: &'a NodePenalties,
    /// Nodes that are excluded.
    pub(crate) without: &'a BTreeSet<String>,
    pub(crate) index: &'a mut Index,
    pub(crate) budget: &'a mut Budget,
    pub(crate) cache: &'a mut SelectorCache<'s>,
    pub(crate) share_id: &'a mut dyn FnMut() -> String,
    /// The policy if neither a claim nor its class names one.
    pub(crate) policy: AllocationPolicy,
    pub(crate) term: &'a Term,
    pub(crate) now: Time,
    /// Slices must have been read since then.
    pub(crate) slices_since: Time,
    /// Counts work other than the allocator's steps.
    pub(crate) work: &'a mut u64,
}

/// A pod's claims, sorted by what the pass must do with them.
#[derive(Default)]
struct Sorted<'a> {
    /// Unallocated claims that the controller allocates.
    ours: Vec<&'a Known>,
    /// Unallocated claims that kube-scheduler will allocate.
    others: Vec<&'a Known>,
    /// Allocated claims by name, with the allocation, whose node selector limits where their pods can run.
    pinned: Vec<(String, &'a Allocation)>,
    /// The node of an allocated claim that is held for another pod, with which this pod shares it.
    shared: Option<&'a str>,
}

impl<'a> Placing<'a, '_> {
    pub(crate) fn place(&mut self, pod: &Pod) -> Result<Placed, Waits> {
        let filters = Filters::new(self.cluster, pod);
        let placed = self.place_by(&filters, pod);
        *self.work += filters.work.done();
        placed
    }

    fn place_by(&mut self, filters: &Filters<'_>, pod: &Pod) -> Result<Placed, Waits> {
        let sorted = self.sort(pod)?;
        if sorted.ours.is_empty() {
            return Err(nothing_to_place(sorted.shared, filters));
        }
        filters.work.add(SEARCH_COST);
        let ours = sorted.ours.iter().map(|known| as_controller(&known.claim.facts));
        let others = sorted.others.iter().map(|known| as_scheduler(&known.claim.facts));
        let asked: Vec<ResourceClaim> = ours.chain(others).collect();
        let policy = policy::of(&asked[..sorted.ours.len()], |name| self.index.class(name)).unwrap_or(self.policy);
        let asked: Vec<&ResourceClaim> = asked.iter().collect();
        let placement = self.search(&sorted, &asked, policy, filters, pod)?;
        Ok(self.placed(&sorted, placement, policy, pod))
    }

    /// Searches a node that the filters accept and on which the claims fit, with what their devices take of the node.
    fn search(
        &mut self,
        sorted: &Sorted<'_>,
        asked: &[&ResourceClaim],
        policy: AllocationPolicy,
        filters: &Filters<'_>,
        pod: &Pod,
    ) -> Result<Placement, Waits> {
        let (penalties, now) = (self.penalties, self.now);
        let mut checks = Checks {
            sorted,
            filters,
            pod,
            done: BTreeMap::new(),
        };
        let mut any_avoided = false;
        let mut first_choice = |node: &str| {
            let is_avoided = penalties.is_avoided(&pod.uid, node, now);
            any_avoided |= is_avoided;
            !is_avoided
        };
        let mut placement = self.allocate_checked(asked, policy, &mut first_choice, &mut checks)?;
        if placement.is_none() && any_avoided {
            // A node where the pod was not bound before is better than none: its hold gives way to pods that never lost
            // one.
            placement = self.allocate_checked(asked, policy, &mut |_| true, &mut checks)?;
        }
        let mut refused: BTreeMap<Refusal, usize> = BTreeMap::new();
        for refusal in checks.done.into_values().flatten() {
            *refused.entry(refusal).or_default() += 1;
        }
        placement.ok_or_else(|| {
            let unmatched = self.index.unmatched(asked, self.budget, self.cache);
            let verdict = unmatched.map(|unmatched| Verdict::NoMatch {
                claim: asked[unmatched.claim].key(),
                unmatched: Box::new(unmatched),
            });
            verdict.unwrap_or(Verdict::NoFit(refused)).into()
        })
    }

    /// Allocates on a node that `accepts` and the checks let through. As in kube-scheduler, a node whose resources do not
    /// suffice for the devices that were chosen there is not tried with other devices.
    fn allocate_checked(
        &mut self,
        asked: &[&ResourceClaim],
        policy: AllocationPolicy,
        accepts: &mut dyn FnMut(&str) -> bool,
        checks: &mut Checks<'_, '_, '_>,
    ) -> Result<Option<Placement>, Waits> {
        let (cluster, without) = (self.cluster, self.without);
        loop {
            let mut accepted = |node: &str| accepts(node) && !without.contains(node) && checks.accept(node, cluster);
            let Some(placement) = self.allocate_within(asked, policy, &mut accepted)? else {
                return Ok(None);
            };
            let taken = checks.taken(asked, &placement, self.index);
            match checks.filters.check_taken(&placement.node, &taken) {
                Ok(()) => return Ok(Some(placement)),
                Err(refusal) => drop(checks.done.insert(placement.node, Some(refusal))),
            }
        }
    }

    fn allocate_within(
        &mut self,
        asked: &[&ResourceClaim],
        policy: AllocationPolicy,
        accepts: &mut dyn FnMut(&str) -> bool,
    ) -> Result<Option<Placement>, Waits> {
        let (budget, cache) = (&mut *self.budget, &mut *self.cache);
        self.index
            .allocate_within(asked, policy, accepts, budget, cache, self.share_id)
            .map_err(|error| waits_for(&error, asked))
    }

    /// The allocations to write, and the slices that must be read before.
    fn placed(&self, sorted: &Sorted<'_>, placement: Placement, policy: AllocationPolicy, pod: &Pod) -> Placed {
        let mut allocations = Vec::new();
        let mut stale = Vec::new();
        let mut as_of = self.now;
        for (known, mut allocation) in sorted.ours.iter().zip(placement.allocations) {
            for result in &allocation.devices.results {
                // The controller allocates a claim only if its classes match no device of another driver.
                debug_assert_eq!(result.driver, DRIVER);
                for (slice, read) in self.ownership.reads(&result.pool) {
                    match read.filter(|read| *read >= self.slices_since) {
                        Some(read) => as_of = as_of.min(read),
                        None => stale.push(slice.clone()),
                    }
                }
            }
            allocation.node_selector = Some(Arc::new(NodeSelector::only(&placement.node)));
            allocation.allocation_timestamp = Some(self.now.to_string());
            allocations.push((known.claim.key(), allocation, hold(&known.claim, pod)));
        }
        Placed {
            node: placement.node,
            stale,
            as_of,
            policy,
            allocations,
        }
    }

    fn sort(&self, pod: &Pod) -> Result<Sorted<'a>, Waits> {
        let mut sorted = Sorted::default();
        let mut is_held = false;
        for claim in pod.distinct_claims() {
            let name = match claim {
                PodClaim::NotYet(_) => return Err(Waits::Quietly),
                PodClaim::Named(name) | PodClaim::Made(name) => name,
            };
            let key = format!("{}/{name}", pod.namespace);
            let known = self.claims.get(&key).ok_or(Waits::Quietly)?;
            let claim = || name.clone();
            if let Some(unreadable) = known.claim.unreadable.as_ref().filter(|_| known.allocation().is_none()) {
                let (claim, error) = (claim(), unreadable.why.clone());
                return Err(Verdict::Unreadable { claim, error }.into());
            }
            let kind = self.ownership.claim_allocator(&known.claim.facts);
            if kind == ClaimAllocator::Scheduler && known.allocation().is_none() {
                sorted.others.push(known);
                continue;
            }
            if pod.claims.contains(&PodClaim::Made(name.clone())) && known.claim.owner.as_ref() != Some(&pod.uid) {
                return Err(Verdict::NotOwned { claim: claim() }.into());
            }
            if known.claim.is_deleted {
                return Err(Verdict::ClaimDeleted { claim: key }.into());
            }
            if let Some(allocation) = known.allocation() {
                let for_it = known.hold().is_some_and(|hold| hold.name == pod.name);
                is_held |= for_it;
                if !for_it && sorted.shared.is_none() {
                    sorted.shared = node_of(allocation);
                }
                sorted.pinned.push((claim(), allocation));
                continue;
            }
            match kind {
                ClaimAllocator::Nobody(why) => return Err(why.verdict(claim()).into()),
                ClaimAllocator::Controller | ClaimAllocator::Scheduler => sorted.ours.push(known),
            }
        }
        if is_held {
            sorted.shared = None;
        }
        if sorted.ours.iter().all(|known| self.is_ready(known)) {
            Ok(sorted)
        } else {
            Err(Waits::Quietly)
        }
    }

    /// Returns true if the claim is marked in this term and no write is in flight.
    fn is_ready(&self, known: &Known) -> bool {
        let marked = known.claim.epoch.as_ref().is_some_and(|mark| self.term.is_mark(mark));
        marked && known.claim.is_protected && known.in_flight.is_none() && !known.is_paused(self.now)
    }
}

/// The checks of a pod on each node, made once: a search may ask again.
struct Checks<'q, 'f, 'a> {
    sorted: &'q Sorted<'a>,
    filters: &'q Filters<'f>,
    pod: &'q Pod,
    done: BTreeMap<String, Option<Refusal>>,
}

impl Checks<'_, '_, '_> {
    fn accept(&mut self, node: &str, cluster: &Cluster) -> bool {
        if let Some(refusal) = self.done.get(node) {
            return refusal.is_none();
        }
        let checked = check_pins(&self.sorted.pinned, cluster, node).and_then(|()| self.filters.check(node));
        let is_accepted = checked.is_ok();
        self.done.insert(node.to_owned(), checked.err());
        is_accepted
    }

    /// The amounts that the devices of all claims of the pod would take of the node.
    fn taken(&self, asked: &[&ResourceClaim], placement: &Placement, index: &Index) -> Requests {
        let pinned = self.sorted.pinned.iter();
        let pinned = pinned.map(|(name, allocation)| (self.pod.claim_key(name), *allocation));
        let found = asked.iter().zip(&placement.allocations);
        let found = found.map(|(claim, allocation)| (claim.key(), allocation));
        device_overhead::of(self.pod, &pinned.chain(found).collect(), index)
    }
}

/// The pod has no claim to allocate, but an allocated claim may tie it to a node that refuses it.
fn nothing_to_place(shared: Option<&str>, filters: &Filters<'_>) -> Waits {
    let refused = shared.and_then(|node| Some((node, filters.check(node).err()?)));
    refused.map_or(Waits::Done, |(node, refusal)| {
        let node = node.to_owned();
        Verdict::Elsewhere { node, refusal }.into()
    })
}

fn waits_for(error: &AllocateError, asked: &[&ResourceClaim]) -> Waits {
    Waits::from(match error {
        AllocateError::Exhausted { .. } => Verdict::Unanswered,
        error => Verdict::Mistake(error.of_claims(asked)),
    })
}

fn check_pins(pinned: &[(String, &Allocation)], cluster: &Cluster, node: &str) -> Result<(), Refusal> {
    let node = cluster.node(node).ok_or(Refusal::Unknown)?;
    let elsewhere = pinned.iter().find(|(_, allocation)| {
        let selector = allocation.node_selector.as_deref();
        let matches = |selector: &NodeSelector| node_selector::matches(selector, &node.facts).unwrap_or(false);
        !selector.is_none_or(matches)
    });
    match elsewhere {
        Some((claim, _)) => Err(Refusal::Claim(claim.clone())),
        None => Ok(()),
    }
}
