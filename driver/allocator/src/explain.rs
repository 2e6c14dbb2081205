//! Why an attempt found nothing on a node.
//!
//! ```text
//!  attempt fails ─► the furthest request that the search reached: everything before it fits together
//!      │
//!      ▼ stand before that request, with everything before it chosen
//!  each device of the node ─► the first thing that keeps the request from it
//! ```

use crate::allocate::Attempt;
use crate::capacity::Misfit;
use crate::error::AllocateError;
use crate::pools::{NodeView, PoolState};
use crate::reason::{Reason, ReasonKind, field_of};
use crate::search::{Refusal, Search};
use crate::selectors::SelectorCache;

/// A reason's kind, field and message.
type Said = (ReasonKind, String, String);

impl<'a> Attempt<'a> {
    /// What stands in the way of the first request that does not fit on the node besides those before it; nothing
    /// when all of them fit.
    ///
    /// # Errors
    /// A mistake in the claims themselves, which is no matter of this node.
    pub fn explain(&self, view: &'a NodeView, cache: &mut SelectorCache<'_>) -> Result<Vec<Reason>, AllocateError> {
        match self.find_reasons(view, cache) {
            Ok(reasons) => Ok(reasons),
            Err(error) => error
                .reason(view.node(), self.claims)
                .map(|reason| vec![reason])
                .ok_or(error),
        }
    }

    fn find_reasons(&self, view: &'a NodeView, cache: &mut SelectorCache<'_>) -> Result<Vec<Reason>, AllocateError> {
        // Without the policy's wishes, which refuse nothing.
        let Some(order) = self.policy.orders().pop() else {
            return Ok(Vec::new());
        };
        let mut search = self.search(view, cache, order)?;
        if matches!(search.run(), Ok(true)) {
            return Ok(Vec::new());
        }
        let (claim, request) = search.furthest;
        let mut search = self.search(view, cache, order)?;
        if !search.run_until(claim, request)? || search.plans.is_empty() {
            return Ok(Vec::new());
        }
        let mut reasons = Vec::new();
        for alternative in 0..search.plans[claim].requests[request].asks.len() {
            Explainer {
                search: &mut search,
                claim,
                request,
                alternative,
            }
            .explain(&mut reasons)?;
        }
        Ok(reasons)
    }
}

/// One request, or alternative, before which the search stands.
struct Explainer<'e, 'a, 'c, 's> {
    search: &'e mut Search<'a, 'c, 's>,
    claim: usize,
    request: usize,
    alternative: usize,
}

impl Explainer<'_, '_, '_, '_> {
    fn explain(&mut self, reasons: &mut Vec<Reason>) -> Result<(), AllocateError> {
        let before = reasons.len();
        let view = self.search.view;
        for pool in &view.pools {
            let problem = match &pool.state {
                PoolState::Usable => continue,
                PoolState::Incomplete => "not all slices of its newest generation are published".to_owned(),
                PoolState::Invalid(error) => error.to_string(),
            };
            let field = "spec.pool".to_owned();
            let message = format!("pool {}: {problem}", pool.path());
            reasons.push(self.reason(&pool.name, "", (ReasonKind::IncompletePool, field, message)));
        }
        let mut fitting: i64 = 0;
        for index in 0..view.candidates.len() {
            match self
                .search
                .try_device(self.claim, self.request, self.alternative, index)?
            {
                Ok(undo) => {
                    self.search.take_back(undo);
                    fitting += 1;
                }
                Err(refusal) => {
                    let candidate = &view.candidates[index];
                    let said = self.say(refusal, index)?;
                    reasons.push(self.reason(&candidate.slice.spec.pool.name, &candidate.device().name, said));
                }
            }
        }
        let ask = self.search.ask(self.claim, self.request, self.alternative);
        let wanted = ask.count;
        if fitting > 0 && fitting >= wanted {
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

    fn say(&mut self, refusal: Refusal, index: usize) -> Result<Said, AllocateError> {
        let field = self.field();
        let holders = self.holders(index);
        Ok(match refusal {
            Refusal::InUse => (ReasonKind::InUse, String::new(), format!("in use{holders}")),
            Refusal::Taken => {
                let message = "taken by an earlier request of the claims that are allocated together".to_owned();
                (ReasonKind::InUse, field, message)
            }
            Refusal::Mismatch => self.say_mismatch(index)?,
            Refusal::Capacity(misfit) => {
                let at = |name: &str| format!("{field}.capacity.requests.{name}");
                match misfit {
                    Misfit::UnknownName(name) => {
                        let message = format!("the device has no capacity {name:?}");
                        (ReasonKind::Capacity, at(&name), message)
                    }
                    Misfit::Policy { name, amount } => {
                        let message = format!("{name}: {amount} is not among what the device's policy allows");
                        (ReasonKind::Capacity, at(&name), message)
                    }
                    Misfit::Short { name, wanted, free } => {
                        let message = format!("{name}: {wanted} wanted, {free} free{holders}");
                        (ReasonKind::Capacity, at(&name), message)
                    }
                }
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
            Refusal::Taint(taint) => {
                let value = match taint.value.as_str() {
                    "" => String::new(),
                    value => format!("={value}"),
                };
                let message = format!("taint {}{value}:{} is not tolerated", taint.key, taint.effect);
                (ReasonKind::Taint, format!("{field}.tolerations"), message)
            }
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

    fn say_mismatch(&mut self, index: usize) -> Result<Said, AllocateError> {
        let view = self.search.view;
        let candidate = &view.candidates[index];
        if crate::plan::needs_gate(candidate, self.search.features) {
            let message = "the device has binding conditions, and their gates are off".to_owned();
            return Ok((ReasonKind::Selector, "bindingConditions".to_owned(), message));
        }
        let plan = &self.search.plans[self.claim];
        let ask = &plan.requests[self.request].asks[self.alternative];
        let found = ask.first_mismatch(candidate, plan.claim, self.search.cache)?;
        let Some((of_class, at)) = found else {
            let message = "the device is not for this node".to_owned();
            return Ok((ReasonKind::NodeMismatch, "nodeSelector".to_owned(), message));
        };
        let (selectors, object) = match of_class {
            true => (&ask.class.spec.selectors, format!("class {}", ask.class.metadata.name)),
            false => (&ask.exactly.selectors, "the request".to_owned()),
        };
        let expression = selectors[at].cel.as_ref().map_or("", |cel| &cel.expression);
        let message = format!("the selector of {object} does not match: {expression}");
        let field = match of_class {
            true => format!("spec.selectors[{at}].cel.expression"),
            false => format!("{}.selectors[{at}].cel.expression", self.field()),
        };
        Ok((ReasonKind::Selector, field, message))
    }

    /// Who holds a device, in words.
    fn holders(&self, index: usize) -> String {
        const NAMED: usize = 3;
        let Some(usage) = self.search.usage(index) else {
            return String::new();
        };
        let mut holders: Vec<&str> = usage.holders().iter().map(|holder| &**holder).collect();
        holders.sort_unstable();
        holders.dedup();
        let more = holders.len().saturating_sub(NAMED);
        holders.truncate(NAMED);
        match (holders.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(", held by {}", holders.join(", ")),
            (false, more) => format!(", held by {} and {more} more", holders.join(", ")),
        }
    }

    fn field(&self) -> String {
        let ask = self.search.ask(self.claim, self.request, self.alternative);
        field_of(self.search.plans[self.claim].claim, &ask.full_name())
    }

    fn reason(&self, pool: &str, device: &str, (reason, field, message): Said) -> Reason {
        let ask = self.search.ask(self.claim, self.request, self.alternative);
        Reason {
            claim: self.search.plans[self.claim].claim.key(),
            request: ask.full_name(),
            node: self.search.view.node().to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
            reason,
            field,
            message,
        }
    }
}
