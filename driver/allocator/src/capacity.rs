//! How much a request consumes of a device's capacity, and whether the device has that much.
//!
//! A request consumes every capacity of the device. If it does not name one, it consumes the policy's default, or all
//! of it. Amounts are rounded up as the policy says. A number that exceeds the policy's arithmetic ends the attempt, as
//! in Kubernetes, because trying other devices would be useless.

use litemap::LiteMap;

use crate::model::{Capacity, CapacityRequirements, Device, Range, RequestPolicy};
use vgpu_quantity::Quantity;

/// The capacities that policies read. A driver's own capacity may be written without its domain.
pub(crate) const MEMORY: &str = "memory";
pub(crate) const CORES: &str = "cores";

/// Amounts by capacity name.
pub(crate) type Amounts = LiteMap<String, Quantity>;

/// A number with which no device can be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    #[error("capacity {name:?}: the request {request} is beyond what its range (min, step) can count; ask for less")]
    NotRepresentable { name: String, request: Quantity },
    #[error("capacity {name:?}: its range has a step that is zero or too large; the driver must publish another")]
    Step { name: String },
    #[error(
        "capacity {name:?}: {amount} would be consumed, which is below zero; ask for more, or have the driver publish another value"
    )]
    Negative { name: String, amount: Quantity },
}

/// Why a device cannot satisfy a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Misfit {
    UnknownName(String),
    Policy {
        name: String,
        amount: Quantity,
    },
    /// The first shortage; [`shortages`] has the others.
    Short(Box<Shortage>),
}

/// The shortage of one capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub name: String,
    pub wanted: Quantity,
    pub free: Quantity,
    /// The capacity of the unused device.
    pub total: Quantity,
}

/// Returns what the request would consume of the device, or why not even an unused device could satisfy it.
///
/// # Errors
/// A number that makes it impossible to evaluate a device.
pub(crate) fn consumed(
    request: Option<&CapacityRequirements>,
    device: &Device,
    fractional: bool,
) -> Result<Result<Amounts, Misfit>, CapacityError> {
    let asked = request.map(|request| &request.requests);
    if let Some(name) = asked.and_then(|asked| asked.keys().find(|name| !device.capacity.contains_key(*name))) {
        return Ok(Err(Misfit::UnknownName(name.clone())));
    }
    let mut amounts = Amounts::new();
    for (name, capacity) in &device.capacity {
        let amount = one(name, asked.and_then(|asked| asked.get(name)), capacity, fractional)?;
        if amount.is_negative() {
            return Err(CapacityError::Negative {
                name: name.clone(),
                amount,
            });
        }
        amounts.insert(name.clone(), amount);
    }
    for (name, amount) in &amounts {
        let policy = device
            .capacity
            .get(name)
            .and_then(|capacity| capacity.request_policy.as_deref());
        if policy.is_some_and(|policy| violates(amount, policy, fractional)) {
            return Ok(Err(Misfit::Policy {
                name: name.clone(),
                amount: amount.clone(),
            }));
        }
    }
    Ok(Ok(amounts))
}

/// Checks that the device has the amounts in addition to those in use.
pub(crate) fn fits<'a>(
    amounts: &Amounts,
    device: &Device,
    in_use: impl Iterator<Item = &'a Amounts> + Clone,
) -> Result<(), Misfit> {
    match shortages(amounts, device, in_use).next() {
        None => Ok(()),
        Some(shortage) => Err(Misfit::Short(Box::new(shortage))),
    }
}

/// Returns the capacities of which the device has too little left.
pub(crate) fn shortages<'a>(
    amounts: &Amounts,
    device: &Device,
    in_use: impl Iterator<Item = &'a Amounts> + Clone,
) -> impl Iterator<Item = Shortage> {
    amounts.iter().filter_map(move |(name, amount)| {
        let total = &device.capacity.get(name)?.value;
        let mut free = total.clone();
        for used in in_use.clone().filter_map(|used| used.get(name)) {
            free.subtract(used);
        }
        (*amount > free).then(|| Shortage {
            name: name.clone(),
            wanted: amount.clone(),
            free,
            total: total.clone(),
        })
    })
}

fn one(name: &str, asked: Option<&Quantity>, capacity: &Capacity, fractional: bool) -> Result<Quantity, CapacityError> {
    let policy = capacity.request_policy.as_deref();
    let Some(asked) = asked else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return Ok(default.unwrap_or(&capacity.value).clone());
    };
    Ok(match policy {
        Some(RequestPolicy {
            valid_range: Some(range @ Range { min: Some(min), .. }),
            ..
        }) => return round_up(name, asked, range, min, fractional),
        Some(RequestPolicy {
            valid_values: Some(values),
            ..
        }) => values.iter().find(|value| asked <= *value).unwrap_or(asked).clone(),
        _ => asked.clone(),
    })
}

/// Returns the next value in whole steps from `min` on.
fn round_up(
    name: &str,
    asked: &Quantity,
    range: &Range,
    min: &Quantity,
    fractional: bool,
) -> Result<Quantity, CapacityError> {
    if asked < min {
        return Ok(min.clone());
    }
    let Some(step) = &range.step else {
        return Ok(asked.clone());
    };
    let too_large = || CapacityError::NotRepresentable {
        name: name.to_owned(),
        request: asked.clone(),
    };
    let milli = in_milli(range, fractional);
    let read = reader(milli);
    let asked = read(asked).ok_or_else(too_large)?;
    let (Some(step_by), Some(min)) = (read(step).filter(|step| *step != 0), read(min)) else {
        return Err(CapacityError::Step { name: name.to_owned() });
    };
    // 128 bits hold any sum and product of these.
    let (asked, step_by, min) = (i128::from(asked), i128::from(step_by), i128::from(min));
    let steps = (asked - min) / step_by + i128::from((asked - min) % step_by != 0);
    let value = i64::try_from(min + step_by * steps).map_err(|_| too_large())?;
    Ok(match milli {
        true if value % 1000 == 0 => Quantity::with_format(value / 1000, step.format()),
        true => Quantity::milli(value, step.format()),
        false => Quantity::with_format(value, step.format()),
    })
}

fn violates(amount: &Quantity, policy: &RequestPolicy, fractional: bool) -> bool {
    if policy.default.as_ref() == Some(amount) {
        return false;
    }
    match (&policy.valid_range, &policy.valid_values) {
        (Some(range), _) => outside(amount, range, fractional),
        (None, Some(values)) => !values.is_empty() && !values.contains(amount),
        (None, None) => false,
    }
}

fn outside(amount: &Quantity, range: &Range, fractional: bool) -> bool {
    if range.max.as_ref().is_some_and(|max| amount > max) {
        return true;
    }
    let Some(step) = &range.step else {
        return false;
    };
    let milli = in_milli(range, fractional);
    let read = reader(milli);
    let min = range.min.as_ref().map_or(Some(0), read);
    match (read(amount), read(step), min) {
        (Some(amount), Some(step), Some(min)) if step != 0 => {
            (i128::from(amount) - i128::from(min)) % i128::from(step) != 0
        }
        _ => true,
    }
}

/// Reads an amount in whole units or in thousandths; `None` if it exceeds 64 bits.
fn reader(milli: bool) -> fn(&Quantity) -> Option<i64> {
    if milli {
        Quantity::exact_milli
    } else {
        Quantity::whole_away_from_zero
    }
}

/// Returns true if a range is counted in thousandths: if the gate is on and all of it is whole thousandths.
pub(crate) fn in_milli(range: &Range, fractional: bool) -> bool {
    let readable = |bound: &Option<Quantity>| bound.as_ref().is_none_or(|bound| bound.exact_milli().is_some());
    fractional
        && readable(&range.min)
        && readable(&range.max)
        && readable(&range.step)
        && range
            .step
            .as_ref()
            .and_then(Quantity::exact_milli)
            .is_none_or(|step| step >= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(capacity: &str) -> Device {
        serde_json::from_str(&format!(r#"{{"name":"d","capacity":{{"memory":{capacity}}}}}"#)).unwrap()
    }

    fn consume(capacity: &str, asked: &str, fractional: bool) -> String {
        let request = match asked {
            "" => CapacityRequirements::default(),
            asked => serde_json::from_str(&format!(r#"{{"requests":{{"memory":"{asked}"}}}}"#)).unwrap(),
        };
        match consumed(Some(&request), &device(capacity), fractional) {
            Ok(Ok(amounts)) => amounts.get("memory").unwrap().to_string(),
            Ok(Err(misfit)) => match misfit {
                Misfit::UnknownName(_) => "unknown".into(),
                Misfit::Policy { .. } => "policy".into(),
                Misfit::Short(_) => "short".into(),
            },
            Err(_) => "error".into(),
        }
    }

    const RANGE: &str =
        r#"{"value":"80Gi","requestPolicy":{"default":"80Gi","validRange":{"min":"64Mi","max":"70Gi","step":"1Mi"}}}"#;
    const VALUES: &str = r#"{"value":"64","requestPolicy":{"default":"1","validValues":["1","2","8"]}}"#;
    const MILLI: &str = r#"{"value":"1","requestPolicy":{"default":"1","validRange":{"min":"100m","step":"100m"}}}"#;

    #[test]
    fn requests_are_rounded_as_the_policy_says() {
        for (capacity, asked, expected) in [
            (RANGE, "", "80Gi"),
            (RANGE, "1", "64Mi"),
            (RANGE, "-1Gi", "64Mi"),
            (RANGE, "1500000001", "1431Mi"),
            (RANGE, "71Gi", "policy"),
            (RANGE, "18446744073709551616", "error"),
            (RANGE, "9223372036854775807", "error"),
            (VALUES, "", "1"),
            (VALUES, "3", "8"),
            (VALUES, "9", "policy"),
            (r#"{"value":"80Gi"}"#, "", "80Gi"),
            (r#"{"value":"80Gi"}"#, "3500000u", "3500m"),
            (r#"{"value":"-1"}"#, "", "error"),
            (r#"{"value":"1"}"#, "-1", "error"),
            (
                r#"{"value":"9","requestPolicy":{"validRange":{"min":"1","step":"0"}}}"#,
                "2",
                "error",
            ),
            (
                r#"{"value":"9","requestPolicy":{"validRange":{"min":"250m"}}}"#,
                "300m",
                "300m",
            ),
        ] {
            assert_eq!(consume(capacity, asked, false), expected, "{capacity} {asked}");
        }
    }

    #[test]
    fn fractions_of_a_range_take_the_gate() {
        assert_eq!(consume(MILLI, "500m", false), "1");
        assert_eq!(consume(MILLI, "500m", true), "500m");
        assert_eq!(consume(MILLI, "450m", true), "500m");
        assert_eq!(consume(MILLI, "1u", true), "100m");
        assert_eq!(consume(MILLI, "200001u", true), "error");
        assert_eq!(consume(RANGE, "1500000001", true), "1431Mi");
    }

    #[test]
    fn an_unknown_name_is_a_misfit_before_anything_else() {
        let request: CapacityRequirements = serde_json::from_str(r#"{"requests":{"bytes":"1"}}"#).unwrap();
        assert_eq!(
            consumed(Some(&request), &device(r#"{"value":"-1"}"#), false),
            Ok(Err(Misfit::UnknownName("bytes".into())))
        );
    }

    /// Our capacities have a second name, with the driver's domain; together they are a name that no device has.
    #[test]
    fn our_domain_makes_no_difference() {
        let request = |requests: &str| -> CapacityRequirements {
            serde_json::from_str(&format!(r#"{{"requests":{{{requests}}}}}"#)).unwrap()
        };
        let long = request(r#""dra.vgpu/memory":"20Gi""#);
        assert!(long.has_domain && !request(r#""memory":"20Gi""#).has_domain);
        for published in ["memory", "dra.vgpu/memory"] {
            let device = format!(r#"{{"name":"d","capacity":{{"{published}":{RANGE}}}}}"#);
            let device: Device = serde_json::from_str(&device).unwrap();
            let amounts = consumed(Some(&long), &device, false).unwrap().unwrap();
            assert_eq!(amounts.get("memory").unwrap().to_string(), "20Gi");
            for (requests, unknown) in [
                (r#""memory":"20Gi","dra.vgpu/memory":"20Gi""#, "dra.vgpu/memory"),
                (r#""gpu.nvidia.com/memory":"20Gi""#, "gpu.nvidia.com/memory"),
            ] {
                let misfit = consumed(Some(&request(requests)), &device, false).unwrap();
                assert_eq!(misfit, Err(Misfit::UnknownName(unknown.into())));
            }
        }
        let result = r#"{"consumedCapacity":{"dra.vgpu/memory":"20Gi","cores":"1"}}"#;
        let result: crate::model::DeviceResult = serde_json::from_str(result).unwrap();
        assert_eq!(result.consumed_capacity.keys().collect::<Vec<_>>(), ["cores", "memory"]);
    }

    #[test]
    fn what_is_in_use_counts() {
        let device = device(r#"{"value":"80Gi"}"#);
        let amounts = |text: &str| Amounts::from_iter([("memory".to_owned(), text.parse().unwrap())]);
        let used = [amounts("30Gi"), amounts("30Gi")];
        assert_eq!(fits(&amounts("20Gi"), &device, used.iter()), Ok(()));
        assert!(matches!(
            fits(&amounts("20.5Gi"), &device, used.iter()),
            Err(Misfit::Short(shortage)) if shortage.free == "20Gi".parse().unwrap()
        ));
    }
}
