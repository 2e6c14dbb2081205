//! Finds a request that no device of the cluster could serve, whatever is free.

use std::fmt;

use super::Index;
use crate::budget::Budget;
use crate::expression::{excerpt, foreign_domain};
use crate::model::{Exactly, Request, ResourceClaim};
use crate::plan::Classes;
use crate::pools::Candidate;
use crate::selectors::SelectorCache;

/// A request with a selector that no device of its class matches. Waiting does not help it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmatched {
    /// Index of the claim in the question.
    pub claim: usize,
    /// The request without its alternatives. If there are several alternatives, the last one's selector is shown.
    pub request: String,
    pub class: String,
    /// Index of the selector in its list, and its text for a message.
    pub index: usize,
    pub selector: String,
    /// Why the selector cannot be evaluated, if it fails.
    pub error: Option<String>,
    /// The domain whose attributes the selector reads, if the devices have none there; and the devices' driver.
    pub domain: Option<(String, String)>,
}

impl fmt::Display for Unmatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class, index, selector, ..
        } = self;
        write!(
            f,
            "no device of class {class} in the cluster matches selectors[{index}]: {selector}"
        )?;
        if let Some(error) = &self.error {
            write!(f, " ({error})")?;
        }
        match &self.domain {
            Some((domain, driver)) => write!(
                f,
                "; {domain:?} is another driver's domain, these devices have {driver:?}"
            ),
            None => f.write_str("; kubectl get resourceslices -o yaml shows what there is"),
        }
    }
}

impl Index {
    /// Returns the first request of these claims that has a selector which no published device of its class matches.
    /// `None` also if the budget ends before that is known.
    pub fn unmatched(
        &self,
        claims: &[&ResourceClaim],
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
    ) -> Option<Unmatched> {
        budget.next_node(1).ok()?;
        for (place, claim) in claims.iter().enumerate() {
            for request in &claim.spec.devices.requests {
                let mut unmatched = None;
                for ask in asks(request) {
                    unmatched = self.mismatch(ask, budget, cache)?;
                    if unmatched.is_none() {
                        break;
                    }
                }
                if let Some(unmatched) = unmatched {
                    return Some(Unmatched {
                        claim: place,
                        request: request.name.clone(),
                        ..unmatched
                    });
                }
            }
        }
        None
    }

    /// The outer `None`: the budget has ended. The inner one: some device matches, or none is of the class.
    fn mismatch(&self, ask: &Exactly, budget: &mut Budget, cache: &mut SelectorCache<'_>) -> Option<Option<Unmatched>> {
        let Some(class) = self.classes.get(&ask.class).filter(|_| !ask.selectors.is_empty()) else {
            return Some(None);
        };
        // The failing selector of the device that passes the most selectors.
        let mut furthest: Option<Unmatched> = None;
        for slice in self.inventory.all() {
            for device in (0..slice.spec.devices.len()).map(|index| Candidate::alone(slice, index)) {
                budget.step().ok()?;
                let before = cache.cost();
                let mut passes = |expression: &str| cache.matches(expression, &device);
                let is_of_class = class.spec.selectors.iter().all(|selector| {
                    let cel = selector.cel.as_ref();
                    cel.is_some_and(|cel| passes(&cel.expression) == Ok(true))
                });
                let mut ends = None;
                if is_of_class {
                    let results = ask.selectors.iter().map(|selector| {
                        let expression = selector.cel.as_ref().map_or("", |cel| &*cel.expression);
                        (expression, passes(expression))
                    });
                    ends = results.enumerate().find(|(_, (_, result))| *result != Ok(true));
                    if ends.is_none() {
                        return Some(None);
                    }
                }
                budget.charge(cache.cost() - before);
                let Some((index, (expression, result))) = ends else {
                    continue;
                };
                if furthest.as_ref().is_some_and(|known| known.index >= index) {
                    continue;
                }
                let domain = foreign_domain(expression, device.driver(), device.device());
                furthest = Some(Unmatched {
                    claim: 0,
                    request: String::new(),
                    class: ask.class.clone(),
                    index,
                    selector: excerpt(expression),
                    error: result.err(),
                    domain: domain.map(|domain| (domain.to_owned(), device.driver().to_owned())),
                });
            }
        }
        Some(furthest)
    }
}

fn asks(request: &Request) -> impl Iterator<Item = &Exactly> {
    let alternatives = request.first_available.iter().map(|alternative| &alternative.ask);
    let exactly = request.exactly.as_ref().filter(|_| request.first_available.is_empty());
    exactly.into_iter().chain(alternatives)
}
