//! The `spec` of a VgpuQuota as numbers. The chart's policy refuses the same mistakes with the same field names;
//! mistakes that pass without the policy are refused here, and then no gate of the namespace opens.

use std::time::Duration;

use serde_json::Value;
use vgpu_api::quota::{BudgetSpec, Dimension, GPU, Number, Unit, VgpuQuotaSpec, WhenSpent, read_spec};
use vgpu_api::request::{MEMORY_MIN, memory};
use vgpu_quantity::{Quantity, WholeError, quoted};

use crate::amount::Ceilings;

/// The shortest time of a budget: sums are made every 10 s.
const EVERY_MIN: Duration = Duration::from_secs(60);
const EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// More hours than a thousand GPUs have in a year.
const HOURS_MAX: u64 = 10_000_000;
/// The most memory that a quota counts: 4Ei. This keeps sums of claims within Kubernetes' numbers.
const MEMORY_MAX: i64 = 4 << 60;

/// The ceilings and the budget of a quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spec {
    pub hard: Ceilings,
    pub budget: Option<Budget>,
    /// Younger pods that fit may go before an older one that does not.
    pub backfill: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Millionths of a GPU hour.
    pub gpu_hours: u64,
    pub every: Duration,
    pub when_spent: WhenSpent,
}

/// Why a spec is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A field is missing, unknown or of another type.
    #[error("{0}")]
    Shape(String),
    #[error("{0}")]
    Memory(String),
    #[error(
        "{at}: {} is not a whole number of bytes; write a whole number of a smaller unit, for example 1536Mi for 1.5Gi",
        quoted(.value)
    )]
    MemoryNotWhole { at: String, value: String },
    #[error("{at}: {} is more than the 4Ei that a quota can count; leave the field out for no ceiling", quoted(.value))]
    MemoryTooLarge { at: String, value: String },
    #[error("{at}: {} is not a number of {what}; write {example}", quoted(.value))]
    Number {
        at: String,
        value: String,
        what: &'static str,
        example: &'static str,
    },
    #[error(
        "spec.budget.every: {} is not a time from 1m to 366d; write minutes, hours or days, for example 24h or 7d",
        quoted(.0)
    )]
    Every(String),
}

impl Spec {
    /// Reads the object under `spec`. A missing one sets no ceiling.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(spec: &Value) -> Result<Self, SpecError> {
        Self::new(&read_spec(spec).map_err(SpecError::Shape)?)
    }

    /// # Errors
    /// The first number that is none, or is out of range.
    pub fn new(spec: &VgpuQuotaSpec) -> Result<Self, SpecError> {
        let mut hard = Ceilings::default();
        for (dimension, number) in spec.hard.iter().flatten() {
            *hard.field(*dimension) = Some(ceiling(*dimension, number)?);
        }
        Ok(Self {
            hard,
            budget: spec.budget.as_ref().map(Budget::new).transpose()?,
            backfill: spec.backfill.unwrap_or_default(),
        })
    }
}

impl Budget {
    fn new(budget: &BudgetSpec) -> Result<Self, SpecError> {
        Ok(Self {
            gpu_hours: decimal("spec.budget.gpuHours", &budget.gpu_hours, "GPU hours", HOURS_MAX)?,
            every: duration(&budget.every).ok_or_else(|| SpecError::Every(budget.every.clone()))?,
            when_spent: budget.when_spent.unwrap_or_default(),
        })
    }
}

/// `90m`, `24h`, `7d`.
fn duration(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let every = Duration::from_secs(digits.parse::<u64>().ok()?.checked_mul(unit)?);
    (EVERY_MIN..=EVERY_MAX).contains(&every).then_some(every)
}

fn ceiling(dimension: Dimension, number: &Number) -> Result<u64, SpecError> {
    let at = format!("spec.hard.{dimension}");
    match dimension.unit() {
        Unit::Bytes => bytes(at, number.to_string()),
        Unit::Millionths => decimal(&at, number, dimension.noun(), u64::MAX / GPU),
        Unit::Whole => {
            let value = number.to_string();
            let whole = vgpu_quantity::whole(&value).ok();
            let whole = whole.and_then(|number| u64::try_from(number).ok());
            whole.ok_or(SpecError::Number {
                at,
                value,
                what: dimension.noun(),
                example: "a whole number, for example 8",
            })
        }
    }
}

/// 0 blocks everything; otherwise the rules of a claim's memory apply, with its suggestions. The sum of a namespace may
/// exceed the memory of one GPU.
fn bytes(at: String, value: String) -> Result<u64, SpecError> {
    match vgpu_quantity::whole(&value) {
        Ok(0) => Ok(0),
        Ok(bytes) if bytes > MEMORY_MAX => Err(SpecError::MemoryTooLarge { at, value }),
        Ok(bytes) if bytes >= MEMORY_MIN as i64 => Ok(bytes as u64),
        Err(WholeError::TooLarge { .. }) if !value.starts_with('-') => Err(SpecError::MemoryTooLarge { at, value }),
        Err(WholeError::NotWhole { .. }) => Err(SpecError::MemoryNotWhole { at, value }),
        _ => memory(&at, &value).map_err(|error| SpecError::Memory(error.to_string())),
    }
}

/// A decimal number in millionths; finer parts are rounded up, as Kubernetes does.
fn decimal(at: &str, number: &Number, what: &'static str, max: u64) -> Result<u64, SpecError> {
    let value = number.to_string();
    let whole = vgpu_quantity::whole(&value).ok();
    let read = match whole.and_then(|whole| u64::try_from(whole).ok()) {
        Some(whole) => (whole <= max).then(|| whole.checked_mul(GPU)).flatten(),
        None => fraction(&value).filter(|number| *number / GPU < max),
    };
    read.ok_or_else(|| SpecError::Number {
        at: at.to_owned(),
        value,
        what,
        example: "a number, for example 1.5",
    })
}

/// `1.5`, `500m`, `1e-1`: anything that Kubernetes takes for a quantity and is not negative.
fn fraction(text: &str) -> Option<u64> {
    let quantity = Quantity::parse(text).ok()?;
    u64::try_from((quantity.rank().checked_add(999)?).div_euclid(1000))
        .ok()
        .filter(|_| !quantity.is_negative())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_fields_are_read() {
        let spec = Spec::parse(
            &json!({"hard": {"memory": "80Gi", "cores": 150, "gpus": "1.5", "shares": 8, "computeSlices": 7},
            "budget": {"gpuHours": "100", "every": "7d", "whenSpent": "Hold"}, "backfill": true}),
        )
        .unwrap();
        assert_eq!(
            spec.hard,
            Ceilings {
                memory: Some(80 << 30),
                cores: Some(150),
                gpus: Some(1_500_000),
                shares: Some(8),
                compute_slices: Some(7_000_000)
            }
        );
        let budget = Budget {
            gpu_hours: 100 * GPU,
            every: Duration::from_secs(7 * 86_400),
            when_spent: WhenSpent::Hold,
        };
        assert_eq!((spec.budget, spec.backfill), (Some(budget), true));
        assert_eq!(Spec::parse(&Value::Null), Ok(Spec::default()));
        for (written, bytes) in [(json!(0), 0), (json!("1.5Gi"), 3 << 29), (json!("4Ei"), 4 << 60)] {
            let spec = Spec::parse(&json!({"hard": {"memory": written}})).unwrap();
            assert_eq!(spec.hard.memory, Some(bytes), "{written}");
        }
        let none = Spec::parse(&json!({"budget": {"gpuHours": 0, "every": "90m"}}))
            .unwrap()
            .budget
            .unwrap();
        assert_eq!((none.gpu_hours, none.when_spent), (0, WhenSpent::Yield));
        assert_eq!(fraction("500m"), Some(500_000));
    }

    /// A spec, and how the error begins.
    const MISTAKES: &str = r#"
{"hrad": {}} | spec.hrad: unknown field `hrad`, expected one of `hard`, `budget`, `backfill`
{"hard": {"gpumem": 1}} | spec.hard.gpumem: unknown variant `gpumem`, expected one of `memory`, `cores`, `gpus`, `shares`, `computeSlices`
{"budget": {"hours": 1}} | spec.budget.hours: unknown field `hours`, expected one of
{"hard": 1} | spec.hard: 1 is not an object; write fields below it
{"hard": {"memory": 80}} | spec.hard.memory: "80" is less than the smallest share, 64Mi; did you mean 80Gi?
{"hard": {"memory": "80GB"}} | spec.hard.memory: "80GB" has the unknown unit "GB"; did you mean 80Gi?
{"hard": {"memory": "-1Gi"}} | spec.hard.memory: "-1Gi" is less than
{"hard": {"memory": "1.3Gi"}} | spec.hard.memory: "1.3Gi" is not a whole number of bytes; write a whole number of a smaller unit
{"hard": {"memory": "9000Pi"}} | spec.hard.memory: "9000Pi" is more than the 4Ei that a quota can count; leave the field out
{"hard": {"memory": "5Ei"}} | spec.hard.memory: "5Ei" is more than the 4Ei
{"hard": {"cores": "250m"}} | spec.hard.cores: "250m" is not a number of percent of a GPU; write a whole number
{"hard": {"shares": -1}} | spec.hard.shares: "-1" is not a number of shares
{"hard": {"gpus": "two"}} | spec.hard.gpus: "two" is not a number of GPUs; write a number
{"hard": {"computeSlices": "3g"}} | spec.hard.computeSlices: "3g" is not a number of compute slices; write a number
{"hard": {"gpus": "-0.5"}} | spec.hard.gpus: "-0.5" is not a number of GPUs
{"budget": {"every": "7d"}} | spec.budget: missing field `gpuHours`
{"budget": {"gpuHours": 1}} | spec.budget: missing field `every`
{"budget": {"gpuHours": -1, "every": "7d"}} | spec.budget.gpuHours: "-1" is not
{"budget": {"gpuHours": 1, "every": "week"}} | spec.budget.every: "week" is not a time from 1m to 366d
{"budget": {"gpuHours": 1, "every": "0d"}} | spec.budget.every: "0d"
{"budget": {"gpuHours": 1, "every": 7}} | spec.budget.every: 7 is not a text; write it in quotes: "7"
{"budget": {"gpuHours": 1, "every": "99999999999999999999d"}} | spec.budget.every: 
{"budget": {"gpuHours": 1, "every": "7d", "whenSpent": "hold"}} | spec.budget.whenSpent: unknown variant `hold`, expected `Yield` or `Hold`
{"backfill": "yes"} | spec.backfill: "yes" is neither true nor false; write one of them, without quotes"#;

    #[test]
    fn mistakes_name_the_field_the_value_and_the_fix() {
        for row in MISTAKES.trim().lines() {
            let (spec, words) = row.split_once(" | ").expect("two cells");
            let spec: Value = serde_json::from_str(spec).expect(row);
            let said = Spec::parse(&spec).unwrap_err().to_string();
            assert!(said.starts_with(words), "{spec}: {said}");
        }
    }
}
