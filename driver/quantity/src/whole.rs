//! Quantities that a user requests: whole numbers that fit.
//!
//! Kubernetes itself rounds silently (`250m` cores become 1, `0.1Gi` becomes a whole number of bytes, anything too
//! large becomes the largest number). Here a text is parsed as Kubernetes does, and the result is either a whole number
//! that fits or an error that says what to write.

use std::fmt::Write as _;

use num_bigint::{BigInt, Sign};

use crate::error::QuantityError;
use crate::parse::{Text, Unit, split, unit};
use crate::shorten::{quoted, shortened};

/// Why a text is not a whole number that fits.
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

/// The exact value of a quantity.
///
/// ```
/// assert_eq!(vgpu_quantity::whole("20Gi"), Ok(20 << 30));
/// assert!(vgpu_quantity::whole("250m").is_err());
/// ```
///
/// # Errors
/// The text is no quantity, is not whole, or does not fit in 64 bits.
pub fn whole(text: &str) -> Result<i64, WholeError> {
    let parts = split(text).map_err(|_| describe(text))?;
    // Kubernetes reads a text without digits as 0.
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
    let places = exponent - parts.fraction.len() as i32; // a text of at most 4096 bytes
    let power = BigInt::from(10u8).pow(places.unsigned_abs());
    let value = if places >= 0 {
        value * power
    } else if (&value % &power).sign() == Sign::NoSign {
        value / power
    } else {
        return Err(not_whole(text));
    };
    // With a binary unit Kubernetes holds the magnitude at 2^63 - 1: it reads -8Ei, which is -2^63, as one more.
    if matches!(unit, Unit::Binary(_)) && value > BigInt::from(i64::MAX) {
        return Err(too_large(text));
    }
    i64::try_from(if parts.positive { value } else { -value }).map_err(|_| too_large(text))
}

/// A number of bytes with the largest binary unit that divides it, as Kubernetes writes it: `20Gi`, `81559Mi`, `0`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let unit = if bytes == 0 {
        0
    } else {
        (bytes.trailing_zeros() / 10).min(6)
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(text, "{}{}", bytes >> (10 * unit), UNITS[unit as usize]);
    text
}

/// A number of bytes for a reader: from 1 GiB on in GiB with one decimal place, rounded down, as `55.3Gi` for 56702Mi.
#[must_use]
pub fn readable_bytes(bytes: u64) -> String {
    const GI: u64 = 1 << 30;
    let (whole, rest) = (bytes / GI, bytes % GI);
    match (whole, (rest * 10) >> 30) {
        (0, _) => format_bytes(bytes),
        (_, 0) => format_bytes(whole * GI),
        (whole, tenths) => format!("{whole}.{tenths}Gi"),
    }
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

/// The number of a text and its unit; `None` without a digit, or with more than one point.
fn number(text: &str) -> Option<(&str, &str)> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let is_number = number.contains(|c: char| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    is_number.then_some((number, suffix))
}

/// What is wrong with a text that is no quantity.
fn describe(text: &str) -> WholeError {
    match number(text) {
        _ if text.is_empty() => WholeError::Empty,
        Some((_, suffix)) if !suffix.is_empty() => WholeError::UnknownSuffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
            suggestion: suggestion(suffix).map(|unit| format!("{}{unit}", &text[..text.len() - suffix.len()])),
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

/// The unit that a common slip means.
fn suggestion(suffix: &str) -> Option<&'static str> {
    let lower = suffix.trim().to_ascii_lowercase();
    Some(
        match lower
            .trim_end_matches("bytes")
            .trim_end_matches("byte")
            .trim_end_matches('b')
        {
            "k" | "ki" => "Ki",
            "m" | "mi" => "Mi",
            "g" | "gi" => "Gi",
            "t" | "ti" => "Ti",
            _ => return None,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
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
            // Kubernetes rounds it up to a billionth, and so to a whole number.
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
        assert!(
            whole("-512mb")
                .unwrap_err()
                .to_string()
                .contains("did you mean -512Mi?")
        );
    }

    #[test]
    fn bytes_are_written_as_kubernetes_does() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1536, "1536"),
            (81_559 << 20, "81559Mi"),
            (20 << 30, "20Gi"),
            (1 << 40, "1Ti"),
            (1 << 63, "8Ei"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn a_reader_gets_gibibytes() {
        for (bytes, text) in [
            (0, "0"),
            (300 << 20, "300Mi"),
            (1_023 << 20, "1023Mi"),
            (1_025 << 20, "1Gi"),
            (56_702 << 20, "55.3Gi"),
            (81_559 << 20, "79.6Gi"),
            (80 << 30, "80Gi"),
            (1 << 40, "1Ti"),
            (u64::MAX, "17179869183.9Gi"),
        ] {
            assert_eq!(readable_bytes(bytes), text);
        }
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

        /// Against arithmetic on plain integers: a decimal fraction of a binary unit.
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
