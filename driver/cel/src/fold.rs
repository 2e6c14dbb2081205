//! The loops of macros, with the cost of the comprehensions to which cel-go expands them.
//!
//! In a comprehension, expressions read and write an accumulator (`@result`) and are charged like any other; reading
//! it costs 1. Comments give the cost of each form.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cost;
use crate::evaluate::{Evaluation, Slot, recoverable};
use crate::libraries::lists;
use crate::node::{Fold, FoldKind, Node, OptMap, SortBy};
use crate::value::{Fault, Key, Map, Out, Stop, Value, error, no_such_overload};

impl<'v> Evaluation<'v> {
    pub(crate) fn fold(&mut self, fold: &'v Fold) -> Out<'v> {
        let range = self.eval(&fold.range)?;
        let items = self.items(&range, fold.second.is_some())?;
        match fold.kind {
            FoldKind::All => self.quantify(fold, items, false),
            FoldKind::Exists => self.quantify(fold, items, true),
            FoldKind::ExistsOne => self.exists_one(fold, items),
            FoldKind::List => self.transform_list(fold, items),
            FoldKind::TransformMap | FoldKind::TransformMapEntry => self.transform_map(fold, items),
        }
    }

    /// The values of the first and, if there is one, the second variable for each element.
    fn items(&mut self, range: &Value<'v>, two: bool) -> Result<Vec<(Value<'v>, Value<'v>)>, Fault> {
        self.work(range.size() as usize)?;
        Ok(match range {
            Value::List(list) if two => list
                .iter()
                .cloned()
                .enumerate()
                .map(|(i, v)| (Value::Int(i as i64), v))
                .collect(),
            Value::List(list) => list.iter().map(|v| (v.clone(), Value::Null)).collect(),
            Value::Map(map) => map.entries()?,
            other => return error(format!("got '{}', expected iterable type", other.type_name())),
        })
    }

    fn enter(&mut self, fold: &Fold, item: (Value<'v>, Value<'v>)) {
        self.slots[fold.first] = Slot::Value(item.0);
        if let Some(second) = fold.second {
            self.slots[second] = Slot::Value(item.1);
        }
    }

    /// all: `@not_strictly_false(@result)` (2), then `@result && body` (1). exists: `@not_strictly_false(!@result)`
    /// (3), then `@result || body` (1). At the end `@result` (1).
    fn quantify(&mut self, fold: &'v Fold, items: Vec<(Value<'v>, Value<'v>)>, exists: bool) -> Out<'v> {
        let mut result: Result<bool, Fault> = Ok(!exists);
        for item in items {
            self.pay(if exists { 3 } else { 2 })?;
            if result.as_ref().is_ok_and(|decided| *decided == exists) {
                break;
            }
            self.pay(1)?;
            self.enter(fold, item);
            match recoverable(self.eval(&fold.body))? {
                Ok(Value::Bool(b)) if b == exists => result = Ok(exists),
                Ok(Value::Bool(_)) => {}
                Ok(_) => result = result.and_then(|_| no_such_overload()),
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        self.pay(1)?;
        result.map(Value::Bool)
    }

    /// `body ? @result + 1 : @result`: 2 for each match. At the end `@result == 1` (2).
    fn exists_one(&mut self, fold: &'v Fold, items: Vec<(Value<'v>, Value<'v>)>) -> Out<'v> {
        let mut count: Result<u64, Fault> = Ok(0);
        for item in items {
            self.enter(fold, item);
            match recoverable(self.eval(&fold.body))? {
                Ok(Value::Bool(true)) => {
                    self.pay(2)?;
                    count = count.map(|count| count + 1);
                }
                Ok(Value::Bool(false)) => {}
                Ok(_) => count = count.and_then(|_| no_such_overload()),
                Err(fault) => count = count.and(Err(fault)),
            }
        }
        self.pay(2)?;
        Ok(Value::Bool(count? == 1))
    }

    /// Returns whether the filter accepts this element. An error does not stop the loop; it becomes the result.
    fn passes(&mut self, filter: Option<&'v Node>) -> Result<Result<bool, Fault>, Fault> {
        let Some(filter) = filter else { return Ok(Ok(true)) };
        Ok(match recoverable(self.eval(filter))? {
            Ok(Value::Bool(b)) => Ok(b),
            Ok(_) => no_such_overload(),
            Err(fault) => Err(fault),
        })
    }

    /// `@result + [body]`: 1, the body, 10 for a list that is not constant, 1. At the end `@result` (1).
    fn transform_list(&mut self, fold: &'v Fold, items: Vec<(Value<'v>, Value<'v>)>) -> Out<'v> {
        let mut list = Ok(Vec::new());
        let constant = fold.body.constant().is_some();
        for item in items {
            self.enter(fold, item);
            match self.passes(fold.filter.as_ref())? {
                Ok(true) => {}
                Ok(false) => continue,
                Err(fault) => {
                    list = list.and(Err(fault));
                    continue;
                }
            }
            self.pay(1)?;
            let value = recoverable(self.eval(&fold.body))?;
            self.pay(if constant { 1 } else { 11 })?;
            match value {
                Ok(value) => {
                    if let Ok(list) = &mut list {
                        list.push(value);
                    }
                }
                Err(fault) => list = list.and(Err(fault)),
            }
        }
        self.pay(1)?;
        Ok(Value::list(list?))
    }

    /// `cel.@mapInsert(@result, key, body)`: 1 + 1 + body + 1; for an entry without the key. At the end `@result` (1).
    fn transform_map(&mut self, fold: &'v Fold, items: Vec<(Value<'v>, Value<'v>)>) -> Out<'v> {
        let mut map: Result<BTreeMap<Key, (Value<'v>, Value<'v>)>, Fault> = Ok(BTreeMap::new());
        let entries = fold.kind == FoldKind::TransformMapEntry;
        for item in items {
            let key = item.0.clone();
            self.enter(fold, item);
            match self.passes(fold.filter.as_ref())? {
                Ok(true) => {}
                Ok(false) => continue,
                Err(fault) => {
                    map = map.and(Err(fault));
                    continue;
                }
            }
            self.pay(1)?;
            if map.is_err() && !entries {
                continue; // a call with three arguments ends at its first error, without a charge
            }
            self.pay(if entries { 0 } else { 1 })?;
            let value = match recoverable(self.eval(&fold.body))? {
                Ok(value) => value,
                Err(fault) => {
                    self.pay(u64::from(entries))?;
                    map = map.and(Err(fault));
                    continue;
                }
            };
            self.pay(1)?;
            if let Ok(made) = &mut map {
                let inserted = if entries {
                    insert_all(made, &value)
                } else {
                    insert(made, key, value)
                };
                if let Err(fault) = inserted {
                    map = Err(fault);
                }
            }
        }
        self.pay(1)?;
        Ok(Value::Map(Map::Owned(Arc::new(map?))))
    }

    /// `target.hasValue() ? optional.of(bind(v, target.value(), body)) : optional.none()`. cel-go evaluates the target
    /// a second time for its value.
    pub(crate) fn opt_map(&mut self, map: &'v OptMap) -> Out<'v> {
        let (before, logged) = (self.cost, self.once.len());
        let target = recoverable(self.eval(&map.target))?;
        // Variables from outside the target are already evaluated the second time.
        let outside = self.once[logged..].iter().filter(|(slot, _)| *slot < map.first_slot);
        let again = (self.cost - before).saturating_sub(outside.map(|(_, cost)| cost).sum());
        self.pay(1)?;
        match target? {
            Value::Optional(Some(value)) => {
                self.slots[map.slot] = Slot::Due((*value).clone(), again.saturating_add(1));
                let result = recoverable(self.eval(&map.body))?;
                if map.flat {
                    return result;
                }
                self.pay(1)?;
                Ok(Value::some(result?))
            }
            Value::Optional(None) => {
                self.pay(1)?;
                Ok(Value::Optional(None))
            }
            _ => no_such_overload(),
        }
    }

    /// `bind(@input, target, @input.@sortByAssociatedKeys(@input.map(v, key)))`
    pub(crate) fn sort_by(&mut self, sort: &'v SortBy) -> Out<'v> {
        let target = match self.eval(&sort.target) {
            Err(Fault::Error(_)) if sort.typed => {
                self.pay(2)?;
                return Err(Fault::Stop(Stop::Unanswerable));
            }
            Err(Fault::Error(why)) => {
                self.pay(3)?;
                return Err(Fault::Error(why));
            }
            other => other?,
        };
        self.pay(2)?; // @input is read twice
        let constant = sort.key.constant().is_some();
        let mut keys = Ok(Vec::new());
        let items = match self.items(&target, false) {
            Err(Fault::Error(_)) if sort.typed => return Err(Fault::Stop(Stop::Unanswerable)),
            other => other?,
        };
        for (item, _) in items {
            self.slots[sort.slot] = Slot::Value(item);
            self.pay(1)?;
            let key = recoverable(self.eval(&sort.key))?;
            self.pay(if constant { 1 } else { 11 })?;
            match key {
                Ok(key) => {
                    if let Ok(keys) = &mut keys {
                        keys.push(key);
                    }
                }
                Err(fault) => keys = keys.and(Err(fault)),
            }
        }
        self.pay(1)?;
        let keys = match keys {
            Ok(keys) => Value::list(keys),
            Err(_) if sort.typed => return Err(Fault::Stop(Stop::Unanswerable)),
            Err(fault) => return Err(fault),
        };
        self.pay(if sort.typed { cost::self_compare(&keys) } else { 1 })?;
        match (&target, &keys) {
            (Value::List(list), Value::List(keys)) => lists::sort_by(self, list, keys),
            _ => no_such_overload(),
        }
    }
}

fn insert<'v>(map: &mut BTreeMap<Key, (Value<'v>, Value<'v>)>, key: Value<'v>, value: Value<'v>) -> Result<(), Fault> {
    let Some(at) = key.key() else {
        return Err(Fault::Stop(Stop::Unanswerable));
    };
    if map.contains_key(&at) {
        return error("insert failed: key already exists");
    }
    map.insert(at, (key, value));
    Ok(())
}

fn insert_all<'v>(map: &mut BTreeMap<Key, (Value<'v>, Value<'v>)>, entries: &Value<'v>) -> Result<(), Fault> {
    let Value::Map(entries) = entries else {
        return no_such_overload();
    };
    for (key, value) in entries.entries()? {
        insert(map, key, value)?;
    }
    Ok(())
}
