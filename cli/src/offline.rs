//! Implements `vgpu allocate`, `vgpu explain` and `vgpu fit`, which run the controller's allocator on objects in files or of a
//! cluster, `vgpu slices` ([`slices`]), and `vgpu translate` ([`translate`]).
//!
//! ```text
//! files, or a cluster ─► documents (YAML or JSON) ─► vgpu_allocator::offline ─► text, JSON or YAML
//! ```
//!
//! Writes only to stdout and stderr, and reads only the named files or the cluster ([`cluster`](crate::cluster)). Exit status 0:
//! it fits; 1: it does not, and the answer has the reasons; 2: an error in the flags, or in the input: then the answer, if
//! there is one, is about the documents that can be read.
#![forbid(unsafe_code)]

pub(crate) mod allocate;
mod dialect;
mod documents;
pub(crate) mod explain;
pub(crate) mod fit;
mod quota;
mod seen;
pub(crate) mod slices;
pub(crate) mod translate;
mod workload;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use vgpu_allocator::offline::{self, Objects};
use vgpu_allocator::{FeatureError, Features};
use vgpu_planner::Time;
use vgpu_planner::explain::ExplainError;

use crate::cluster::{ConnectError, ReadError};
use crate::exit;
use documents::{Documents, FileError};

/// The errors of these commands.
#[derive(Debug, thiserror::Error)]
enum OfflineError {
    #[error("--feature-gates: {0}")]
    Features(#[from] FeatureError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Offline(#[from] offline::OfflineError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Asked(#[from] explain::AskedError),
    #[error("{0}")]
    Pod(String),
    #[error("the answer cannot be written as YAML: {0}; use -o json")]
    Yaml(String),
    #[error("standard output: {0}")]
    Output(#[source] std::io::Error),
}

fn features(gates: &[String]) -> Result<Features, OfflineError> {
    let features = gates
        .iter()
        .try_fold(Features::default(), |features, text| features.parse(text))?;
    Ok(features)
}

/// Writes a line to stderr, without control characters of names. Errors are ignored: the reader of stderr may have closed it.
fn say(command: &str, line: impl fmt::Display) {
    let line = line.to_string().replace(char::is_control, " ");
    let _ = writeln!(std::io::stderr(), "vgpu {command}: {line}");
}

/// The exit status. Also reports the parts of the input that could not be read.
fn status(failed: &[String], is_yes: bool) -> ExitCode {
    match (failed, is_yes) {
        ([], true) => ExitCode::SUCCESS,
        ([], false) => ExitCode::from(exit::NO),
        _ => ExitCode::from(exit::USAGE),
    }
}

/// Decodes the documents. Also returns a sentence for each one that cannot be read; the answer is about the rest.
fn objects(documents: Documents) -> (Objects, Vec<String>) {
    let mut objects = Objects::default();
    let mut failed = documents.failed;
    for object in documents.objects {
        let (origin, name) = (object.place.origin.clone(), object.name());
        if let Err(why) = objects.add(object.value, &origin) {
            failed.push(format!("{origin}: {name}: {why}"));
        }
    }
    (objects, failed)
}

/// Formats as YAML.
fn yaml(answer: &Value) -> Result<String, OfflineError> {
    serde_saphyr::to_string(answer).map_err(|error| OfflineError::Yaml(error.to_string()))
}

fn print(text: &str) -> Result<(), OfflineError> {
    crate::output::print(text).map_err(OfflineError::Output)
}

/// The current time. The controller allocates a device only once its taint is old enough.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
