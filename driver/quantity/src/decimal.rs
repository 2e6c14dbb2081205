//! `value * 10^scale`: in 64 bits where it fits, else with a big integer.
//!
//! Which of the two forms a number has is visible in Kubernetes (only the first one can be "an integer"), so the forms
//! change exactly where Kubernetes changes them and are never normalised.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// The finest step of a quantity: a billionth.
pub(crate) const NANO: i32 = -9;

#[derive(Clone)]
pub(crate) enum Number {
    Small {
        value: i64,
        scale: i32,
    },
    /// Boxed because large values are rare and a cluster has a dozen quantities for each device and claim.
    Big(Box<Unscaled>),
}

#[derive(Clone)]
pub(crate) struct Unscaled {
    value: BigInt,
    scale: i32,
}

impl Number {
    pub(crate) const fn small(value: i64, scale: i32) -> Self {
        Self::Small { value, scale }
    }

    pub(crate) fn big(value: BigInt, scale: i32) -> Self {
        Self::Big(Box::new(Unscaled { value, scale }))
    }

    pub(crate) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Small { value, scale } if *scale >= 0 => scale_up(*value, *scale),
            _ => None,
        }
    }

    pub(crate) fn to_f64(&self) -> f64 {
        let (base, scale) = match self {
            Self::Small { value, scale } => (*value as f64, *scale),
            // The decimal text of an integer always parses as a double, possibly an infinite one.
            Self::Big(big) => (big.value.to_string().parse().unwrap_or(f64::NAN), big.scale),
        };
        if scale == 0 { base } else { base * power_of_ten(scale) }
    }

    pub(crate) fn parts(&self) -> (BigInt, i32) {
        match self {
            Self::Small { value, scale } => (BigInt::from(*value), *scale),
            Self::Big(big) => (big.value.clone(), big.scale),
        }
    }

    pub(crate) fn negated(&self) -> Self {
        match self {
            Self::Small { value, scale } => match value.checked_neg() {
                Some(value) => Self::small(value, *scale),
                None => Self::big(-BigInt::from(*value), *scale),
            },
            Self::Big(big) => Self::big(-&big.value, big.scale),
        }
    }

    pub(crate) fn add(&self, other: &Self) -> Self {
        if let (Self::Small { value: a, scale: s }, Self::Small { value: b, scale: t }) = (self, other)
            && let Some((value, scale)) = add_small((*a, *s), (*b, *t))
        {
            return Self::small(value, scale);
        }
        let (a, s) = self.parts();
        let (b, t) = other.parts();
        let scale = s.min(t);
        Self::big(rescale(a, s - scale) + rescale(b, t - scale), scale)
    }

    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        if let (Self::Small { value: a, scale: s }, Self::Small { value: b, scale: t }) = (self, other) {
            if s == t {
                return a.cmp(b);
            }
            if let (Some(a), Some(b)) = (billionths(*a, *s), billionths(*b, *t)) {
                return a.cmp(&b);
            }
        }
        let (a, s) = self.parts();
        let (b, t) = other.parts();
        if a.sign() != b.sign() || a.sign() == Sign::NoSign {
            return a.sign().cmp(&b.sign());
        }
        let scale = s.min(t);
        rescale(a, s - scale).cmp(&rescale(b, t - scale))
    }
}

/// The value in billionths, or `None` if that does not fit in 128 bits.
fn billionths(value: i64, scale: i32) -> Option<i128> {
    let places = u32::try_from(scale.checked_sub(NANO)?).ok()?;
    i128::from(value).checked_mul(10i128.checked_pow(places)?)
}

fn add_small((a, s): (i64, i32), (b, t): (i64, i32)) -> Option<(i64, i32)> {
    if b == 0 {
        return Some((a, s));
    }
    if a == 0 {
        return Some((b, t));
    }
    let scale = s.min(t);
    let sum = scale_up(a, s - scale)?.checked_add(scale_up(b, t - scale)?)?;
    Some((sum, scale))
}

fn scale_up(value: i64, places: i32) -> Option<i64> {
    let places = u32::try_from(places).ok()?;
    if value == 0 {
        return Some(0);
    }
    value.checked_mul(10i64.checked_pow(places)?)
}

fn rescale(value: BigInt, places: i32) -> BigInt {
    // Not negative: callers take the difference to the smaller scale.
    value * BigInt::from(10).pow(places.unsigned_abs())
}

/// 10^n as Go's math.Pow10 computes it: exact up to rounding; 0 or infinity beyond the range.
fn power_of_ten(n: i32) -> f64 {
    if n < -323 {
        0.0
    } else if n > 308 {
        f64::INFINITY
    } else {
        format!("1e{n}").parse().unwrap_or(f64::NAN)
    }
}
