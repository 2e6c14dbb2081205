//! The search: tries devices for all requests, until the first complete solution.
//!
//! ```text
//!  claim ─► request ─► alternative ─► 1st device ─► 2nd device ─► ... ─► next request ─► ... ─► solution
//!                          │              │  what comes after fails: undo it, try the next device
//!                          │              ▼
//!                          └─ no device left: next alternative, or back to the request before
//! ```
//!
//! This is Kubernetes' own order, so the first solution is the same: devices of one request are tried in combinations,
//! not in permutations, requests and claims in the order given, and a branch that cannot end within 32 devices for a
//! claim is abandoned for the next alternative at once. The policy only decides in which order a request tries devices.
//!
//! It is a loop over a stack of its own, so that a list of a thousand claims does not exhaust the thread's stack. It
//! counts its steps: an attempt that would try everything forever ends with an error when its [`Budget`] is spent.

mod device;
mod free;
mod state;

use crate::allocated::{AllocatedDevices, Usage};
use crate::budget::Budget;
use crate::constraint::Tracked;
use crate::error::AllocateError;
use crate::features::Features;
use crate::plan::{ClaimPlan, MOST_DEVICES};
use crate::policy::Order;
use crate::pools::NodeView;
use crate::selectors::SelectorCache;

pub(crate) use free::capacity_of;
pub(crate) use state::{AskAt, Pick, Refusal, Search};
use state::{Frame, InFlight, Position};

/// How a branch of the search ended.
enum Stop {
    /// Too many devices for one claim: another alternative may need fewer.
    Exceeded,
    Fatal(AllocateError),
}

enum Signal {
    Descend(Position),
    Return(Result<bool, Stop>),
}

impl<'a, 'c, 's> Search<'a, 'c, 's> {
    pub(crate) fn new(
        view: &'a NodeView,
        plans: Vec<ClaimPlan<'a>>,
        allocated: &'a AllocatedDevices,
        features: Features,
        (cache, budget): (&'c mut SelectorCache<'s>, &'c mut Budget),
        order: Order,
    ) -> Self {
        let usage = view.candidates.iter().map(|candidate| {
            allocated.usage(
                candidate.driver(),
                &candidate.slice.spec.pool.name,
                &candidate.device().name,
            )
        });
        let constraints = plans.iter().map(|plan| {
            let constraints = plan.claim.spec.devices.constraints.iter();
            constraints.filter_map(Tracked::of).collect()
        });
        Self {
            usage: usage.collect(),
            marked: vec![Vec::new(); view.candidates.len()],
            in_flight: std::iter::repeat_with(InFlight::default)
                .take(view.candidates.len())
                .collect(),
            counters: view.pools.iter().map(|_| None).collect(),
            constraints: constraints.collect(),
            affinity: order.affinity(plans.len()),
            picks: vec![Vec::new(); plans.len()],
            chosen: plans.iter().map(|plan| vec![0; plan.requests.len()]).collect(),
            stack: Vec::new(),
            furthest: (0, 0),
            stop_at: None,
            instead: None,
            view,
            features,
            plans,
            cache,
            budget,
            allocated,
            order,
        }
    }

    /// Returns true if there is a solution; [`Self::picks`] holds it then.
    pub(crate) fn run(&mut self) -> Result<bool, AllocateError> {
        let mut signal = Signal::Descend(Position::of_request(0, 0));
        loop {
            signal = match signal {
                Signal::Descend(position) => self.descend(position),
                Signal::Return(result) => match self.stack.pop() {
                    Some(frame) => self.resume(frame, result),
                    None => {
                        return match result {
                            Ok(found) => Ok(found),
                            Err(Stop::Exceeded) => Err(AllocateError::TooManyChosen { most: MOST_DEVICES }),
                            Err(Stop::Fatal(error)) => Err(error),
                        };
                    }
                },
            };
        }
    }

    /// Chooses devices for everything before a request that was reached, and stops there.
    pub(crate) fn run_until(&mut self, claim: usize, request: usize) -> Result<bool, AllocateError> {
        self.stop_at = Some((claim, request));
        self.run()
    }

    fn descend(&mut self, position: Position) -> Signal {
        if let Err(error) = self.budget.step() {
            return Signal::Return(Err(Stop::Fatal(error)));
        }
        let Position { claim, request, .. } = position;
        if claim >= self.plans.len() {
            return Signal::Return(Ok(true));
        }
        if request >= self.plans[claim].requests.len() {
            self.stack.push(Frame::ClaimEnd);
            return Signal::Descend(Position::of_request(claim + 1, 0));
        }
        if position.is_new() {
            if self.stop_at == Some((claim, request)) {
                return Signal::Return(Ok(true));
            }
            self.furthest = self.furthest.max((claim, request));
            if self.plans[claim].requests[request].is_list {
                return self.next_alternative(position, 0, true);
            }
        }
        let ask = self.ask(position.ask());
        let (count, all_count) = (ask.count, ask.all.as_ref().map(Vec::len));
        if all_count == Some(0) {
            return Signal::Return(Ok(false)); // "all" is at least one
        }
        if position.device >= count {
            return Signal::Descend(Position::of_request(claim, request + 1));
        }
        let available = MOST_DEVICES - i64::try_from(self.picks[claim].len()).unwrap_or(i64::MAX);
        if count - position.device > available {
            return Signal::Return(Err(Stop::Exceeded));
        }
        if all_count.is_some() {
            self.take_all(position)
        } else {
            self.take_next(self.with_order(position))
        }
    }

    fn resume(&mut self, frame: Frame, result: Result<bool, Stop>) -> Signal {
        match (frame, result) {
            // Another alternative of an earlier claim may use fewer devices, so the search goes on.
            (Frame::ClaimEnd, Err(Stop::Exceeded)) => Signal::Return(Ok(false)),
            (Frame::ClaimEnd, result) => Signal::Return(result),
            (Frame::Alternatives { position, .. }, Ok(true)) => {
                self.chosen[position.claim][position.request] = position.alternative.unwrap_or(0);
                Signal::Return(Ok(true))
            }
            (Frame::Alternatives { .. }, Err(Stop::Fatal(error))) => Signal::Return(Err(Stop::Fatal(error))),
            (Frame::Alternatives { position, all_exceeded }, result) => {
                let next = position.alternative.map_or(0, |alternative| alternative + 1);
                self.next_alternative(position, next, all_exceeded && result.is_err())
            }
            (Frame::Device { .. } | Frame::AllDevice { .. }, Ok(true)) => Signal::Return(Ok(true)),
            (Frame::Device { undo, .. } | Frame::AllDevice { undo }, Err(stop)) => {
                self.take_back(undo);
                Signal::Return(Err(stop))
            }
            (Frame::AllDevice { undo }, Ok(false)) => {
                self.take_back(undo);
                Signal::Return(Ok(false))
            }
            (Frame::Device { position, undo }, Ok(false)) => {
                self.take_back(undo);
                self.take_next(position)
            }
        }
    }

    fn next_alternative(&mut self, position: Position, next: usize, all_exceeded: bool) -> Signal {
        let (claim, request) = (position.claim, position.request);
        if next >= self.plans[claim].requests[request].asks.len() {
            return Signal::Return(if all_exceeded { Err(Stop::Exceeded) } else { Ok(false) });
        }
        let position = Position {
            alternative: Some(next),
            ..Position::of_request(claim, request)
        };
        self.stack.push(Frame::Alternatives {
            position: position.clone(),
            all_exceeded,
        });
        Signal::Descend(position)
    }

    /// Takes the next of the devices that are all required. If one is not available, this branch has no solution.
    fn take_all(&mut self, position: Position) -> Signal {
        let ask = self.ask(position.ask());
        let index = ask.all.as_ref().zip(usize::try_from(position.device).ok());
        let Some(candidate) = index.and_then(|(all, index)| all.get(index).copied()) else {
            return Signal::Return(Ok(false));
        };
        match self.take(&position, candidate) {
            Err(error) => Signal::Return(Err(Stop::Fatal(error))),
            Ok(Err(_)) => Signal::Return(Ok(false)),
            Ok(Ok(undo)) => {
                self.stack.push(Frame::AllDevice { undo });
                Signal::Descend(Position {
                    device: position.device + 1,
                    ..position
                })
            }
        }
    }

    /// Takes the first device that can be had, from `position.from` on.
    fn take_next(&mut self, mut position: Position) -> Signal {
        let count = match &position.order {
            Some(order) => order.len(),
            None => self.view.candidates.len(),
        };
        while position.from < count {
            let candidate = position
                .order
                .as_ref()
                .map_or(position.from, |order| order[position.from]);
            position.from += 1;
            if let Err(error) = self.budget.step() {
                return Signal::Return(Err(Stop::Fatal(error)));
            }
            match self.take(&position, candidate) {
                Err(error) => return Signal::Return(Err(Stop::Fatal(error))),
                Ok(Err(_)) => {}
                Ok(Ok(undo)) => {
                    // The request's next device comes after this one in the order: combinations, not permutations.
                    let next = Position {
                        device: position.device + 1,
                        ..position.clone()
                    };
                    self.stack.push(Frame::Device { position, undo });
                    return Signal::Descend(next);
                }
            }
        }
        Signal::Return(Ok(false))
    }

    /// Computes the policy's order when a request begins, and keeps it until the request ends.
    fn with_order(&self, position: Position) -> Position {
        if position.device > 0 || position.order.is_some() {
            return position;
        }
        let order = self.order.of_devices(self);
        Position { order, ..position }
    }

    /// How many alternatives the first request has, if there is one.
    pub(crate) fn first_request(&self) -> Option<usize> {
        Some(self.plans.first()?.requests.first()?.asks.len())
    }

    /// Returns true if a request could take a device now, with everything else unchanged.
    pub(crate) fn would_take(&mut self, at: AskAt, index: usize) -> Result<bool, AllocateError> {
        let taken = self.try_device(at, index)?;
        Ok(taken.map(|undo| self.take_back(undo)).is_ok())
    }

    /// What claims hold of a device.
    pub(crate) fn usage(&self, index: usize) -> Option<&'a Usage> {
        self.usage[index]
    }

    pub(crate) fn ask(&self, at: AskAt) -> &crate::plan::Ask<'a> {
        &self.plans[at.claim].requests[at.request].asks[at.alternative]
    }
}

impl Position {
    fn of_request(claim: usize, request: usize) -> Self {
        Self {
            claim,
            request,
            alternative: None,
            device: 0,
            from: 0,
            order: None,
        }
    }

    fn ask(&self) -> AskAt {
        AskAt {
            claim: self.claim,
            request: self.request,
            alternative: self.alternative.unwrap_or(0),
        }
    }

    /// Returns true at the beginning of a request.
    fn is_new(&self) -> bool {
        self.alternative.is_none() && self.device == 0
    }
}
