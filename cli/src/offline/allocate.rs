//! Implements `vgpu allocate`: runs the controller's allocator on objects in files, without a cluster.
//!
//! ```text
//! files ─► documents (YAML or JSON) ─► vgpu_allocator::offline ─► a List on stdout, reasons as sentences on stderr
//! ```
//!
//! Writes only to stdout and stderr, and reads only the named files. Exit status 0: everything was allocated;
//! 1: it does not fit, and the List has the reasons; 2: an error in the flags or in the input. The List is then about the
//! documents that can be read, if a claim is among them.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::process::ExitCode;

use vgpu_allocator::SelectorCache;
use vgpu_allocator::offline::{self, Objects, Options};
use vgpu_api::config::UnknownPolicy;

use super::documents::Documents;
use super::{OfflineError, features, objects, print, say, status, yaml};
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
        Ok(code) => code,
        Err(error) => {
            say("allocate", error);
            ExitCode::from(exit::USAGE)
        }
    }
}

fn run(flags: &AllocateFlags) -> Result<ExitCode, AllocateError> {
    let options = Options {
        node: flags.node.clone(),
        policy: match &flags.policy {
            Some(name) => name.parse()?,
            None => Default::default(),
        },
        features: features(&flags.feature_gates)?,
    };
    let (objects, failed) = objects(Documents::read(&flags.files).map_err(OfflineError::from)?);
    failed.iter().for_each(|line| say("allocate", line));
    if !failed.is_empty() && !objects.has_waiting() {
        return Ok(ExitCode::from(exit::USAGE));
    }
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
    Ok(status(&failed, report.fits()))
}

fn uuid() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned())
}

fn print_reasons(objects: &Objects, report: &offline::Report) {
    let say = |line: &dyn Display| say("allocate", line);
    for object in objects.ignored() {
        say(&format_args!("{object}: objects of this kind are ignored"));
    }
    if !objects.has_waiting() {
        say(
            &"no claim in the input waits for devices; to try a ResourceClaimTemplate, write its spec.spec as the spec of a ResourceClaim",
        );
    }
    for reason in report.reasons().iter().take(MAX_REASONS) {
        say(reason);
    }
    let more = report.reasons().len().saturating_sub(MAX_REASONS);
    if more > 0 {
        say(&format_args!("and {more} more reasons; the List has all of them"));
    }
}
