//! Amounts of GPU, and the ceilings that they are compared with.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};
use vgpu_quantity::format_bytes;

/// A whole GPU, in the unit of [`Amount::gpus`].
pub const GPU: u64 = 1_000_000;
/// A whole GPU's time, in the unit of [`Amount::cores`].
pub(crate) const CORES: u64 = 100;

/// The most that a status can hold: Kubernetes' numbers have a sign.
const MOST: u64 = i64::MAX as u64;

/// The sum of shares, in each dimension that a quota limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes.
    pub memory: u64,
    /// Percent of a GPU's time.
    pub cores: u64,
    /// Millionths of a GPU: of each share the larger of its parts of memory and of time, rounded down.
    pub gpus: u64,
    pub shares: u64,
}

impl Amount {
    /// One share on a GPU with so much memory. Who has all of the memory leaves no time to others, and counts as all.
    #[must_use]
    pub fn share(memory: u64, cores: u64, device_memory: u64) -> Self {
        let is_whole = memory >= device_memory;
        let cores = if is_whole { cores.max(CORES) } else { cores };
        let part = u128::from(memory) * u128::from(GPU) / u128::from(device_memory.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX).min(GPU);
        Self {
            memory,
            cores,
            gpus: part.max(cores.saturating_mul(GPU / CORES)),
            shares: 1,
        }
    }

    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self {
            memory: self.memory.saturating_mul(count).min(MOST),
            cores: self.cores.saturating_mul(count).min(MOST),
            gpus: self.gpus.saturating_mul(count).min(MOST),
            shares: self.shares.saturating_mul(count).min(MOST),
        }
    }

    #[must_use]
    pub(crate) fn less(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(other.memory),
            cores: self.cores.saturating_sub(other.cores),
            gpus: self.gpus.saturating_sub(other.gpus),
            shares: self.shares.saturating_sub(other.shares),
        }
    }

    /// The larger of the two in each dimension.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            gpus: self.gpus.max(other.gpus),
            shares: self.shares.max(other.shares),
        }
    }

    #[must_use]
    pub const fn of(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::Memory => self.memory,
            Dimension::Cores => self.cores,
            Dimension::Gpus => self.gpus,
            Dimension::Shares => self.shares,
        }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(other.memory).min(MOST),
            cores: self.cores.saturating_add(other.cores).min(MOST),
            gpus: self.gpus.saturating_add(other.gpus).min(MOST),
            shares: self.shares.saturating_add(other.shares).min(MOST),
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// A resource that a quota can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    Memory,
    Cores,
    Gpus,
    Shares,
}

impl Dimension {
    pub const ALL: [Self; 4] = [Self::Memory, Self::Cores, Self::Gpus, Self::Shares];

    /// The field of `spec.hard`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cores => "cores",
            Self::Gpus => "gpus",
            Self::Shares => "shares",
        }
    }

    /// A number of this dimension, as a user writes it.
    #[must_use]
    pub fn text(self, number: u64) -> String {
        match self {
            Self::Memory => format_bytes(number),
            Self::Gpus => millionths(number),
            Self::Cores | Self::Shares => number.to_string(),
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number of millionths as a decimal number: `1.5`.
#[must_use]
pub fn millionths(number: u64) -> String {
    let text = format!("{}.{:06}", number / GPU, number % GPU);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// At most so much; `None`: any amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ceilings {
    pub memory: Option<u64>,
    pub cores: Option<u64>,
    pub gpus: Option<u64>,
    pub shares: Option<u64>,
}

impl Ceilings {
    #[must_use]
    pub const fn of(&self, dimension: Dimension) -> Option<u64> {
        match dimension {
            Dimension::Memory => self.memory,
            Dimension::Cores => self.cores,
            Dimension::Gpus => self.gpus,
            Dimension::Shares => self.shares,
        }
    }

    pub const fn field(&mut self, dimension: Dimension) -> &mut Option<u64> {
        match dimension {
            Dimension::Memory => &mut self.memory,
            Dimension::Cores => &mut self.cores,
            Dimension::Gpus => &mut self.gpus,
            Dimension::Shares => &mut self.shares,
        }
    }

    /// The first dimension in which `used` and `wanted` together are above the ceiling. What nobody wants more of is not
    /// in the way, also where it is above a lowered ceiling.
    #[must_use]
    pub fn exceeded(&self, used: &Amount, wanted: &Amount) -> Option<Dimension> {
        let is_above = |dimension: &Dimension| {
            let wanted = wanted.of(*dimension);
            let sum = used.of(*dimension).saturating_add(wanted);
            wanted > 0 && self.of(*dimension).is_some_and(|ceiling| sum > ceiling)
        };
        Dimension::ALL.into_iter().find(is_above)
    }
}

/// An [`Amount`] as `status` has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenAmount {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
}

impl From<Amount> for WrittenAmount {
    fn from(amount: Amount) -> Self {
        Self {
            memory: Some(format_bytes(amount.memory)),
            cores: Some(amount.cores),
            gpus: Some(millionths(amount.gpus)),
            shares: Some(amount.shares),
        }
    }
}

impl From<Ceilings> for WrittenAmount {
    fn from(ceilings: Ceilings) -> Self {
        Self {
            memory: ceilings.memory.map(format_bytes),
            cores: ceilings.cores,
            gpus: ceilings.gpus.map(millionths),
            shares: ceilings.shares,
        }
    }
}

impl WrittenAmount {
    /// `None` if a user wrote what this program does not write.
    #[must_use]
    pub fn read(&self) -> Option<Amount> {
        Some(Amount {
            memory: u64::try_from(vgpu_quantity::whole(self.memory.as_deref()?).ok()?).ok()?,
            cores: self.cores?,
            gpus: read_millionths(self.gpus.as_deref()?)?,
            shares: self.shares?,
        })
    }
}

impl Amount {
    /// As a reservation has it: `memory=20Gi,cores=25,gpus=0.25,shares=1`. The API server reads and checks all of a quota
    /// at each write, and a text is less work for it than an object: a quota may have thousands.
    pub(crate) fn text(&self) -> String {
        let part = |dimension: Dimension| format!("{dimension}={}", dimension.text(self.of(dimension)));
        Dimension::ALL.map(part).join(",")
    }

    /// The inverse of [`Self::text`]. `None` if somebody else wrote it.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let mut part = |dimension: Dimension| parts.next()?.strip_prefix(dimension.name())?.strip_prefix('=');
        let written = WrittenAmount {
            memory: part(Dimension::Memory).map(str::to_owned),
            cores: part(Dimension::Cores).and_then(|number| number.parse().ok()),
            gpus: part(Dimension::Gpus).map(str::to_owned),
            shares: part(Dimension::Shares).and_then(|number| number.parse().ok()),
        };
        written.read()
    }
}

/// The inverse of [`millionths`].
pub(crate) fn read_millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 6 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(GPU)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    #[test]
    fn a_share_is_the_larger_of_its_parts() {
        assert_eq!(Amount::share(20 * GI, 10, 80 * GI).gpus, 250_000);
        assert_eq!(Amount::share(20 * GI, 50, 80 * GI).gpus, 500_000);
        let whole = Amount::share(80 * GI, 0, 80 * GI);
        assert_eq!((whole.gpus, whole.cores, whole.shares), (GPU, 100, 1));
        // Three thirds are not more than a whole.
        assert!(Amount::share(10 * GI, 0, 30 * GI).times(3).gpus <= GPU);
    }

    #[test]
    fn a_ceiling_is_in_the_way_of_those_who_want_more_of_it() {
        let ceilings = Ceilings {
            memory: Some(10),
            shares: Some(0),
            ..Ceilings::default()
        };
        let amount = |memory, shares| Amount {
            memory,
            shares,
            ..Amount::default()
        };
        assert_eq!(ceilings.exceeded(&amount(4, 0), &amount(6, 0)), None);
        assert_eq!(ceilings.exceeded(&amount(4, 0), &amount(7, 0)), Some(Dimension::Memory));
        assert_eq!(ceilings.exceeded(&amount(99, 0), &amount(0, 0)), None, "lowered");
        assert_eq!(ceilings.exceeded(&amount(0, 0), &amount(0, 1)), Some(Dimension::Shares));
        let all = amount(u64::MAX, 0);
        assert_eq!(ceilings.exceeded(&all, &all), Some(Dimension::Memory));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let amount = Amount {
            memory: 81_559 << 20,
            cores: 25,
            gpus: 1_333_330,
            shares: 3,
        };
        assert_eq!(WrittenAmount::from(amount).read(), Some(amount));
        assert_eq!(amount.text(), "memory=81559Mi,cores=25,gpus=1.33333,shares=3");
        assert_eq!(Amount::read(&amount.text()), Some(amount));
        for text in [
            "",
            "memory=1Gi",
            "memory=1Gi,cores=0,gpus=x,shares=1",
            "cores=0,memory=1Gi,gpus=1,shares=1",
        ] {
            assert_eq!(Amount::read(text), None, "{text}");
        }
        let endless = amount.times(u64::MAX);
        assert_eq!(
            Amount::read(&endless.text()),
            Some(endless),
            "as of a huge count of extended resources"
        );
        assert_eq!(millionths(1_500_000), "1.5");
        assert_eq!(millionths(0), "0");
        for text in ["", ".5", "-1", "1.1234567", "a", "1.x", "99999999999999999999"] {
            assert_eq!(read_millionths(text), None, "{text}");
        }
    }
}
