//! Why an attempt found nothing on a node, and what would fit there.
//!
//! ```text
//!  attempt fails ─► the furthest request that the search reached: everything before it fits together
//!      │
//!      ▼ repeat the search up to that request, with everything before it chosen
//!  each device of the node ─► the first reason that it cannot be had for the request, and who holds the rest
//!      └──────────────────► the request again, with all the memory that is left, and with all the cores
//! ```
//!
//! Both answers come from the search itself, which tries a device as an allocation would. So an amount in the answer
//! really fits.

use std::sync::Arc;

use serde::Serialize;

use crate::allocate::Attempt;
use crate::budget::Budget;
use crate::capacity::{CORES, MEMORY, Misfit, Shortage};
use crate::error::AllocateError;
use crate::expression::{domain_hint, excerpt};
use crate::model::{Allocation, ResourceClaim, Taint};
use crate::policy::Order;
use crate::pools::{NodeView, PoolState};
use crate::reason::{CLASS_SELECTORS, Instance, Reason, ReasonKind, field_of};
use crate::search::{AskAt, Refusal, Search};
use crate::selectors::SelectorCache;
use vgpu_api::advice;
use vgpu_quantity::Quantity;

/// A reason's kind, field and message.
type Said = (ReasonKind, String, String);

/// The answer for claims on one node.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// One allocation for each claim, without share IDs.
    Fits(Vec<Allocation>),
    Not(Box<Why>),
}

/// Why claims do not fit on a node, and which amounts would.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Why {
    /// For each device, why it cannot be used for the first request that does not fit together with the earlier ones.
    pub reasons: Vec<Reason>,
    /// The largest fractions that this request could have.
    pub largest: Largest,
    /// How many devices would fit one at a time, if a request wants several.
    pub fitting: Vec<Fitting>,
}

/// How many devices would fit a request, or an alternative of one, each on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitting {
    /// Index of the claim in the attempt.
    pub claim: usize,
    pub request: String,
    pub node: String,
    pub count: usize,
    pub wanted: i64,
}

/// The largest fractions of one device that a request could have, of the devices that pass its selectors, taints and
/// constraints. Only one amount differs from the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Largest<C = usize> {
    /// Most memory, with the requested cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Room<C>>,
    /// Most cores, with the requested memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<Room<C>>,
    /// True if the request wants several devices: then nothing is proposed.
    #[serde(skip)]
    pub is_of_several: bool,
}

/// The amount that one device could give to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Room<C = usize> {
    /// The claim, as in [`Reason`].
    pub claim: C,
    pub request: String,
    pub node: String,
    pub pool: String,
    pub device: String,
    pub amount: Quantity,
}

impl Largest {
    /// Replaces indices by the names of the claims.
    #[must_use]
    pub fn named(self, claims: &[&ResourceClaim]) -> Largest<String> {
        let named = |room: Room| Room {
            claim: claims.get(room.claim).map_or_else(String::new, |claim| claim.key()),
            request: room.request,
            node: room.node,
            pool: room.pool,
            device: room.device,
            amount: room.amount,
        };
        Largest {
            memory: self.memory.map(named),
            cores: self.cores.map(named),
            is_of_several: self.is_of_several,
        }
    }

    /// Keeps the larger amounts.
    pub fn merge(&mut self, other: Self) {
        keep_larger(&mut self.memory, other.memory);
        keep_larger(&mut self.cores, other.cores);
        self.is_of_several |= other.is_of_several;
    }
}

fn keep_larger(known: &mut Option<Room>, other: Option<Room>) {
    if let Some(other) = other
        && known.as_ref().is_none_or(|known| known.amount < other.amount)
    {
        *known = Some(other);
    }
}

impl<'a> Attempt<'a> {
    /// Returns how the claims fit on the node, or why they do not, as far as `steps` suffice.
    ///
    /// # Errors
    /// A mistake in the claims themselves, which is the same on every node.
    pub fn answer(
        &self,
        view: &'a NodeView,
        steps: u64,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Answer, AllocateError> {
        let mut why = match self.find_answer(view, steps, cache) {
            Ok(Answer::Not(why)) => why,
            Ok(fits) => return Ok(fits),
            Err(error) => Box::new(Why {
                reasons: vec![error.reason(view.node(), self.claims).ok_or(error)?],
                ..Why::default()
            }),
        };
        if why.reasons.is_empty() {
            why.reasons.push(Reason::of_all(view.node()));
        }
        Ok(Answer::Not(why))
    }

    fn find_answer(
        &self,
        view: &'a NodeView,
        steps: u64,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Answer, AllocateError> {
        // The last order has no preferences of the policy that could refuse a device.
        let Some(order) = Order::of_policy(self.policy).pop() else {
            return Ok(Answer::Not(Box::default()));
        };
        // One for the search, one for repeating it up to the request where it ended.
        let mut budgets = [Budget::new(steps), Budget::new(steps)];
        let [first, second] = &mut budgets;
        let mut search = self.search(view, (&mut *cache, first), order)?;
        let mut unanswered = None;
        match search.run() {
            Ok(true) => return Ok(Answer::Fits(self.outcome(&search, &mut String::new))),
            Ok(false) => {}
            Err(error @ AllocateError::Exhausted { .. }) => unanswered = error.reason(view.node(), self.claims),
            // The error may be at a request before or after the one to explain.
            Err(error) if error.is_of_devices() => {}
            Err(error) => return Err(error),
        }
        let (claim, request) = search.furthest;
        let mut search = self.search(view, (cache, second), order)?;
        if !search.run_until(claim, request)? || search.plans.is_empty() {
            return Ok(Answer::Not(Box::default()));
        }
        let mut why = Why {
            reasons: unanswered.into_iter().collect(),
            ..Why::default()
        };
        for alternative in 0..search.plans[claim].requests[request].asks.len() {
            let at = AskAt {
                claim,
                request,
                alternative,
            };
            let mut explainer = Explainer {
                search: &mut search,
                at,
            };
            explainer.explain(&mut why)?;
            // The best device's room says nothing if several devices are wanted.
            if explainer.search.ask(at).count == 1 {
                why.largest.merge(explainer.largest()?);
            } else {
                why.largest.is_of_several = true;
            }
        }
        Ok(Answer::Not(Box::new(why)))
    }
}

/// Explains one request, or alternative, that the search has reached.
struct Explainer<'e, 'a, 'c, 's> {
    search: &'e mut Search<'a, 'c, 's>,
    at: AskAt,
}

impl Explainer<'_, '_, '_, '_> {
    fn explain(&mut self, why: &mut Why) -> Result<(), AllocateError> {
        let reasons = &mut why.reasons;
        let before = reasons.len();
        let view = self.search.view;
        reasons.extend(self.unusable_pools());
        let mut fitting: usize = 0;
        for index in 0..view.candidates.len() {
            match self.search.try_device(self.at, index)? {
                Ok(undo) => {
                    self.search.take_back(undo);
                    fitting += 1;
                }
                // The search asks selectors last. Nobody need wait for a device that they do not match.
                Err(Refusal::InUse | Refusal::Capacity(_) | Refusal::Counter(_) | Refusal::Taint(_))
                    if self.is_unmatched(index) =>
                {
                    reasons.push(self.of_device(Refusal::Mismatch, index)?);
                }
                Err(refusal) => reasons.push(self.of_device(refusal, index)?),
            }
        }
        let ask = self.search.ask(self.at);
        let wanted = ask.count;
        let (claim, request) = (self.at.claim, ask.full_name());
        if fitting > 0 {
            why.fitting.push(Fitting {
                claim,
                request,
                node: view.node().to_owned(),
                count: fitting,
                wanted,
            });
        }
        if fitting > 0 && i64::try_from(fitting).is_ok_and(|fitting| fitting >= wanted) {
            let message = format!("{fitting} devices would do one by one, but not {wanted} of them together");
            let field = "spec.devices.constraints".to_owned();
            reasons.push(self.reason("", "", (ReasonKind::Constraint, field, message)));
        } else if reasons.len() == before {
            let (kind, message) = match view.pools.is_empty() {
                true => (ReasonKind::NodeMismatch, "no slice is for this node".to_owned()),
                false => (
                    ReasonKind::Capacity,
                    format!("{wanted} devices are wanted and there are {fitting}"),
                ),
            };
            reasons.push(self.reason("", "", (kind, self.field(), message)));
        }
        Ok(())
    }

    fn unusable_pools(&self) -> Vec<Reason> {
        let pools = self.search.view.pools.iter();
        let reasons = pools.filter_map(|pool| {
            let problem = match &pool.state {
                PoolState::Usable => return None,
                PoolState::Incomplete => "not all slices of its newest generation are published".to_owned(),
                PoolState::Invalid(error) => error.to_string(),
            };
            let field = "spec.pool".to_owned();
            let message = format!("pool {}: {problem}", pool.path());
            Some(self.reason(&pool.name, "", (ReasonKind::IncompletePool, field, message)))
        });
        reasons.collect()
    }

    /// Why the request cannot have a device.
    fn of_device(&mut self, refusal: Refusal, index: usize) -> Result<Reason, AllocateError> {
        let shortages = match &refusal {
            Refusal::Capacity(Misfit::Short(_)) => self.shortages(index)?,
            _ => Vec::new(),
        };
        // Only these name the claims that hold the device.
        let (holders, together) = match &refusal {
            Refusal::InUse | Refusal::Capacity(Misfit::Short(_)) => (self.holders(index), self.with_it(index)),
            _ => Default::default(),
        };
        let said = self.say(refusal, &shortages, index)?;
        let candidate = &self.search.view.candidates[index];
        let reason = self.reason(&candidate.slice.spec.pool.name, &candidate.device().name, said);
        Ok(Reason {
            instance: Instance::of(candidate.device()),
            shortages,
            holders,
            together,
            ..reason
        })
    }

    fn largest(&mut self) -> Result<Largest, AllocateError> {
        let mut largest = Largest::default();
        for index in 0..self.search.view.candidates.len() {
            largest.merge(Largest {
                memory: self.room(index, MEMORY)?.filter(|room| !room.amount.is_zero()),
                cores: self.room(index, CORES)?,
                is_of_several: false,
            });
        }
        Ok(largest)
    }

    /// The largest amount of a capacity that the device could give to the request.
    fn room(&mut self, index: usize, name: &str) -> Result<Option<Room>, AllocateError> {
        let Some((name, amount)) = self.search.room(index, name) else {
            return Ok(None);
        };
        let ask = self.search.ask(self.at);
        let mut asked = ask.exactly.capacity.clone().unwrap_or_default();
        asked.requests.insert(name.to_owned(), amount.clone());
        self.search.instead = Some(asked);
        let taken = self.search.would_take(self.at, index);
        self.search.instead = None;
        if !taken? {
            return Ok(None);
        }
        let candidate = &self.search.view.candidates[index];
        let ask = self.search.ask(self.at);
        Ok(Some(Room {
            claim: self.at.claim,
            request: ask.full_name(),
            node: self.search.view.node().to_owned(),
            pool: candidate.slice.spec.pool.name.clone(),
            device: candidate.device().name.clone(),
            amount,
        }))
    }

    fn shortages(&self, index: usize) -> Result<Vec<Shortage>, AllocateError> {
        self.search.shortages(self.at, index)
    }

    fn say(&mut self, refusal: Refusal, shortages: &[Shortage], index: usize) -> Result<Said, AllocateError> {
        let field = self.field();
        Ok(match refusal {
            Refusal::InUse => (ReasonKind::InUse, String::new(), "in use".to_owned()),
            Refusal::Taken => {
                let message = "taken by an earlier request of the claims that are allocated together".to_owned();
                (ReasonKind::InUse, field, message)
            }
            Refusal::Mismatch => self.say_mismatch(index)?,
            Refusal::Capacity(misfit) => {
                let (name, message) = say_misfit(misfit, shortages);
                (
                    ReasonKind::Capacity,
                    format!("{field}.capacity.requests.{name}"),
                    message,
                )
            }
            Refusal::CountersOff => {
                let message = "the device consumes shared counters, and the gate DRAPartitionableDevices is off";
                (ReasonKind::Counter, "consumesCounters".to_owned(), message.to_owned())
            }
            Refusal::Counter(shortage) => {
                let message = format!(
                    "counter {} of set {}: {} free, and the device needs more",
                    shortage.counter, shortage.set, shortage.free
                );
                (ReasonKind::Counter, "consumesCounters".to_owned(), message)
            }
            Refusal::Taint(taint) => (ReasonKind::Taint, format!("{field}.tolerations"), say_taint(&taint)),
            Refusal::Constraint(attribute) => {
                let message = format!(
                    "the claim's constraint on {attribute} forbids it beside the devices chosen so far, or the device does not have that attribute"
                );
                (ReasonKind::Constraint, "spec.devices.constraints".to_owned(), message)
            }
            Refusal::Affinity => {
                let message = "the policy wants all devices in one place".to_owned();
                (ReasonKind::Constraint, String::new(), message)
            }
        })
    }

    /// Returns true if a selector certainly refuses the device.
    fn is_unmatched(&mut self, index: usize) -> bool {
        let candidate = &self.search.view.candidates[index];
        let ask = &self.search.plans[self.at.claim].requests[self.at.request].asks[self.at.alternative];
        let found = ask.first_mismatch(candidate, self.at.claim, self.search.cache);
        matches!(found, Ok(Some(_)))
    }

    fn say_mismatch(&mut self, index: usize) -> Result<Said, AllocateError> {
        let view = self.search.view;
        let candidate = &view.candidates[index];
        if crate::plan::needs_gate(candidate, self.search.features) {
            let message = "the device has binding conditions, and their gates are off".to_owned();
            return Ok((ReasonKind::Selector, "bindingConditions".to_owned(), message));
        }
        let ask = &self.search.plans[self.at.claim].requests[self.at.request].asks[self.at.alternative];
        let found = ask.first_mismatch(candidate, self.at.claim, self.search.cache)?;
        let Some((of_class, at)) = found else {
            let message = "the device is not for this node".to_owned();
            return Ok((ReasonKind::NodeMismatch, "nodeSelector".to_owned(), message));
        };
        let (selectors, object) = match of_class {
            true => (&ask.class.spec.selectors, format!("class {}", ask.class.metadata.name)),
            false => (&ask.exactly.selectors, "the request".to_owned()),
        };
        let expression = selectors[at].cel.as_ref().map_or("", |cel| &cel.expression);
        let message = format!(
            "the selector of {object} does not match: {}{}",
            excerpt(expression),
            domain_hint(expression, candidate)
        );
        let field = match of_class {
            true => format!("{CLASS_SELECTORS}[{at}].cel.expression"),
            false => format!("{}.selectors[{at}].cel.expression", self.field()),
        };
        Ok((ReasonKind::Selector, field, message))
    }

    /// The claims that hold a device.
    fn holders(&self, index: usize) -> Vec<Arc<str>> {
        let usage = self.search.usage(index).into_iter();
        let holders = usage.flat_map(|usage| usage.holders());
        holders.cloned().collect()
    }

    /// The indices of the claims in this attempt that would use a device.
    fn with_it(&self, index: usize) -> Vec<usize> {
        let picks = self.search.picks.iter().enumerate();
        let with_it = picks.filter(|(_, picks)| picks.iter().any(|pick| pick.candidate == index));
        with_it.map(|(claim, _)| claim).collect()
    }

    fn field(&self) -> String {
        let ask = self.search.ask(self.at);
        field_of(self.search.plans[self.at.claim].claim, &ask.full_name())
    }

    fn reason(&self, pool: &str, device: &str, (reason, field, message): Said) -> Reason {
        let ask = self.search.ask(self.at);
        Reason {
            claim: self.at.claim,
            request: ask.full_name(),
            node: self.search.view.node().to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
            instance: None,
            reason,
            field,
            message,
            shortages: Vec::new(),
            holders: Vec::new(),
            together: Vec::new(),
        }
    }
}

/// Returns the capacity's name and the message.
fn say_misfit(misfit: Misfit, shortages: &[Shortage]) -> (String, String) {
    match misfit {
        Misfit::UnknownName(name) => {
            let message = format!("the device has no capacity {name:?}");
            (name, message)
        }
        Misfit::Policy { name, amount } => {
            let message = format!("{name}: {amount} is not among what the device's policy allows");
            (name, message)
        }
        Misfit::Short(short) => {
            let all = shortages.iter().map(|short| {
                let (mut wanted, mut free) = (short.wanted.readable(), short.free.readable());
                // The difference is lost in rounding, so print exact amounts.
                if wanted == free {
                    (wanted, free) = (short.wanted.to_string(), short.free.to_string());
                }
                format!(
                    "{}: {wanted} wanted, {free} of {} free",
                    short.name,
                    short.total.readable()
                )
            });
            let all: Vec<String> = all.collect();
            (short.name, all.join("; "))
        }
    }
}

fn say_taint(taint: &Taint) -> String {
    let Taint { key, value, effect, .. } = taint;
    if let Some(means) = taint.means {
        return means.to_owned();
    }
    let equals = if value.is_empty() { "" } else { "=" };
    match advice::fault(key, value) {
        Some(fault) => format!("taint {key}{equals}{value}:{effect} keeps new claims away: {fault}"),
        None => format!("taint {key}{equals}{value}:{effect} is not tolerated"),
    }
}
