//! `vgpu allocate`: the controller's allocator on objects in files, without a cluster.
//!
//! ```text
//!  files ─► documents (YAML or JSON) ─► vgpu_allocator::offline ─► a List on stdout, reasons in words on stderr
//! ```
//!
//! Nothing is written anywhere else, and nothing is read but the files that are named. Exit 0: everything was
//! allocated; 1: it does not fit, and the List says why; 2: a mistake in the flags or in the input.
#![forbid(unsafe_code)]

mod documents;

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;
use vgpu_allocator::offline::{self, InputError, Objects, OfflineError, Options};
use vgpu_allocator::{FeatureError, Features, SelectorCache, UnknownPolicy};

use crate::EXIT_USAGE;
use crate::flags::{AllocateFlags, OutputFormat};
use documents::DocumentError;

/// Said beside the whole of it in the List.
const REASONS_IN_WORDS: usize = 100;
const EXIT_DOES_NOT_FIT: u8 = 1;

#[derive(Debug, thiserror::Error)]
enum AllocateError {
    #[error("--policy: {0}")]
    Policy(#[from] UnknownPolicy),
    #[error("--feature-gates: {0}")]
    Features(#[from] FeatureError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error("/proc/sys/kernel/random/uuid: {0}; share ids are made from it")]
    Random(#[source] std::io::Error),
    #[error("the answer cannot be written as YAML: {0}; take -o json")]
    Yaml(String),
    #[error("standard output: {0}")]
    Output(#[source] std::io::Error),
}

pub(crate) fn main(flags: &AllocateFlags) -> ExitCode {
    match run(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_DOES_NOT_FIT),
        Err(AllocateError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vgpu allocate: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Whether everything was allocated.
fn run(flags: &AllocateFlags) -> Result<bool, AllocateError> {
    let options = Options {
        node: flags.node.clone(),
        policy: match &flags.policy {
            Some(name) => name.parse()?,
            None => Default::default(),
        },
        features: flags
            .feature_gates
            .iter()
            .try_fold(Features::default(), |features, text| features.parse(text))?,
    };
    let mut objects = Objects::default();
    for file in &flags.files {
        for document in documents::read(file)? {
            objects.add(document, &file.display().to_string())?;
        }
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
    say(&objects, &report);
    print(&report.document(), flags.output)?;
    Ok(report.fits())
}

fn uuid() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned())
}

fn say(objects: &Objects, report: &offline::Report) {
    let mut stderr = std::io::stderr().lock();
    // Who closed the other end wants no words.
    for object in objects.ignored() {
        let _ = writeln!(
            stderr,
            "vgpu allocate: {object}: objects of this kind are not looked at"
        );
    }
    for reason in report.reasons().iter().take(REASONS_IN_WORDS) {
        let _ = writeln!(stderr, "vgpu allocate: {reason}");
    }
    let more = report.reasons().len().saturating_sub(REASONS_IN_WORDS);
    if more > 0 {
        let _ = writeln!(
            stderr,
            "vgpu allocate: and {more} more reasons; the List has all of them"
        );
    }
}

fn print(list: &Value, format: OutputFormat) -> Result<(), AllocateError> {
    let text = match format {
        OutputFormat::Json => format!("{list:#}\n"),
        OutputFormat::Yaml => serde_saphyr::to_string(list).map_err(|error| AllocateError::Yaml(error.to_string()))?,
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(AllocateError::Output)
}
