//! Kubernetes quantities as exact integers.
//!
//! Kubernetes itself rounds silently (`250m` cores become 1, `0.1Gi` becomes a whole number of bytes, anything too
//! large becomes the largest number). Here a text either *is* a whole number that fits, or it is an error that says
//! so; [`parse_rounded_up`] is for numbers that others wrote and that only have to be compared.

use std::fmt::Write as _;

/// Why a text is not a whole number that fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("a quantity is empty; write a number with a unit, for example 20Gi")]
    Empty,
    #[error("{text:?} is not a quantity; write a number with a unit, for example 20Gi or 512Mi")]
    NotANumber { text: String },
    #[error("{text:?} has the unknown unit {suffix:?}{}; units are Ki, Mi, Gi, Ti (powers of 1024) and k, M, G, T (powers of 1000)", .suggestion.as_ref().map(|s| format!("; did you mean {s}?")).unwrap_or_default())]
    UnknownSuffix {
        text: String,
        suffix: String,
        suggestion: Option<String>,
    },
    #[error("{text:?} is not a whole number; write one without a fraction")]
    NotWhole { text: String },
    #[error("{text:?} is larger than any number that Kubernetes can hold (2^63 - 1)")]
    TooLarge { text: String },
}

/// A quantity as `mantissa * 10^exponent * 2^shift`; the mantissa has no trailing zero.
struct Parts {
    negative: bool,
    mantissa: u128,
    exponent: i64,
    shift: u32,
}

/// The exact value of a quantity.
///
/// ```
/// assert_eq!(vgpu_api::quantity::parse("20Gi"), Ok(20 << 30));
/// assert!(vgpu_api::quantity::parse("250m").is_err());
/// ```
pub fn parse(text: &str) -> Result<i64, QuantityError> {
    let parts = split(text)?;
    let too_large = || QuantityError::TooLarge { text: text.to_owned() };
    let not_whole = || QuantityError::NotWhole { text: text.to_owned() };
    let magnitude = if parts.exponent >= 0 {
        scale_up(&parts).ok_or_else(too_large)?
    } else {
        let places = u32::try_from(-parts.exponent).map_err(|_| not_whole())?;
        // 10^places = 5^places * 2^places: the fives must be in the mantissa, the twos may be in the binary unit.
        let fives = 5u128.checked_pow(places).ok_or_else(not_whole)?;
        if parts.mantissa % fives != 0 {
            return Err(not_whole());
        }
        shift(
            parts.mantissa / fives,
            i64::from(parts.shift) - i64::from(places),
            too_large,
            not_whole,
        )?
    };
    signed(parts.negative, magnitude).ok_or_else(too_large)
}

/// The value of a quantity, rounded up to a whole number as Kubernetes' `Quantity.Value()` does, and held at the
/// ends of the range. For numbers that others published; what a user asks for goes through [`parse`].
pub fn parse_rounded_up(text: &str) -> Result<i64, QuantityError> {
    let parts = split(text)?;
    let limit = if parts.negative { i64::MIN } else { i64::MAX };
    let magnitude = if parts.exponent >= 0 {
        match scale_up(&parts) {
            Some(magnitude) => magnitude,
            None => return Ok(limit),
        }
    } else {
        let divided = u32::try_from(-parts.exponent).ok().and_then(|places| {
            let fives = 5u128.checked_pow(places)?;
            let (numerator, denominator) = if places >= parts.shift {
                (
                    parts.mantissa,
                    fives.checked_mul(2u128.checked_pow(places - parts.shift)?)?,
                )
            } else {
                (parts.mantissa.checked_mul(1 << (parts.shift - places))?, fives)
            };
            // Up means towards plus infinity: away from zero only for positive numbers.
            Some(if parts.negative {
                numerator / denominator
            } else {
                numerator.div_ceil(denominator)
            })
        });
        // What does not fit in 128 bits has more digits than any real capacity: a tiny fraction, or garbage.
        divided.unwrap_or(u128::from(!parts.negative && parts.mantissa != 0))
    };
    Ok(signed(parts.negative, magnitude).unwrap_or(limit))
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

fn split(text: &str) -> Result<Parts, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let not_a_number = || QuantityError::NotANumber { text: text.to_owned() };
    let (negative, unsigned) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(not_a_number());
    }
    let (suffix_exponent, shift) = unit(suffix).ok_or_else(|| QuantityError::UnknownSuffix {
        text: text.to_owned(),
        suffix: suffix.to_owned(),
        suggestion: suggestion(suffix).map(|unit| format!("{}{unit}", &text[..text.len() - suffix.len()])),
    })?;

    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Ok(Parts {
            negative: false,
            mantissa: 0,
            exponent: 0,
            shift: 0,
        });
    }
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    let exponent = suffix_exponent
        .saturating_add(trailing as i64)
        .saturating_sub(fraction.len() as i64);
    let mantissa = significant
        .parse()
        .map_err(|_| QuantityError::TooLarge { text: text.to_owned() })?;
    Ok(Parts {
        negative,
        mantissa,
        exponent,
        shift,
    })
}

/// The decimal exponent and the binary shift of a unit.
fn unit(suffix: &str) -> Option<(i64, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        // 1e3 and 1E3 are decimal exponents; 1E alone is exa, above.
        _ => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
    })
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

fn scale_up(parts: &Parts) -> Option<u128> {
    let tens = 10u128.checked_pow(u32::try_from(parts.exponent).ok()?)?;
    parts.mantissa.checked_mul(tens)?.checked_mul(1 << parts.shift)
}

/// `value * 2^by`, exact.
fn shift(
    value: u128,
    by: i64,
    too_large: impl Fn() -> QuantityError,
    not_whole: impl Fn() -> QuantityError,
) -> Result<u128, QuantityError> {
    if by >= 0 {
        // by is at most 60, the shift of Ei.
        value.checked_mul(1 << by).ok_or_else(too_large)
    } else if -by <= i64::from(value.trailing_zeros()) {
        Ok(value >> -by)
    } else {
        Err(not_whole())
    }
}

fn signed(negative: bool, magnitude: u128) -> Option<i64> {
    let magnitude = i128::try_from(magnitude).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
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
            assert_eq!(parse(text), Ok(value), "{text}");
            assert_eq!(parse_rounded_up(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn a_fraction_is_an_error_and_rounds_up_where_asked() {
        for (text, up) in [
            ("250m", 1),
            ("0.1Gi", 107_374_183),
            ("1.5", 2),
            ("-1.5", -1),
            ("1e-400", 1),
            ("1n", 1),
            ("-1e-400", 0),
        ] {
            assert_eq!(
                parse(text),
                Err(QuantityError::NotWhole { text: text.into() }),
                "{text}"
            );
            assert_eq!(parse_rounded_up(text), Ok(up), "{text}");
        }
    }

    #[test]
    fn a_number_too_large_is_an_error_and_is_held_where_asked() {
        for text in [
            "8Ei",
            "10E",
            "9223372036854775808",
            "1e19",
            "1e4000",
            "1e9999999999",
            "99999999999999Ti",
        ] {
            assert_eq!(
                parse(text),
                Err(QuantityError::TooLarge { text: text.into() }),
                "{text}"
            );
            assert_eq!(parse_rounded_up(text), Ok(i64::MAX), "{text}");
        }
        assert_eq!(parse_rounded_up("-9Ei"), Ok(i64::MIN));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_a_suggestion() {
        assert_eq!(parse(""), Err(QuantityError::Empty));
        for text in ["abc", "-", "+", ".", "--1", "1.2.3", " 1", "Gi", "\u{663}Gi"] {
            assert!(
                matches!(parse(text), Err(QuantityError::NotANumber { .. })),
                "{text}: {:?}",
                parse(text)
            );
        }
        for text in [
            "1 Gi", "1gi", "20GB", "20GiB", "1e", "1ee3", "1e1.5", "1K", "1Gi ", "1g", "1\u{e9}",
        ] {
            assert!(
                matches!(parse(text), Err(QuantityError::UnknownSuffix { .. })),
                "{text}: {:?}",
                parse(text)
            );
        }
        assert!(parse("20GB").unwrap_err().to_string().contains("did you mean 20Gi?"));
        assert!(
            parse("-512mb")
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

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse(&format_bytes(bytes)), Ok(bytes as i64));
        }

        #[test]
        fn no_text_panics_and_both_readings_agree(text in "[-+]?[0-9.]{0,45}([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,5}|.{0,3})") {
            match (parse(&text), parse_rounded_up(&text)) {
                (Ok(exact), Ok(up)) => prop_assert_eq!(exact, up),
                (Ok(_), Err(e)) => prop_assert!(false, "{} is read exactly but not rounded up: {}", text, e),
                _ => {}
            }
        }

        /// Against arithmetic on plain integers: a decimal fraction of a binary unit.
        #[test]
        fn fractions_are_exact(thousandths in 0u64..10_000_000, unit in 0usize..4) {
            let (suffix, shift) = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)][unit];
            let text = format!("{}.{:03}{suffix}", thousandths / 1000, thousandths % 1000);
            let scaled = u128::from(thousandths) << shift;
            let expected = (scaled % 1000 == 0).then_some((scaled / 1000) as i64);
            prop_assert_eq!(parse(&text).ok(), expected);
            prop_assert_eq!(parse_rounded_up(&text), Ok(scaled.div_ceil(1000) as i64));
        }
    }
}
