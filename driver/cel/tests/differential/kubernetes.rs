//! Asks Kubernetes' own packages, by `e2e/kubernetes-go cel`.

use serde_json::Value;
use vgpu_cache::go;

pub(crate) struct Kubernetes(go::Answers);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) compiles: bool,
    pub(crate) result: Option<bool>,
    pub(crate) cost: u64,
    pub(crate) error: String,
    /// Kubernetes' packages panicked on the expression.
    pub(crate) panics: bool,
}

impl Answer {
    pub(crate) fn is_over_cost(&self) -> bool {
        self.error.contains("cost limit exceeded")
    }
}

impl Kubernetes {
    /// Starts the program. Returns the reason if it cannot be built.
    pub(crate) fn start() -> Result<Self, String> {
        go::Answers::of_kubernetes("cel").map(Self)
    }

    pub(crate) fn ask(&mut self, expression: &str, device: &Value) -> Answer {
        let question = serde_json::json!({"expression": expression, "device": device});
        let line = self.0.ask(&question.to_string()).expect("the program answers");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{expression}: {line:?}: {e}"));
        Answer {
            compiles: said["compiles"].as_bool().unwrap_or(false),
            result: said["result"].as_bool(),
            cost: said["cost"].as_u64().unwrap_or(0),
            error: said["error"].as_str().unwrap_or("").to_owned(),
            panics: said["panics"].as_bool().unwrap_or(false),
        }
    }
}
