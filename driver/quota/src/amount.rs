//! Amounts of GPU, and the ceilings that they are compared with.

use std::collections::BTreeMap;
use std::ops::{Add, AddAssign};

use vgpu_api::quota::{Dimension, GPU, Number};
use vgpu_quantity::Quantity;

/// A whole GPU's time, in the unit of [`Amount::cores`].
pub(crate) const CORES: u64 = 100;

/// A number of bytes; `None` if the quantity is negative or too large.
pub(crate) fn bytes(quantity: &Quantity) -> Option<u64> {
    u64::try_from(quantity.whole_away_from_zero()?).ok()
}

/// The most that a status can hold: Kubernetes' numbers have a sign.
pub(crate) const MOST: u64 = i64::MAX as u64;

/// A value for each dimension that a quota limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerDimension<T> {
    /// Bytes.
    pub memory: T,
    /// Percent of a GPU's time.
    pub cores: T,
    /// Millionths of a GPU: of each share the larger of its parts of memory and of time, rounded down.
    pub gpus: T,
    pub shares: T,
    /// Millionths of a compute slice of a GPU in MIG mode.
    pub compute_slices: T,
}

/// The last dimension that release 0.1.0 counts.
const LAST_OF_0_1: Dimension = Dimension::Shares;

/// The sum of shares.
pub type Amount = PerDimension<u64>;

/// The larger of a share's parts of memory and of time, of a device that has `slices`. In millionths.
fn larger_part(memory: u64, cores: u64, device_memory: u64, slices: u64) -> u64 {
    let all = u128::from(slices) * u128::from(GPU);
    let of_memory = u128::from(memory.min(device_memory)) * all / u128::from(device_memory.max(1));
    let of_time = u128::from(cores) * all / u128::from(CORES);
    u64::try_from(of_memory.max(of_time)).unwrap_or(u64::MAX)
}

/// At most this much; `None`: any amount.
pub type Ceilings = PerDimension<Option<u64>>;

impl<T: Copy> PerDimension<T> {
    pub(crate) fn new(mut value: impl FnMut(Dimension) -> T) -> Self {
        Self {
            memory: value(Dimension::Memory),
            cores: value(Dimension::Cores),
            gpus: value(Dimension::Gpus),
            shares: value(Dimension::Shares),
            compute_slices: value(Dimension::ComputeSlices),
        }
    }

    #[must_use]
    pub const fn of(&self, dimension: Dimension) -> T {
        match dimension {
            Dimension::Memory => self.memory,
            Dimension::Cores => self.cores,
            Dimension::Gpus => self.gpus,
            Dimension::Shares => self.shares,
            Dimension::ComputeSlices => self.compute_slices,
        }
    }

    pub(crate) const fn field(&mut self, dimension: Dimension) -> &mut T {
        match dimension {
            Dimension::Memory => &mut self.memory,
            Dimension::Cores => &mut self.cores,
            Dimension::Gpus => &mut self.gpus,
            Dimension::Shares => &mut self.shares,
            Dimension::ComputeSlices => &mut self.compute_slices,
        }
    }
}

impl Amount {
    /// One share on a GPU with this much memory. A share with all of the memory leaves no time to others, and counts as
    /// all of it.
    #[must_use]
    pub fn share(memory: u64, cores: u64, device_memory: u64) -> Self {
        let is_whole = memory >= device_memory;
        let cores = if is_whole { cores.max(CORES) } else { cores };
        Self {
            memory,
            cores,
            gpus: larger_part(memory, cores, device_memory, 1),
            shares: 1,
            compute_slices: 0,
        }
    }

    /// One share of an instance of a GPU in MIG mode, which has this much memory and so many compute slices.
    #[must_use]
    pub(crate) fn share_of_instance(memory: u64, cores: u64, device_memory: u64, slices: u64) -> Self {
        let share = Self::share(memory, cores, device_memory);
        Self {
            compute_slices: larger_part(memory, share.cores, device_memory, slices),
            ..share
        }
    }

    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self::new(|dimension| self.of(dimension).saturating_mul(count).min(MOST))
    }

    #[must_use]
    pub(crate) fn less(self, other: Self) -> Self {
        Self::new(|dimension| self.of(dimension).saturating_sub(other.of(dimension)))
    }

    /// The larger of the two in each dimension.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        Self::new(|dimension| self.of(dimension).max(other.of(dimension)))
    }

    /// In the form of `status.used`.
    pub(crate) fn written(&self) -> BTreeMap<String, Number> {
        Ceilings::new(|dimension| Some(self.of(dimension))).written()
    }

    /// The inverse of [`Self::written`]. `None` if somebody else wrote it.
    pub(crate) fn read(written: &BTreeMap<String, Number>) -> Option<Self> {
        let ceilings = Ceilings::read(written);
        let mut needed = Dimension::ALL.iter().filter(|dimension| **dimension <= LAST_OF_0_1);
        let is_complete = needed.all(|dimension| ceilings.of(*dimension).is_some());
        is_complete.then(|| Self::new(|dimension| ceilings.of(dimension).unwrap_or_default()))
    }

    /// In the form of a reservation: `memory=20Gi,cores=25,gpus=0.25,shares=1`. The API server reads and checks a whole
    /// quota at each write, and a text is less work for it than an object: a quota may have thousands. Zeros after the dimensions of 0.1.0 are left out.
    pub(crate) fn text(&self) -> String {
        let is_written = |dimension: &Dimension| *dimension <= LAST_OF_0_1 || self.of(*dimension) > 0;
        let part = |dimension: Dimension| format!("{dimension}={}", dimension.text(self.of(dimension)));
        let parts: Vec<String> = Dimension::ALL.into_iter().filter(is_written).map(part).collect();
        parts.join(",")
    }

    /// The inverse of [`Self::text`]. `None` if somebody else wrote it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut amount = Self::default();
        let mut parts = text.split(',');
        for dimension in Dimension::ALL {
            let Some(part) = parts.next() else {
                return (dimension > LAST_OF_0_1).then_some(amount);
            };
            let number = part.strip_prefix(dimension.name())?.strip_prefix('=')?;
            *amount.field(dimension) = dimension.unit().read(number)?;
        }
        Some(amount)
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::new(|dimension| self.of(dimension).saturating_add(other.of(dimension)).min(MOST))
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

impl Ceilings {
    /// The first dimension in which `used` and `wanted` together exceed the ceiling. A dimension in which nothing more
    /// is wanted is ignored, even if it exceeds a lowered ceiling.
    #[must_use]
    pub fn exceeded(&self, used: &Amount, wanted: &Amount) -> Option<Dimension> {
        let is_above = |dimension: &Dimension| {
            let wanted = wanted.of(*dimension);
            let sum = used.of(*dimension).saturating_add(wanted);
            wanted > 0 && self.of(*dimension).is_some_and(|ceiling| sum > ceiling)
        };
        Dimension::ALL.into_iter().find(is_above)
    }

    /// In the form of `status.hard`.
    pub(crate) fn written(&self) -> BTreeMap<String, Number> {
        let number = |dimension: Dimension| {
            let number = dimension.unit().number(self.of(dimension)?);
            Some((dimension.name().to_owned(), number))
        };
        Dimension::ALL.into_iter().filter_map(number).collect()
    }

    /// The inverse of [`Self::written`], without numbers that this program does not write.
    pub(crate) fn read(written: &BTreeMap<String, Number>) -> Self {
        Self::new(|dimension| dimension.unit().read(&written.get(dimension.name())?.to_string()))
    }
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
        let half = Amount::share_of_instance(10 * GI, 10, 20 * GI, 3);
        assert_eq!((half.gpus, half.compute_slices), (500_000, 1_500_000));
        // Rounding down ensures that three thirds are not more than a whole.
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
            compute_slices: 1_500_000,
        };
        assert_eq!(Amount::read(&amount.written()), Some(amount));
        assert_eq!(
            amount.text(),
            "memory=81559Mi,cores=25,gpus=1.33333,shares=3,computeSlices=1.5"
        );
        let former = "memory=81559Mi,cores=25,gpus=1.33333,shares=3";
        let of_gpus = Amount {
            compute_slices: 0,
            ..amount
        };
        assert_eq!(
            (Amount::parse(former), of_gpus.text().as_str()),
            (Some(of_gpus), former),
            "as 0.1.0 writes it"
        );
        assert_eq!(Amount::parse(&amount.text()), Some(amount));
        for text in [
            "",
            "memory=1Gi",
            "memory=1Gi,cores=0,gpus=x,shares=1",
            "cores=0,memory=1Gi,gpus=1,shares=1",
        ] {
            assert_eq!(Amount::parse(text), None, "{text}");
        }
        let endless = amount.times(u64::MAX);
        assert_eq!(
            Amount::parse(&endless.text()),
            Some(endless),
            "as of a huge count of extended resources"
        );
    }
}
