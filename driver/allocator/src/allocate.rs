//! One attempt to allocate claims together on one node.

use crate::allocated::AllocatedDevices;
use crate::budget::Budget;
use crate::error::AllocateError;
use crate::features::Features;
use crate::model::{Allocation, ResourceClaim};
use crate::outcome::Outcome;
use crate::plan::{Classes, PlanBuilder};
use crate::policy::{NodeRank, Order};
use crate::pools::{NodeView, PoolState};
use crate::search::{AskAt, Search};
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

/// The result of an attempt that begins with a certain device.
pub(crate) enum Start {
    Here(Option<Vec<Allocation>>),
    Elsewhere,
}

/// Claims to allocate together, and everything that this depends on except the node.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    pub claims: &'a [&'a ResourceClaim],
    pub classes: &'a dyn Classes,
    /// The devices in use.
    pub allocated: &'a AllocatedDevices,
    pub features: Features,
    pub policy: AllocationPolicy,
}

impl<'a> Attempt<'a> {
    /// Returns one allocation for each claim, in their order, or `None` if they do not fit on the node together.
    ///
    /// # Errors
    /// A mistake in the claims, their classes or the slices that makes every answer wrong.
    pub fn on_node(
        &self,
        view: &'a NodeView,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Vec<Allocation>>, AllocateError> {
        let budget = &mut Budget::default();
        for order in Order::of_policy(self.policy) {
            if let Some(found) = self.in_order(view, order, budget, cache, share_id)? {
                return Ok(Some(found));
            }
        }
        // An invalid pool does not matter if the claims fit, but explains why they do not.
        let invalid = view.pools.iter().find_map(|pool| match &pool.state {
            PoolState::Invalid(error) => Some((pool.path(), Box::new(error.clone()))),
            PoolState::Usable | PoolState::Incomplete => None,
        });
        match invalid {
            Some((pool, error)) => Err(AllocateError::InvalidPools { pool, error }),
            None => Ok(None),
        }
    }

    pub(crate) fn in_order(
        &self,
        view: &'a NodeView,
        order: Order,
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Vec<Allocation>>, AllocateError> {
        let mut search = self.search(view, (cache, budget), order)?;
        Ok(search.run()?.then(|| self.outcome(&search, share_id)))
    }

    /// Returns the node's rank, by its best device for the first request; `None` if it has none.
    pub(crate) fn rank(
        &self,
        view: &'a NodeView,
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<NodeRank>, AllocateError> {
        let order = Order::of_policy(self.policy)[0];
        let mut search = self.search(view, (cache, budget), order)?;
        let Some(alternatives) = search.first_request() else {
            return Ok(Some(Order::of_no_request()));
        };
        let devices = order
            .of_devices(&search)
            .unwrap_or_else(|| (0..view.candidates.len()).collect());
        for alternative in 0..alternatives {
            for index in devices.iter().copied() {
                if search.would_take(AskAt::of_first(alternative), index)? {
                    return Ok(Some(order.of_node(&search, alternative, index)));
                }
            }
        }
        Ok(None)
    }

    /// Returns allocations if the alternative of the first request can have this device, which must be the node's best
    /// one for it.
    pub(crate) fn on_device(
        &self,
        view: &'a NodeView,
        (alternative, serial): (usize, u64),
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Start, AllocateError> {
        let found = view
            .candidates
            .iter()
            .position(|candidate| candidate.serial() == serial);
        let Some(index) = found else {
            return Ok(Start::Elsewhere);
        };
        let order = Order::of_policy(self.policy)[0];
        let mut search = self.search(view, (cache, budget), order)?;
        if !search.would_take(AskAt::of_first(alternative), index)? {
            return Ok(Start::Elsewhere);
        }
        Ok(Start::Here(search.run()?.then(|| self.outcome(&search, share_id))))
    }

    pub(crate) fn search<'c, 's>(
        &self,
        view: &'a NodeView,
        (cache, budget): (&'c mut SelectorCache<'s>, &'c mut Budget),
        order: Order,
    ) -> Result<Search<'a, 'c, 's>, AllocateError> {
        let before = cache.cost();
        let plans = PlanBuilder {
            view,
            classes: self.classes,
            features: self.features,
            cache,
        }
        .plan(self.claims);
        budget.charge(cache.cost() - before);
        Ok(Search::new(
            view,
            plans?,
            self.allocated,
            self.features,
            (cache, budget),
            order,
        ))
    }

    pub(crate) fn outcome(&self, search: &Search<'a, '_, '_>, share_id: &mut dyn FnMut() -> String) -> Vec<Allocation> {
        let claims = search.plans.iter().zip(&search.chosen).zip(&search.picks);
        claims
            .map(|((plan, chosen), picks)| {
                Outcome {
                    view: search.view,
                    plan,
                    chosen,
                    picks,
                    conditions: self.features.binds_with_conditions(),
                }
                .allocation(share_id)
            })
            .collect()
    }
}
