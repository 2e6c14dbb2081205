//! A label selector, as an administrator writes it: each mistake is named.

use std::collections::BTreeMap;

use serde_json::Value;
use vgpu_quantity::quoted;

const AT: &str = "spec.namespaceSelector";

/// All of it must match; an empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|wanted| {
            let label = labels.get(&wanted.key);
            match &wanted.operator {
                Operator::In(values) => label.is_some_and(|label| values.contains(label)),
                Operator::NotIn(values) => !label.is_some_and(|label| values.contains(label)),
                Operator::Exists => label.is_some(),
                Operator::DoesNotExist => label.is_none(),
            }
        })
    }

    /// Reads the object under `spec.namespaceSelector`, or says which field is wrong, and how to correct it.
    pub(crate) fn parse(value: Option<&Value>) -> Result<Self, String> {
        let selector = match value {
            None | Some(Value::Null) => {
                return Err(format!(
                    "{AT}: missing; write matchLabels or matchExpressions, or {{}} for all namespaces"
                ));
            }
            Some(Value::Object(selector)) => selector,
            Some(_) => return Err(format!("{AT}: not an object; write matchLabels or matchExpressions")),
        };
        let mut all = Vec::new();
        for (field, value) in selector {
            match (field.as_str(), value) {
                ("matchLabels" | "matchExpressions", Value::Null) => {}
                ("matchLabels", Value::Object(labels)) => {
                    for (key, value) in labels {
                        let text = value.as_str();
                        let text =
                            text.ok_or_else(|| format!("{AT}.matchLabels.{key}: not a text; put it in quotes"))?;
                        all.push(Requirement {
                            key: key.clone(),
                            operator: Operator::In(vec![text.to_owned()]),
                        });
                    }
                }
                ("matchExpressions", Value::Array(list)) => {
                    for (i, value) in list.iter().enumerate() {
                        all.push(requirement(&format!("{AT}.matchExpressions[{i}]"), value)?);
                    }
                }
                ("matchLabels", _) => return Err(format!("{AT}.matchLabels: not an object; write key: value")),
                ("matchExpressions", _) => return Err(format!("{AT}.matchExpressions: not a list")),
                _ => {
                    return Err(format!(
                        "{AT}.{}: unknown field; use matchLabels and matchExpressions",
                        quoted(field)
                    ));
                }
            }
        }
        Ok(Self(all))
    }
}

fn requirement(at: &str, value: &Value) -> Result<Requirement, String> {
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let (key, operator) = (text("key"), text("operator"));
    if key.is_empty() {
        return Err(format!("{at}.key: missing; write the key of a label"));
    }
    let values = value["values"].as_array().into_iter().flatten();
    let values: Vec<String> = values.filter_map(|value| Some(value.as_str()?.to_owned())).collect();
    let operator = match (operator.as_str(), values.is_empty()) {
        ("In", false) => Operator::In(values),
        ("NotIn", false) => Operator::NotIn(values),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("In" | "NotIn", true) => return Err(format!("{at}.values: empty; {operator} needs at least one")),
        ("Exists" | "DoesNotExist", false) => {
            return Err(format!("{at}.values: {operator} takes none; leave them out"));
        }
        _ => {
            return Err(format!(
                "{at}.operator: {} is none of In, NotIn, Exists, DoesNotExist",
                quoted(&operator)
            ));
        }
    };
    Ok(Requirement { key, operator })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_part_must_match() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let expression = |operator: &str, key: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"team": "a"}}), true),
            (json!({"matchLabels": {"team": "b"}}), false),
            (json!({"matchLabels": {"team": "a", "tier": "x"}}), false),
            (expression("In", "team", json!(["b", "a"])), true),
            (expression("In", "tier", json!(["a"])), false),
            (expression("NotIn", "team", json!(["a"])), false),
            (expression("NotIn", "tier", json!(["a"])), true),
            (expression("Exists", "team", json!([])), true),
            (expression("Exists", "tier", Value::Null), false),
            (expression("DoesNotExist", "tier", json!([])), true),
            (expression("DoesNotExist", "team", json!([])), false),
        ] {
            let read = Selector::parse(Some(&selector)).unwrap();
            assert_eq!(read.matches(&labels), expected, "{selector}");
        }
    }

    #[test]
    fn mistakes_name_the_field_and_the_fix() {
        assert!(
            Selector::parse(None)
                .unwrap_err()
                .contains("missing; write matchLabels")
        );
        for (selector, words) in [
            (json!(1), "spec.namespaceSelector: not an object"),
            (
                json!({"labels": {}}),
                "spec.namespaceSelector.\"labels\": unknown field; use matchLabels",
            ),
            (
                json!({"matchLabels": {"a": true}}),
                "spec.namespaceSelector.matchLabels.a: not a text",
            ),
            (
                json!({"matchLabels": []}),
                "spec.namespaceSelector.matchLabels: not an object",
            ),
            (
                json!({"matchExpressions": {}}),
                "spec.namespaceSelector.matchExpressions: not a list",
            ),
            (
                json!({"matchExpressions": [{"operator": "Exists"}]}),
                "matchExpressions[0].key: missing",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}),
                "matchExpressions[0].operator: \"Is\" is none of In, NotIn",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}),
                "matchExpressions[0].values: empty; In needs",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "matchExpressions[0].values: Exists takes none",
            ),
        ] {
            let said = Selector::parse(Some(&selector)).unwrap_err();
            assert!(said.contains(words), "{selector}: {said}");
        }
    }
}
