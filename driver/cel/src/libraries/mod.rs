//! The code of all functions. The checker has checked the types of arguments as far as they are known. Values of type
//! `dyn` are checked here; a wrong type is "no such overload".

mod conversions;
pub(crate) mod format;
pub(crate) mod format_text;
pub(crate) mod go_time;
pub(crate) mod lists;
mod network;
mod operators;
mod optionals;
pub(crate) mod pattern;
mod quantities;
mod quote;
mod regexes;
pub(crate) mod semver;
mod strings;
mod times;
pub(crate) mod url;

use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, no_such_overload};

/// The implementation of a declared function, for all its overloads.
pub(crate) fn function(name: &str) -> Function {
    operators::function(name)
        .or_else(|| conversions::function(name))
        .or_else(|| strings::function(name))
        .or_else(|| lists::function(name))
        .or_else(|| optionals::function(name))
        .or_else(|| quantities::function(name))
        .or_else(|| regexes::function(name))
        .or_else(|| network::function(name))
        .or_else(|| url::function(name))
        .or_else(|| format::function(name))
        .or_else(|| times::function(name))
        .unwrap_or(never)
}

/// The authorizer's functions: no value exists on which they could be called.
fn never<'v>(_: &mut Evaluation<'v>, _: &Call, _: &[Value<'v>]) -> Out<'v> {
    no_such_overload()
}

/// Returns true if a call with a constant is itself a constant.
pub(crate) fn is_conversion(name: &str) -> bool {
    matches!(
        name,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}

/// The operator's symbol in source text.
pub(crate) fn symbol(name: &str) -> &str {
    match name {
        "_?_:_" => "? :",
        "@in" => "in",
        "_[_]" => "[]",
        "_[?_]" => "[?]",
        "@sortByAssociatedKeys" => "sortBy",
        _ => name.trim_matches('_'),
    }
}
