//! Matches nodes with node selectors.

use crate::model::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// An invalid selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error(
        "node selector: key {key:?}: unknown operator {operator:?}; it is In, NotIn, Exists, DoesNotExist, Gt or Lt, and for matchFields In or NotIn"
    )]
    Operator { key: String, operator: String },
    #[error("node selector: key {key:?}: {operator} takes {wanted}, not {count} values")]
    Values {
        key: String,
        operator: String,
        wanted: &'static str,
        count: usize,
    },
    #[error("node selector: key {key:?}: {operator} compares whole numbers, and {value:?} is none")]
    Number {
        key: String,
        operator: String,
        value: String,
    },
}

/// Returns true if any term matches. A selector with an error in any term is an error, even if other terms match.
///
/// # Errors
/// The invalid requirement.
pub fn matches(selector: &NodeSelector, node: &Node) -> Result<bool, SelectorError> {
    let mut matched = false;
    for term in &selector.node_selector_terms {
        matched |= term_matches(term, node)?;
    }
    Ok(matched)
}

/// What can be targeted: a slice, or a device of a slice with `perDeviceNodeSelection`.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub name: Option<&'a str>,
    pub all: bool,
    pub selector: Option<&'a NodeSelector>,
}

impl Target<'_> {
    /// Returns true if the target includes the node. An empty target includes none.
    ///
    /// # Errors
    /// The selector is invalid.
    pub fn includes(&self, node: &Node) -> Result<bool, SelectorError> {
        match (self.name.filter(|name| !name.is_empty()), self.selector) {
            (Some(name), _) => Ok(name == node.metadata.name),
            (None, _) if self.all => Ok(true),
            (None, Some(selector)) => matches(selector, node),
            (None, None) => Ok(false),
        }
    }
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> Result<bool, SelectorError> {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return Ok(false); // an empty term selects nothing
    }
    let mut matched = true;
    for requirement in &term.match_expressions {
        let label = node.metadata.labels.get(&requirement.key).map(String::as_str);
        matched &= label_matches(requirement, label)?;
    }
    for requirement in &term.match_fields {
        matched &= field_matches(requirement, &node.metadata.name)?;
    }
    Ok(matched)
}

fn label_matches(requirement: &NodeSelectorRequirement, label: Option<&str>) -> Result<bool, SelectorError> {
    let values = &requirement.values;
    let count = |wanted, fits| {
        if fits {
            return Ok(());
        }
        Err(SelectorError::Values {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
            wanted,
            count: values.len(),
        })
    };
    let is_listed = |label: &str| values.iter().any(|value| value == label);
    match requirement.operator.as_str() {
        "In" => count("at least one value", !values.is_empty()).map(|()| label.is_some_and(is_listed)),
        "NotIn" => count("at least one value", !values.is_empty()).map(|()| !label.is_some_and(is_listed)),
        "Exists" => count("no value", values.is_empty()).map(|()| label.is_some()),
        "DoesNotExist" => count("no value", values.is_empty()).map(|()| label.is_none()),
        "Gt" | "Lt" => {
            count("one value", values.len() == 1)?;
            let bound: i64 = values[0].parse().map_err(|_| SelectorError::Number {
                key: requirement.key.clone(),
                operator: requirement.operator.clone(),
                value: values[0].clone(),
            })?;
            let number = label.and_then(|label| label.parse::<i64>().ok());
            Ok(number.is_some_and(|number| match requirement.operator.as_str() {
                "Gt" => number > bound,
                _ => number < bound,
            }))
        }
        _ => Err(unknown_operator(requirement)),
    }
}

/// The only field is `metadata.name`; any other one is empty.
fn field_matches(requirement: &NodeSelectorRequirement, name: &str) -> Result<bool, SelectorError> {
    let negated = match requirement.operator.as_str() {
        "In" => false,
        "NotIn" => true,
        _ => return Err(unknown_operator(requirement)),
    };
    let [value] = &requirement.values[..] else {
        return Err(SelectorError::Values {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
            wanted: "one value in matchFields",
            count: requirement.values.len(),
        });
    };
    if name.is_empty() {
        return Ok(true); // a node without a name has no fields to match
    }
    let field = if requirement.key == "metadata.name" { name } else { "" };
    Ok((field == value) != negated)
}

fn unknown_operator(requirement: &NodeSelectorRequirement) -> SelectorError {
    SelectorError::Operator {
        key: requirement.key.clone(),
        operator: requirement.operator.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        serde_json::from_str(r#"{"metadata":{"name":"n1","labels":{"zone":"a","gpus":"8"}}}"#).unwrap()
    }

    fn check(selector: &str) -> Result<bool, SelectorError> {
        matches(&serde_json::from_str(selector).unwrap(), &node())
    }

    fn expression(expression: &str) -> Result<bool, SelectorError> {
        check(&format!(
            r#"{{"nodeSelectorTerms":[{{"matchExpressions":[{expression}]}}]}}"#
        ))
    }

    #[test]
    fn labels_are_compared_as_kubernetes_does() {
        for (text, expected) in [
            (r#"{"key":"zone","operator":"In","values":["a","b"]}"#, true),
            (r#"{"key":"zone","operator":"In","values":["b"]}"#, false),
            (r#"{"key":"none","operator":"In","values":["a"]}"#, false),
            (r#"{"key":"zone","operator":"NotIn","values":["b"]}"#, true),
            (r#"{"key":"none","operator":"NotIn","values":["a"]}"#, true),
            (r#"{"key":"zone","operator":"Exists"}"#, true),
            (r#"{"key":"none","operator":"DoesNotExist"}"#, true),
            (r#"{"key":"gpus","operator":"Gt","values":["7"]}"#, true),
            (r#"{"key":"gpus","operator":"Lt","values":["8"]}"#, false),
            (r#"{"key":"zone","operator":"Gt","values":["7"]}"#, false),
        ] {
            assert_eq!(expression(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_an_empty_one_selects_nothing() {
        assert_eq!(check(r#"{"nodeSelectorTerms":[]}"#), Ok(false));
        assert_eq!(check(r#"{"nodeSelectorTerms":[{}]}"#), Ok(false));
        let name = |operator, value| {
            check(&format!(
                r#"{{"nodeSelectorTerms":[{{}},{{"matchFields":[{{"key":"metadata.name","operator":"{operator}","values":["{value}"]}}]}}]}}"#
            ))
        };
        assert_eq!(name("In", "n1"), Ok(true));
        assert_eq!(name("In", "n2"), Ok(false));
        assert_eq!(name("NotIn", "n2"), Ok(true));
    }

    #[test]
    fn a_selector_that_means_nothing_is_an_error_that_names_its_key() {
        for text in [
            r#"{"key":"zone","operator":"Is","values":["a"]}"#,
            r#"{"key":"zone","operator":"In"}"#,
            r#"{"key":"zone","operator":"Exists","values":["a"]}"#,
            r#"{"key":"zone","operator":"Gt","values":["a"]}"#,
            r#"{"key":"zone","operator":"Gt","values":["1","2"]}"#,
        ] {
            assert!(expression(text).unwrap_err().to_string().contains("\"zone\""), "{text}");
        }
    }
}
