//! Kubernetes' own allocator: `e2e/kubernetes-go allocate`.

use serde::Deserialize;
use vgpu_cache::go;

/// The answer of Kubernetes' allocator.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) results: Option<serde_json::Value>,
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) timeout: bool,
}

pub(crate) struct Kubernetes(go::Answers);

impl Kubernetes {
    /// Returns `Err` with the reason if it cannot run here.
    pub(crate) fn start() -> Result<Self, String> {
        go::Answers::of_kubernetes("allocate").map(Self)
    }

    pub(crate) fn ask(&mut self, case: &serde_json::Value) -> Answer {
        let answer = self.0.ask(&case.to_string()).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{answer:?}: {e}"))
    }
}
