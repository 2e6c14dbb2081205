//! Kubernetes' own allocator: `e2e/kubernetes-go allocate`.

use std::path::Path;

use serde::Deserialize;
use vgpu_cache::{Error, go};

/// What Kubernetes says.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) results: Option<serde_json::Value>,
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) timeout: bool,
}

pub(crate) struct Kubernetes(go::Answers);

impl Kubernetes {
    /// `Err` says why it cannot run here.
    pub(crate) fn start() -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/kubernetes-go");
        match go::Answers::of(&source, &["allocate"]) {
            Ok(answers) => Ok(Self(answers)),
            Err(Error::Unavailable(why)) => Err(why),
            Err(Error::Failed(why)) => panic!("{why}"),
        }
    }

    pub(crate) fn ask(&mut self, case: &serde_json::Value) -> Answer {
        let answer = self.0.ask(&case.to_string()).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{answer:?}: {e}"))
    }
}
