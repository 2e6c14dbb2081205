//! Label selectors.

use litemap::LiteMap;
use serde::Deserialize;
use vgpu_allocator::model::{NodeSelectorRequirement, fitted, or_default};

/// All of its conditions must match; an empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    #[serde(deserialize_with = "or_default")]
    pub match_labels: LiteMap<String, String>,
    #[serde(deserialize_with = "fitted")]
    pub match_expressions: Vec<NodeSelectorRequirement>,
}

impl LabelSelector {
    /// An operator that the API server would have refused matches nothing.
    #[must_use]
    pub fn matches(&self, labels: &LiteMap<String, String>) -> bool {
        let exact = self
            .match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        exact
            && self.match_expressions.iter().all(|wanted| {
                let label = labels.get(&wanted.key);
                match wanted.operator.as_str() {
                    "In" => label.is_some_and(|label| wanted.values.contains(label)),
                    "NotIn" => !label.is_some_and(|label| wanted.values.contains(label)),
                    "Exists" => label.is_some(),
                    "DoesNotExist" => label.is_none(),
                    _ => false,
                }
            })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_must_match() {
        let labels = LiteMap::from_iter([("app".to_owned(), "train".to_owned())]);
        for (text, expected) in [
            ("{}", true),
            (r#"{"matchLabels":{"app":"train"}}"#, true),
            (r#"{"matchLabels":{"app":"train","tier":"a"}}"#, false),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"In","values":["train"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["a"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}"#,
                false,
            ),
            (r#"{"matchExpressions":[{"key":"app","operator":"Exists"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"app","operator":"Is"}]}"#, false),
        ] {
            let selector: LabelSelector = serde_json::from_str(text).unwrap();
            assert_eq!(selector.matches(&labels), expected, "{text}");
        }
    }
}
