//! The `spec` of a VgpuQuota and of a VgpuQuotaDefault, which administrators write. The policy of the chart refuses the same
//! mistakes with the same field names; what passes without it is refused here, and then no gate of the namespace opens.

use std::time::Duration;

use serde_json::{Map, Value};
use vgpu_api::request::{MEMORY_MIN, memory};
use vgpu_quantity::{Quantity, WholeError, quoted};

use crate::amount::{Ceilings, Dimension, GPU};

/// The shortest time of a budget: sums are made every 10 s.
const EVERY_MIN: Duration = Duration::from_secs(60);
const EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// More hours than a thousand GPUs have in a year.
const HOURS_MAX: u64 = 10_000_000;

/// The most memory that a quota counts: 4Ei. Sums of claims stay below what Kubernetes' numbers hold.
const MEMORY_MOST: i64 = 4 << 60;

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
    /// Millionths of a GPU, for an hour.
    pub gpu_hours: u64,
    pub every: Duration,
    pub when_spent: WhenSpent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenSpent {
    /// New pods come after those that are in budget, and go when one of these needs their place.
    Yield,
    /// No new pod starts until the reset.
    Hold,
}

const AT_MEMORY: &str = "spec.hard.memory";

/// Why a spec is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("{at}: {} is not an object", quoted(.value))]
    NotAnObject { at: String, value: String },
    #[error("{at}.{}: unknown field; use {known}", quoted(.field))]
    UnknownField {
        at: String,
        field: String,
        known: &'static str,
    },
    #[error("{0}")]
    Memory(String),
    #[error(
        "{AT_MEMORY}: {} is not a whole number of bytes; write a whole number of a smaller unit, for example 1536Mi for 1.5Gi",
        quoted(.0)
    )]
    MemoryNotWhole(String),
    #[error("{AT_MEMORY}: {} is more than the 4Ei that a quota can count; leave the field out for no ceiling", quoted(.0))]
    MemoryTooLarge(String),
    #[error("{at}: {} is not a number of {what}; write {example}", quoted(.value))]
    Number {
        at: &'static str,
        value: String,
        what: &'static str,
        example: &'static str,
    },
    #[error("{at}: missing; {fix}")]
    Missing { at: &'static str, fix: &'static str },
    #[error(
        "spec.budget.every: {} is not a time from 1m to 366d; write minutes, hours or days, for example 24h or 7d",
        quoted(.0)
    )]
    Every(String),
    #[error("spec.budget.whenSpent: {} is none of Yield, Hold", quoted(.0))]
    WhenSpent(String),
    #[error("spec.backfill: {} is neither true nor false", quoted(.0))]
    Backfill(String),
}

impl Spec {
    /// Reads the object under `spec`. A missing one sets no ceiling.
    pub fn parse(spec: &Value) -> Result<Self, SpecError> {
        let spec = object(
            "spec",
            spec,
            &["hard", "budget", "backfill"],
            "hard, budget and backfill",
        )?;
        let hard = object(
            "spec.hard",
            spec.get("hard").unwrap_or(&Value::Null),
            &["memory", "cores", "gpus", "shares"],
            "memory, cores, gpus and shares",
        )?;
        let backfill = match spec.get("backfill") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => return Err(SpecError::Backfill(shown(other))),
        };
        let budget = match spec.get("budget") {
            None | Some(Value::Null) => None,
            Some(budget) => Some(self::budget(budget)?),
        };
        Ok(Self {
            hard: Ceilings {
                memory: present(&hard, Dimension::Memory).map(memory_of).transpose()?,
                cores: number(
                    &hard,
                    Dimension::Cores,
                    "spec.hard.cores",
                    "percent of a GPU",
                    "a whole number, for example 150",
                )?,
                gpus: present(&hard, Dimension::Gpus)
                    .map(|value| decimal("spec.hard.gpus", value, "GPUs", u64::MAX / GPU))
                    .transpose()?,
                shares: number(
                    &hard,
                    Dimension::Shares,
                    "spec.hard.shares",
                    "shares",
                    "a whole number, for example 8",
                )?,
            },
            budget,
            backfill,
        })
    }
}

fn budget(value: &Value) -> Result<Budget, SpecError> {
    let budget = object(
        "spec.budget",
        value,
        &["gpuHours", "every", "whenSpent"],
        "gpuHours, every and whenSpent",
    )?;
    let hours = budget.get("gpuHours").ok_or(SpecError::Missing {
        at: "spec.budget.gpuHours",
        fix: "write the GPU hours of each period, for example 100",
    })?;
    let every = budget.get("every").ok_or(SpecError::Missing {
        at: "spec.budget.every",
        fix: "write how often the hours begin anew, for example 7d",
    })?;
    let when_spent = match budget.get("whenSpent") {
        None | Some(Value::Null) => WhenSpent::Yield,
        Some(Value::String(text)) if text == "Yield" => WhenSpent::Yield,
        Some(Value::String(text)) if text == "Hold" => WhenSpent::Hold,
        Some(other) => return Err(SpecError::WhenSpent(shown(other))),
    };
    Ok(Budget {
        gpu_hours: decimal("spec.budget.gpuHours", hours, "GPU hours", HOURS_MAX)?,
        every: duration(every).ok_or_else(|| SpecError::Every(shown(every)))?,
        when_spent,
    })
}

/// `90m`, `24h`, `7d`.
fn duration(value: &Value) -> Option<Duration> {
    let text = value.as_str()?;
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

/// 0 blocks; else the rules of a claim's memory, with its suggestions. The sum of a namespace may be more than one GPU has.
fn memory_of(value: &Value) -> Result<u64, SpecError> {
    let text = shown(value);
    match vgpu_quantity::whole(&text) {
        Ok(0) => Ok(0),
        Ok(bytes) if bytes > MEMORY_MOST => Err(SpecError::MemoryTooLarge(text)),
        Ok(bytes) if bytes >= MEMORY_MIN as i64 => Ok(bytes as u64),
        Err(WholeError::TooLarge { .. }) if !text.starts_with('-') => Err(SpecError::MemoryTooLarge(text)),
        Err(WholeError::NotWhole { .. }) => Err(SpecError::MemoryNotWhole(text)),
        _ => memory(AT_MEMORY, &text).map_err(|error| SpecError::Memory(error.to_string())),
    }
}

fn number(
    hard: &Map<String, Value>,
    dimension: Dimension,
    at: &'static str,
    what: &'static str,
    example: &'static str,
) -> Result<Option<u64>, SpecError> {
    let Some(value) = present(hard, dimension) else {
        return Ok(None);
    };
    let text = shown(value);
    let read = vgpu_quantity::whole(&text)
        .ok()
        .and_then(|number| u64::try_from(number).ok());
    let refused = || SpecError::Number {
        at,
        value: text.clone(),
        what,
        example,
    };
    read.map(Some).ok_or_else(refused)
}

/// A decimal number in millionths; what is finer is rounded up, as Kubernetes does.
fn decimal(at: &'static str, value: &Value, what: &'static str, max: u64) -> Result<u64, SpecError> {
    let text = shown(value);
    let read = || {
        let whole = vgpu_quantity::whole(&text)
            .ok()
            .and_then(|whole| u64::try_from(whole).ok());
        match whole {
            Some(whole) => Some(whole).filter(|whole| *whole <= max)?.checked_mul(GPU),
            None => fraction(&text).filter(|number| *number / GPU < max),
        }
    };
    read().ok_or_else(|| SpecError::Number {
        at,
        value: text.clone(),
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

fn present(hard: &Map<String, Value>, dimension: Dimension) -> Option<&Value> {
    hard.get(dimension.name()).filter(|value| !value.is_null())
}

/// An object with known fields only; a missing one is empty.
fn object(at: &str, value: &Value, fields: &[&str], known: &'static str) -> Result<Map<String, Value>, SpecError> {
    let object = match value {
        Value::Null => Map::new(),
        Value::Object(object) => object.clone(),
        other => {
            return Err(SpecError::NotAnObject {
                at: at.to_owned(),
                value: shown(other),
            });
        }
    };
    match object.keys().find(|key| !fields.contains(&key.as_str())) {
        Some(field) => Err(SpecError::UnknownField {
            at: at.to_owned(),
            field: field.clone(),
            known,
        }),
        None => Ok(object),
    }
}

/// A text without its quotes, anything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_fields_are_read() {
        let spec = Spec::parse(
            &json!({"hard": {"memory": "80Gi", "cores": 150, "gpus": "1.5", "shares": 8},
            "budget": {"gpuHours": "100", "every": "7d", "whenSpent": "Hold"}, "backfill": true}),
        )
        .unwrap();
        assert_eq!(
            spec.hard,
            Ceilings {
                memory: Some(80 << 30),
                cores: Some(150),
                gpus: Some(1_500_000),
                shares: Some(8)
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

    #[test]
    fn mistakes_name_the_field_the_value_and_the_fix() {
        for (spec, words) in [
            (
                json!({"hrad": {}}),
                "spec.\"hrad\": unknown field; use hard, budget and backfill",
            ),
            (
                json!({"hard": {"gpumem": 1}}),
                "spec.hard.\"gpumem\": unknown field; use memory, cores, gpus and shares",
            ),
            (json!({"budget": {"hours": 1}}), "spec.budget.\"hours\": unknown field"),
            (json!({"hard": 1}), "spec.hard: \"1\" is not an object"),
            (
                json!({"hard": {"memory": 80}}),
                "spec.hard.memory: \"80\" is less than the smallest share, 64Mi; did you mean 80Gi?",
            ),
            (
                json!({"hard": {"memory": "80GB"}}),
                "spec.hard.memory: \"80GB\" has the unknown unit \"GB\"; did you mean 80Gi?",
            ),
            (
                json!({"hard": {"memory": "-1Gi"}}),
                "spec.hard.memory: \"-1Gi\" is less than",
            ),
            (
                json!({"hard": {"memory": "1.3Gi"}}),
                "spec.hard.memory: \"1.3Gi\" is not a whole number of bytes; write a whole number of a smaller unit",
            ),
            (
                json!({"hard": {"memory": "9000Pi"}}),
                "spec.hard.memory: \"9000Pi\" is more than the 4Ei that a quota can count; leave the field out",
            ),
            (
                json!({"hard": {"memory": "5Ei"}}),
                "spec.hard.memory: \"5Ei\" is more than the 4Ei",
            ),
            (
                json!({"hard": {"cores": "250m"}}),
                "spec.hard.cores: \"250m\" is not a number of percent of a GPU; write a whole number",
            ),
            (
                json!({"hard": {"shares": -1}}),
                "spec.hard.shares: \"-1\" is not a number of shares",
            ),
            (
                json!({"hard": {"gpus": "two"}}),
                "spec.hard.gpus: \"two\" is not a number of GPUs; write a number",
            ),
            (
                json!({"hard": {"gpus": "-0.5"}}),
                "spec.hard.gpus: \"-0.5\" is not a number of GPUs",
            ),
            (
                json!({"budget": {"every": "7d"}}),
                "spec.budget.gpuHours: missing; write the GPU hours",
            ),
            (
                json!({"budget": {"gpuHours": 1}}),
                "spec.budget.every: missing; write how often",
            ),
            (
                json!({"budget": {"gpuHours": -1, "every": "7d"}}),
                "spec.budget.gpuHours: \"-1\" is not",
            ),
            (
                json!({"budget": {"gpuHours": 1, "every": "week"}}),
                "spec.budget.every: \"week\" is not a time from 1m to 366d",
            ),
            (
                json!({"budget": {"gpuHours": 1, "every": "0d"}}),
                "spec.budget.every: \"0d\"",
            ),
            (
                json!({"budget": {"gpuHours": 1, "every": 7}}),
                "spec.budget.every: \"7\"",
            ),
            (
                json!({"budget": {"gpuHours": 1, "every": "99999999999999999999d"}}),
                "spec.budget.every: ",
            ),
            (
                json!({"budget": {"gpuHours": 1, "every": "7d", "whenSpent": "hold"}}),
                "spec.budget.whenSpent: \"hold\" is none of Yield, Hold",
            ),
            (
                json!({"backfill": "yes"}),
                "spec.backfill: \"yes\" is neither true nor false",
            ),
        ] {
            let said = Spec::parse(&spec).unwrap_err().to_string();
            assert!(said.starts_with(words), "{spec}: {said}");
        }
    }
}
