//! Implements `vgpu allocate` and `vgpu explain`, which run the controller's allocator on objects in files or of a
//! cluster, and `vgpu translate` ([`translate`]).
//!
//! ```text
//! files, or kubectl get ─► documents (YAML or JSON) ─► vgpu_allocator::offline ─► text, JSON or YAML
//! ```
//!
//! Writes only to stdout and stderr, and reads only the named files or the output of kubectl. Exit status 0:
//! it fits; 1: it does not, and the answer has the reasons; 2: an error in the flags or in the input.
#![forbid(unsafe_code)]

pub(crate) mod allocate;
mod dialect;
mod documents;
pub(crate) mod explain;
mod kubectl;
mod quota;
pub(crate) mod translate;

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;
use vgpu_allocator::offline::{self, InputError, Objects};
use vgpu_allocator::{FeatureError, Features};

use documents::DocumentError;
use kubectl::KubectlError;

/// The errors of both commands.
#[derive(Debug, thiserror::Error)]
enum OfflineError {
    #[error("--feature-gates: {0}")]
    Features(#[from] FeatureError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Offline(#[from] offline::OfflineError),
    #[error("the answer cannot be written as YAML: {0}; use -o json")]
    Yaml(String),
    #[error("standard output: {0}")]
    Output(#[source] std::io::Error),
}

impl OfflineError {
    /// True if the reader of stdout closed it, which is not an error.
    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

fn features(gates: &[String]) -> Result<Features, OfflineError> {
    let features = gates
        .iter()
        .try_fold(Features::default(), |features, text| features.parse(text))?;
    Ok(features)
}

fn objects_in(files: &[PathBuf]) -> Result<Objects, OfflineError> {
    let mut objects = Objects::default();
    for file in files {
        for document in documents::read(file)? {
            objects.add(document, &file.display().to_string())?;
        }
    }
    Ok(objects)
}

/// Formats as YAML.
fn yaml(answer: &Value) -> Result<String, OfflineError> {
    serde_saphyr::to_string(answer).map_err(|error| OfflineError::Yaml(error.to_string()))
}

fn print(text: &str) -> Result<(), OfflineError> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(OfflineError::Output)
}
