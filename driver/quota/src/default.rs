//! A VgpuQuotaDefault: the quota of namespaces that have none of their own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::names::{FROM_DEFAULT, STAMPED_SPEC};
use crate::selector::Selector;
use crate::spec::Spec;

/// As it was read.
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
    pub(crate) quota: Value,
}

/// Of a quota whose `spec` is as it was stamped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    pub(crate) default: String,
    pub(crate) spec: String,
}

impl DefaultSpec {
    fn parse(spec: &Value) -> Result<Self, String> {
        let fields = match spec {
            Value::Object(fields) => fields,
            _ => return Err("spec: missing; write namespaceSelector and quota".to_owned()),
        };
        if let Some(field) = fields
            .keys()
            .find(|key| !matches!(key.as_str(), "namespaceSelector" | "quota"))
        {
            return Err(format!("spec.{field}: unknown field; use namespaceSelector and quota"));
        }
        let selector = Selector::parse(fields.get("namespaceSelector"))?;
        let quota = match fields.get("quota") {
            None | Some(Value::Null) => {
                return Err(
                    "spec.quota: missing; write the spec of a VgpuQuota, for example {hard: {memory: 80Gi}}".to_owned(),
                );
            }
            Some(quota) => quota.clone(),
        };
        // Its messages begin with the path of the field in a VgpuQuota.
        let named = |said: String| said.replacen("spec", "spec.quota", 1);
        Spec::parse(&quota).map_err(|error| named(error.to_string()))?;
        Ok(Self { selector, quota })
    }

    /// The text of its quota's `spec`, the same for the same fields in any order.
    pub(crate) fn text(&self) -> String {
        self.quota.to_string()
    }
}

impl Stamped {
    /// `None` for a quota that an administrator made, or changed after it was stamped.
    pub(crate) fn read(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
        spec: &Value,
    ) -> Option<Self> {
        let spec = spec.to_string();
        let default = annotations.get(STAMPED_SPEC).filter(|text| **text == spec);
        let default = default.and_then(|_| labels.get(FROM_DEFAULT))?.clone();
        Some(Self { default, spec })
    }
}

impl<'de> Deserialize<'de> for QuotaDefault {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
            #[serde(default)]
            spec: Value,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(default)]
            name: String,
            #[serde(default)]
            uid: String,
        }
        let Whole { metadata, spec } = Whole::deserialize(deserializer)?;
        Ok(Self {
            name: metadata.name,
            uid: metadata.uid,
            spec: DefaultSpec::parse(&spec),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mistakes_name_the_field_and_the_fix() {
        for (spec, words) in [
            (Value::Null, "spec: missing; write namespaceSelector and quota"),
            (
                json!({"selector": {}}),
                "spec.selector: unknown field; use namespaceSelector and quota",
            ),
            (json!({"quota": {}}), "spec.namespaceSelector: missing"),
            (
                json!({"namespaceSelector": {}}),
                "spec.quota: missing; write the spec of a VgpuQuota",
            ),
            (
                json!({"namespaceSelector": {}, "quota": {"hard": {"memory": "80GB"}}}),
                "spec.quota.hard.memory: \"80GB\" has the unknown unit",
            ),
            (
                json!({"namespaceSelector": {}, "quota": {"hrad": {}}}),
                "spec.quota.\"hrad\": unknown field",
            ),
        ] {
            let said = DefaultSpec::parse(&spec).unwrap_err();
            assert!(said.starts_with(words), "{spec}: {said}");
        }
        DefaultSpec::parse(&json!({"namespaceSelector": {}, "quota": {}})).unwrap();
    }

    #[test]
    fn a_quota_that_an_administrator_changed_is_no_longer_the_defaults() {
        let (a, b) = (
            json!({"hard": {"shares": 1, "cores": 2}}),
            json!({"hard": {"cores": 2, "shares": 2}}),
        );
        let labels = BTreeMap::from([(FROM_DEFAULT.to_owned(), "teams".to_owned())]);
        let stamped = BTreeMap::from([(STAMPED_SPEC.to_owned(), a.to_string())]);
        let same = json!({"hard": {"cores": 2, "shares": 1}});
        assert_eq!(Stamped::read(&labels, &stamped, &same).unwrap().default, "teams");
        assert_eq!(Stamped::read(&labels, &stamped, &b), None);
        assert_eq!(Stamped::read(&labels, &BTreeMap::new(), &a), None, "a label by hand");
        assert_eq!(Stamped::read(&BTreeMap::new(), &stamped, &a), None);
    }
}
