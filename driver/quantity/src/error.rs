//! Why a text is not a quantity.

use crate::shorten::quoted;

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{} is not a quantity; write a number with a unit, for example 20Gi", quoted(.text))]
    Format { text: String },
    #[error(
        "{} has an unknown unit; units are Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E and e<exponent>",
        quoted(.text)
    )]
    Suffix { text: String },
    #[error("{} has an exponent beyond 1000", quoted(.text))]
    Exponent { text: String },
}
