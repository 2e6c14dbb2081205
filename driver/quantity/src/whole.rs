//! Quantities in users' requests: they must be whole numbers that fit in 64 bits.
//!
//! Kubernetes itself rounds silently (`250m` cores become 1, `0.1Gi` becomes a whole number of bytes, anything too
//! large becomes the largest number). This module parses a text as Kubernetes does, and returns either a whole number
//! that fits or an error that says what to write.

use num_bigint::{BigInt, Sign};

use crate::error::QuantityError;
use crate::meant::{PERCENT, meant, number};
use crate::parse::{Text, Unit, split, unit};
use crate::quantity::Quantity;
use crate::shorten::{quoted, shortened};

/// The reason why a text is not a whole number that fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WholeError {
    #[error("a quantity is empty; write a number with a unit, for example 20Gi")]
    Empty,
    #[error("{} is not a quantity; write a number with a unit, for example 20Gi or 512Mi", quoted(.text))]
    NotANumber { text: String },
    #[error("{} has the unknown unit {}{}; units are Ki, Mi, Gi, Ti (powers of 1024) and k, M, G, T (powers of 1000)", quoted(.text), quoted(.suffix), .suggestion.as_ref().map(|s| format!("; did you mean {}?", shortened(s))).unwrap_or_default())]
    UnknownSuffix {
        text: String,
        suffix: String,
        suggestion: Option<String>,
    },
    #[error("{} is not a whole number; write one without a fraction", quoted(.text))]
    NotWhole { text: String },
    #[error("{} is larger than any number that Kubernetes can hold (2^63 - 1)", quoted(.text))]
    TooLarge { text: String },
}

/// Parses a quantity that must be a whole number.
///
/// ```
/// assert_eq!(vgpu_quantity::whole("20Gi"), Ok(20 << 30));
/// assert!(vgpu_quantity::whole("250m").is_err());
/// ```
///
/// # Errors
/// The text is not a quantity, is not whole, or does not fit in 64 bits.
pub fn whole(text: &str) -> Result<i64, WholeError> {
    let parts = split(text).map_err(|_| describe(text))?;
    // Kubernetes parses a text without digits as 0.
    if number(text).is_none() {
        return Err(describe(text));
    }
    let value = digits(&parts);
    if value.sign() == Sign::NoSign && is_exponent(parts.suffix) {
        return Ok(0);
    }
    let unit = match unit(parts.suffix, text) {
        Ok(unit) => unit,
        Err(QuantityError::Exponent { .. }) if parts.suffix.contains('-') => return Err(not_whole(text)),
        Err(QuantityError::Exponent { .. }) => return Err(too_large(text)),
        Err(_) => return Err(describe(text)),
    };
    let (value, exponent) = match &unit {
        Unit::Decimal(exponent) => (value, *exponent),
        Unit::Binary(bits) => (value << bits, 0),
    };
    let places = exponent - parts.fraction.len() as i32; // fits: a text has at most 4096 bytes
    let power = BigInt::from(10u8).pow(places.unsigned_abs());
    let value = if places >= 0 {
        value * power
    } else if (&value % &power).sign() == Sign::NoSign {
        value / power
    } else {
        return Err(not_whole(text));
    };
    // With a binary unit, Kubernetes limits the magnitude to 2^63 - 1, so it parses -8Ei (-2^63) as one more.
    if matches!(unit, Unit::Binary(_)) && value > BigInt::from(i64::MAX) {
        return Err(too_large(text));
    }
    i64::try_from(if parts.positive { value } else { -value }).map_err(|_| too_large(text))
}

/// Reads bytes that a program wrote, rounded up. `None` if they are not a quantity, negative or too large.
#[must_use]
pub fn read_bytes(text: &str) -> Option<u64> {
    let quantity = Quantity::parse(text).ok()?;
    u64::try_from(quantity.whole_away_from_zero()?).ok()
}

fn digits(text: &Text<'_>) -> BigInt {
    let digits = [text.whole, text.fraction].concat();
    BigInt::parse_bytes(digits.as_bytes(), 10).unwrap_or_default()
}

/// Returns true for the unit `e<exponent>`.
fn is_exponent(suffix: &str) -> bool {
    let exponent = suffix.strip_prefix(['e', 'E']);
    exponent.is_some_and(|exponent| exponent.parse::<i64>().is_ok())
}

/// Explains why a text is not a quantity.
fn describe(text: &str) -> WholeError {
    match number(text) {
        _ if text.is_empty() => WholeError::Empty,
        Some((_, suffix)) if !suffix.is_empty() => WholeError::UnknownSuffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
            suggestion: meant(text).filter(|_| suffix.trim() != PERCENT),
        },
        _ => WholeError::NotANumber { text: text.to_owned() },
    }
}

fn not_whole(text: &str) -> WholeError {
    WholeError::NotWhole { text: text.to_owned() }
}

fn too_large(text: &str) -> WholeError {
    WholeError::TooLarge { text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Quantity, format_bytes};
    use proptest::prelude::*;

    #[test]
    fn every_unit_has_its_value() {
        for (text, value) in [
            ("0", 0),
            ("20", 20),
            ("+20", 20),
            ("-1Gi", -(1 << 30)),
            ("1Ki", 1 << 10),
            ("1Mi", 1 << 20),
            ("1Gi", 1 << 30),
            ("1Ti", 1 << 40),
            ("1Pi", 1 << 50),
            ("7Ei", 7 << 60),
            ("1k", 1_000),
            ("1M", 1_000_000),
            ("1G", 1_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("9E", 9_000_000_000_000_000_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("12e+1", 120),
            ("5000e-3", 5),
            ("3000m", 3),
            ("2000000u", 2),
            ("1000000000n", 1),
            ("0.5Gi", 1 << 29),
            ("1.5Gi", 3 << 29),
            ("0.0009765625Ki", 1),
            (".5Ki", 512),
            ("5.", 5),
            ("00020", 20),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("0e99999999999", 0),
            ("-0", 0),
        ] {
            assert_eq!(whole(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn a_fraction_is_an_error() {
        for text in [
            "250m",
            "0.1Gi",
            "1.5",
            "-1.5",
            "1e-400",
            "1e-4000",
            "1n",
            "-1e-400",
            // Kubernetes rounds this up to a billionth, which makes it a whole number.
            "0.9999999999",
        ] {
            assert_eq!(whole(text), Err(WholeError::NotWhole { text: text.into() }), "{text}");
        }
    }

    #[test]
    fn a_number_too_large_is_an_error() {
        for text in [
            "8Ei",
            "-8Ei",
            "-8192Pi",
            "10E",
            "9223372036854775808",
            "1e19",
            "1e4000",
            "1e9999999999",
            "99999999999999Ti",
        ] {
            assert_eq!(whole(text), Err(WholeError::TooLarge { text: text.into() }), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_a_suggestion() {
        assert_eq!(whole(""), Err(WholeError::Empty));
        for text in ["abc", "-", "+", ".", "--1", "1.2.3", " 1", "Gi", "\u{663}Gi"] {
            assert!(
                matches!(whole(text), Err(WholeError::NotANumber { .. })),
                "{text}: {:?}",
                whole(text)
            );
        }
        for text in [
            "1 Gi", "1gi", "20GB", "20GiB", "1e", "1ee3", "1e1.5", "1K", "1Gi ", "1g", "1\u{e9}",
        ] {
            assert!(
                matches!(whole(text), Err(WholeError::UnknownSuffix { .. })),
                "{text}: {:?}",
                whole(text)
            );
        }
        assert!(whole("20GB").unwrap_err().to_string().contains("did you mean 20Gi?"));
        for (text, meant) in [
            ("20GB", "20Gi"),
            ("20gi", "20Gi"),
            ("20 Gi", "20Gi"),
            ("25%", "25"),
            ("-1gb", "-1Gi"),
        ] {
            let said = Quantity::parse(text).unwrap_err().to_string();
            assert_eq!(said, format!("\"{text}\" is not a quantity; did you mean {meant}?"));
        }
        assert!(
            whole("-512mb")
                .unwrap_err()
                .to_string()
                .contains("did you mean -512Mi?")
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in 0..=i64::MAX as u64) {
            prop_assert_eq!(whole(&format_bytes(bytes)), Ok(bytes as i64));
        }

        #[test]
        fn no_text_panics_and_kubernetes_reads_the_same(text in "[-+]?[0-9.]{0,45}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,5}|.{0,3})") {
            if let (Ok(exact), Ok(read)) = (whole(&text), crate::quantity::Quantity::parse(&text)) {
                prop_assert_eq!(read, crate::quantity::Quantity::from_i64(exact));
            }
        }

        /// Compares with arithmetic on plain integers: a decimal fraction of a binary unit.
        #[test]
        fn fractions_are_exact(thousandths in 0u64..10_000_000, unit in 0usize..4) {
            let (suffix, shift) = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)][unit];
            let text = format!("{}.{:03}{suffix}", thousandths / 1000, thousandths % 1000);
            let scaled = u128::from(thousandths) << shift;
            let expected = (scaled % 1000 == 0).then_some((scaled / 1000) as i64);
            prop_assert_eq!(whole(&text).ok(), expected);
            let read = crate::quantity::Quantity::parse(&text).unwrap();
            prop_assert_eq!(read.whole_away_from_zero(), Some(scaled.div_ceil(1000) as i64));
        }
    }
}
