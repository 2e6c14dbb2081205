//! Checks claims and prepares them for the search.

use crate::capacity;
use crate::constraint::Tracked;
use crate::error::{AllocateError, RequestError};
use crate::expression::domain_hint;
use crate::features::Features;
use crate::model::{Alternative, DeviceClass, Exactly, Mode, Request, ResourceClaim};
use crate::pools::{Candidate, NodeView, PoolState};
use crate::selectors::SelectorCache;

/// The most devices that one allocation can hold.
pub(crate) const MOST_DEVICES: i64 = 32;

/// The classes that claims may name.
pub trait Classes {
    fn get(&self, name: &str) -> Option<&DeviceClass>;
}

/// One claim of an attempt.
#[derive(Debug)]
pub(crate) struct ClaimPlan<'a> {
    pub(crate) claim: &'a ResourceClaim,
    pub(crate) requests: Vec<RequestPlan<'a>>,
}

#[derive(Debug)]
pub(crate) struct RequestPlan<'a> {
    pub(crate) name: &'a str,
    /// Has exactly one element if the request has no list.
    pub(crate) asks: Vec<Ask<'a>>,
    pub(crate) is_list: bool,
}

/// A checked request, or one of its alternatives.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) request: &'a str,
    pub(crate) alternative: Option<&'a str>,
    pub(crate) class: &'a DeviceClass,
    pub(crate) exactly: &'a Exactly,
    pub(crate) count: i64,
    /// With mode All: the indices of the devices in the view.
    pub(crate) all: Option<Vec<usize>>,
    /// For each device that was checked, whether it matches.
    matching: Vec<Option<bool>>,
}

/// Everything that the plans depend on.
pub(crate) struct PlanBuilder<'a, 'c, 's> {
    pub(crate) view: &'a NodeView,
    pub(crate) classes: &'a dyn Classes,
    pub(crate) features: Features,
    pub(crate) cache: &'c mut SelectorCache<'s>,
}

impl<'a> PlanBuilder<'a, '_, '_> {
    /// Checks the claims, and finds the devices of requests with mode All.
    pub(crate) fn plan(&mut self, claims: &[&'a ResourceClaim]) -> Result<Vec<ClaimPlan<'a>>, AllocateError> {
        let claims = claims.iter().enumerate();
        claims.map(|(place, claim)| self.claim(place, claim)).collect()
    }

    fn claim(&mut self, place: usize, claim: &'a ResourceClaim) -> Result<ClaimPlan<'a>, AllocateError> {
        let mut requests = Vec::new();
        let mut total = 0;
        for request in &claim.spec.devices.requests {
            let plan = self.request(place, request)?;
            // The smallest number of devices that the request can take, because a list may end with a smaller
            // alternative.
            let least = plan.asks.iter().map(|ask| ask.count).min().unwrap_or(0);
            if least > MOST_DEVICES - total {
                let too_many = RequestError::TooMany {
                    count: least,
                    before: total,
                    most: MOST_DEVICES,
                };
                return Err(too_many.at(place, request.name.clone()));
            }
            total += least;
            requests.push(plan);
        }
        let constraints = &claim.spec.devices.constraints;
        if let Some(index) = constraints
            .iter()
            .position(|constraint| Tracked::of(constraint).is_none())
        {
            return Err(AllocateError::UnknownConstraint { claim: place, index });
        }
        Ok(ClaimPlan { claim, requests })
    }

    fn request(&mut self, claim: usize, request: &'a Request) -> Result<RequestPlan<'a>, AllocateError> {
        let is_list = !request.first_available.is_empty();
        let off = |field, gate| RequestError::FeatureOff { field, gate }.at(claim, request.name.clone());
        if is_list && !self.features.prioritized_list {
            return Err(off("firstAvailable", "DRAPrioritizedList"));
        }
        if !self.features.consumable_capacity && request.asks().any(|ask| ask.capacity.is_some()) {
            return Err(off("capacity", "DRAConsumableCapacity"));
        }
        let asks = if is_list {
            let alternatives = request.first_available.iter();
            alternatives
                .map(|Alternative { name, ask }| self.ask(claim, &request.name, Some(name), ask))
                .collect::<Result<_, _>>()?
        } else {
            let exactly = request
                .exactly
                .as_ref()
                .ok_or_else(|| RequestError::NoAsk.at(claim, request.name.clone()))?;
            vec![self.ask(claim, &request.name, None, exactly)?]
        };
        Ok(RequestPlan {
            name: &request.name,
            asks,
            is_list,
        })
    }

    fn ask(
        &mut self,
        claim: usize,
        request: &'a str,
        alternative: Option<&'a str>,
        exactly: &'a Exactly,
    ) -> Result<Ask<'a>, AllocateError> {
        let at = |fault: RequestError| fault.at(claim, full_name(request, alternative));
        if exactly.derives_attributes {
            return Err(at(RequestError::DerivedAttributes));
        }
        if let Some(index) = exactly.selectors.iter().position(|selector| selector.cel.is_none()) {
            return Err(at(RequestError::UnknownSelector { index }));
        }
        if !self.features.admin_access && exactly.admin_access.is_some() {
            return Err(at(RequestError::FeatureOff {
                field: "adminAccess",
                gate: "DRAAdminAccess",
            }));
        }
        if exactly.class.is_empty() {
            return Err(at(RequestError::NoClass));
        }
        let class = self.classes.get(&exactly.class).ok_or_else(|| {
            let class = exactly.class.clone();
            at(RequestError::UnknownClass { class })
        })?;
        if let Some(error) = &class.unreadable {
            return Err(at(RequestError::UnreadableClass {
                class: exactly.class.clone(),
                error: error.clone(),
            }));
        }
        let mut ask = Ask {
            request,
            alternative,
            class,
            exactly,
            count: 0,
            all: None,
            matching: vec![None; self.view.candidates.len()],
        };
        match &exactly.mode {
            Mode::Exact(count) => ask.count = *count,
            Mode::All => {
                let all = self.all_devices(claim, &mut ask)?;
                ask.count = i64::try_from(all.len()).unwrap_or(i64::MAX);
                ask.all = Some(all);
            }
            Mode::Unknown(mode) => {
                let mode = mode.clone();
                return Err(at(RequestError::UnknownMode { mode }));
            }
        }
        Ok(ask)
    }

    /// The devices that mode All means. They are unknown if a pool is incomplete.
    fn all_devices(&mut self, claim: usize, ask: &mut Ask<'a>) -> Result<Vec<usize>, AllocateError> {
        let view = self.view;
        let mut all = Vec::new();
        let mut rest = view.candidates.iter().enumerate().peekable();
        for (at, pool) in view.pools.iter().enumerate() {
            match &pool.state {
                PoolState::Usable => {}
                PoolState::Incomplete => {
                    let pool = pool.path();
                    return Err(RequestError::IncompletePool { pool }.at(claim, ask.full_name()));
                }
                PoolState::Invalid(error) => {
                    let invalid = RequestError::InvalidPool {
                        pool: pool.path(),
                        error: Box::new(error.clone()),
                    };
                    return Err(invalid.at(claim, ask.full_name()));
                }
            }
            // Candidates come pool by pool.
            while let Some((index, candidate)) = rest.next_if(|(_, candidate)| candidate.pool == at) {
                if !ask.matches(index, candidate, claim, view, self.features, self.cache)? {
                    continue;
                }
                if self.features.consumable_capacity && !self.could_give(claim, ask, candidate)? {
                    continue;
                }
                all.push(index);
            }
        }
        Ok(all)
    }

    /// Returns true if the device could satisfy the request when unused.
    fn could_give(&self, claim: usize, ask: &Ask<'_>, candidate: &Candidate) -> Result<bool, AllocateError> {
        let device = candidate.device();
        let consumed = capacity::consumed(ask.exactly.capacity.as_ref(), device, self.features.fractional_range)
            .map_err(|error| ask.capacity_error(claim, candidate, error))?;
        Ok(consumed
            .and_then(|amounts| capacity::fits(&amounts, device, std::iter::empty()))
            .is_ok())
    }
}

impl Ask<'_> {
    pub(crate) fn is_admin(&self) -> bool {
        self.exactly.admin_access.unwrap_or(false)
    }

    /// Returns the name that results use.
    pub(crate) fn full_name(&self) -> String {
        full_name(self.request, self.alternative)
    }

    pub(crate) fn capacity_error(
        &self,
        claim: usize,
        candidate: &Candidate,
        error: capacity::CapacityError,
    ) -> AllocateError {
        let fault = RequestError::Capacity {
            device: candidate.path(),
            error: Box::new(error),
        };
        fault.at(claim, self.full_name())
    }

    /// Returns true if class, selectors and node of the request match the device. Each device is checked only once.
    pub(crate) fn matches(
        &mut self,
        index: usize,
        candidate: &Candidate,
        claim: usize,
        view: &NodeView,
        features: Features,
        cache: &mut SelectorCache<'_>,
    ) -> Result<bool, AllocateError> {
        if let Some(known) = self.matching[index] {
            return Ok(known);
        }
        let matches = self.look(candidate, claim, view, features, cache)?;
        self.matching[index] = Some(matches);
        Ok(matches)
    }

    fn look(
        &self,
        candidate: &Candidate,
        claim: usize,
        view: &NodeView,
        features: Features,
        cache: &mut SelectorCache<'_>,
    ) -> Result<bool, AllocateError> {
        if needs_gate(candidate, features) || self.first_mismatch(candidate, claim, cache)?.is_some() {
            return Ok(false);
        }
        candidate
            .includes(&view.node)
            .map_err(|error| AllocateError::NodeSelector {
                device: candidate.path(),
                message: error.to_string(),
            })
    }

    /// Returns the first selector that does not match: whether it is the class's, and its index.
    pub(crate) fn first_mismatch(
        &self,
        candidate: &Candidate,
        claim: usize,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<(bool, usize)>, AllocateError> {
        let lists = [(true, &self.class.spec.selectors), (false, &self.exactly.selectors)];
        for (of_class, selectors) in lists {
            for (index, selector) in selectors.iter().enumerate() {
                let expression = selector.cel.as_ref().map(|cel| &*cel.expression);
                let result = match expression {
                    Some(expression) => cache.matches(expression, candidate),
                    None => Err("the selector is of a kind that is not known here".to_owned()),
                };
                match result {
                    Ok(true) => {}
                    Ok(false) => return Ok(Some((of_class, index))),
                    Err(message) => {
                        let message =
                            message + &expression.map_or_else(String::new, |text| domain_hint(text, candidate));
                        let fault = RequestError::Cel {
                            class: of_class.then(|| self.class.metadata.name.clone()),
                            index,
                            device: candidate.path(),
                            message,
                        };
                        return Err(fault.at(claim, self.full_name()));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Returns true if the device can only be used with gates that are off.
pub(crate) fn needs_gate(candidate: &Candidate, features: Features) -> bool {
    let conditions = &candidate.device().binding_conditions;
    !features.binds_with_conditions() && conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
}

fn full_name(request: &str, alternative: Option<&str>) -> String {
    match alternative {
        Some(alternative) => format!("{request}/{alternative}"),
        None => request.to_owned(),
    }
}
