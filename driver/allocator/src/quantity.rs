//! Quantities: `vgpu_quantity`'s exact numbers, with the unit in which they were written.
//!
//! The number decides everything; the unit is only for the text, which is Kubernetes' canonical form: what was asked
//! for in `Gi` is answered in `Gi`.

mod text;

use std::cmp::Ordering;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use vgpu_quantity::QuantityError;

/// How a quantity was written, and is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    Binary,
    #[default]
    Decimal,
    Exponent,
}

/// One number. Equality and order are those of the numbers: `1Gi` is `1024Mi`.
#[derive(Debug, Clone)]
pub struct Quantity {
    number: vgpu_quantity::Quantity,
    format: Format,
}

impl Default for Quantity {
    fn default() -> Self {
        Self {
            number: vgpu_quantity::Quantity::ZERO,
            format: Format::default(),
        }
    }
}

// === impl Quantity ===

impl Quantity {
    /// A whole number.
    #[must_use]
    pub const fn whole(value: i64, format: Format) -> Self {
        Self {
            number: vgpu_quantity::Quantity::from_i64(value),
            format,
        }
    }

    /// Thousandths.
    #[must_use]
    pub fn milli(value: i64, format: Format) -> Self {
        Self {
            number: vgpu_quantity::Quantity::from_parts(value.into(), -3),
            format,
        }
    }

    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    #[must_use]
    pub const fn number(&self) -> &vgpu_quantity::Quantity {
        &self.number
    }

    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.number < vgpu_quantity::Quantity::ZERO
    }

    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.number == vgpu_quantity::Quantity::ZERO
    }

    /// A zero takes over the other's format, as Kubernetes' sums do.
    pub fn add(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.number = self.number.add(&other.number);
    }

    pub fn subtract(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.number = self.number.sub(&other.number);
    }

    /// The next whole number away from zero, if 64 bits hold it.
    #[must_use]
    pub fn whole_away_from_zero(&self) -> Option<i64> {
        self.number.as_i64().or_else(|| text::rounded(&self.number, 0, true))
    }

    /// The number in thousandths, if it is that exactly and 64 bits hold it.
    #[must_use]
    pub fn exact_milli(&self) -> Option<i64> {
        text::rounded(&self.number, -3, false)
    }

    /// Held at the ends of 128 bits, in billionths: for an order among devices, not for sums.
    #[must_use]
    pub fn rank(&self) -> i128 {
        match self.number.as_i64() {
            Some(whole) => i128::from(whole) * 1_000_000_000,
            None => text::billionths(&self.number),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let number = vgpu_quantity::Quantity::parse(text)?;
        Ok(Self {
            format: text::format_of(text, &number),
            number,
        })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
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
