//! A VgpuQuotaDefault: the quota of namespaces that have none of their own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use kube_core::Selector;
use serde::Deserialize;
use serde_json::Value;
use vgpu_api::quota::{VgpuQuotaDefaultSpec, VgpuQuotaSpec, read_spec};
use vgpu_quantity::quoted;

use crate::names::{FROM_DEFAULT, STAMPED_SPEC};
use crate::spec::Spec;

/// A VgpuQuotaDefault as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaDefault {
    pub name: String,
    pub uid: String,
    /// Its spec, or why that is refused.
    pub spec: Result<DefaultSpec, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DefaultSpec {
    pub(crate) selector: Selector,
    /// The `spec` of the quotas that it makes.
    pub(crate) quota: VgpuQuotaSpec,
}

/// The default and `spec` of a quota that is unchanged since it was made from a default.
#[derive(Debug, Clone, PartialEq)]
pub struct Stamped {
    pub(crate) default: String,
    pub(crate) spec: VgpuQuotaSpec,
}

impl DefaultSpec {
    fn parse(spec: &Value) -> Result<Self, String> {
        let VgpuQuotaDefaultSpec {
            namespace_selector,
            quota,
        } = read_spec(spec)?;
        // The spec's messages begin with the path of the field in a VgpuQuota.
        let named = |said: String| said.replacen("spec", "spec.quota", 1);
        Spec::new(&quota).map_err(|error| named(error.to_string()))?;
        let selector = LabelSelector::from(namespace_selector);
        check(selector.match_expressions.as_deref().unwrap_or_default())?;
        let selector = Selector::try_from(selector).map_err(|error| format!("spec.namespaceSelector: {error}"))?;
        Ok(Self { selector, quota })
    }
}

/// Refuses conditions that would silently match nothing, or everything.
fn check(requirements: &[LabelSelectorRequirement]) -> Result<(), String> {
    for (i, requirement) in requirements.iter().enumerate() {
        let at = format!("spec.namespaceSelector.matchExpressions[{i}]");
        let operator = requirement.operator.as_str();
        let has_values = requirement.values.as_ref().is_some_and(|values| !values.is_empty());
        match (operator, has_values) {
            _ if requirement.key.is_empty() => return Err(format!("{at}.key: missing; write the key of a label")),
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            ("In" | "NotIn", false) => return Err(format!("{at}.values: empty; {operator} needs at least one")),
            ("Exists" | "DoesNotExist", true) => {
                return Err(format!("{at}.values: {operator} takes none; leave them out"));
            }
            _ => {
                let operator = quoted(operator);
                return Err(format!(
                    "{at}.operator: {operator} is none of In, NotIn, Exists, DoesNotExist"
                ));
            }
        }
    }
    Ok(())
}

impl Stamped {
    /// `None` for a quota that an administrator made, or changed after it was stamped.
    pub(crate) fn read(metadata: &ObjectMeta, spec: &Value) -> Option<Self> {
        let stamped = metadata.annotations.as_ref()?.get(STAMPED_SPEC)?;
        let default = metadata.labels.as_ref()?.get(FROM_DEFAULT)?.clone();
        let stamped: VgpuQuotaSpec = serde_json::from_str(stamped).ok()?;
        let spec = read_spec(spec).ok().filter(|spec| *spec == stamped)?;
        Some(Self { default, spec })
    }
}

impl<'de> Deserialize<'de> for QuotaDefault {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: ObjectMeta,
            #[serde(default)]
            spec: Value,
        }
        let Whole { metadata, spec } = Whole::deserialize(deserializer)?;
        Ok(Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            spec: DefaultSpec::parse(&spec),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use kube_core::SelectorExt as _;
    use serde_json::json;

    fn expression(operator: &str, key: &str, values: Value) -> Value {
        json!({"namespaceSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}, "quota": {}})
    }

    /// A spec, and how the error begins.
    const MISTAKES: &str = r#"
null | spec: missing field `namespaceSelector`
{"selector": {}} | spec.selector: unknown field `selector`, expected `namespaceSelector` or `quota`
{"quota": {}} | spec: missing field `namespaceSelector`
{"namespaceSelector": {}} | spec: missing field `quota`
{"namespaceSelector": {}, "quota": {"hard": {"memory": "80GB"}}} | spec.quota.hard.memory: "80GB" has the unknown unit
{"namespaceSelector": {}, "quota": {"hrad": {}}} | spec.quota.hrad: unknown field `hrad`
{"namespaceSelector": {"labels": {}}, "quota": {}} | spec.namespaceSelector.labels: unknown field `labels`, expected `matchLabels` or `matchExpressions`
{"namespaceSelector": {"matchLabels": {"a": true}}, "quota": {}} | spec.namespaceSelector.matchLabels.a: true is not a text; write it in quotes: "true"
{"namespaceSelector": {"matchExpressions": [{"key": "", "operator": "Exists", "values": []}]}, "quota": {}} | spec.namespaceSelector.matchExpressions[0].key: missing
{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}, "quota": {}} | spec.namespaceSelector.matchExpressions[0].operator: "Is" is none of In, NotIn
{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}, "quota": {}} | spec.namespaceSelector.matchExpressions[0].values: empty; In needs
{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}, "quota": {}} | spec.namespaceSelector.matchExpressions[0].values: Exists takes none"#;

    #[test]
    fn mistakes_name_the_field_and_the_fix() {
        for row in MISTAKES.trim().lines() {
            let (spec, words) = row.split_once(" | ").expect("two cells");
            let spec: Value = serde_json::from_str(spec).expect(row);
            let said = DefaultSpec::parse(&spec).unwrap_err();
            assert!(said.starts_with(words), "{spec}: {said}");
        }
        DefaultSpec::parse(&json!({"namespaceSelector": {}, "quota": {}})).unwrap();
    }

    #[test]
    fn every_part_of_a_selector_must_match() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let by_labels = |labels: Value| json!({"namespaceSelector": {"matchLabels": labels}, "quota": {}});
        for (spec, expected) in [
            (json!({"namespaceSelector": {}, "quota": {}}), true),
            (by_labels(json!({"team": "a"})), true),
            (by_labels(json!({"team": "a", "tier": "x"})), false),
            (expression("In", "team", json!(["b", "a"])), true),
            (expression("NotIn", "team", json!(["a"])), false),
            (expression("NotIn", "tier", json!(["a"])), true),
            (expression("Exists", "tier", Value::Null), false),
            (expression("DoesNotExist", "tier", json!([])), true),
        ] {
            let read = DefaultSpec::parse(&spec).unwrap();
            assert_eq!(read.selector.matches(&labels), expected, "{spec}");
        }
    }

    #[test]
    fn a_quota_that_an_administrator_changed_is_no_longer_the_defaults() {
        let (a, b) = (
            json!({"hard": {"shares": 1, "cores": 2}}),
            json!({"hard": {"cores": 2, "shares": 2}}),
        );
        let labels = Some(BTreeMap::from([(FROM_DEFAULT.to_owned(), "teams".to_owned())]));
        let annotations = Some(BTreeMap::from([(STAMPED_SPEC.to_owned(), a.to_string())]));
        let metadata = |labels: &Option<_>, annotations: &Option<_>| ObjectMeta {
            labels: labels.clone(),
            annotations: annotations.clone(),
            ..ObjectMeta::default()
        };
        let both = metadata(&labels, &annotations);
        let same = json!({"hard": {"cores": 2, "shares": 1}});
        assert_eq!(Stamped::read(&both, &same).unwrap().default, "teams");
        assert_eq!(Stamped::read(&both, &b), None);
        assert_eq!(Stamped::read(&metadata(&labels, &None), &a), None, "a label by hand");
        assert_eq!(Stamped::read(&metadata(&None, &annotations), &a), None);
    }
}
