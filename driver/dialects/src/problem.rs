//! Why a pod is refused, and what its author should know: field, value and what to do, as Kubernetes writes it.

use std::fmt;

use vgpu_quantity::{quoted, shortened};

/// The most problems that a refusal names, so that its size does not depend on the pod's.
const MOST_PROBLEMS: usize = 8;

/// One thing that is wrong, and its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field's path: `spec.containers[0].resources.limits[nvidia.com/gpumem]`.
    pub field: String,
    /// The value as it is written; `None` where the field itself is the problem.
    pub value: Option<String>,
    /// What is wrong and what to do.
    pub advice: String,
}

impl Problem {
    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            value: Some(value.into()),
            advice: advice.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = shorten_path(&self.field);
        match &self.value {
            Some(value) => write!(f, "{field}: Invalid value: {}: {}", quoted(value), self.advice),
            None => write!(f, "{field}: {}", self.advice),
        }
    }
}

/// A tenant chooses the keys of annotations and resources, and so the length of their paths.
fn shorten_path(field: &str) -> String {
    match field.split_once('[') {
        Some((head, rest)) if field.len() > 160 => format!("{head}[{}", shortened(rest)),
        _ => field.to_owned(),
    }
}

/// The pod cannot run as it asks to. Its text is the answer of the API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    problems: Vec<Problem>,
    more: usize,
}

impl Refusal {
    /// `None` if there is no problem.
    pub(crate) fn of(mut problems: Vec<Problem>) -> Option<Self> {
        let more = problems.len().saturating_sub(MOST_PROBLEMS);
        problems.truncate(MOST_PROBLEMS);
        (!problems.is_empty()).then_some(Self { problems, more })
    }

    /// Everything that is wrong, at most eight problems.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
            more: 0,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            write!(f, "{between}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more problems"),
        }
    }
}

/// What the pod's author should know although the pod is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The field's path.
    pub field: String,
    pub text: String,
}

impl Warning {
    pub(crate) fn new(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            text: text.into(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shorten_path(&self.field), self.text)
    }
}
