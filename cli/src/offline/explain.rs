//! Implements `vgpu explain`: why pods wait, what a pod has, and what a workload or a template lacks.
//!
//! ```text
//!  words ─► Asked ─┬─► Known: files, or what the user may read of the cluster
//!                  ▼
//!   one pod or claim, all pods that wait, a workload, a template ─► Told: lines, a document, yes or no
//! ```
//!
//! How it fails: what may not be read is named, and the answer is about the rest ([`seen`](super::seen)). Texts of tenants'
//! objects have no control characters in the output, and at most [`MOST_LINES`](told::MOST_LINES) lines are printed without `--all`.

mod answer;
mod asked;
mod events;
mod known;
mod template;
mod told;
mod usage;
mod waiting;
mod workload;

use std::process::ExitCode;

use vgpu_allocator::offline::Options;

use super::{OfflineError, features, print, say, status, yaml};
use crate::exit;
use crate::flags::{AnswerFormat, ExplainFlags};
use crate::output::clean;
use asked::Asked;
pub(super) use asked::AskedError;
use known::Known;
use told::MOST_LINES;

pub(crate) fn main(flags: &ExplainFlags) -> ExitCode {
    match run(flags) {
        Ok(code) => code,
        Err(error) => {
            say("explain", error);
            ExitCode::from(exit::USAGE)
        }
    }
}

fn run(flags: &ExplainFlags) -> Result<ExitCode, OfflineError> {
    let asked = Asked::parse(&flags.subject, flags.all_namespaces)?;
    let options = Options {
        node: flags.look.node.clone(),
        features: features(&flags.look.feature_gates)?,
        ..Options::default()
    };
    let mut known = Known::read(flags, &asked)?;
    let mut failed = std::mem::take(&mut known.failed);
    let most = if flags.all { usize::MAX } else { MOST_LINES };
    let told = match &asked {
        Asked::Waiting => waiting::of(&known, &options, most, &mut failed),
        Asked::One(words) => answer::of(&known, words, &options, most),
        Asked::Template(name) => template::of(&mut known, name, &options, most),
        Asked::Workload(kind, name) => workload::of(&known, kind, name, &options, most),
    };
    failed.iter().for_each(|line| say("explain", line));
    let told = told?;
    print(&match flags.look.output {
        AnswerFormat::Text => told.lines.iter().map(|line| clean(line) + "\n").collect(),
        AnswerFormat::Json => format!("{:#}\n", told.document),
        AnswerFormat::Yaml => yaml(&told.document)?,
    })?;
    Ok(status(&failed, told.is_yes))
}
