//! Selectors, which another crate evaluates, and a memory of what they said.

use std::collections::{BTreeMap, HashMap};

use crate::model::Attribute;
use crate::pools::Candidate;
use crate::quantity::Quantity;

/// What a selector sees of a device. Names are `domain/name`.
#[derive(Debug)]
pub struct DeviceFacts<'a> {
    pub driver: &'a str,
    pub allow_multiple_allocations: bool,
    pub attributes: &'a BTreeMap<String, Attribute>,
    pub capacity: &'a BTreeMap<String, Quantity>,
}

/// Evaluates selectors.
pub trait Selectors {
    /// Whether the device matches.
    ///
    /// # Errors
    /// The expression does not compile, or fails on this device.
    fn matches(&self, expression: &str, device: &DeviceFacts<'_>) -> Result<bool, String>;
}

/// Results by selector and device. A device that changes is another device, so nothing here grows stale; results of
/// devices that are gone are dropped with everything else when there are too many.
pub struct SelectorCache<'s> {
    selectors: Box<dyn Selectors + Send + 's>,
    results: HashMap<String, HashMap<u64, bool>>,
    count: usize,
}

/// About 40 bytes each.
const MOST_RESULTS: usize = 2_000_000;

impl std::fmt::Debug for SelectorCache<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SelectorCache")
            .field("results", &self.count)
            .finish_non_exhaustive()
    }
}

impl<'s> SelectorCache<'s> {
    pub fn new(selectors: impl Selectors + Send + 's) -> Self {
        Self {
            selectors: Box::new(selectors),
            results: HashMap::new(),
            count: 0,
        }
    }

    /// Errors are not kept: they end the attempt, and the message may name what was at fault.
    pub(crate) fn matches(&mut self, expression: &str, candidate: &Candidate) -> Result<bool, String> {
        let serial = candidate.serial();
        if let Some(known) = self.results.get(expression).and_then(|results| results.get(&serial)) {
            return Ok(*known);
        }
        let result = self.evaluate(expression, candidate)?;
        if self.count >= MOST_RESULTS {
            self.results.clear();
            self.count = 0;
        }
        self.count += 1;
        if let Some(results) = self.results.get_mut(expression) {
            results.insert(serial, result);
        } else {
            self.results
                .insert(expression.to_owned(), HashMap::from([(serial, result)]));
        }
        Ok(result)
    }

    fn evaluate(&self, expression: &str, candidate: &Candidate) -> Result<bool, String> {
        let device = candidate.device();
        if let Some((name, _)) = device
            .attributes
            .iter()
            .find(|(_, attribute)| matches!(attribute, Attribute::Unknown))
        {
            return Err(format!("attribute {name:?} has a kind of value that is not known here"));
        }
        let qualified = |name: &String| match name.contains('/') {
            true => name.clone(),
            false => format!("{}/{name}", candidate.driver()),
        };
        let attributes = device.attributes.iter();
        let capacity = device.capacity.iter();
        self.selectors.matches(
            expression,
            &DeviceFacts {
                driver: candidate.driver(),
                allow_multiple_allocations: device.allow_multiple_allocations,
                attributes: &attributes
                    .map(|(name, value)| (qualified(name), value.clone()))
                    .collect(),
                capacity: &capacity
                    .map(|(name, capacity)| (qualified(name), capacity.value.clone()))
                    .collect(),
            },
        )
    }
}
