//! The leader's memory of evictions: waiting pods, promises, refusals.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use vgpu_allocator::model::ResourceClaim;
use vgpu_api::PodRef;
use vgpu_planner::Time;
use vgpu_planner::model::Pod;

use crate::Now;

/// How long a pod in budget waits by default.
const WAIT: Duration = Duration::from_secs(60);
/// A pod that is being deleted counts as gone until this long after the end of its grace period.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Evictions {
    pub(crate) after: Duration,
    /// The earliest time of the next search.
    pub(crate) next: Now,
    /// By pod UID: since when it waits.
    pub(crate) waiting: HashMap<String, Now>,
    /// By pod UID: evicted by this leader, and until when the pod counts as gone.
    pub(crate) evicted: HashMap<String, Now>,
    /// By pod UID: how often its eviction was refused, and until when it is left out.
    pub(crate) refused: HashMap<String, (u32, Now)>,
    /// By claim UID: since when an allocated claim is held by no pod.
    pub(crate) unheld: HashMap<String, Now>,
    pub(crate) promises: BTreeMap<PodRef, Promise>,
    /// The last pod that was tried before the steps of a search were used up. The next search begins after it.
    pub(crate) last_tried: Option<PodRef>,
}

/// A place for a pod that waits.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) node: String,
    /// The claims for which the place is reserved.
    pub(crate) claims: Vec<ResourceClaim>,
    pub(crate) victims: Vec<PodRef>,
    pub(crate) until: Now,
    /// The evictions were sent and have no outcome yet.
    pub(crate) is_sent: bool,
}

impl Default for Evictions {
    fn default() -> Self {
        Self {
            after: WAIT,
            next: Now::ZERO,
            waiting: HashMap::new(),
            evicted: HashMap::new(),
            refused: HashMap::new(),
            unheld: HashMap::new(),
            promises: BTreeMap::new(),
            last_tried: None,
        }
    }
}

impl Evictions {
    /// The pods that are due, the oldest first. After a search that ended early, the pods that it did not reach come
    /// first.
    pub(crate) fn in_turn<T>(&mut self, mut due: Vec<T>, pod: impl Fn(&T) -> &PodRef) -> Vec<T> {
        let last = self.last_tried.take();
        if let Some(at) = last.and_then(|last| due.iter().position(|due| *pod(due) == last)) {
            due.rotate_left(at + 1);
        }
        due
    }

    pub(crate) fn is_going(&self, pod: &Pod, wall: Time) -> bool {
        let is_late = |by: Time| wall > by.after(GRACE);
        match pod.is_deleted {
            true => !pod.gone_by.is_some_and(is_late),
            false => self.evicted.contains_key(&pod.uid),
        }
    }

    pub(crate) fn may_evict(&self, pod: &Pod, now: Now) -> bool {
        let is_left_out = self.refused.get(&pod.uid).is_some_and(|(_, until)| *until > now);
        // Not checked by the PriorityClass: a pod that waited behind another gate may have been created while in
        // budget.
        pod.was_opened_over_budget && pod.node.is_some() && !pod.is_deleted && !is_left_out
    }
}
