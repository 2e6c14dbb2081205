//! Kubernetes quantities, exact: any decimal to a billionth, beyond 64 bits as far as its digits go.
//!
//! Kubernetes holds a quantity as an int64 with a scale, or as a decimal of any length. Here it is a whole number of
//! billionths, in 128 bits where it fits and in as many as it needs otherwise, so that sums and comparisons are the
//! same numbers in the same order. What finer than a billionth is written is rounded away from zero, and a binary
//! unit (`Ki` to `Ei`) ends at 2^63 - 1, both as Kubernetes reads them.

mod arithmetic;
mod parse;
mod text;

use std::cmp::Ordering;

use num_bigint::BigInt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use parse::QuantityError;

/// Billionths in one.
const UNIT: i128 = 1_000_000_000;

/// How a quantity was written, and is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    Binary,
    #[default]
    Decimal,
    Exponent,
}

/// One number. Equality and order are those of the numbers: `1Gi` is `1024Mi`.
#[derive(Debug, Clone, Default)]
pub struct Quantity {
    amount: Amount,
    format: Format,
}

/// Billionths. `Large` only holds what `Small` cannot, so that each number has one form.
#[derive(Debug, Clone)]
enum Amount {
    Small(i128),
    Large(Box<BigInt>),
}

impl Default for Amount {
    fn default() -> Self {
        Self::Small(0)
    }
}

// === impl Quantity ===

impl Quantity {
    /// A whole number.
    #[must_use]
    pub fn whole(value: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small(i128::from(value) * UNIT),
            format,
        }
    }

    /// Thousandths.
    #[must_use]
    pub fn milli(value: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small(i128::from(value) * (UNIT / 1000)),
            format,
        }
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
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
        self.amount.cmp(&other.amount)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a quantity, for example 20Gi or 100")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::whole(value, Format::Decimal))
            }

            /// YAML writes `0.5` without quotes; the shortest text of the number is what was written.
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
