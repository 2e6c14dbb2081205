//! Parses text with Kubernetes' rounding and limits.

use num_bigint::{BigInt, Sign};

use crate::decimal::{NANO, Number};
use crate::error::QuantityError;

/// A number with this many decimal digits always fits in 64 bits.
const DIGITS: i64 = 18;
/// A number with a larger exponent needs more memory than any capacity is worth.
const LARGEST_EXPONENT: i64 = 1000;
/// Longer texts are garbage, and multiplying their digits takes quadratic time.
const LONGEST: usize = 4096;

pub(crate) enum Unit {
    Decimal(i32),
    Binary(u32),
}

pub(crate) struct Text<'a> {
    pub(crate) positive: bool,
    /// The digits before the point, without leading zeros.
    pub(crate) whole: &'a str,
    /// The digits after the point.
    pub(crate) fraction: &'a str,
    pub(crate) suffix: &'a str,
}

pub(crate) fn parse(text: &str) -> Result<Number, QuantityError> {
    let parts = split(text)?;
    let unit = unit(parts.suffix, text)?;
    Ok(quick(&parts, &unit).unwrap_or_else(|| slow(&parts, &unit)))
}

pub(crate) fn split(text: &str) -> Result<Text<'_>, QuantityError> {
    let wrong = || QuantityError::Format {
        text: text.chars().take(64).collect(),
    };
    if text.is_empty() || text.len() > LONGEST {
        return Err(wrong());
    }
    let (positive, unsigned) = match text.as_bytes()[0] {
        b'-' => (false, &text[1..]),
        b'+' => (true, &text[1..]),
        _ => (true, text),
    };
    let (whole, rest) = digits(unsigned);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    // A unit is letters of the known units, then optionally a sign, then digits: `e+3`.
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    if !exponent.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    // A text without any digit (a sign, `.`, `Ki`) is 0 in Kubernetes.
    Ok(Text {
        positive,
        whole: whole.trim_start_matches('0'),
        fraction,
        suffix,
    })
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

pub(crate) fn unit(suffix: &str, text: &str) -> Result<Unit, QuantityError> {
    Ok(match suffix {
        "" => Unit::Decimal(0),
        "n" => Unit::Decimal(-9),
        "u" => Unit::Decimal(-6),
        "m" => Unit::Decimal(-3),
        "k" => Unit::Decimal(3),
        "M" => Unit::Decimal(6),
        "G" => Unit::Decimal(9),
        "T" => Unit::Decimal(12),
        "P" => Unit::Decimal(15),
        "E" => Unit::Decimal(18),
        "Ki" => Unit::Binary(10),
        "Mi" => Unit::Binary(20),
        "Gi" => Unit::Binary(30),
        "Ti" => Unit::Binary(40),
        "Pi" => Unit::Binary(50),
        "Ei" => Unit::Binary(60),
        // 1e3 and 1E3 are exponents. 1E alone is the unit exa and is handled above.
        _ => {
            let unknown = || QuantityError::Suffix { text: text.to_owned() };
            let digits = suffix.strip_prefix(['e', 'E']).ok_or_else(unknown)?;
            let exponent: i64 = digits.parse().map_err(|_| unknown())?;
            if exponent.abs() > LARGEST_EXPONENT {
                return Err(QuantityError::Exponent { text: text.to_owned() });
            }
            Unit::Decimal(exponent as i32)
        }
    })
}

/// Parses numbers whose length alone shows that they fit in 64 bits.
fn quick(text: &Text<'_>, unit: &Unit) -> Option<Number> {
    // Kubernetes treats a missing number as the one digit 0.
    let whole = if text.whole.is_empty() { "0" } else { text.whole };
    let length = (whole.len() + text.fraction.len()) as i64;
    let (mantissa, scale) = match unit {
        Unit::Decimal(exponent) if length <= DIGITS => (1, *exponent),
        // 2^10 has about three digits.
        Unit::Binary(bits) if text.fraction.is_empty() && whole.len() as i64 + i64::from(bits * 3 / 10) < 15 => {
            (1i64 << bits, 0)
        }
        _ => return None,
    };
    let scale = scale - text.fraction.len() as i32;
    if scale < NANO {
        return None;
    }
    let digits: i64 = [whole, text.fraction].concat().parse().ok()?;
    let value = digits.checked_mul(mantissa)?;
    Some(Number::small(if text.positive { value } else { -value }, scale))
}

fn slow(text: &Text<'_>, unit: &Unit) -> Number {
    let digits = [text.whole, text.fraction].concat();
    // Only digits; an empty text is 0.
    let mut value = BigInt::parse_bytes(digits.as_bytes(), 10).unwrap_or_default();
    let mut scale = -(text.fraction.len() as i32);
    match unit {
        Unit::Decimal(exponent) => scale += exponent,
        Unit::Binary(bits) => value <<= bits,
    }
    if scale < NANO && value.sign() != Sign::NoSign {
        let divisor = BigInt::from(10).pow((NANO - scale).unsigned_abs());
        value = (value + &divisor - 1u8) / divisor;
        scale = NANO;
    }
    if matches!(unit, Unit::Binary(_)) {
        let places = BigInt::from(10).pow(scale.unsigned_abs()); // scale <= 0: a binary unit leaves no positive one
        if value > BigInt::from(i64::MAX) * &places {
            value = BigInt::from(i64::MAX);
            scale = 0;
        }
    }
    Number::big(if text.positive { value } else { -value }, scale)
}
