//! `optional.of` and related functions. `or` and `orValue` have their own nodes, because they do not always evaluate
//! their argument.

use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "optional.of" => |_, _, args| match args {
            [value] => Ok(Value::some(value.clone())),
            _ => no_such_overload(),
        },
        "optional.ofNonZeroValue" => |_, _, args| match args {
            [value] if is_zero(value) => Ok(Value::Optional(None)),
            [value] => Ok(Value::some(value.clone())),
            _ => no_such_overload(),
        },
        "optional.none" => |_, _, _| Ok(Value::Optional(None)),
        "value" => |_, _, args| match args {
            [Value::Optional(Some(value))] => Ok((**value).clone()),
            [Value::Optional(None)] => error("optional.none() dereference"),
            _ => no_such_overload(),
        },
        "hasValue" => |_, _, args| match args {
            [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
            _ => no_such_overload(),
        },
        "first" => |_, _, args| match args {
            [Value::List(list)] => Ok(list.first().cloned().map_or(Value::Optional(None), Value::some)),
            _ => no_such_overload(),
        },
        "last" => |_, _, args| match args {
            [Value::List(list)] => Ok(list.last().cloned().map_or(Value::Optional(None), Value::some)),
            _ => no_such_overload(),
        },
        "optional.unwrap" | "unwrapOpt" => unwrap,
        _ => return None,
    })
}

fn unwrap<'v>(run: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let [Value::List(list)] = args else {
        return no_such_overload();
    };
    run.work(list.len())?;
    let mut values = Vec::new();
    for element in list.iter() {
        match element {
            Value::Optional(Some(value)) => values.push((**value).clone()),
            Value::Optional(None) => {}
            other => return error(format!("value of type {} is not optional", other.type_name())),
        }
    }
    Ok(Value::list(values))
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Int(i) => *i == 0,
        Value::Uint(u) => *u == 0,
        Value::Double(d) => *d == 0.0,
        Value::Str(text) => text.as_str().is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.len() == 0,
        Value::Duration(d) => *d == 0,
        // The zero value of Go's time is the year 1.
        Value::Timestamp(t, _) => *t == super::go_time::FIRST,
        _ => false,
    }
}
