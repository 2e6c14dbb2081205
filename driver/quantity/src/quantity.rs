//! [`Quantity`]: a number with the unit in which it was written, its arithmetic and its order.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::BigInt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bytes::{format_bytes, readable_bytes};
use crate::decimal::Number;
use crate::error::QuantityError;
use crate::format::Format;
use crate::parse;
use crate::text;

/// An exact decimal number. Equality and order are those of the numbers: `1Gi` is `1024Mi`.
#[derive(Clone)]
pub struct Quantity {
    number: Number,
    format: Format,
}

impl Quantity {
    pub const ZERO: Self = Self::from_i64(0);

    /// Parses a quantity.
    ///
    /// ```
    /// use vgpu_quantity::Quantity;
    /// let memory = Quantity::parse("20Gi").unwrap();
    /// assert_eq!(memory.as_i64(), Some(20 << 30));
    /// assert!(memory > Quantity::parse("20G").unwrap());
    /// ```
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let number = parse::parse(text)?;
        Ok(Self {
            format: text::format_of(text, &number),
            number,
        })
    }

    #[must_use]
    pub const fn from_i64(value: i64) -> Self {
        Self::with_format(value, Format::Decimal)
    }

    /// A whole number, to be written in this format.
    #[must_use]
    pub const fn with_format(value: i64, format: Format) -> Self {
        Self {
            number: Number::small(value, 0),
            format,
        }
    }

    /// A number of thousandths.
    #[must_use]
    pub fn milli(value: i64, format: Format) -> Self {
        Self {
            number: Number::big(value.into(), -3),
            format,
        }
    }

    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The value, if Kubernetes stores it as a 64-bit integer (it does not for `1000m` and `1.5Ki`).
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.number.as_i64()
    }

    /// The nearest double, as Kubernetes computes it.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.number.to_f64()
    }

    /// The sign: -1, 0 or 1.
    #[must_use]
    pub fn signum(&self) -> i64 {
        match self.cmp(&Self::ZERO) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    #[must_use]
    pub fn is_negative(&self) -> bool {
        *self < Self::ZERO
    }

    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// The sum. It has the format of the first operand that is not zero, as in Kubernetes.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            number: self.number.add(&other.number),
            format: self.format_with(other),
        }
    }

    /// The difference, with the format that [`Self::plus`] would choose.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            number: self.number.add(&other.number.negated()),
            format: self.format_with(other),
        }
    }

    pub fn add(&mut self, other: &Self) {
        *self = self.plus(other);
    }

    pub fn subtract(&mut self, other: &Self) {
        *self = self.minus(other);
    }

    /// The number rounded away from zero to a whole one, if that fits in 64 bits.
    #[must_use]
    pub fn whole_away_from_zero(&self) -> Option<i64> {
        self.as_i64().or_else(|| text::rounded(&self.number, 0, true))
    }

    /// The number in thousandths, if that is exact and fits in 64 bits.
    #[must_use]
    pub fn exact_milli(&self) -> Option<i64> {
        text::rounded(&self.number, -3, false)
    }

    /// The number in billionths, clamped to 128 bits. For sorting devices, not for sums.
    #[must_use]
    pub fn rank(&self) -> i128 {
        match self.as_i64() {
            Some(whole) => i128::from(whole) * 1_000_000_000,
            None => text::billionths(&self.number),
        }
    }

    fn format_with(&self, other: &Self) -> Format {
        if self.is_zero() { other.format } else { self.format }
    }

    /// The value as `unscaled * 10^exponent`.
    fn parts(&self) -> (BigInt, i32) {
        self.number.parts()
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
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

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, for example 20Gi or 100")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_i64(value))
            }

            /// Reads null as Kubernetes does.
            fn visit_unit<E>(self) -> Result<Quantity, E> {
                Ok(Quantity::ZERO)
            }

            /// YAML allows `0.5` without quotes; the shortest text of the double is what the user wrote.
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

impl Quantity {
    /// The quantity for messages: sizes of a GiB or more in a binary unit become GiB, rounded down.
    #[must_use]
    pub fn readable(&self) -> String {
        match self.binary() {
            Some(bytes) if bytes < 0 => format!("-{}", readable_bytes(bytes.unsigned_abs())),
            Some(bytes) => readable_bytes(bytes.unsigned_abs()),
            None => self.to_string(),
        }
    }

    /// The quantity as a suggestion to copy into a request: whole GiB where that loses little.
    #[must_use]
    pub fn suggested(&self) -> String {
        const GI: i64 = 1 << 30;
        match self.binary() {
            Some(bytes) if bytes >= 10 * GI => format_bytes((bytes - bytes % GI).unsigned_abs()),
            _ => self.to_string(),
        }
    }

    fn binary(&self) -> Option<i64> {
        self.as_i64().filter(|_| self.format == Format::Binary)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(f, &self.number, self.format)
    }
}
