//! The state of a search, and what is needed to undo one step.

use std::rc::Rc;

use crate::allocated::{AllocatedDevices, Usage};
use crate::budget::Budget;
use crate::capacity::{Amounts, Misfit};
use crate::constraint::Tracked;
use crate::counters::{self, Counters};
use crate::features::Features;
use crate::model::{CapacityRequirements, Taint};
use crate::plan::ClaimPlan;
use crate::policy::Order;
use crate::pools::NodeView;
use crate::selectors::SelectorCache;

/// One attempt on one node, with the devices chosen so far.
pub(crate) struct Search<'a, 'c, 's> {
    pub(crate) view: &'a NodeView,
    pub(crate) features: Features,
    pub(crate) plans: Vec<ClaimPlan<'a>>,
    pub(crate) cache: &'c mut SelectorCache<'s>,
    pub(super) budget: &'c mut Budget,
    pub(super) allocated: &'a AllocatedDevices,
    pub(super) order: Order,
    /// By candidate: what claims hold of it.
    pub(super) usage: Vec<Option<&'a Usage>>,
    /// By candidate: which claims of this attempt take it as a whole.
    pub(super) marked: Vec<Vec<usize>>,
    /// By candidate: shares that these claims take.
    pub(super) in_flight: Vec<InFlight>,
    /// By pool, once a device that draws from them was tried.
    pub(super) counters: Vec<Option<Counters<'a>>>,
    pub(super) constraints: Vec<Vec<Tracked<'a>>>,
    /// The attributes that the policy wants all devices to share.
    pub(super) affinity: Vec<Tracked<'a>>,
    pub(crate) picks: Vec<Vec<Pick>>,
    /// By claim and request: the alternative that was chosen.
    pub(crate) chosen: Vec<Vec<usize>>,
    /// The furthest request that was reached: all requests before it can be had together.
    pub(crate) furthest: (usize, usize),
    pub(super) stack: Vec<Frame>,
    /// The request before which the search stops as if it were complete.
    pub(super) stop_at: Option<(usize, usize)>,
    /// Requested instead of the claims' own amounts, to find out how much is available.
    pub(crate) instead: Option<CapacityRequirements>,
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    pub(super) shares: usize,
    pub(super) consumed: Amounts,
}

/// A chosen device.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) candidate: usize,
    pub(crate) request: usize,
    pub(crate) alternative: usize,
    /// For a share: the amounts that it consumes.
    pub(crate) share: Option<Amounts>,
}

/// The indices of a request, or of one of its alternatives, in an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskAt {
    pub(crate) claim: usize,
    pub(crate) request: usize,
    /// 0 for a request without alternatives.
    pub(crate) alternative: usize,
}

impl AskAt {
    /// An alternative of the first request of the first claim.
    pub(crate) const fn of_first(alternative: usize) -> Self {
        Self {
            claim: 0,
            request: 0,
            alternative,
        }
    }
}

/// A position in the search: before this device of this alternative of this request.
#[derive(Debug, Clone)]
pub(super) struct Position {
    pub(super) claim: usize,
    pub(super) request: usize,
    pub(super) alternative: Option<usize>,
    pub(super) device: i64,
    /// The next index in the order of devices.
    pub(super) from: usize,
    /// The order, once the request has begun; `None`: as in the view.
    pub(super) order: Option<Rc<[usize]>>,
}

/// A decision on the stack, which is undone if what comes after it fails.
pub(super) enum Frame {
    ClaimEnd,
    Alternatives { position: Position, all_exceeded: bool },
    Device { position: Position, undo: Undo },
    AllDevice { undo: Undo },
}

/// Why a device cannot be taken now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Other claims hold it.
    InUse,
    /// An earlier request of this attempt takes it.
    Taken,
    /// Gate, class, selector or node.
    Mismatch,
    Capacity(Misfit),
    CountersOff,
    Counter(counters::Shortage),
    Taint(Taint),
    /// The attribute of the constraint.
    Constraint(String),
    /// The policy wants another device; the claim would accept this one.
    Affinity,
}

/// What taking a device changed.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(super) at: AskAt,
    pub(super) candidate: usize,
    pub(super) counters: bool,
    pub(super) marked: bool,
    pub(super) share: Option<Amounts>,
}
