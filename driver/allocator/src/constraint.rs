//! `matchAttribute` and `distinctAttribute`: attributes whose values the devices of one claim must share, or must not.

use vgpu_cel::Attribute as Value;

use crate::model::{Attribute, Constraint, Device};

/// One constraint of a claim, with the attribute values of the devices chosen so far.
#[derive(Debug)]
pub(crate) struct Tracked<'a> {
    requests: &'a [String],
    attribute: &'a str,
    kind: Kind,
    /// In the order in which they were added, so that the last can be taken back.
    values: Vec<&'a Attribute>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Match,
    Distinct,
}

/// The request to which a constraint applies, or one of its alternatives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) request: &'a str,
    pub(crate) alternative: Option<&'a str>,
}

impl<'a> Tracked<'a> {
    /// `None` for an unknown kind of constraint.
    pub(crate) fn of(constraint: &'a Constraint) -> Option<Self> {
        let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Kind::Match, attribute),
            (None, Some(attribute)) => (Kind::Distinct, attribute),
            (None, None) => return None,
        };
        Some(Self {
            requests: &constraint.requests,
            attribute,
            kind,
            values: Vec::new(),
        })
    }

    /// A constraint for policies, which no claim contains: all devices share the attribute.
    pub(crate) fn sharing(attribute: &'a str) -> Self {
        Self {
            requests: &[],
            attribute,
            kind: Kind::Match,
            values: Vec::new(),
        }
    }

    /// Adds a device, unless the constraint forbids it.
    pub(crate) fn add(&mut self, asker: Asker<'_>, driver: &str, device: &'a Device) -> bool {
        if !self.concerns(asker) {
            return true;
        }
        let Some(value) = lookup(device, driver, self.attribute) else {
            return false;
        };
        let allowed = match self.kind {
            Kind::Match => self.values.first().is_none_or(|first| same(first, value) == Some(true)),
            Kind::Distinct => self.values.iter().all(|seen| same(seen, value) == Some(false)),
        };
        if allowed {
            self.values.push(value);
        }
        allowed
    }

    /// Takes back the last device that was added for this asker.
    pub(crate) fn remove(&mut self, asker: Asker<'_>) {
        if self.concerns(asker) {
            self.values.pop();
        }
    }

    pub(crate) fn attribute(&self) -> &'a str {
        self.attribute
    }

    fn concerns(&self, asker: Asker<'_>) -> bool {
        self.requests.is_empty()
            || self.requests.iter().any(|name| {
                let rest = name.strip_prefix(asker.request);
                match asker.alternative {
                    _ if rest == Some("") => true,
                    Some(alternative) => rest.and_then(|rest| rest.strip_prefix('/')) == Some(alternative),
                    None => false,
                }
            })
    }
}

/// An attribute by its full name; a driver's own attributes may be written without their domain.
pub(crate) fn lookup<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a Attribute> {
    device.attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        (domain == driver).then(|| device.attributes.get(id)).flatten()
    })
}

/// Returns true if two values are equal; `None` if the second one's kind cannot be compared.
fn same(seen: &Attribute, value: &Attribute) -> Option<bool> {
    match value {
        Attribute::Known(Value::Bool(_) | Value::Int(_) | Value::String(_) | Value::Version(_)) => Some(seen == value),
        Attribute::Known(_) | Attribute::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: Asker<'_> = Asker {
        request: "r",
        alternative: None,
    };

    fn device(value: &str) -> Device {
        serde_json::from_str(&format!(r#"{{"name":"d","attributes":{{"a":{value}}}}}"#)).unwrap()
    }

    fn constraint(text: &str) -> Constraint {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn match_takes_one_value_and_distinct_takes_each_once() {
        let (one, other) = (device(r#"{"int":1}"#), device(r#"{"int":2}"#));
        for (kind, same, different) in [("matchAttribute", true, false), ("distinctAttribute", false, true)] {
            let constraint = constraint(&format!(r#"{{"{kind}":"drv/a"}}"#));
            let mut tracked = Tracked::of(&constraint).unwrap();
            assert!(tracked.add(ASKER, "drv", &one));
            assert_eq!(tracked.add(ASKER, "drv", &one), same, "{kind}");
            if same {
                tracked.remove(ASKER);
            }
            assert_eq!(tracked.add(ASKER, "drv", &other), different, "{kind}");
            assert!(!tracked.add(ASKER, "other", &one), "the attribute is drv's own");
        }
    }

    #[test]
    fn lists_and_unknown_values_compare_with_nothing() {
        for value in [r#"{"strings":["x"]}"#, "{}"] {
            let device = device(value);
            for kind in ["matchAttribute", "distinctAttribute"] {
                let constraint = constraint(&format!(r#"{{"{kind}":"drv/a"}}"#));
                let mut tracked = Tracked::of(&constraint).unwrap();
                assert!(tracked.add(ASKER, "drv", &device), "the first is alone");
                assert!(!tracked.add(ASKER, "drv", &device), "{kind} {value}");
            }
        }
    }

    #[test]
    fn only_requests_that_are_named_are_concerned() {
        let constraint = constraint(r#"{"matchAttribute":"drv/a","requests":["r/x","q"]}"#);
        let tracked = Tracked::of(&constraint).unwrap();
        for (request, alternative, expected) in [
            ("r", None, false),
            ("r", Some("x"), true),
            ("r", Some("y"), false),
            ("q", None, true),
            ("q", Some("y"), true),
        ] {
            assert_eq!(
                tracked.concerns(Asker { request, alternative }),
                expected,
                "{request} {alternative:?}"
            );
        }
    }
}
