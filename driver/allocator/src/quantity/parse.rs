//! From text.

use std::str::FromStr;

use num_bigint::BigInt;

use super::{Amount, Format, Quantity, UNIT};

/// Longer numbers, and exponents beyond, would only cost time: no object of Kubernetes needs them.
const MOST_DIGITS: usize = 4096;

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{text:?} is not a quantity; write a number with a unit, for example 20Gi or 500m")]
    NotANumber { text: String },
    #[error("{text:?} has the unknown unit {suffix:?}; units are Ki to Ei, n, u, m, k, M, G, T, P, E and e<exponent>")]
    UnknownSuffix { text: String, suffix: String },
    #[error("{text:?} has more than {MOST_DIGITS} digits; write a smaller number")]
    TooLong { text: String },
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::NotANumber { text: text.to_owned() });
        }
        let unit = unit(suffix).ok_or_else(|| QuantityError::UnknownSuffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
        })?;
        let digits = [whole, fraction].concat();
        let significant = digits.trim_start_matches('0');
        let exponent = unit.exponent - fraction.len() as i64 + 9; // of ten, in billionths
        let magnitude = if significant.is_empty() {
            Amount::Small(0)
        } else if significant.len() + exponent.unsigned_abs() as usize > MOST_DIGITS {
            return Err(QuantityError::TooLong {
                text: text.chars().take(64).collect(),
            });
        } else {
            magnitude(significant, exponent, unit.shift)
        };
        Ok(finish(magnitude, negative, unit.format))
    }
}

struct Unit {
    exponent: i64,
    shift: u32,
    format: Format,
}

fn unit(suffix: &str) -> Option<Unit> {
    let decimal = |exponent| Unit {
        exponent,
        shift: 0,
        format: Format::Decimal,
    };
    let binary = |shift| Unit {
        exponent: 0,
        shift,
        format: Format::Binary,
    };
    Some(match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        // 1e3 and 1E3; 1E alone is exa, above.
        _ => Unit {
            exponent: i64::from(suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
            shift: 0,
            format: Format::Exponent,
        },
    })
}

/// `digits * 10^exponent * 2^shift`, rounded up to a whole number. `digits` has no leading zero.
fn magnitude(digits: &str, exponent: i64, shift: u32) -> Amount {
    if let Some(small) = small_magnitude(digits, exponent, shift) {
        return Amount::Small(small);
    }
    let mantissa = BigInt::parse_bytes(digits.as_bytes(), 10).unwrap_or_default() << shift;
    // The caller bounds the exponent.
    let ten = BigInt::from(10u8).pow(u32::try_from(exponent.unsigned_abs()).unwrap_or(0));
    Amount::of(if exponent >= 0 {
        mantissa * ten
    } else {
        (mantissa + &ten - 1u8) / ten
    })
}

fn small_magnitude(digits: &str, exponent: i64, shift: u32) -> Option<i128> {
    let mantissa: i128 = digits.parse().ok()?;
    let mantissa = mantissa.checked_mul(1 << shift)?;
    let ten = 10i128.checked_pow(u32::try_from(exponent.unsigned_abs()).ok()?)?;
    if exponent >= 0 {
        mantissa.checked_mul(ten)
    } else {
        Some(mantissa / ten + i128::from(mantissa % ten != 0))
    }
}

fn finish(magnitude: Amount, negative: bool, format: Format) -> Quantity {
    let (mut amount, mut format) = (magnitude, format);
    if format == Format::Binary {
        let most = Amount::Small(i128::from(i64::MAX) * UNIT);
        if amount.cmp(&most).is_gt() {
            amount = most;
        }
        // 0.5Ki is 512 of something, but 0.0001Ki is a fraction, which binary units cannot write.
        if matches!(amount, Amount::Small(n) if n > 0 && n < UNIT) {
            format = Format::Decimal;
        }
    }
    if negative {
        amount = match amount {
            Amount::Small(n) => Amount::Small(-n), // a magnitude: never i128::MIN
            Amount::Large(n) => Amount::of(-*n),
        };
    }
    Quantity { amount, format }
}
