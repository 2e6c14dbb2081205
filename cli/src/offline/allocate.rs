//! Implements `vgpu allocate`: runs the controller's allocator on objects in files, without a cluster.
//!
//! ```text
//! files ─► documents (YAML or JSON) ─► vgpu_allocator::offline ─► a List on stdout, reasons as sentences on stderr
//! ```
//!
//! Writes only to stdout and stderr, and reads only the named files. Exit status 0: everything was allocated;
//! 1: it does not fit, and the List has the reasons; 2: an error in the flags or in the input.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use vgpu_allocator::SelectorCache;
use vgpu_allocator::offline::{self, Objects, Options};
use vgpu_api::config::UnknownPolicy;

use super::{OfflineError, features, objects_in, print, yaml};
use crate::exit;
use crate::flags::{AllocateFlags, ListFormat};

/// Limit of the reasons printed to stderr; the List has all of them.
const MAX_REASONS: usize = 100;

#[derive(Debug, thiserror::Error)]
enum AllocateError {
    #[error("--policy: {0}")]
    Policy(#[from] UnknownPolicy),
    #[error("/proc/sys/kernel/random/uuid: {0}; share ids are made from it")]
    Random(#[source] std::io::Error),
    #[error(transparent)]
    Offline(#[from] OfflineError),
}

impl From<offline::OfflineError> for AllocateError {
    fn from(error: offline::OfflineError) -> Self {
        Self::Offline(error.into())
    }
}

pub(crate) fn main(flags: &AllocateFlags) -> ExitCode {
    match run(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit::DOES_NOT_FIT),
        Err(AllocateError::Offline(error)) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vgpu allocate: {error}");
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Returns true if everything was allocated.
fn run(flags: &AllocateFlags) -> Result<bool, AllocateError> {
    let options = Options {
        node: flags.node.clone(),
        policy: match &flags.policy {
            Some(name) => name.parse()?,
            None => Default::default(),
        },
        features: features(&flags.feature_gates)?,
    };
    let objects = objects_in(&flags.files)?;
    let mut no_id = None;
    let mut share_id = || {
        uuid().unwrap_or_else(|error| {
            no_id = Some(error);
            String::new()
        })
    };
    let report = offline::run(&objects, &options, &mut SelectorCache::default(), &mut share_id)?;
    if let Some(error) = no_id {
        return Err(AllocateError::Random(error));
    }
    print_reasons(&objects, &report);
    let list = report.document();
    print(&match flags.output {
        ListFormat::Json => format!("{list:#}\n"),
        ListFormat::Yaml => yaml(&list)?,
    })?;
    Ok(report.fits())
}

fn uuid() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned())
}

fn print_reasons(objects: &Objects, report: &offline::Report) {
    let mut stderr = std::io::stderr().lock();
    // Errors are ignored: the reader of stderr may have closed it.
    for object in objects.ignored() {
        let _ = writeln!(stderr, "vgpu allocate: {object}: objects of this kind are ignored");
    }
    if !objects.has_waiting() {
        let _ = writeln!(
            stderr,
            "vgpu allocate: no claim in the input waits for devices; to try a ResourceClaimTemplate, write its spec.spec as the spec of a ResourceClaim"
        );
    }
    for reason in report.reasons().iter().take(MAX_REASONS) {
        let _ = writeln!(stderr, "vgpu allocate: {reason}");
    }
    let more = report.reasons().len().saturating_sub(MAX_REASONS);
    if more > 0 {
        let _ = writeln!(
            stderr,
            "vgpu allocate: and {more} more reasons; the List has all of them"
        );
    }
}
