//! To text, in Kubernetes' canonical form: no fraction, and the largest unit that leaves none.

use std::fmt::{self, Display};

use num_bigint::BigInt;

use super::{Amount, Format, Quantity, UNIT};

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

impl Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        match (self.format, &self.amount) {
            // Below 1024 and for fractions binary units would say nothing or lose something.
            (Format::Binary, Amount::Small(n)) if n % UNIT == 0 && (n / UNIT).abs() >= 1024 => binary(f, n / UNIT),
            (Format::Exponent, amount) => decimal(f, amount, true),
            (_, amount) => decimal(f, amount, false),
        }
    }
}

fn binary(f: &mut fmt::Formatter<'_>, whole: i128) -> fmt::Result {
    let units = (whole.trailing_zeros() / 10).min(6);
    write!(f, "{}{}", whole >> (10 * units), BINARY[units as usize])
}

fn decimal(f: &mut fmt::Formatter<'_>, amount: &Amount, exponent_form: bool) -> fmt::Result {
    let digits = amount.to_big().to_string();
    let significant = digits.trim_end_matches('0');
    let zeros = (digits.len() - significant.len()) as i64;
    let mut exponent = zeros - 9;
    let down = exponent.rem_euclid(3);
    exponent -= down;
    let padding = &"00"[..down as usize];
    let unit = DECIMAL.iter().find(|(at, _)| *at == exponent);
    match unit {
        Some((_, unit)) if !exponent_form => write!(f, "{significant}{padding}{unit}"),
        _ if exponent == 0 => write!(f, "{significant}{padding}"),
        _ => write!(f, "{significant}{padding}e{exponent}"),
    }
}

impl From<&Quantity> for BigInt {
    /// Billionths.
    fn from(quantity: &Quantity) -> Self {
        quantity.amount.to_big()
    }
}
