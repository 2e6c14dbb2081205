//! Evaluates a checked expression and adds up its cost.
//!
//! ```text
//! Node ─► value, or a fault: an error (which `||` and `&&` may absorb) or a stop (which nothing absorbs)
//!           cost + 1 a variable, selection or call, more for work on texts and lists; stops above 1,000,000
//! ```
//!
//! The cost must be equal to Kubernetes'. In addition, a budget of work limits operations that the cost model does not
//! price (copies of lists, deep comparisons, patterns that are only known at run time), so that no selector takes
//! seconds or gigabytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::cost::{self, Price};
use crate::device::Device;
use crate::libraries::pattern::Pattern;
use crate::node::{Call, Entry, Item, Node};
use crate::value::{Fault, Map, Out, Stop, Value, error, no_such_overload};

/// The state of a macro's variable.
#[derive(Clone)]
pub(crate) enum Slot<'v> {
    Empty,
    Value(Value<'v>),
    /// An error that is raised at each use of the variable.
    Fault(Fault),
    /// Evaluated at its first use.
    Lazy(&'v Node),
    /// A known value whose cost is charged at its first use.
    Due(Value<'v>, u64),
}

pub(crate) struct Evaluation<'v> {
    pub(crate) device: Option<&'v Device>,
    pub(crate) cost: u64,
    work: u64,
    /// Slots and costs of evaluated lazy variables, because cel-go evaluates the target of an optMap twice.
    pub(crate) once: Vec<(usize, u64)>,
    pub(crate) slots: Vec<Slot<'v>>,
    patterns: HashMap<String, Pattern>,
}

/// Limit of work, in steps of about five nanoseconds or eight bytes.
const WORK_LIMIT: u64 = 5_000_000;
/// Work for compiling a pattern that is only known at run time.
const PATTERN_WORK: u64 = 100_000;

impl<'v> Evaluation<'v> {
    pub(crate) fn new(device: &'v Device, slots: usize) -> Self {
        Self {
            device: Some(device),
            cost: 0,
            work: 0,
            once: Vec::new(),
            slots: vec![Slot::Empty; slots],
            patterns: HashMap::new(),
        }
    }

    /// An evaluation without a device, for folding constants during compilation.
    pub(crate) fn constant() -> Self {
        Self {
            device: None,
            cost: 0,
            work: 0,
            once: Vec::new(),
            slots: Vec::new(),
            patterns: HashMap::new(),
        }
    }

    pub(crate) fn pay(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > crate::COST_LIMIT {
            return Err(Fault::Stop(Stop::Cost));
        }
        Ok(())
    }

    /// The remaining budget of cost.
    pub(crate) fn left(&self) -> u64 {
        crate::COST_LIMIT.saturating_sub(self.cost)
    }

    pub(crate) fn work(&mut self, steps: usize) -> Result<(), Fault> {
        self.work = self.work.saturating_add(steps as u64);
        if self.work > WORK_LIMIT {
            return Err(Fault::Stop(Stop::Work));
        }
        Ok(())
    }

    /// Charges work for reading a whole text: fast, but not free as in the cost model.
    pub(crate) fn work_on(&mut self, value: &Value<'v>) -> Result<(), Fault> {
        match value {
            Value::Str(text) => self.work(text.as_str().len() / 64),
            Value::Bytes(bytes) => self.work(bytes.len() / 64),
            _ => Ok(()),
        }
    }

    /// The cost of visiting every value inside a value: a tenth of a text's bytes, 1 for every other value.
    fn traverse(&mut self, value: &Value<'v>) -> Result<u64, Fault> {
        self.work(1)?;
        Ok(match value {
            Value::Str(text) => text.as_str().len() as u64 / 10,
            Value::Bytes(bytes) => bytes.len() as u64 / 10,
            Value::List(elements) => {
                let mut total = 0u64;
                for element in elements.iter() {
                    total = total.saturating_add(self.traverse(element)?);
                }
                total
            }
            Value::Map(map) => {
                let mut total = 0u64;
                for (key, value) in map.entries()? {
                    total = total
                        .saturating_add(self.traverse(&key)?)
                        .saturating_add(self.traverse(&value)?);
                }
                total
            }
            _ => 1,
        })
    }

    /// Calls `then` with the call's pattern, which was compiled before or is compiled now.
    pub(crate) fn with_pattern<T>(
        &mut self,
        call: &Call,
        text: &str,
        then: impl FnOnce(&Pattern) -> T,
    ) -> Result<T, Fault> {
        if let Some(pattern) = &call.pattern {
            return Ok(then(pattern));
        }
        if let Some(pattern) = self.patterns.get(text) {
            return Ok(then(pattern));
        }
        self.work += PATTERN_WORK;
        self.work(text.len())?;
        match Pattern::new(text) {
            Ok(pattern) => {
                let result = then(&pattern);
                self.patterns.insert(text.to_owned(), pattern);
                Ok(result)
            }
            Err(why) => error(format!("illegal regex: {why}")),
        }
    }

    pub(crate) fn eval(&mut self, node: &'v Node) -> Out<'v> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Path(path) => self.path(path, true),
            Node::And(terms) => self.logical(&terms.0, &terms.1, false),
            Node::Or(terms) => self.logical(&terms.0, &terms.1, true),
            Node::Equal { sides, negated } => self.equal(&sides.0, &sides.1, *negated),
            Node::InSet(parts) => match self.eval(&parts.0)? {
                // cel-go keeps the constants in a hash table that cannot look up such values.
                Value::Semver(_) | Value::Bytes(_) | Value::Format(_) => Err(Fault::Stop(Stop::Unanswerable)),
                value => Ok(Value::Bool(parts.1.contains(&value))),
            },
            Node::Call(call) => self.call(call),
            Node::Prepaid(parts) => self.pay(parts.1).map(|()| parts.0.clone()),
            Node::OrValue(parts) => match self.eval(&parts.0)? {
                Value::Optional(Some(value)) => Ok((*value).clone()),
                Value::Optional(None) => self.eval(&parts.1),
                _ => no_such_overload(),
            },
            Node::OrOptional(parts) => match self.eval(&parts.0)? {
                Value::Optional(None) => self.eval(&parts.1),
                some @ Value::Optional(_) => Ok(some),
                _ => no_such_overload(),
            },
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Fold(fold) => self.fold(fold),
            Node::Bind(bind) => {
                self.slots[bind.slot] = Slot::Lazy(&bind.init);
                self.eval(&bind.body)
            }
            Node::OptMap(map) => self.opt_map(map),
            Node::SortBy(sort) => self.sort_by(sort),
        }
    }

    /// Evaluates a node whose selection itself cel-go does not charge: a branch of a choice, or an index.
    pub(crate) fn raw(&mut self, node: &'v Node) -> Out<'v> {
        match node {
            Node::Path(path) if !path.test => self.path(path, false),
            other => self.eval(other),
        }
    }

    fn logical(&mut self, left: &'v Node, right: &'v Node, decides: bool) -> Out<'v> {
        let mut failed = None;
        for node in [left, right] {
            match self.eval(node) {
                Ok(Value::Bool(b)) if b == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(no_such_overload::<()>().err()),
                Err(stop @ Fault::Stop(_)) => return Err(stop),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn equal(&mut self, left: &'v Node, right: &'v Node, negated: bool) -> Out<'v> {
        let left = recoverable(self.eval(left))?;
        let right = recoverable(self.eval(right))?;
        self.pay(cost::equality(left.as_ref().ok(), right.as_ref().ok(), negated))?;
        let (left, right) = (left?, right?);
        Ok(Value::Bool(match self.equals(&left, &right) {
            Ok(equal) => equal != negated,
            Err(Fault::Error(_)) if negated => true,
            Err(fault) => return Err(fault),
        }))
    }

    fn call(&mut self, call: &'v Call) -> Out<'v> {
        let mut values = [Value::Null, Value::Null, Value::Null, Value::Null];
        let mut failed = None;
        for (index, (node, value)) in call.args.iter().zip(&mut values).enumerate() {
            match recoverable(self.eval(node))? {
                Ok(found) => *value = found,
                // If cel-go stops at the first error, it charges the call only if that error is in the last argument.
                Err(fault) if call.sequential && index + 1 < call.args.len() => return Err(fault),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        let args = &values[..call.args.len().min(4)];
        for arg in args {
            self.work_on(arg)?;
        }
        if let Price::SelfCompare(index) = call.price
            && (failed.is_some() || !matches!(args.get(index), Some(Value::List(_))))
        {
            // For anything but a list, cel-go cannot price these calls, and the whole expression fails.
            return Err(Fault::Stop(Stop::Unanswerable));
        }
        let due = match (call.price, args.first()) {
            (Price::Traverse, Some(list)) => self.traverse(list)?,
            (price, _) => price.before(args),
        };
        self.pay(due)?;
        if let Some(fault) = failed {
            self.pay(call.price.after(None))?;
            return Err(fault);
        }
        let result = (call.function)(self, call, args);
        if matches!(call.price, Price::Joined | Price::Made) {
            let result = recoverable(result)?;
            self.pay(call.price.after(result.as_ref().ok()))?;
            return result;
        }
        result
    }

    fn list(&mut self, items: &'v [Item]) -> Out<'v> {
        let mut elements = Ok(Vec::with_capacity(items.len()));
        for item in items {
            match (recoverable(self.eval(&item.node))?, &mut elements) {
                (Ok(Value::Optional(Some(value))), Ok(elements)) if item.optional => elements.push((*value).clone()),
                (Ok(Value::Optional(None)), _) if item.optional => {}
                (Ok(_), _) if item.optional => elements = error("cannot initialize optional list element"),
                (Ok(value), Ok(elements)) => elements.push(value),
                (Err(fault), _) => elements = Err(fault),
                (Ok(_), Err(_)) => {}
            }
            if elements.is_err() {
                break;
            }
        }
        self.pay(10)?;
        Ok(Value::list(elements?))
    }

    fn map(&mut self, entries: &'v [Entry]) -> Out<'v> {
        let made = recoverable(self.map_entries(entries))?;
        self.pay(30)?;
        made
    }

    fn map_entries(&mut self, entries: &'v [Entry]) -> Out<'v> {
        let mut map = BTreeMap::new();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let mut value = self.eval(&entry.value)?;
            let Some(at) = key.key() else {
                return Err(Fault::Stop(Stop::Unanswerable));
            };
            if entry.optional {
                match value {
                    Value::Optional(Some(inner)) => value = (*inner).clone(),
                    Value::Optional(None) => {
                        map.remove(&at);
                        continue;
                    }
                    _ => return error("cannot initialize optional entry"),
                }
            }
            map.insert(at, (key, value));
        }
        Ok(Value::Map(Map::Owned(Arc::new(map))))
    }
}

/// Returns true if a value can be a key of a map or an index of a list.
pub(crate) fn can_index(key: &Value<'_>) -> bool {
    matches!(
        key,
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Str(_)
    )
}

/// Turns an error into a value, so that the step's cost can be charged first; a stop still ends the evaluation.
pub(crate) fn recoverable<'v>(result: Out<'v>) -> Result<Out<'v>, Fault> {
    match result {
        Err(stop @ Fault::Stop(_)) => Err(stop),
        other => Ok(other),
    }
}
