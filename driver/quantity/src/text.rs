//! Writes quantities in Kubernetes' canonical form: without a fraction, in the largest unit that allows this.

use std::fmt;

use num_bigint::{BigInt, Sign};

use crate::decimal::Number;
use crate::format::Format;

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(i64, &str); 10] = [
    (-9, "n"),
    (-6, "u"),
    (-3, "m"),
    (0, ""),
    (3, "k"),
    (6, "M"),
    (9, "G"),
    (12, "T"),
    (15, "P"),
    (18, "E"),
];

const ZERO: Number = Number::small(0, 0);
const ONE: Number = Number::small(1, 0);

/// The format of a parsed text.
pub(super) fn format_of(text: &str, number: &Number) -> Format {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    match unit.as_bytes() {
        // A fraction below one cannot be written in binary units.
        [_, b'i'] if number.cmp(&ZERO).is_gt() && number.cmp(&ONE).is_lt() => Format::Decimal,
        [_, b'i'] => Format::Binary,
        [b'e' | b'E', _, ..] => Format::Exponent,
        _ => Format::Decimal,
    }
}

/// The number in units of `10^exponent`, rounded away from zero if `round` is set; otherwise `None` if it is not
/// whole.
pub(super) fn rounded(number: &Number, exponent: i32, round: bool) -> Option<i64> {
    let (unscaled, scale) = number.parts();
    let places = scale.checked_sub(exponent)?;
    let power = BigInt::from(10u8).pow(places.unsigned_abs());
    let value = if places >= 0 {
        unscaled * power
    } else {
        let quotient = &unscaled / &power;
        match (unscaled % power).sign() {
            Sign::NoSign => quotient,
            _ if !round => return None,
            Sign::Plus => quotient + 1,
            Sign::Minus => quotient - 1,
        }
    };
    i64::try_from(value).ok()
}

/// The number in billionths, clamped to 128 bits.
pub(super) fn billionths(number: &Number) -> i128 {
    let (unscaled, scale) = number.parts();
    let end = if unscaled.sign() == Sign::Minus {
        i128::MIN
    } else {
        i128::MAX
    };
    // A quantity is never finer than a billionth.
    let power = BigInt::from(10u8).pow(scale.saturating_add(9).unsigned_abs());
    i128::try_from(unscaled * power).unwrap_or(end)
}

/// Writes the canonical form.
pub(super) fn write(f: &mut fmt::Formatter<'_>, number: &Number, format: Format) -> fmt::Result {
    let (unscaled, scale) = number.parts();
    if unscaled.sign() == Sign::NoSign {
        return f.write_str("0");
    }
    // Numbers below 1024 and fractions are written in decimal: binary units would add nothing or lose digits.
    let whole = rounded(number, 0, false).filter(|whole| whole.unsigned_abs() >= 1024);
    match (format, whole) {
        (Format::Binary, Some(whole)) => {
            let units = (whole.trailing_zeros() / 10).min(6);
            write!(f, "{}{}", whole >> (10 * units), BINARY[units as usize])
        }
        (format, _) => decimal(f, &unscaled, i64::from(scale), format == Format::Exponent),
    }
}

fn decimal(f: &mut fmt::Formatter<'_>, unscaled: &BigInt, scale: i64, exponent_form: bool) -> fmt::Result {
    let digits = unscaled.to_string();
    let significant = digits.trim_end_matches('0');
    let exponent = scale + (digits.len() - significant.len()) as i64;
    let down = exponent.rem_euclid(3);
    let (exponent, padding) = (exponent - down, &"00"[..down as usize]);
    match DECIMAL.iter().find(|(at, _)| *at == exponent) {
        Some((_, unit)) if !exponent_form => write!(f, "{significant}{padding}{unit}"),
        _ if exponent == 0 => write!(f, "{significant}{padding}"),
        _ => write!(f, "{significant}{padding}e{exponent}"),
    }
}
