//! The answer about a workload: its pods by what they wait for, why there are not more, and how many more would fit.

use serde_json::{Value, json};
use vgpu_allocator::offline::Options;
use vgpu_planner::explain::{Fit, Standing, fit, groups};

use super::super::documents::Object;
use super::super::workload::{Templates, pods_at_a_time, workload};
use super::super::{OfflineError, now};
use super::answer::{namespace_of, not_known};
use super::asked::{AskedError, WorkloadKind, nearest};
use super::events;
use super::known::Known;
use super::told::Told;
use super::waiting::{explain, group_lines};

/// Conditions of workloads that explain missing pods, with the status that they then have.
const CONDITIONS: [(&str, &str); 7] = [
    ("ReplicaFailure", "True"),
    ("Progressing", "False"),
    ("Available", "False"),
    ("Failed", "True"),
    ("FailureTarget", "True"),
    ("Suspended", "True"),
    ("Complete", "True"),
];

/// Explains a workload.
pub(super) fn of(
    known: &Known,
    kind: &WorkloadKind,
    name: &str,
    options: &Options,
    most: usize,
) -> Result<Told, OfflineError> {
    let object = find(known, kind.name, name)?;
    let makers = makers(known, object, kind);
    let pods = known
        .objects
        .pods()
        .filter(|pod| makers.iter().any(|maker| owns(maker, pod)));
    let mut explained = Vec::new();
    for one in explain(known, pods, options)? {
        explained.push(one.map_err(OfflineError::Pod)?);
    }
    explained.retain(|(explanation, _)| !explanation.has_ended);
    let pods = explained.len();
    let has_all = |standing: Standing| matches!(standing, Standing::NoClaims | Standing::HasDevices);
    let (ready, waiting): (Vec<_>, Vec<_>) = explained.into_iter().partition(|(one, _)| has_all(one.state));
    let groups = groups(waiting);
    let wanted = wanted(&object.value);
    let missing = wanted.map_or(0, |wanted| wanted.saturating_sub(pods));
    let (why, fits) = match missing {
        0 => (why_ended(object), None),
        missing => (
            why_missing(known, &makers),
            Some(more(known, object, missing, options)?),
        ),
    };
    let mut lines = vec![first_line(object, wanted, pods, ready.len())];
    let mut ends: Vec<String> = why.iter().map(|line| format!("  {line}")).collect();
    ends.extend(fits.iter().flat_map(|fits| fit_lines(fits, missing)));
    ends.extend(known.quota_lines());
    ends.extend(not_known(&known.unknown));
    lines.extend(group_lines(&groups, most.saturating_sub(1 + ends.len())));
    lines.extend(ends);
    Ok(Told {
        lines,
        document: json!({
            "kind": kind.name, "namespace": namespace_of(&object.value), "name": name, "wanted": wanted, "pods": pods,
            "havingDevices": ready.len(), "groups": groups, "missing": missing, "why": why,
            "fit": fits.and_then(Result::ok), "unknown": known.unknown,
        }),
        is_yes: groups.is_empty() && missing == 0,
    })
}

fn find<'k>(known: &'k Known, kind: &str, name: &str) -> Result<&'k Object, OfflineError> {
    let here = || {
        known
            .others(kind)
            .filter(|object| known.is_here(namespace_of(&object.value)))
    };
    let found = here().find(|object| object.value["metadata"]["name"] == name);
    found.ok_or_else(|| {
        let names = here().filter_map(|object| object.value["metadata"]["name"].as_str());
        let error = AskedError::NotFound {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: known.one_namespace().to_owned(),
            meant: nearest(name, names),
            hint: known.hint(),
        };
        error.into()
    })
}

/// The workload, and the objects between it and its pods: ReplicaSets of a Deployment, Jobs of a CronJob.
fn makers<'k>(known: &'k Known, object: &'k Object, kind: &WorkloadKind) -> Vec<&'k Object> {
    let between = match kind.name {
        "Deployment" => "ReplicaSet",
        "CronJob" => "Job",
        _ => return vec![object],
    };
    let made = known.others(between).filter(|made| owns(object, &made.value));
    std::iter::once(object).chain(made).collect()
}

/// Returns true if `object` is an owner of `other`.
fn owns(object: &Object, other: &Value) -> bool {
    let owner = &object.value;
    let is_it = |reference: &Value| {
        reference["kind"] == owner["kind"]
            && reference["name"] == owner["metadata"]["name"]
            && reference["uid"]
                .as_str()
                .is_none_or(|uid| owner["metadata"]["uid"].as_str().is_none_or(|of| of == uid))
    };
    let references = other["metadata"]["ownerReferences"].as_array();
    namespace_of(owner) == namespace_of(other) && references.is_some_and(|all| all.iter().any(is_it))
}

/// How many pods it wants now. `None` if that is not known: a CronJob has pods only while it runs.
fn wanted(object: &Value) -> Option<usize> {
    let (spec, status) = (&object["spec"], &object["status"]);
    match object["kind"].as_str()? {
        "CronJob" => None,
        "DaemonSet" => status["desiredNumberScheduled"].as_u64()?.try_into().ok(),
        "Job" if spec["suspend"] == true || has_ended(object) => Some(0),
        "Job" => {
            let at_a_time = pods_at_a_time(object)?;
            let completions = spec["completions"]
                .as_u64()
                .and_then(|count| usize::try_from(count).ok());
            let succeeded = status["succeeded"]
                .as_u64()
                .and_then(|count| usize::try_from(count).ok());
            let left = completions.map(|all| all.saturating_sub(succeeded.unwrap_or(0)));
            Some(left.map_or(at_a_time, |left| left.min(at_a_time)))
        }
        _ => pods_at_a_time(object),
    }
}

fn has_ended(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let is_end = |condition: &Value| {
        matches!(condition["type"].as_str(), Some("Complete" | "Failed")) && condition["status"] == "True"
    };
    conditions.is_some_and(|conditions| conditions.iter().any(is_end))
}

fn first_line(object: &Object, wanted: Option<usize>, pods: usize, ready: usize) -> String {
    let wanted = wanted.map_or_else(String::new, |wanted| format!(" of {wanted} wanted"));
    format!(
        "{}: {pods}{wanted} pods exist, and {ready} wait for no GPU",
        object.name()
    )
}

/// Why a workload may have no pods although none is missing.
fn why_ended(object: &Object) -> Vec<String> {
    let spec = &object.value["spec"];
    let mut why = Vec::new();
    if spec["replicas"] == 0 {
        why.push("spec.replicas is 0, so it wants no pod".to_owned());
    }
    if spec["suspend"] == true {
        why.push("spec.suspend is true, so it makes no pod".to_owned());
    }
    why.extend(conditions(object));
    why
}

/// Why pods are missing: conditions and events of the workload and of the objects that make its pods.
fn why_missing(known: &Known, makers: &[&Object]) -> Vec<String> {
    let mut why: Vec<String> = makers.iter().flat_map(|maker| conditions(maker)).collect();
    let all = known.values("Event");
    for maker in makers {
        let (kind, name) = (&maker.value["kind"], &maker.value["metadata"]["name"]);
        let (kind, name) = (kind.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
        let said = events::warnings(&all, kind, namespace_of(&maker.value), name);
        why.extend(said.into_iter().map(|event| format!("{}: {event}", maker.name())));
    }
    why.dedup();
    if let Some(error) = known.unread.get(crate::cluster::EVENTS.plural) {
        why.push(format!("events that may say why are not known: {error}"));
    }
    if why.is_empty() {
        why.push("no condition and no event says why pods are missing; kube-controller-manager makes them".to_owned());
    }
    why
}

fn conditions(object: &Object) -> Vec<String> {
    let conditions = object.value["status"]["conditions"].as_array();
    let says_why = |condition: &&Value| {
        let (kind, status) = (condition["type"].as_str(), condition["status"].as_str());
        CONDITIONS
            .iter()
            .any(|(known, says)| kind == Some(known) && status == Some(says))
    };
    let conditions = conditions.into_iter().flatten().filter(says_why);
    let line = |condition: &Value| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let (kind, status) = (text("type"), text("status"));
        format!(
            "{}: {kind} is {status} ({}): {}",
            object.name(),
            text("reason"),
            text("message")
        )
    };
    conditions.map(line).collect()
}

/// How many more pods of its template would fit, or why that is not known.
fn more(
    known: &Known,
    object: &Object,
    missing: usize,
    options: &Options,
) -> Result<Result<Fit, String>, OfflineError> {
    if !known.knows_devices() {
        return Ok(Err("what is free is not known".to_owned()));
    }
    let templates = Templates::of(known.others("ResourceClaimTemplate"), known.one_namespace());
    match workload(object, &templates, known.one_namespace()) {
        Ok(mut asked) => {
            asked.pods = missing;
            Ok(Ok(fit(&known.objects, &asked, options, now())?))
        }
        Err(why) => Ok(Err(why)),
    }
}

fn fit_lines(fits: &Result<Fit, String>, missing: usize) -> Vec<String> {
    match fits {
        Ok(found) => {
            let mut lines = vec![format!(
                "  of the {missing} missing pods {} would have their GPUs now",
                found.fits
            )];
            lines.extend(found.summary.iter().map(|line| format!("  the next one: {line}")));
            lines
        }
        Err(why) => vec![format!("  whether the missing pods would fit: {why}")],
    }
}
