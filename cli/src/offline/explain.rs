//! Implements `vgpu explain`: why a pod or a claim is Pending.

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use vgpu_allocator::SelectorCache;
use vgpu_allocator::offline::{Explanation, InputError, Objects, Options, Subject};
use vgpu_planner::Time;

use super::{OfflineError, dialect, features, kubectl, objects_in, print, quota, yaml};
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
    // Files have no quota.
    let lists = match flags.files.is_empty() {
        true => Some(kubectl::lists(&flags.namespace)?),
        false => None,
    };
    let objects = match &lists {
        Some(lists) => objects_of(lists)?,
        None => objects_in(&flags.files)?,
    };
    let asks_elsewhere = dialect::asks(&objects, &subject);
    let mut answer = vgpu_planner::explain(objects, &subject, &options, &mut SelectorCache::default(), now())?;
    answer.obstacles.extend(asks_elsewhere);
    let quota = lists.map(|lists| quota::of(&flags.namespace, answer.pod(), &lists));
    let quota = quota.unwrap_or_default();
    let document = || document(&answer, &quota);
    print(&match flags.output {
        AnswerFormat::Text => {
            let lines = quota.lines.iter().map(|line| format!("{line}\n"));
            answer.to_string() + &lines.collect::<String>()
        }
        AnswerFormat::Json => format!("{:#}\n", document()),
        AnswerFormat::Yaml => yaml(&document())?,
    })?;
    Ok(answer.fits() && !quota.is_waited_for)
}

fn objects_of(lists: &[Value]) -> Result<Objects, InputError> {
    let mut objects = Objects::default();
    for list in lists {
        objects.add(list.clone(), "kubectl get")?;
    }
    Ok(objects)
}

fn document(answer: &Explanation, quota: &quota::Said) -> Value {
    // Cannot fail: it has only texts, lists and numbers.
    let mut document = serde_json::to_value(answer).unwrap_or_default();
    if !quota.lines.is_empty() {
        document["quota"] = json!(quota.lines);
    }
    document
}

/// The current time: a device's taint for the controller counts only once it is old enough.
fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
