//! Arithmetic, comparison, membership, size.

use std::cmp::Ordering;
use std::sync::Arc;

use super::go_time;
use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "_+_" => add,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => modulo,
        "-_" => negate,
        "!_" => not,
        "_<_" => |_, _, args| ordered(args, Ordering::is_lt),
        "_<=_" => |_, _, args| ordered(args, Ordering::is_le),
        "_>_" => |_, _, args| ordered(args, Ordering::is_gt),
        "_>=_" => |_, _, args| ordered(args, Ordering::is_ge),
        "@in" | "in" | "_in_" => contained,
        "size" => size,
        _ => return None,
    })
}

fn or_overflow<'v, T>(result: Option<T>, make: impl Fn(T) -> Value<'v>) -> Out<'v> {
    match result {
        Some(value) => Ok(make(value)),
        None => error("integer overflow"),
    }
}

/// Maximum length of a text or list that an evaluation creates: more than the cost limit allows to read.
pub(crate) const LONGEST: usize = 16 << 20;

fn add<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(a), Value::Int(b)] => or_overflow(a.checked_add(*b), Value::Int),
        [Value::Uint(a), Value::Uint(b)] => or_overflow(a.checked_add(*b), Value::Uint),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a + b)),
        [Value::Str(a), Value::Str(b)] => {
            let (a, b) = (a.as_str(), b.as_str());
            run.work((a.len() + b.len()) / 8)?;
            if a.len() + b.len() > LONGEST {
                return error("the text is too long");
            }
            Ok(Value::text([a, b].concat()))
        }
        [Value::Bytes(a), Value::Bytes(b)] => {
            run.work((a.len() + b.len()) / 8)?;
            if a.len() + b.len() > LONGEST {
                return error("the bytes are too long");
            }
            Ok(Value::Bytes([a.as_ref(), b.as_ref()].concat().into()))
        }
        [Value::List(a), Value::List(b)] => {
            if a.is_empty() || b.is_empty() {
                return Ok(Value::List(Arc::clone(if a.is_empty() { b } else { a })));
            }
            run.work(a.len() + b.len())?;
            Ok(Value::list(a.iter().chain(b.iter()).cloned().collect()))
        }
        [Value::Duration(a), Value::Duration(b)] => or_overflow(a.checked_add(*b), Value::Duration),
        [Value::Timestamp(t, zone), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(t, zone)] => {
            go_time::timestamp(t + i128::from(*d), *zone)
        }
        _ => no_such_overload(),
    }
}

fn subtract<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(a), Value::Int(b)] => or_overflow(a.checked_sub(*b), Value::Int),
        [Value::Uint(a), Value::Uint(b)] => or_overflow(a.checked_sub(*b), Value::Uint),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        [Value::Duration(a), Value::Duration(b)] => or_overflow(a.checked_sub(*b), Value::Duration),
        [Value::Timestamp(a, _), Value::Timestamp(b, _)] => or_overflow(i64::try_from(a - b).ok(), Value::Duration),
        [Value::Timestamp(t, zone), Value::Duration(d)] => go_time::timestamp(t - i128::from(*d), *zone),
        _ => no_such_overload(),
    }
}

fn multiply<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(a), Value::Int(b)] => or_overflow(a.checked_mul(*b), Value::Int),
        [Value::Uint(a), Value::Uint(b)] => or_overflow(a.checked_mul(*b), Value::Uint),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
        _ => no_such_overload(),
    }
}

fn divide<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("division by zero"),
        [Value::Int(a), Value::Int(b)] => or_overflow(a.checked_div(*b), Value::Int),
        [Value::Uint(a), Value::Uint(b)] => or_overflow(a.checked_div(*b), Value::Uint),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
        _ => no_such_overload(),
    }
}

fn modulo<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("modulus by zero"),
        [Value::Int(a), Value::Int(b)] => or_overflow(a.checked_rem(*b), Value::Int),
        [Value::Uint(a), Value::Uint(b)] => or_overflow(a.checked_rem(*b), Value::Uint),
        _ => no_such_overload(),
    }
}

fn negate<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Int(a)] => or_overflow(a.checked_neg(), Value::Int),
        [Value::Double(a)] => Ok(Value::Double(-a)),
        _ => no_such_overload(),
    }
}

fn not<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Bool(b)] => Ok(Value::Bool(!b)),
        _ => no_such_overload(),
    }
}

fn ordered<'v>(args: &[Value<'v>], holds: fn(Ordering) -> bool) -> Out<'v> {
    match args {
        [a, b] => Ok(Value::Bool(holds(a.compare(b)?))),
        _ => no_such_overload(),
    }
}

fn contained<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [value, Value::List(list)] => {
            for element in list.iter() {
                if run.is_equal(value, element)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        [key, Value::Map(map)] => Ok(Value::Bool(map.contains(key)?)),
        _ => no_such_overload(),
    }
}

fn size<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [value @ (Value::Str(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(value.size() as i64))
        }
        _ => no_such_overload(),
    }
}
