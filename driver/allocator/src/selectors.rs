//! Evaluates CEL selectors, and caches the results.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use vgpu_cel::{Device as DeviceFacts, Program};

use crate::model::Attribute;
use crate::pools::Candidate;

/// Evaluates selectors.
pub trait Selectors {
    /// Returns true if the device matches.
    ///
    /// # Errors
    /// The expression does not compile, or fails on this device.
    fn matches(&self, expression: &str, device: &DeviceFacts) -> Result<bool, String>;

    /// The total cost of all evaluations so far, as CEL counts it.
    fn cost(&self) -> u64 {
        0
    }
}

/// CEL as Kubernetes evaluates it. Each expression is compiled once.
#[derive(Debug, Default)]
pub struct Cel {
    programs: RefCell<HashMap<String, Result<Program, String>>>,
    cost: Cell<u64>,
}

/// The cache is limited, because everyone who may create claims can write any number of expressions.
const MOST_PROGRAMS: usize = 10_000;

impl Selectors for Cel {
    fn matches(&self, expression: &str, device: &DeviceFacts) -> Result<bool, String> {
        let mut programs = self.programs.borrow_mut();
        if !programs.contains_key(expression) {
            if programs.len() >= MOST_PROGRAMS {
                programs.clear();
            }
            let program = vgpu_cel::compile(expression).map_err(|error| format!("CEL does not compile: {error}"));
            programs.insert(expression.to_owned(), program);
        }
        match programs.get(expression) {
            Some(Ok(program)) => {
                let (matches, cost) = program.matches_with_cost(device);
                self.cost.set(self.cost.get().saturating_add(cost));
                matches.map_err(|error| format!("CEL fails: {error}"))
            }
            Some(Err(error)) => Err(error.clone()),
            None => Err("the expression was not kept".to_owned()), // it was, above
        }
    }

    fn cost(&self) -> u64 {
        self.cost.get()
    }
}

/// Results by selector and device. A changed device gets a new serial number, so no result becomes stale. Results of
/// removed devices stay until there are too many results; then all are dropped.
pub struct SelectorCache<'s> {
    selectors: Box<dyn Selectors + Send + 's>,
    results: HashMap<String, HashMap<u64, bool>>,
    count: usize,
    /// The last device that was evaluated: the next selectors are usually for the same one.
    last: Option<(u64, DeviceFacts)>,
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

impl Default for SelectorCache<'_> {
    fn default() -> Self {
        Self::new(Cel::default())
    }
}

impl<'s> SelectorCache<'s> {
    pub fn new(selectors: impl Selectors + Send + 's) -> Self {
        Self {
            selectors: Box::new(selectors),
            results: HashMap::new(),
            count: 0,
            last: None,
        }
    }

    /// The total cost of selectors so far.
    pub(crate) fn cost(&self) -> u64 {
        self.selectors.cost()
    }

    /// Errors are not cached: they end the attempt, and their message may name the device.
    pub(crate) fn matches(&mut self, expression: &str, candidate: &Candidate) -> Result<bool, String> {
        let serial = candidate.serial();
        if let Some(known) = self.results.get(expression).and_then(|results| results.get(&serial)) {
            return Ok(*known);
        }
        let facts = match self.last.take() {
            Some((known, facts)) if known == serial => facts,
            _ => facts(candidate)?,
        };
        let result = self.selectors.matches(expression, &facts);
        self.last = Some((serial, facts));
        let result = result?;
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
}

/// The fields of a device that selectors can read. A value of an unknown kind is an error even if no selector reads it,
/// as in Kubernetes.
fn facts(candidate: &Candidate) -> Result<DeviceFacts, String> {
    let device = candidate.device();
    let mut facts = DeviceFacts {
        driver: candidate.driver().to_owned(),
        allow_multiple_allocations: device.allow_multiple_allocations,
        ..DeviceFacts::default()
    };
    for (name, value) in &device.attributes {
        let value = match value {
            Attribute::Known(value) => value.clone(),
            Attribute::Unknown => return Err(format!("attribute {name:?} has a kind of value that is not known here")),
        };
        facts.attributes.insert(name.clone(), value);
    }
    for (name, capacity) in &device.capacity {
        facts.capacity.insert(name.clone(), capacity.value.clone());
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::features::Features;
    use crate::inventory::{Inventory, Slice};
    use crate::pools::NodeView;

    struct Counting(Arc<AtomicUsize>);

    impl Selectors for Counting {
        fn matches(&self, expression: &str, device: &DeviceFacts) -> Result<bool, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Cel::default().matches(expression, device)
        }
    }

    fn view(attribute: &str) -> NodeView {
        let mut inventory = Inventory::default();
        let slice = format!(
            r#"{{"spec":{{"driver":"d","nodeName":"n","pool":{{"name":"p","resourceSliceCount":1}},
            "devices":[{{"name":"x","attributes":{{"a":{attribute}}},"capacity":{{"memory":{{"value":"8Gi"}}}}}}]}}}}"#
        );
        inventory.insert(Arc::new(Slice::new(serde_json::from_str(&slice).unwrap())));
        let node: crate::model::Node = serde_json::from_str(r#"{"metadata":{"name":"n"}}"#).unwrap();
        NodeView::new(node, &inventory, Features::default()).unwrap()
    }

    #[test]
    fn each_selector_sees_each_device_once() {
        let count = Arc::new(AtomicUsize::new(0));
        let mut cache = SelectorCache::new(Counting(count.clone()));
        let (one, other) = (view(r#"{"int":1}"#), view(r#"{"int":2}"#));
        for _ in 0..3 {
            assert_eq!(
                cache.matches("device.attributes[\"d\"].a == 1", &one.candidates[0]),
                Ok(true)
            );
            assert_eq!(
                cache.matches("device.attributes[\"d\"].a == 1", &other.candidates[0]),
                Ok(false)
            );
            let large = "device.capacity[\"d\"].memory.compareTo(quantity(\"4Gi\")) > 0";
            assert_eq!(cache.matches(large, &one.candidates[0]), Ok(true));
        }
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_selector_that_fails_says_why() {
        let mut cache = SelectorCache::default();
        let mut error = |view: &NodeView, text: &str| cache.matches(text, &view.candidates[0]).unwrap_err();
        let view = super::tests::view(r#"{"int":1}"#);
        assert!(error(&view, "noSuchVar").contains("does not compile"));
        assert!(error(&view, "device.driver").contains("bool"));
        assert!(error(&view, "device.attributes[\"d\"].b == 1").contains("no such key"));
        assert!(error(&super::tests::view("{}"), "true").contains("attribute \"a\""));
    }
}
