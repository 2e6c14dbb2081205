//! Kubernetes quantities as exact decimals.
//!
//! ```text
//! "20Gi" ─parse─► value * 10^scale in 64 bits, else an unscaled big integer ─► compare, add, sub (exact, no limit)
//! ```
//!
//! The semantics are those of Kubernetes' own type, the odd ones included, because the answers must be the same: a
//! text finer than one billionth is rounded up to it, `1.5Ki` counts as no integer though it is 1536, and a binary
//! quantity that does not fit in 64 bits is held at 2^63 - 1 while a decimal one is not. One thing differs: an exponent
//! beyond ±1000 is refused, because a text of ten bytes must not make a number of two gigabytes.
//!
//! What a *user* asks of one of our devices goes through `vgpu_api::quantity`, which refuses all of that.
#![forbid(unsafe_code)]

mod decimal;
mod parse;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::BigInt;

use decimal::Number;

/// An exact decimal number with the unit that Kubernetes wrote it in.
#[derive(Clone)]
pub struct Quantity {
    number: Number,
}

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

impl Quantity {
    pub const ZERO: Self = Self {
        number: Number::small(0, 0),
    };

    /// The number that the text stands for.
    ///
    /// ```
    /// use vgpu_quantity::Quantity;
    /// let memory = Quantity::parse("20Gi").unwrap();
    /// assert_eq!(memory.as_i64(), Some(20 << 30));
    /// assert!(memory > Quantity::parse("20G").unwrap());
    /// ```
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse::parse(text).map(|number| Self { number })
    }

    #[must_use]
    pub const fn from_i64(value: i64) -> Self {
        Self {
            number: Number::small(value, 0),
        }
    }

    /// The value, if Kubernetes holds it as a whole number of 64 bits (`1000m` and `1.5Ki` it does not).
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.number.as_i64()
    }

    /// The nearest double, as Kubernetes computes it.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.number.to_f64()
    }

    /// -1, 0 or 1.
    #[must_use]
    pub fn signum(&self) -> i64 {
        match self.cmp(&Self::ZERO) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        Self {
            number: self.number.add(&other.number),
        }
    }

    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        Self {
            number: self.number.add(&other.number.negated()),
        }
    }

    /// The value as `unscaled * 10^exponent`, for arithmetic of a caller's own.
    #[must_use]
    pub fn parts(&self) -> (BigInt, i32) {
        self.number.parts()
    }

    /// `unscaled * 10^exponent`.
    #[must_use]
    pub fn from_parts(unscaled: BigInt, exponent: i32) -> Self {
        Self {
            number: Number::big(unscaled, exponent),
        }
    }
}

// === traits ===

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unscaled, exponent) = self.parts();
        if exponent == 0 {
            write!(f, "{unscaled}")
        } else {
            write!(f, "{unscaled}e{exponent}")
        }
    }
}

#[cfg(test)]
mod tests;
