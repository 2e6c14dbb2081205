//! The answer about one pod or claim.

use serde_json::{Value, json};
use vgpu_allocator::offline::Options;
use vgpu_planner::explain::{ExplainError, Explainer, Explanation, Lines, Subject};

use super::super::quota::Said;
use super::super::{OfflineError, dialect, now};
use super::asked::{AskedError, nearest};
use super::known::Known;
use super::told::{Told, shortened};
use super::{events, usage};
use crate::cluster;

/// Explains the pod or claim of these words.
pub(super) fn of(known: &Known, words: &str, options: &Options, most: usize) -> Result<Told, OfflineError> {
    let subject = Subject::parse(words, known.one_namespace())?;
    let mut explainer = Explainer::new(&known.objects, options, now());
    let found = match known.knows_devices() {
        true => explainer.explain(&subject),
        false => explainer.outline(&subject),
    };
    let mut explanation = found.map_err(|error| match error {
        ExplainError::NoSubject { what, name, namespace } => AskedError::NotFound {
            meant: meant(known, what, &name),
            kind: what.to_owned(),
            name,
            namespace,
            hint: known.hint(),
        }
        .into(),
        other => OfflineError::from(other),
    })?;
    add_dialect(&mut explanation, known);
    if !explanation.devices.is_empty() {
        add_usage(&mut explanation, known);
    }
    let kind = if explanation.pod().is_some() {
        "Pod"
    } else {
        "ResourceClaim"
    };
    let events = match known.knows_devices() {
        true => Vec::new(),
        false => events::ours(&known.values("Event"), kind, &explanation.namespace, &explanation.name),
    };
    let quota = known.quotas.said(&explanation.namespace, explanation.pod());
    quota.settle(&mut explanation);
    Ok(told(&explanation, &events, &quota, &known.unknown, most))
}

/// The name of a pod or claim that may have been meant.
fn meant(known: &Known, what: &str, name: &str) -> Option<String> {
    if what == "claim" {
        let claims = known.objects.claims().map(|(claim, _)| &claim.metadata);
        let claims = claims.filter(|metadata| known.is_here(&metadata.namespace));
        return nearest(name, claims.map(|metadata| metadata.name.as_str()));
    }
    let pods = known.objects.pods().filter(|pod| known.is_here(namespace_of(pod)));
    nearest(name, pods.filter_map(|pod| pod["metadata"]["name"].as_str()))
}

/// If the pod asks only by another system's names and has no claim of ours, adds that nothing here serves it.
pub(super) fn add_dialect(explanation: &mut Explanation, known: &Known) {
    let Some(pod) = explanation.pod().filter(|_| explanation.waiting.is_empty()) else {
        return;
    };
    let key = match explanation.namespace.as_str() {
        "" => pod.to_owned(),
        namespace => format!("{namespace}/{pod}"),
    };
    if let Some(obstacle) = known.objects.pod(&key).and_then(dialect::asks) {
        explanation.add(obstacle.word(), obstacle.to_string());
        explanation.is_ours = true;
    }
}

fn add_usage(explanation: &mut Explanation, known: &Known) {
    let usages = known.values("VgpuUsage");
    let unread = known.unread.get(cluster::USAGES.plural);
    // Files may lack them.
    if known.is_of_cluster() || !usages.is_empty() {
        usage::add(explanation, unread.map_or(Ok(&usages), Err));
    }
}

fn told(explanation: &Explanation, events: &[String], quota: &Said, unknown: &[String], most: usize) -> Told {
    let Lines { mut answer, details } = explanation.lines();
    answer.extend(events.iter().map(|event| format!("  {event}")));
    let mut ends = quota.lines.clone();
    ends.extend(not_known(unknown));
    // Cannot fail: it has only texts, lists and numbers.
    let mut document = serde_json::to_value(explanation).unwrap_or_default();
    for (field, lines) in [("events", events), ("quota", &quota.lines), ("unknown", unknown)] {
        document[field] = json!(lines);
    }
    Told {
        lines: shortened(answer, details, ends, most),
        document,
        is_yes: explanation.fits(),
    }
}

/// Says which rights are missing.
pub(super) fn not_known(unknown: &[String]) -> Option<String> {
    let rights = unknown.join("; ");
    (!unknown.is_empty()).then(|| format!("not known, what is free on the GPUs: {rights}"))
}

/// The namespace of an object as it was given.
pub(super) fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}
