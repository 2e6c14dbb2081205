//! The largest amount of one capacity that a device can still give to a request.

use crate::capacity::in_milli;
use crate::model::{Capacity, Range, RequestPolicy};
use vgpu_quantity::Quantity;

/// The largest amount that is within `free` and that the policy does not change by rounding; `None` if there is none.
///
/// This only proposes an amount; the search decides if the device can give it.
pub(crate) fn largest(capacity: &Capacity, free: &Quantity, fractional: bool) -> Option<Quantity> {
    if free.is_negative() {
        return None;
    }
    match capacity.request_policy.as_deref() {
        Some(RequestPolicy {
            valid_range: Some(range),
            ..
        }) => in_range(range, free, fractional),
        Some(RequestPolicy {
            valid_values: Some(values),
            ..
        }) if !values.is_empty() => values.iter().filter(|value| *value <= free).max().cloned(),
        _ => Some(free.clone()),
    }
}

/// Returns the last whole step from `min` on that exceeds neither `max` nor `free`.
fn in_range(range: &Range, free: &Quantity, fractional: bool) -> Option<Quantity> {
    let end = range.max.as_ref().map_or(free, |max| max.min(free));
    let min = range.min.clone().unwrap_or_default();
    if *end < min {
        return None;
    }
    let Some(step) = &range.step else {
        return Some(end.clone());
    };
    let milli = in_milli(range, fractional);
    let read = |quantity: &Quantity| match milli {
        true => quantity.exact_milli().map(i128::from),
        false => quantity.whole_away_from_zero().map(i128::from),
    };
    let (step_by, min) = (read(step).filter(|step| *step > 0)?, read(&min)?);
    // `free` need not be a whole number, and may be beyond what requests can hold.
    let unit: i128 = if milli { 1_000_000 } else { 1_000_000_000 };
    let end = end.rank().div_euclid(unit).min(i128::from(i64::MAX));
    let value = i64::try_from(min + (end - min).max(0) / step_by * step_by).ok()?;
    Some(match milli {
        true if value % 1000 == 0 => Quantity::with_format(value / 1000, step.format()),
        true => Quantity::milli(value, step.format()),
        false => Quantity::with_format(value, step.format()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(capacity: &str, free: &str, fractional: bool) -> Option<String> {
        let capacity: Capacity = serde_json::from_str(capacity).unwrap();
        largest(&capacity, &free.parse().unwrap(), fractional).map(|most| most.to_string())
    }

    #[test]
    fn the_most_is_what_the_policy_leaves_as_it_is() {
        const RANGE: &str = r#"{"requestPolicy":{"validRange":{"min":"64Mi","max":"70Gi","step":"1Mi"}}}"#;
        const COUNTED: &str = r#"{"requestPolicy":{"validRange":{"min":"0","step":"10"}}}"#;
        const VALUES: &str = r#"{"requestPolicy":{"validValues":["1","2","8"]}}"#;
        const MILLI: &str = r#"{"requestPolicy":{"validRange":{"min":"100m","step":"100m"}}}"#;
        for (capacity, free, expected) in [
            (RANGE, "80Gi", Some("70Gi")),
            (RANGE, "10Gi", Some("10Gi")),
            (RANGE, "68157440", Some("65Mi")),
            (RANGE, "68157441", Some("65Mi")),
            (RANGE, "63Mi", None),
            (RANGE, "-1", None),
            (RANGE, "99999999999999999999999999E", Some("70Gi")),
            (COUNTED, "39", Some("30")),
            (COUNTED, "0", Some("0")),
            (COUNTED, "39500m", Some("30")),
            (VALUES, "7", Some("2")),
            (VALUES, "0", None),
            (r#"{"requestPolicy":{"default":"1"}}"#, "1500m", Some("1500m")),
            ("{}", "3Gi", Some("3Gi")),
            (r#"{"requestPolicy":{"validRange":{"min":"0","step":"0"}}}"#, "3", None),
        ] {
            assert_eq!(most(capacity, free, false).as_deref(), expected, "{capacity} {free}");
        }
        assert_eq!(most(MILLI, "950m", true).as_deref(), Some("900m"));
        assert_eq!(most(MILLI, "50m", true), None);
    }
}
