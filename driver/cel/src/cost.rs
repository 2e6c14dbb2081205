//! The cost of a call: cel-go's model, with Kubernetes' prices for its own functions.
//!
//! A price depends on the function and on the overload that the types determine. If several overloads remain, cel-go
//! does not know the price and charges 1.

use crate::value::Value;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Price {
    Fixed(u64),
    /// A number of tenths of an argument's size: argument, tenths.
    Tenths(usize, u64),
    Size(usize),
    /// A tenth of the smaller argument's size.
    MinTenth,
    SumTenth,
    Contains,
    Pattern,
    /// The cost of visiting every value inside the first argument.
    Traverse,
    SelfCompare(usize),
    Flatten,
    Sets(u64),
    ContainsIp {
        text: bool,
    },
    ContainsCidr {
        text: bool,
    },
    Validate,
    /// Depends on the size of the result, a concatenated text.
    Joined,
    /// Depends on the size of the result, a new list.
    Made,
}

pub(crate) fn price(name: &str, overload: &str) -> Price {
    match name {
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => return Price::Traverse,
        "ip" if overload == "cidr_ip" => return Price::Fixed(1),
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP" | "isCIDR" | "ip" | "quantity"
        | "isQuantity" | "semver" | "isSemver" => return Price::Tenths(0, 1),
        "replace" | "split" | "ip.isCanonical" => return Price::Tenths(0, 2),
        "join" => return Price::Joined,
        "find" | "findAll" => return Price::Pattern,
        "containsIP" => {
            return Price::ContainsIp {
                text: overload == "cidr_contains_ip_string",
            };
        }
        "containsCIDR" => {
            return Price::ContainsCidr {
                text: overload == "cidr_contains_cidr_string",
            };
        }
        "validate" => return Price::Validate,
        "check" => return Price::Fixed(350_000),
        _ => {}
    }
    match overload {
        "starts_with_string" | "ends_with_string" => Price::Tenths(1, 1),
        "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => Price::Tenths(0, 1),
        "in_list" => Price::Size(1),
        "add_string" | "add_bytes" => Price::SumTenth,
        "matches" | "matches_string" => Price::Pattern,
        "contains_string" => Price::Contains,
        "list_slice" | "lists_range" | "list_reverse" => Price::Made,
        "list_flatten" | "list_flatten_int" => Price::Flatten,
        "list_distinct" => Price::SelfCompare(0),
        "list_sets_contains_list" | "list_sets_intersects_list" => Price::Sets(1),
        "list_sets_equivalent_list" => Price::Sets(2),
        _ if matches!(name, "_<_" | "_<=_" | "_>_" | "_>=_")
            && (overload.ends_with("_string") || overload.ends_with("_bytes")) =>
        {
            Price::MinTenth
        }
        _ if name == "sort" && !overload.is_empty() => Price::SelfCompare(0),
        _ => Price::Fixed(1),
    }
}

impl Price {
    /// The cost that is charged before the call runs.
    pub(crate) fn before(self, args: &[Value<'_>]) -> u64 {
        let size = |index: usize| args.get(index).map_or(1, Value::size);
        match self {
            Self::Fixed(cost) => cost,
            Self::Tenths(index, factor) => tenths(size(index).saturating_mul(factor)),
            Self::Size(index) => size(index),
            Self::MinTenth => tenths(size(0).min(size(1))),
            Self::SumTenth => tenths(size(0).saturating_add(size(1))),
            Self::Contains => tenths(size(0)).saturating_mul(tenths(size(1))),
            Self::Pattern => pattern(size(0), size(1)),
            // Charged by `Evaluation::traverse`, which limits its steps.
            Self::Traverse => 0,
            Self::SelfCompare(index) => args.get(index).map_or(1, self_compare),
            Self::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) if *depth >= 0 => *depth as u64,
                    _ => 1,
                };
                size(0).saturating_mul(depth).saturating_add(11)
            }
            Self::Sets(factor) => size(0).saturating_mul(size(1)).saturating_mul(factor).saturating_add(1),
            Self::ContainsIp { text } => tenths(2 * size(0)) + if text { tenths(size(1)) } else { 0 },
            Self::ContainsCidr { text } => {
                tenths(2 * size(0)) + tenths(size(0)) + 1 + if text { tenths(size(1)) } else { 0 }
            }
            Self::Validate => match args.first() {
                Some(Value::Format(format)) => pattern(size(1), format.pattern_size),
                _ => 1,
            },
            Self::Joined | Self::Made => 0,
        }
    }

    /// The cost that is charged for the result. An error is charged like a result of size 1.
    pub(crate) fn after(self, result: Option<&Value<'_>>) -> u64 {
        let size = result.map_or(1, Value::size);
        match self {
            Self::Joined => tenths(2 * size),
            Self::Made => size + 11,
            _ => 0,
        }
    }
}

/// A tenth of a size, rounded up.
pub(crate) fn tenths(size: u64) -> u64 {
    size.div_ceil(10)
}

fn pattern(text: u64, pattern: u64) -> u64 {
    tenths(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

/// The cost of `==`.
pub(crate) fn equality(a: Option<&Value<'_>>, b: Option<&Value<'_>>, negated: bool) -> u64 {
    let of_kubernetes = matches!(
        a,
        Some(Value::Quantity(_) | Value::Ip(_) | Value::Cidr(..) | Value::Format(_) | Value::Url(_) | Value::Semver(_))
    );
    if of_kubernetes && !negated {
        return 1;
    }
    let size = |value: Option<&Value<'_>>| value.map_or(1, Value::size);
    tenths(size(a).min(size(b)))
}

/// The cost of sorting a list or searching for duplicates: quadratic.
pub(crate) fn self_compare(list: &Value<'_>) -> u64 {
    let Value::List(elements) = list else { return 1 };
    let size = elements.len() as u64;
    let square = size.saturating_mul(size);
    let cost = match elements.first() {
        Some(Value::Str(_) | Value::Bytes(_)) => square.saturating_mul(21) / 10,
        _ => square.saturating_mul(2),
    };
    cost.saturating_add(11)
}
