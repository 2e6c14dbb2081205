//! The resources that a quota limits. `docs/quotas.md` has the recipe for adding one.

use schemars::{Schema, json_schema};
use serde::{Deserialize, Serialize};
use vgpu_quantity::format_bytes;

use super::number::Number;

/// A whole GPU in millionths, the smallest unit of a quota.
pub const GPU: u64 = 1_000_000;

/// A resource that a quota can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Dimension {
    Memory,
    Cores,
    Gpus,
    Shares,
    ComputeSlices,
}

/// How an amount is counted and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A quantity with a unit: `20Gi`.
    Bytes,
    /// An integer.
    Whole,
    /// A decimal number, counted in millionths: `1.5`.
    Millionths,
}

impl Dimension {
    pub const ALL: [Self; 5] = [Self::Memory, Self::Cores, Self::Gpus, Self::Shares, Self::ComputeSlices];

    /// The field of `spec.hard`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cores => "cores",
            Self::Gpus => "gpus",
            Self::Shares => "shares",
            Self::ComputeSlices => "computeSlices",
        }
    }

    /// The heading of its columns in `kubectl get`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::Cores => "Cores",
            Self::Gpus => "GPUs",
            Self::Shares => "Shares",
            Self::ComputeSlices => "Compute Slices",
        }
    }

    /// The text of `kubectl explain`.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Memory => "Device memory",
            Self::Cores => "Percent of a GPU's time",
            Self::Gpus => "GPUs: of each share the larger of its parts of memory and time",
            Self::Shares => "Number of shares",
            Self::ComputeSlices => "Compute slices of instances of GPUs in MIG mode: 3 of an instance 3g.40gb",
        }
    }

    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Self::Memory => Unit::Bytes,
            Self::Gpus | Self::ComputeSlices => Unit::Millionths,
            Self::Cores | Self::Shares => Unit::Whole,
        }
    }

    /// The unit of this dimension in messages, for example `bytes`.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Memory => "bytes",
            Self::Cores => "percent of a GPU",
            Self::Gpus => "GPUs",
            Self::Shares => "shares",
            Self::ComputeSlices => "compute slices",
        }
    }

    /// A number of this dimension, as a user writes it.
    #[must_use]
    pub fn text(self, number: u64) -> String {
        self.unit().number(number).to_string()
    }
}

impl std::fmt::Display for Dimension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Unit {
    /// An amount as it is written in `status`.
    #[must_use]
    pub fn number(self, number: u64) -> Number {
        match self {
            Self::Bytes => Number::Text(format_bytes(number)),
            Self::Whole => Number::Int(i64::try_from(number).unwrap_or(i64::MAX)),
            Self::Millionths => Number::Text(millionths(number)),
        }
    }

    /// The inverse of [`Self::number`], from its text. `None` if the text is not in the form that this program writes.
    #[must_use]
    pub fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::Bytes => u64::try_from(vgpu_quantity::whole(text).ok()?).ok(),
            Self::Whole => text.parse().ok(),
            Self::Millionths => read_millionths(text),
        }
    }

    pub(super) fn schema(self) -> Schema {
        match self {
            Self::Bytes | Self::Millionths => json_schema!({"type": "string"}),
            Self::Whole => json_schema!({"type": "integer", "format": "int64"}),
        }
    }
}

/// A number of millionths as a decimal number: `1.5`.
#[must_use]
pub fn millionths(number: u64) -> String {
    let text = format!("{}.{:06}", number / GPU, number % GPU);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The inverse of [`millionths`].
#[must_use]
pub fn read_millionths(text: &str) -> Option<u64> {
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

    #[test]
    fn what_is_written_is_read_back() {
        for dimension in Dimension::ALL {
            let unit = dimension.unit();
            for number in [0, 1, 1_333_330, 81_559 << 20, i64::MAX as u64] {
                assert_eq!(unit.read(&unit.number(number).to_string()), Some(number), "{dimension}");
            }
        }
        assert_eq!(
            (millionths(1_500_000), millionths(0)),
            ("1.5".to_owned(), "0".to_owned())
        );
        for text in ["", ".5", "-1", "1.1234567", "a", "1.x", "99999999999999999999"] {
            assert_eq!(read_millionths(text), None, "{text}");
        }
    }
}
