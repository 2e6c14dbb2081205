//! Tries one device for a request, and undoes it.

use super::state::{AskAt, InFlight, Pick, Position, Refusal, Search, Undo};
use crate::capacity::{self, Amounts, Misfit, Shortage};
use crate::constraint::Asker;
use crate::counters::Counters;
use crate::error::{AllocateError, RequestError};
use crate::model::Device;
use crate::pools::Candidate;
use crate::taint;

impl<'a> Search<'a, '_, '_> {
    /// Takes a device for a request, if it can be had.
    ///
    /// Checks in the order of Kubernetes, because some checks end the attempt with an error.
    pub(super) fn take(&mut self, position: &Position, index: usize) -> Result<Result<Undo, Refusal>, AllocateError> {
        self.try_device(position.ask(), index)
    }

    pub(crate) fn try_device(&mut self, at: AskAt, index: usize) -> Result<Result<Undo, Refusal>, AllocateError> {
        let candidate = &self.view.candidates[index];
        let wants_all = self.ask(at).all.is_some();
        let mut amounts = match self.check_device(at, index)? {
            Ok(amounts) => amounts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut undo = Undo {
            at,
            candidate: index,
            counters: false,
            marked: false,
            share: None,
        };
        if let Err(refusal) = self.reserve_counters(&mut undo) {
            return Ok(Err(refusal));
        }
        if self.features.device_taints {
            let tolerations = &self.ask(at).exactly.tolerations;
            if let Some(taint) = taint::untolerated(candidate.taints(), tolerations) {
                let refusal = Refusal::Taint(taint.clone());
                self.undo_counters(&undo);
                return Ok(Err(refusal));
            }
        }
        if let Err(refusal) = self.add_constraints(at, candidate) {
            self.undo_counters(&undo);
            return match refusal {
                Refusal::Constraint(attribute) if wants_all => {
                    let device = candidate.path();
                    let fault = RequestError::AllAgainstConstraint { device, attribute };
                    Err(fault.at(at.claim, self.ask(at).full_name()))
                }
                refusal => Ok(Err(refusal)),
            };
        }
        if wants_all && self.features.consumable_capacity {
            match self.could_consume(at, index)? {
                Ok(consumed) => amounts = Some(consumed),
                Err(misfit) => {
                    self.take_back_checks(&undo);
                    return Ok(Err(Refusal::Capacity(misfit)));
                }
            }
        }
        self.pick(&mut undo, amounts.unwrap_or_default());
        Ok(Ok(undo))
    }

    /// The checks that change nothing. Returns what a share of the device would consume, if that is known by now.
    fn check_device(&mut self, at: AskAt, index: usize) -> Result<Result<Option<Amounts>, Refusal>, AllocateError> {
        let ask = self.ask(at);
        let (is_admin, wants_all) = (ask.is_admin(), ask.all.is_some());
        if let Some(refusal) = self.in_use(at.claim, index, is_admin) {
            return Ok(Err(refusal));
        }
        // With All the devices are known to match.
        if !wants_all && !self.matches(at, index)? {
            return Ok(Err(Refusal::Mismatch));
        }
        let mut amounts = None;
        if !wants_all && self.features.consumable_capacity {
            match self.could_consume(at, index)? {
                Ok(consumed) => amounts = Some(consumed),
                Err(misfit) => return Ok(Err(Refusal::Capacity(misfit))),
            }
        }
        let device = self.view.candidates[index].device();
        if !self.features.partitionable_devices && !device.consumes_counters.is_empty() {
            return Ok(Err(Refusal::CountersOff));
        }
        Ok(Ok(amounts))
    }

    /// Takes the device, or a share of it.
    fn pick(&mut self, undo: &mut Undo, amounts: Amounts) {
        let index = undo.candidate;
        if self.is_multiple(self.view.candidates[index].device()) {
            self.in_flight[index].add(&amounts);
            undo.share = Some(amounts);
        } else {
            self.marked[index].push(undo.at.claim);
            undo.marked = true;
        }
        self.picks[undo.at.claim].push(Pick {
            candidate: index,
            request: undo.at.request,
            alternative: undo.at.alternative,
            share: undo.share.clone(),
        });
    }

    /// The opposite of [`Self::take`]; devices are taken back in the opposite order.
    pub(crate) fn take_back(&mut self, undo: Undo) {
        self.picks[undo.at.claim].pop();
        if let Some(share) = &undo.share {
            self.in_flight[undo.candidate].remove(share);
        }
        if undo.marked {
            let marked = &mut self.marked[undo.candidate];
            if let Some(at) = marked.iter().rposition(|claim| *claim == undo.at.claim) {
                marked.remove(at);
            }
        }
        self.take_back_checks(&undo);
    }

    fn take_back_checks(&mut self, undo: &Undo) {
        let asker = self.asker(undo.at);
        let candidate = &self.view.candidates[undo.candidate];
        for constraint in &mut self.constraints[undo.at.claim] {
            constraint.remove(asker);
        }
        self.order
            .remove_affinity(&mut self.affinity, undo.at.claim, asker, candidate);
        self.undo_counters(undo);
    }

    fn reserve_counters(&mut self, undo: &mut Undo) -> Result<(), Refusal> {
        let candidate = &self.view.candidates[undo.candidate];
        let device = candidate.device();
        // The counters of a shared device are reserved once, for all its shares.
        let are_reserved = self.is_multiple(device) && self.is_shared(undo.candidate);
        if !are_reserved && !device.consumes_counters.is_empty() {
            let reserved = self.pool_counters(candidate).reserve(device);
            reserved.map_err(Refusal::Counter)?;
            undo.counters = true;
        }
        Ok(())
    }

    fn undo_counters(&mut self, undo: &Undo) {
        if undo.counters {
            let candidate = &self.view.candidates[undo.candidate];
            self.pool_counters(candidate).release(candidate.device());
        }
    }

    fn in_use(&self, claim: usize, index: usize, is_admin: bool) -> Option<Refusal> {
        if is_admin {
            // Admin access also gets devices in use, but one claim gets a device only once.
            return self.marked[index].contains(&claim).then_some(Refusal::Taken);
        }
        if self.usage[index].is_some_and(crate::allocated::Usage::is_dedicated) {
            return Some(Refusal::InUse);
        }
        (!self.marked[index].is_empty()).then_some(Refusal::Taken)
    }

    fn matches(&mut self, at: AskAt, index: usize) -> Result<bool, AllocateError> {
        let (view, features) = (self.view, self.features);
        let ask = &mut self.plans[at.claim].requests[at.request].asks[at.alternative];
        let before = self.cache.cost();
        let matches = ask.matches(index, &view.candidates[index], at.claim, view, features, self.cache);
        self.budget.charge(self.cache.cost() - before);
        matches
    }

    /// Returns the amounts that the request would consume of the device, if they are free.
    fn could_consume(&self, at: AskAt, index: usize) -> Result<Result<Amounts, Misfit>, AllocateError> {
        let consumed = self.would_consume(at, index)?;
        Ok(consumed.and_then(|amounts| {
            capacity::fits(&amounts, self.view.candidates[index].device(), self.in_use_of(index))?;
            Ok(amounts)
        }))
    }

    /// Returns the capacities that the device has too little of.
    pub(crate) fn shortages(&self, at: AskAt, index: usize) -> Result<Vec<Shortage>, AllocateError> {
        let consumed = self.would_consume(at, index)?;
        let device = self.view.candidates[index].device();
        let all = consumed.map(|amounts| capacity::shortages(&amounts, device, self.in_use_of(index)).collect());
        Ok(all.unwrap_or_default())
    }

    /// Returns the amounts that the request would consume of the device if it were unused.
    fn would_consume(&self, at: AskAt, index: usize) -> Result<Result<Amounts, Misfit>, AllocateError> {
        let candidate = &self.view.candidates[index];
        let ask = self.ask(at);
        let asked = self.instead.as_ref().or(ask.exactly.capacity.as_ref());
        capacity::consumed(asked, candidate.device(), self.features.fractional_range)
            .map_err(|error| ask.capacity_error(at.claim, candidate, error))
    }

    /// The amounts that all claims consume of the device, including those of this search.
    fn in_use_of(&self, index: usize) -> impl Iterator<Item = &Amounts> + Clone {
        let held = self.usage[index].map(crate::allocated::Usage::consumed);
        held.into_iter().chain([&self.in_flight[index].consumed])
    }

    fn add_constraints(&mut self, at: AskAt, candidate: &'a Candidate) -> Result<(), Refusal> {
        let asker = self.asker(at);
        let constraints = &mut self.constraints[at.claim];
        let forbids = constraints
            .iter_mut()
            .position(|constraint| !constraint.add(asker, candidate.driver(), candidate.device()));
        let refusal = match forbids {
            Some(index) => Refusal::Constraint(constraints[index].attribute().to_owned()),
            None if !self.order.add_affinity(&mut self.affinity, at.claim, asker, candidate) => Refusal::Affinity,
            None => return Ok(()),
        };
        let added = forbids.unwrap_or(constraints.len());
        for constraint in &mut constraints[..added] {
            constraint.remove(asker);
        }
        Err(refusal)
    }

    fn asker(&self, at: AskAt) -> Asker<'a> {
        let ask = self.ask(at);
        Asker {
            request: ask.request,
            alternative: ask.alternative,
        }
    }

    fn pool_counters(&mut self, candidate: &'a Candidate) -> &mut Counters<'a> {
        let pool = &self.view.pools[candidate.pool];
        let allocated = self.allocated;
        self.counters[candidate.pool].get_or_insert_with(|| {
            let in_use = pool
                .devices()
                .filter(|device| allocated.usage(&pool.driver, &pool.name, &device.name).is_some());
            Counters::new(pool.counter_sets(), in_use)
        })
    }

    /// Returns true if the device is given in shares. If the gate is off, no device is.
    pub(super) fn is_multiple(&self, device: &Device) -> bool {
        self.features.consumable_capacity && device.allow_multiple_allocations
    }

    fn is_shared(&self, index: usize) -> bool {
        self.in_flight[index].shares > 0 || self.usage[index].is_some_and(crate::allocated::Usage::is_shared)
    }
}

impl InFlight {
    fn add(&mut self, amounts: &Amounts) {
        self.shares += 1;
        for (name, amount) in amounts {
            self.consumed.entry(name.clone()).or_default().add(amount);
        }
    }

    fn remove(&mut self, amounts: &Amounts) {
        self.shares -= 1;
        for (name, amount) in amounts {
            self.consumed.entry(name.clone()).or_default().subtract(amount);
        }
    }

    pub(super) fn consumed(&self) -> &Amounts {
        &self.consumed
    }

    pub(super) fn is_none(&self) -> bool {
        self.shares == 0
    }
}
