//! Answers of `vgpu top` and `vgpu advise`, and why there is none.

use std::io::Write as _;
use std::process::ExitCode;

use serde_json::Value;

use crate::cluster::{ConnectError, ReadError};
use crate::exit;
use crate::flags::AnswerFormat;
use crate::output::{clean, print};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsageError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{error}; {hint}")]
    Refused { error: ReadError, hint: &'static str },
    #[error(
        "the cluster has no {kind}: its release of dra-driver-vgpu writes no usage; have the chart upgraded, with its CustomResourceDefinitions"
    )]
    NotServed { kind: &'static str },
    #[error(
        "namespace {namespace} has claims with a device ({claims}), and vgpu-controller has written no VgpuUsage for it: it \
         does within a minute of the first share. If there is none later, is the chart's usage.enabled true? `kubectl vgpu \
         doctor` says if it runs"
    )]
    NotWritten { namespace: String, claims: usize },
    #[error("{subject}: namespace {namespace} has no share of that name; {known}")]
    UnknownSubject {
        subject: String,
        namespace: String,
        known: String,
    },
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Prints an answer, or says why there is none.
pub(super) fn end(command: &str, answer: Result<String, UsageError>) -> ExitCode {
    match answer.and_then(|text| Ok(print(&text)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(command, &error.to_string());
            ExitCode::from(exit::USAGE)
        }
    }
}

pub(super) fn say(command: &str, line: &str) {
    // The reader of stderr may have closed it.
    let _ = writeln!(std::io::stderr(), "vgpu {command}: {}", clean(line));
}

/// Returns the answer in this format; `text` and `document` make it.
pub(super) fn rendered(
    format: AnswerFormat,
    text: impl FnOnce() -> String,
    document: impl FnOnce() -> Value,
) -> String {
    match format {
        AnswerFormat::Text => text(),
        AnswerFormat::Json => format!("{:#}\n", document()),
        // Cannot fail: it has only texts, lists and numbers.
        AnswerFormat::Yaml => serde_saphyr::to_string(&document()).unwrap_or_default(),
    }
}
