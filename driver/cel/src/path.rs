//! Variables, and selections of their fields and elements.

use crate::evaluate::{Evaluation, Slot, can_index};
use crate::node::{Path, Root, Step, StepKey};
use crate::value::{Fault, Map, Out, Value, error, no_such_overload};

impl<'v> Evaluation<'v> {
    pub(crate) fn path(&mut self, path: &'v Path, counted: bool) -> Out<'v> {
        let choice = matches!(path.root, Root::Choice(_));
        let root = match &path.root {
            Root::Device => match self.device {
                Some(device) => Ok(Value::Map(Map::Device(device))),
                None => error("no device"),
            },
            Root::Slot(slot) => self.slot(*slot),
            Root::Node(node) => self.eval(node),
            Root::Choice(parts) => match self.eval(&parts[0]) {
                Ok(Value::Bool(true)) => self.raw(&parts[1]),
                Ok(Value::Bool(false)) => self.raw(&parts[2]),
                Ok(_) => no_such_overload(),
                Err(fault) => Err(fault),
            },
        };
        let result = match root {
            Ok(value) if path.steps.is_empty() => Ok(value),
            Ok(value) => self.steps(value, path),
            Err(fault) => Err(fault),
        };
        if counted && !path.test && !choice {
            self.pay(1)?;
        }
        result
    }

    fn slot(&mut self, slot: usize) -> Out<'v> {
        match &self.slots[slot] {
            Slot::Value(value) => return Ok(value.clone()),
            Slot::Fault(fault) => return Err(fault.clone()),
            Slot::Empty => return error("no such attribute"),
            Slot::Lazy(_) | Slot::Due(..) => {}
        }
        let (before, logged) = (self.cost, self.once.len());
        let result = match std::mem::replace(&mut self.slots[slot], Slot::Empty) {
            Slot::Lazy(node) => self.eval(node),
            Slot::Due(value, cost) => self.pay(cost).map(|()| value),
            _ => error("no such attribute"),
        };
        let within: u64 = self.once[logged..].iter().map(|(_, cost)| cost).sum();
        self.once.push((slot, (self.cost - before).saturating_sub(within)));
        self.slots[slot] = match &result {
            Ok(value) => Slot::Value(value.clone()),
            Err(fault) => Slot::Fault(fault.clone()),
        };
        result
    }

    fn steps(&mut self, from: Value<'v>, path: &'v Path) -> Out<'v> {
        let (mut at, mut optional) = match from {
            Value::Optional(None) if path.test => return Ok(Value::Bool(false)),
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => ((*value).clone(), true),
            other => (other, false),
        };
        for (index, step) in path.steps.iter().enumerate() {
            optional |= step.optional;
            let test = path.test && index + 1 == path.steps.len();
            let found = self.step(&at, step, optional || test);
            if optional {
                match found? {
                    Some(value) => {
                        self.pay(1)?;
                        at = value;
                    }
                    None if path.test => return Ok(Value::Bool(false)),
                    None => return Ok(Value::Optional(None)),
                }
            } else {
                self.pay(1)?;
                match found? {
                    found if test => return Ok(Value::Bool(found.is_some())),
                    Some(value) => at = value,
                    None => return error("no such key"),
                }
            }
        }
        Ok(match (optional, path.test) {
            (true, true) => Value::Bool(true),
            (true, false) => Value::some(at),
            (false, _) => at,
        })
    }

    /// Performs one selection. Without `presence`, a missing entry is an error that names it.
    fn step(&mut self, at: &Value<'v>, step: &'v Step, presence: bool) -> Result<Option<Value<'v>>, Fault> {
        let found = match (&step.key, at) {
            (StepKey::Text(name), Value::Map(map)) => {
                let found = map.find_text(name)?;
                if found.is_none() && !presence {
                    return error(format!("no such key: {}", name.as_str()));
                }
                return Ok(found);
            }
            (StepKey::Text(name), other) => self.index(other, &Value::Str(name.clone()), presence)?,
            (StepKey::Const(key), other) => self.index(other, &key.clone(), presence)?,
            (StepKey::Node(node), other) => {
                let key = self.raw(node)?;
                self.index(other, &key, presence)?
            }
        };
        Ok(found)
    }

    fn index(&mut self, at: &Value<'v>, key: &Value<'v>, presence: bool) -> Result<Option<Value<'v>>, Fault> {
        if !can_index(key) {
            return error(format!("invalid qualifier type: {}", key.type_name()));
        }
        let found = match at {
            Value::Map(map) => map.find(key)?,
            Value::List(list) => {
                let index = match key {
                    Value::Int(i) => usize::try_from(*i).ok(),
                    Value::Uint(u) => usize::try_from(*u).ok(),
                    Value::Double(d) => match crate::value::whole(*d) {
                        Some(i) => usize::try_from(i).ok(),
                        None => return error("unsupported index value"),
                    },
                    other => return error(format!("unsupported index type '{}' in list", other.type_name())),
                };
                match index.and_then(|index| list.get(index)) {
                    None if !presence => return error("index out of bounds"),
                    found => found.cloned(),
                }
            }
            _ => None,
        };
        if found.is_none() && !presence {
            return error(match key {
                Value::Str(text) => format!("no such key: {}", text.as_str()),
                other => format!("no such key of type {}", other.type_name()),
            });
        }
        Ok(found)
    }
}
