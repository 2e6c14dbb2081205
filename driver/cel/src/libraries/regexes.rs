//! matches, find and findAll.

use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => |run, call, args| match args {
            [Value::Str(text), Value::Str(pattern)] => run.with_pattern(call, pattern.as_str(), |pattern| {
                Value::Bool(pattern.is_match(text.as_str()))
            }),
            _ => no_such_overload(),
        },
        "find" => |run, call, args| match args {
            [Value::Str(text), Value::Str(pattern)] => run.with_pattern(call, pattern.as_str(), |pattern| {
                Value::text(pattern.find(text.as_str()).unwrap_or_default())
            }),
            _ => no_such_overload(),
        },
        "findAll" => find_all,
        _ => return None,
    })
}

fn find_all<'v>(run: &mut Evaluation<'v>, call: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (text, pattern, limit) = match args {
        [Value::Str(text), Value::Str(pattern)] => (text, pattern, -1),
        [Value::Str(text), Value::Str(pattern), Value::Int(limit)] => (text, pattern, *limit),
        _ => return no_such_overload(),
    };
    // A negative limit means no limit.
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    run.work(text.as_str().len())?;
    run.with_pattern(call, pattern.as_str(), |pattern| {
        Value::list(pattern.find_all(text.as_str(), limit).map(Value::text).collect())
    })
}
