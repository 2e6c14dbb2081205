//! Implements `vgpu explain`: why a pod or a claim is Pending.

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use vgpu_allocator::SelectorCache;
use vgpu_allocator::offline::{Options, Subject};
use vgpu_planner::Time;

use super::{OfflineError, features, kubectl, objects_in, print, yaml};
use crate::exit;
use crate::flags::{AnswerFormat, ExplainFlags};

pub(crate) fn main(flags: &ExplainFlags) -> ExitCode {
    match run(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit::DOES_NOT_FIT),
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vgpu explain: {error}");
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Returns true if nothing blocks it.
fn run(flags: &ExplainFlags) -> Result<bool, OfflineError> {
    let options = Options {
        node: flags.node.clone(),
        features: features(&flags.feature_gates)?,
        ..Options::default()
    };
    let subject = Subject::parse(&flags.subject, &flags.namespace)?;
    let objects = match flags.files.is_empty() {
        true => kubectl::objects(&flags.namespace)?,
        false => objects_in(&flags.files)?,
    };
    let answer = vgpu_planner::explain(objects, &subject, &options, &mut SelectorCache::default(), now())?;
    // Cannot fail: it has only texts, lists and numbers.
    let document = || serde_json::to_value(&answer).unwrap_or_default();
    print(&match flags.output {
        AnswerFormat::Text => answer.to_string() + &quota(flags),
        AnswerFormat::Json => format!("{:#}\n", document()),
        AnswerFormat::Yaml => yaml(&document())?,
    })?;
    Ok(answer.fits())
}

/// Describes the namespace's quota, which may be why a pod waits. Empty if the input is files instead of a cluster.
fn quota(flags: &ExplainFlags) -> String {
    let line = flags
        .files
        .is_empty()
        .then(|| kubectl::quota(&flags.namespace))
        .flatten();
    line.map(|line| line + "\n").unwrap_or_default()
}

/// The current time: a device's taint for the controller counts only once it is old enough.
fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
