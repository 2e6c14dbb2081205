//! Sums, comparisons and whole numbers.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

use super::{Amount, Quantity, UNIT};

impl Quantity {
    #[must_use]
    pub fn is_negative(&self) -> bool {
        match &self.amount {
            Amount::Small(n) => *n < 0,
            Amount::Large(n) => n.sign() == Sign::Minus,
        }
    }

    #[must_use]
    pub fn is_zero(&self) -> bool {
        matches!(self.amount, Amount::Small(0))
    }

    /// A zero takes over the other's format, as Kubernetes' sums do.
    pub fn add(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount, false);
    }

    pub fn subtract(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount, true);
    }

    /// The next whole number away from zero, if 64 bits hold it.
    #[must_use]
    pub fn whole_away_from_zero(&self) -> Option<i64> {
        let Amount::Small(n) = self.amount else {
            return None;
        };
        i64::try_from(away_from_zero(n, UNIT)).ok()
    }

    /// The number in thousandths, if it is that exactly and 64 bits hold it.
    #[must_use]
    pub fn exact_milli(&self) -> Option<i64> {
        match self.amount {
            Amount::Small(n) if n % (UNIT / 1000) == 0 => i64::try_from(n / (UNIT / 1000)).ok(),
            _ => None,
        }
    }

    /// Billionths, as a whole number of any length.
    #[must_use]
    pub fn billionths(&self) -> String {
        self.amount.to_big().to_string()
    }

    /// Billionths, held at the ends of 128 bits: for an order among devices, not for sums.
    #[must_use]
    pub fn rank(&self) -> i128 {
        match &self.amount {
            Amount::Small(n) => *n,
            Amount::Large(n) if n.sign() == Sign::Minus => i128::MIN,
            Amount::Large(_) => i128::MAX,
        }
    }
}

/// `n / by`, rounded away from zero.
pub(super) fn away_from_zero(n: i128, by: i128) -> i128 {
    n / by + (n % by).signum()
}

// === impl Amount ===

impl Amount {
    /// The one form of a number.
    pub(super) fn of(big: BigInt) -> Self {
        match i128::try_from(&big) {
            Ok(small) => Self::Small(small),
            Err(_) => Self::Large(Box::new(big)),
        }
    }

    pub(super) fn to_big(&self) -> BigInt {
        match self {
            Self::Small(n) => BigInt::from(*n),
            Self::Large(n) => (**n).clone(),
        }
    }

    fn plus(&self, other: &Self, negated: bool) -> Self {
        if let (Self::Small(a), Self::Small(b)) = (self, other) {
            let sum = if negated { a.checked_sub(*b) } else { a.checked_add(*b) };
            if let Some(sum) = sum {
                return Self::Small(sum);
            }
        }
        let (a, b) = (self.to_big(), other.to_big());
        Self::of(if negated { a - b } else { a + b })
    }

    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Small(a), Self::Small(b)) => a.cmp(b),
            _ => self.to_big().cmp(&other.to_big()),
        }
    }
}
