//! quantity() and semver().

use std::cmp::Ordering;
use std::sync::Arc;

use vgpu_quantity::Quantity;

use super::semver::Version;
use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Amount, Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "quantity" => |_, _, args| match args {
            [Value::Str(text)] => match Quantity::parse(text.as_str()) {
                Ok(quantity) => Ok(Value::Quantity(Amount::Owned(Arc::new(quantity)))),
                Err(why) => error(why.to_string()),
            },
            _ => no_such_overload(),
        },
        "isQuantity" => |_, _, args| match args {
            [Value::Str(text)] => Ok(Value::Bool(Quantity::parse(text.as_str()).is_ok())),
            _ => no_such_overload(),
        },
        "sign" => |_, _, args| match args {
            [Value::Quantity(q)] => Ok(Value::Int(q.get().signum())),
            _ => no_such_overload(),
        },
        "asApproximateFloat" => |_, _, args| match args {
            [Value::Quantity(q)] => Ok(Value::Double(q.get().to_f64())),
            _ => no_such_overload(),
        },
        "asInteger" => |_, _, args| match args {
            [Value::Quantity(q)] => q
                .get()
                .as_i64()
                .map_or_else(|| error("cannot convert value to integer"), |i| Ok(Value::Int(i))),
            _ => no_such_overload(),
        },
        "isInteger" => |_, _, args| match args {
            [Value::Quantity(q)] => Ok(Value::Bool(q.get().as_i64().is_some())),
            _ => no_such_overload(),
        },
        "add" => add,
        "sub" => sub,
        "compareTo" => |_, _, args| Ok(Value::Int(order(args)? as i64)),
        "isGreaterThan" => |_, _, args| Ok(Value::Bool(order(args)?.is_gt())),
        "isLessThan" => |_, _, args| Ok(Value::Bool(order(args)?.is_lt())),
        "semver" => |_, _, args| match version(args) {
            Some(Ok(version)) => Ok(Value::Semver(version)),
            Some(Err(why)) => error(why),
            None => no_such_overload(),
        },
        "isSemver" => |_, _, args| version(args).map_or_else(no_such_overload, |v| Ok(Value::Bool(v.is_ok()))),
        "major" => |_, _, args| part(args, |v| v.major),
        "minor" => |_, _, args| part(args, |v| v.minor),
        "patch" => |_, _, args| part(args, |v| v.patch),
        _ => return None,
    })
}

fn order(args: &[Value<'_>]) -> Result<Ordering, crate::value::Fault> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(a.get().cmp(b.get())),
        [Value::Semver(a), Value::Semver(b)] => Ok(a.cmp_precedence(b)),
        _ => no_such_overload(),
    }
}

fn computed<'v>(quantity: Quantity) -> Out<'v> {
    Ok(Value::Quantity(Amount::Computed(Arc::new(quantity))))
}

fn add<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => computed(a.get().plus(b.get())),
        [Value::Quantity(a), Value::Int(b)] => computed(a.get().plus(&Quantity::from_i64(*b))),
        _ => no_such_overload(),
    }
}

fn sub<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => computed(a.get().minus(b.get())),
        [Value::Quantity(a), Value::Int(b)] => computed(a.get().minus(&Quantity::from_i64(*b))),
        _ => no_such_overload(),
    }
}

fn version(args: &[Value<'_>]) -> Option<Result<Version, &'static str>> {
    match args {
        [Value::Str(text)] | [Value::Str(text), Value::Bool(false)] => Some(Version::parse(text.as_str())),
        [Value::Str(text), Value::Bool(true)] => Some(Version::parse_tolerant(text.as_str())),
        _ => None,
    }
}

fn part<'v>(args: &[Value<'v>], part: fn(&Version) -> u64) -> Out<'v> {
    match args {
        // Kubernetes converts without checking the range.
        [Value::Semver(version)] => Ok(Value::Int(part(version) as i64)),
        _ => no_such_overload(),
    }
}
