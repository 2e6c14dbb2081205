//! Reasons why a text is not a quantity.

use crate::meant::meant;
use crate::shorten::{quoted, shortened};

/// The reason why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{} is not a quantity; {}", quoted(.text), what_to_write(.text))]
    Format { text: String },
    #[error(
        "{} has an unknown unit; units are Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E and e<exponent>",
        quoted(.text)
    )]
    Suffix { text: String },
    #[error("{} has an exponent beyond 1000", quoted(.text))]
    Exponent { text: String },
}

fn what_to_write(text: &str) -> String {
    match meant(text) {
        Some(meant) => format!("did you mean {}?", shortened(&meant)),
        None => "write a number with a unit, for example 20Gi".to_owned(),
    }
}
