//! Why a text is not a quantity.

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{text:?} is not a quantity; write a number with a unit, for example 20Gi")]
    Format { text: String },
    #[error(
        "{text:?} has an unknown unit; units are Ki, Mi, Gi, Ti, Pi, Ei, n, u, m, k, M, G, T, P, E and e<exponent>"
    )]
    Suffix { text: String },
    #[error("{text:?} has an exponent beyond 1000")]
    Exponent { text: String },
}
