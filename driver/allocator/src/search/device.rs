//! Tries one device for a request, and undoes it.

use super::state::{InFlight, Pick, Position, Refusal, Search, Undo};
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
    /// The order of the checks is Kubernetes', since some of them end the attempt with an error.
    pub(super) fn take(&mut self, position: &Position, index: usize) -> Result<Result<Undo, Refusal>, AllocateError> {
        let alternative = position.alternative.unwrap_or(0);
        self.try_device(position.claim, position.request, alternative, index)
    }

    pub(crate) fn try_device(
        &mut self,
        claim: usize,
        request: usize,
        alternative: usize,
        index: usize,
    ) -> Result<Result<Undo, Refusal>, AllocateError> {
        let view = self.view;
        let candidate = &view.candidates[index];
        let device = candidate.device();
        let ask = self.ask(claim, request, alternative);
        let (is_admin, wants_all) = (ask.is_admin(), ask.all.is_some());
        if let Some(refusal) = self.in_use(claim, index, is_admin) {
            return Ok(Err(refusal));
        }
        // With All the devices are known to match.
        if !wants_all && !self.matches(claim, request, alternative, index)? {
            return Ok(Err(Refusal::Mismatch));
        }
        let mut amounts = None;
        if !wants_all && self.features.consumable_capacity {
            match self.could_consume(claim, request, alternative, index)? {
                Ok(consumed) => amounts = Some(consumed),
                Err(misfit) => return Ok(Err(Refusal::Capacity(misfit))),
            }
        }
        if !self.features.partitionable_devices && !device.consumes_counters.is_empty() {
            return Ok(Err(Refusal::CountersOff));
        }
        let mut undo = Undo {
            claim,
            request,
            alternative,
            candidate: index,
            counters: false,
            marked: false,
            share: None,
        };
        // A shared device draws its counters once, for all its shares.
        let drawn_already = self.is_multiple(device) && self.is_shared(index);
        if !drawn_already && !device.consumes_counters.is_empty() {
            if let Err(shortage) = self.pool_counters(candidate).reserve(device) {
                return Ok(Err(Refusal::Counter(shortage)));
            }
            undo.counters = true;
        }
        if self.features.device_taints {
            let tolerations = &self.ask(claim, request, alternative).exactly.tolerations;
            if let Some(taint) = taint::untolerated(candidate.taints(), tolerations) {
                let refusal = Refusal::Taint(taint.clone());
                self.undo_counters(&undo);
                return Ok(Err(refusal));
            }
        }
        if let Err(refusal) = self.add_constraints(claim, request, alternative, candidate) {
            self.undo_counters(&undo);
            return match refusal {
                Refusal::Constraint(attribute) if wants_all => {
                    let device = candidate.path();
                    let fault = RequestError::AllAgainstConstraint { device, attribute };
                    Err(fault.at(claim, self.ask(claim, request, alternative).full_name()))
                }
                refusal => Ok(Err(refusal)),
            };
        }
        if wants_all && self.features.consumable_capacity {
            let consumed = self.could_consume(claim, request, alternative, index);
            match consumed {
                Ok(Ok(consumed)) => amounts = Some(consumed),
                Ok(Err(misfit)) => {
                    self.take_back_checks(&undo);
                    return Ok(Err(Refusal::Capacity(misfit)));
                }
                Err(error) => return Err(error),
            }
        }
        if self.is_multiple(device) {
            let amounts = amounts.unwrap_or_default();
            self.in_flight[index].add(&amounts);
            undo.share = Some(amounts);
        } else {
            self.marked[index].push(claim);
            undo.marked = true;
        }
        self.picks[claim].push(Pick {
            candidate: index,
            request,
            alternative,
            share: undo.share.clone(),
        });
        Ok(Ok(undo))
    }

    /// The opposite of [`Self::take`]; devices are taken back in the opposite order.
    pub(crate) fn take_back(&mut self, undo: Undo) {
        self.picks[undo.claim].pop();
        if let Some(share) = &undo.share {
            self.in_flight[undo.candidate].remove(share);
        }
        if undo.marked {
            let marked = &mut self.marked[undo.candidate];
            if let Some(at) = marked.iter().rposition(|claim| *claim == undo.claim) {
                marked.remove(at);
            }
        }
        self.take_back_checks(&undo);
    }

    fn take_back_checks(&mut self, undo: &Undo) {
        let asker = self.asker(undo.claim, undo.request, undo.alternative);
        let candidate = &self.view.candidates[undo.candidate];
        for constraint in &mut self.constraints[undo.claim] {
            constraint.remove(asker);
        }
        self.order
            .remove_affinity(&mut self.affinity, undo.claim, asker, candidate);
        self.undo_counters(undo);
    }

    fn undo_counters(&mut self, undo: &Undo) {
        if undo.counters {
            let candidate = &self.view.candidates[undo.candidate];
            self.pool_counters(candidate).release(candidate.device());
        }
    }

    fn in_use(&self, claim: usize, index: usize, is_admin: bool) -> Option<Refusal> {
        if is_admin {
            // An administrator looks at devices in use, but not twice at one for one claim.
            return self.marked[index].contains(&claim).then_some(Refusal::Taken);
        }
        if self.usage[index].is_some_and(crate::allocated::Usage::is_dedicated) {
            return Some(Refusal::InUse);
        }
        (!self.marked[index].is_empty()).then_some(Refusal::Taken)
    }

    fn matches(
        &mut self,
        claim: usize,
        request: usize,
        alternative: usize,
        index: usize,
    ) -> Result<bool, AllocateError> {
        let (view, features) = (self.view, self.features);
        let plan = &mut self.plans[claim];
        let ask = &mut plan.requests[request].asks[alternative];
        let before = self.cache.cost();
        let matches = ask.matches(index, &view.candidates[index], claim, view, features, self.cache);
        self.budget.charge(self.cache.cost() - before);
        matches
    }

    /// What the request would consume of the device, if that is free.
    fn could_consume(
        &self,
        claim: usize,
        request: usize,
        alternative: usize,
        index: usize,
    ) -> Result<Result<Amounts, Misfit>, AllocateError> {
        let consumed = self.would_consume(claim, request, alternative, index)?;
        Ok(consumed.and_then(|amounts| {
            capacity::fits(&amounts, self.view.candidates[index].device(), self.in_use_of(index))?;
            Ok(amounts)
        }))
    }

    /// Every capacity of which the device has too little for the request.
    pub(crate) fn shortages(
        &self,
        claim: usize,
        request: usize,
        alternative: usize,
        index: usize,
    ) -> Result<Vec<Shortage>, AllocateError> {
        let consumed = self.would_consume(claim, request, alternative, index)?;
        let device = self.view.candidates[index].device();
        let all = consumed.map(|amounts| capacity::shortages(&amounts, device, self.in_use_of(index)).collect());
        Ok(all.unwrap_or_default())
    }

    /// What the request would consume of the device if it were unused.
    fn would_consume(
        &self,
        claim: usize,
        request: usize,
        alternative: usize,
        index: usize,
    ) -> Result<Result<Amounts, Misfit>, AllocateError> {
        let candidate = &self.view.candidates[index];
        let ask = self.ask(claim, request, alternative);
        let asked = self.instead.as_ref().or(ask.exactly.capacity.as_ref());
        capacity::consumed(asked, candidate.device(), self.features.fractional_range)
            .map_err(|error| ask.capacity_error(claim, candidate, error))
    }

    /// What other claims, and these, consume of the device.
    fn in_use_of(&self, index: usize) -> impl Iterator<Item = &Amounts> + Clone {
        let held = self.usage[index].map(crate::allocated::Usage::consumed);
        held.into_iter().chain([&self.in_flight[index].consumed])
    }

    fn add_constraints(
        &mut self,
        claim: usize,
        request: usize,
        alternative: usize,
        candidate: &'a Candidate,
    ) -> Result<(), Refusal> {
        let asker = self.asker(claim, request, alternative);
        let constraints = &mut self.constraints[claim];
        let forbids = constraints
            .iter_mut()
            .position(|constraint| !constraint.add(asker, candidate.driver(), candidate.device()));
        let refusal = match forbids {
            Some(at) => Refusal::Constraint(constraints[at].attribute().to_owned()),
            None if !self.order.add_affinity(&mut self.affinity, claim, asker, candidate) => Refusal::Affinity,
            None => return Ok(()),
        };
        let added = forbids.unwrap_or(constraints.len());
        for constraint in &mut constraints[..added] {
            constraint.remove(asker);
        }
        Err(refusal)
    }

    fn asker(&self, claim: usize, request: usize, alternative: usize) -> Asker<'a> {
        let ask = self.ask(claim, request, alternative);
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

    /// Returns true if the device is given in shares. Without the gate nothing is.
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
