//! Functions on lists and sets.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{operators, strings};
use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Fault, Out, Stop, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "isSorted" => is_sorted,
        "sum" => sum,
        "min" => |run, _, args| extreme(run, args, "min", Ordering::Greater),
        "max" => |run, _, args| extreme(run, args, "max", Ordering::Less),
        "indexOf" => index_of,
        "lastIndexOf" => last_index_of,
        "includes" => includes,
        "slice" => slice,
        "flatten" => flatten,
        "sort" => |run, _, args| match args {
            [Value::List(list)] => sort_by(run, list, list),
            _ => no_such_overload(),
        },
        "lists.range" => range,
        "reverse" => reverse,
        "distinct" => distinct,
        "sets.contains" => |run, _, args| pair(run, args, contains_all),
        "sets.equivalent" => |run, _, args| {
            pair(run, args, |run, a, b| {
                Ok(contains_all(run, a, b)? && contains_all(run, b, a)?)
            })
        },
        "sets.intersects" => |run, _, args| pair(run, args, intersects),
        _ => return None,
    })
}

fn is_sorted<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    run.work(list.len())?;
    if let [single] = list.as_slice() {
        // A single element must be comparable, too.
        single.compare(single).or_else(nan_is_equal)?;
    }
    for pair in list.windows(2) {
        match pair[0].compare(&pair[1]) {
            Ok(Ordering::Greater) => return Ok(Value::Bool(false)),
            Ok(_) => {}
            // Kubernetes only checks for a definite "greater".
            Err(Fault::Error(_)) if comparable(&pair[0]) && comparable(&pair[1]) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Value::Bool(true))
}

fn nan_is_equal(fault: Fault) -> Result<Ordering, Fault> {
    match fault {
        Fault::Error(why) if why.starts_with("NaN") => Ok(Ordering::Equal),
        other => Err(other),
    }
}

fn comparable(value: &Value<'_>) -> bool {
    matches!(
        value,
        Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::Str(_)
            | Value::Bytes(_)
            | Value::Duration(_)
            | Value::Timestamp(..)
    )
}

/// The zero of an empty sum has the overload's type, or int if there are several overloads.
fn sum<'v>(run: &mut Evaluation<'v>, call: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    run.work(list.len())?;
    let mut total = match call.overload {
        "list_uint_sum_uint" => Value::Uint(0),
        "list_double_sum_double" => Value::Double(0.0),
        "list_duration_sum_duration" => Value::Duration(0),
        _ => Value::Int(0),
    };
    let Some(add) = operators::function("_+_") else {
        return no_such_overload();
    };
    for element in list.iter() {
        total = add(run, call, &[total, element.clone()])?;
    }
    Ok(total)
}

fn extreme<'v>(run: &mut Evaluation<'v>, args: &[Value<'v>], name: &str, replaced: Ordering) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    run.work(list.len())?;
    let mut best: Option<&Value<'v>> = None;
    for element in list.iter() {
        if !comparable(element) {
            return no_such_overload();
        }
        match best {
            // Elements that cannot be compared do not replace the previous one.
            Some(before) if before.compare(element).ok() != Some(replaced) => {}
            _ => best = Some(element),
        }
    }
    match best {
        Some(value) => Ok(value.clone()),
        None => error(format!("{name} called on empty list")),
    }
}

fn index_of<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::List(list), item] => {
            for (index, element) in list.iter().enumerate() {
                if run.is_equal(element, item)? {
                    return Ok(Value::Int(index as i64));
                }
            }
            Ok(Value::Int(-1))
        }
        [Value::Str(text), Value::Str(part)] => strings::index_of(text.as_str(), part.as_str(), 0),
        [Value::Str(text), Value::Str(part), Value::Int(offset)] => {
            strings::index_of(text.as_str(), part.as_str(), *offset)
        }
        _ => no_such_overload(),
    }
}

fn last_index_of<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::List(list), item] => {
            for (index, element) in list.iter().enumerate().rev() {
                if run.is_equal(element, item)? {
                    return Ok(Value::Int(index as i64));
                }
            }
            Ok(Value::Int(-1))
        }
        [Value::Str(text), Value::Str(part)] => strings::last_index_of(text.as_str(), part.as_str(), None),
        [Value::Str(text), Value::Str(part), Value::Int(offset)] => {
            strings::last_index_of(text.as_str(), part.as_str(), Some(*offset))
        }
        _ => no_such_overload(),
    }
}

/// Returns whether a list contains the value, or a value that is not a list equals it.
fn includes<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::List(list), item] => {
            for element in list.iter() {
                if run.is_equal(element, item)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        [value, item] => Ok(Value::Bool(run.is_equal(value, item)?)),
        _ => no_such_overload(),
    }
}

fn slice<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return no_such_overload();
    };
    let refused = |why: &str| error(format!("cannot slice({start}, {end}), {why}"));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refused("negative indexes not supported");
    };
    if from > to {
        return refused("start index must be less than or equal to end index");
    }
    match list.get(from..to) {
        Some(part) => {
            run.work(part.len())?;
            Ok(Value::list(part.to_vec()))
        }
        None => refused(&format!("list is length {}", list.len())),
    }
}

fn flatten<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return no_such_overload(),
    };
    if depth < 0 {
        return error("level must be non-negative");
    }
    let mut flat = Vec::new();
    flatten_into(run, list, depth, &mut flat)?;
    Ok(Value::list(flat))
}

fn flatten_into<'v>(
    run: &mut Evaluation<'v>,
    list: &[Value<'v>],
    depth: i64,
    flat: &mut Vec<Value<'v>>,
) -> Result<(), Fault> {
    run.work(list.len())?;
    for element in list {
        match element {
            Value::List(inner) if depth > 0 => flatten_into(run, inner, depth - 1, flat)?,
            other => flat.push(other.clone()),
        }
    }
    Ok(())
}

/// The list, sorted by its keys.
pub(crate) fn sort_by<'v>(run: &mut Evaluation<'v>, list: &Arc<Vec<Value<'v>>>, keys: &[Value<'v>]) -> Out<'v> {
    if list.len() != keys.len() {
        return error("a list and its keys are of different sizes");
    }
    let Some(first) = keys.first() else {
        return Ok(Value::List(Arc::clone(list)));
    };
    if !comparable(first) {
        return error("list elements must be comparable");
    }
    if keys.len() > 1 && keys.iter().any(|key| key.type_name() != first.type_name()) {
        return error("list elements must have the same type");
    }
    run.work(keys.len() * 16)?;
    let mut order: Vec<usize> = (0..keys.len()).collect();
    // NaN compares with nothing, so its place in the order is undefined; it stays where it is.
    order.sort_by(|a, b| keys[*a].compare(&keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Value::list(
        order.into_iter().map(|index| list[index].clone()).collect(),
    ))
}

fn range<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::Int(count)] = args else {
        return no_such_overload();
    };
    let Ok(size) = u64::try_from(*count) else {
        return error(format!("lists.range: size must be non-negative, got {count}"));
    };
    // It would exceed the remaining budget, so it is not started.
    if size > run.left() {
        return Err(Fault::Stop(Stop::Cost));
    }
    Ok(Value::list((0..*count).map(Value::Int).collect()))
}

fn reverse<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    run.work(list.len())?;
    Ok(Value::list(list.iter().rev().cloned().collect()))
}

fn distinct<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    let mut unique: Vec<Value<'v>> = Vec::new();
    'next: for element in list.iter() {
        for seen in &unique {
            if run.is_equal(element, seen)? {
                continue 'next;
            }
        }
        unique.push(element.clone());
    }
    Ok(Value::list(unique))
}

type Test = for<'v> fn(&mut Evaluation<'v>, &[Value<'v>], &[Value<'v>]) -> Result<bool, Fault>;

fn pair<'v>(run: &mut Evaluation<'v>, args: &[Value<'v>], test: Test) -> Out<'v> {
    match args {
        [Value::List(a), Value::List(b)] => Ok(Value::Bool(test(run, a, b)?)),
        _ => no_such_overload(),
    }
}

fn contains_all<'v>(run: &mut Evaluation<'v>, all: &[Value<'v>], some: &[Value<'v>]) -> Result<bool, Fault> {
    for wanted in some {
        if !has(run, all, wanted)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'v>(run: &mut Evaluation<'v>, a: &[Value<'v>], b: &[Value<'v>]) -> Result<bool, Fault> {
    for element in a {
        if has(run, b, element)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has<'v>(run: &mut Evaluation<'v>, list: &[Value<'v>], wanted: &Value<'v>) -> Result<bool, Fault> {
    for element in list {
        if run.is_equal(wanted, element)? {
            return Ok(true);
        }
    }
    Ok(false)
}
