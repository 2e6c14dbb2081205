//! All functions that an expression may call: their overloads with types, as Kubernetes 1.37 declares them for stored
//! expressions.
//!
//! A line is `function overload signature`; a signature is `receiver.(arguments) result` or `(arguments) result`. The
//! overload's name determines the cost, and distinguishes overloads with the same arguments.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::types::Type;

pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) member: bool,
    /// Types of the arguments, the receiver first.
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) params: u32,
}

/// The overloads of the function with this name, if it exists.
pub(crate) fn function(name: &str) -> Option<(&'static str, &'static [Overload])> {
    static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(read);
    FUNCTIONS
        .get_key_value(name)
        .map(|(name, overloads)| (*name, overloads.as_slice()))
}

fn read() -> HashMap<&'static str, Vec<Overload>> {
    let mut functions: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        let (Some(name), Some(id), Some(signature)) = (words.next(), words.next(), words.next()) else {
            unreachable!("a line of the table has three parts: {line}");
        };
        // One overload for each type X of the list: ordered({X}) becomes `list_{X}_...`.
        if let Some((types, signature)) = signature.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            for one in types.split(' ') {
                let id: &'static str = id.replace('*', one).leak();
                functions
                    .entry(name)
                    .or_default()
                    .push(overload(id, &signature.replace('*', one)));
            }
        } else {
            functions.entry(name).or_default().push(overload(id, signature));
        }
    }
    functions
}

fn overload(id: &'static str, signature: &str) -> Overload {
    let (receiver, rest) = match signature.split_once(".(") {
        Some((receiver, rest)) => (Some(receiver), rest),
        None => (None, signature.strip_prefix('(').unwrap_or(signature)),
    };
    let (arguments, result) = match rest.strip_prefix(") ") {
        Some(result) => ("", result),
        None => rest.rsplit_once(") ").unwrap_or((rest, "")),
    };
    let mut params = Vec::new();
    let args = receiver
        .into_iter()
        .chain(arguments.split_whitespace())
        .map(|argument| parse(argument, &mut params))
        .collect();
    let result = parse(result, &mut params);
    Overload {
        id,
        member: receiver.is_some(),
        args,
        result,
        params: params.len() as u32,
    }
}

fn parse(text: &str, params: &mut Vec<char>) -> Type {
    if let Some(inner) = text.strip_suffix(')') {
        let (outer, inner) = inner.split_once('(').unwrap_or(("", inner));
        return match outer {
            "list" => Type::list(parse(inner, params)),
            "optional" => Type::optional(parse(inner, params)),
            "type" => Type::Meta(parse(inner, params).into()),
            "map" => {
                let (key, value) = inner.split_once(',').unwrap_or((inner, ""));
                Type::map(parse(key, params), parse(value, params))
            }
            other => unreachable!("the table has no type {other}"),
        };
    }
    match text {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::Str,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "quantity" => Type::Object("kubernetes.Quantity"),
        "semver" => Type::Object("kubernetes.Semver"),
        "url" => Type::Object("kubernetes.URL"),
        "format" => Type::Object("kubernetes.NamedFormat"),
        "ip" => Type::Object("net.IP"),
        "cidr" => Type::Object("net.CIDR"),
        "authorizer" => Type::Object("kubernetes.authorization.Authorizer"),
        "pathcheck" => Type::Object("kubernetes.authorization.PathCheck"),
        "groupcheck" => Type::Object("kubernetes.authorization.GroupCheck"),
        "resourcecheck" => Type::Object("kubernetes.authorization.ResourceCheck"),
        "decision" => Type::Object("kubernetes.authorization.Decision"),
        _ => {
            let letter = text.chars().next().filter(char::is_ascii_uppercase);
            let Some(letter) = letter else {
                unreachable!("the table has no type {text:?}");
            };
            let known = params.iter().position(|p| *p == letter);
            Type::Param(known.unwrap_or_else(|| {
                params.push(letter);
                params.len() - 1
            }) as u32)
        }
    }
}

/// The table. `*` stands for each type in the list before the signature.
const TABLE: &str = include_str!("functions.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_it_is_meant() {
        let (_, add) = function("_+_").unwrap();
        assert_eq!(add.len(), 9);
        let (_, index_of) = function("indexOf").unwrap();
        assert!(index_of.iter().all(|overload| overload.member));
        let (_, find) = function("findAll").unwrap();
        assert_eq!(find[1].args, [Type::Str, Type::Str, Type::Int]);
        assert_eq!(find[1].result, Type::list(Type::Str));
        let (_, index) = function("_[_]").unwrap();
        assert_eq!(index[1].params, 2);
        assert!(function("nothing").is_none());
    }
}
