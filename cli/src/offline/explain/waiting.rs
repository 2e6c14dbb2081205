//! The answer about many pods: pods that wait for the same reason share one text.

use std::collections::HashMap;

use serde_json::{Value, json};
use vgpu_allocator::offline::Options;
use vgpu_planner::explain::{Explainer, Explanation, Standing, Subject, Waiting, groups};

use super::super::{OfflineError, now};
use super::answer::{add_dialect, namespace_of, not_known};
use super::events;
use super::known::Known;
use super::told::Told;

/// The most pods to name per group without `--all`.
const NAMES: usize = 3;

/// Explains all pods that wait, and those that have their shares with something wrong.
pub(super) fn of(
    known: &Known,
    options: &Options,
    most: usize,
    failed: &mut Vec<String>,
) -> Result<Told, OfflineError> {
    let pods = known.objects.pods().filter(|pod| known.is_here(namespace_of(pod)));
    let all = explain(known, pods, options)?;
    let mut found = Vec::new();
    for one in all {
        match one {
            Ok(one) if concerns(&one.0) => found.push(one),
            Ok(_) => {}
            Err(why) => failed.push(why),
        }
    }
    let (placed, waiting): (Vec<_>, Vec<_>) = found.into_iter().partition(|(one, _)| one.is_placed);
    let (groups, placed) = (groups(waiting), groups(placed));
    let pods = |groups: &[Waiting]| -> usize {
        let of_shares = groups.iter().filter(|group| !group.is_monitor);
        of_shares.map(|group| group.pods.len()).sum()
    };
    let shares = pods(&groups);
    let place = match &known.namespace {
        Some(namespace) => format!("of namespace {namespace}"),
        None => "of all namespaces".to_owned(),
    };
    let reasons = groups.iter().filter(|group| !group.is_monitor).count();
    let mut lines = vec![match (shares, reasons) {
        (0, _) => format!("no pod {place} waits for a share of a GPU"),
        (1, _) => format!("1 pod {place} waits for its share of a GPU"),
        (_, 1) => format!("{shares} pods {place} wait for their shares of GPUs, for one reason"),
        _ => format!("{shares} pods {place} wait for their shares of GPUs, for {reasons} reasons"),
    }];
    let mut ends = known.quota_lines();
    ends.extend(not_known(&known.unknown));
    lines.extend(group_lines(&groups, most.saturating_sub(1 + ends.len())));
    if !placed.is_empty() {
        lines.push(match pods(&placed) {
            1 => "1 pod has its share, and something else is wrong".to_owned(),
            pods => format!("{pods} pods have their shares, and something else is wrong"),
        });
        lines.extend(group_lines(&placed, most.saturating_sub(lines.len() + ends.len())));
    }
    lines.extend(ends);
    Ok(Told {
        lines,
        is_yes: groups.is_empty() && placed.is_empty(),
        document: json!({"waiting": shares, "groups": groups, "placed": placed, "unknown": known.unknown}),
    })
}

/// Returns true for a pod that has not ended, and that has less than it asks for or something wrong with it. A pod that
/// would fit also waits: it has not been scheduled.
fn concerns(explanation: &Explanation) -> bool {
    let has_all = matches!(explanation.state, Standing::NoClaims | Standing::HasDevices);
    explanation.is_ours && !explanation.has_ended && !has_all
}

/// An explanation, and the quota's and events' lines about the pod.
type Explained = (Explanation, Vec<String>);

/// Explains pods, each with its lines from the quota and events. A pod that cannot be explained gets a sentence.
pub(super) fn explain<'v>(
    known: &Known,
    pods: impl Iterator<Item = &'v Value>,
    options: &Options,
) -> Result<Vec<Result<Explained, String>>, OfflineError> {
    let mut explainer = Explainer::new(&known.objects, options, now());
    // By name, because there may be as many events as pods.
    let mut events: HashMap<String, Vec<Value>> = HashMap::new();
    for event in known.values("Event") {
        let name = event["regarding"]["name"].as_str().unwrap_or_default().to_owned();
        events.entry(name).or_default().push(event);
    }
    let mut all = Vec::new();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = namespace_of(pod);
        let subject = Subject::parse(&format!("pod/{name}"), namespace)?;
        let found = match known.knows_devices() {
            true => explainer.explain_briefly(&subject),
            false => explainer.outline(&subject),
        };
        all.push(found.map_err(|error| error.to_string()).map(|mut explanation| {
            add_dialect(&mut explanation, known);
            let quota = known.quotas.said(namespace, Some(name));
            quota.settle(&mut explanation);
            let mut more = quota.notices;
            if !known.knows_devices() {
                // Only the newest event: it describes the present. Its time is left out, because it would separate
                // otherwise equal pods.
                let said = events::ours(events.get(name).map_or(&[], Vec::as_slice), "Pod", namespace, name);
                more.extend(said.into_iter().next().map(|event| {
                    event
                        .split_once("): ")
                        .map_or(event.clone(), |(_, note)| note.to_owned())
                }));
                if more.is_empty() && explanation.obstacles.is_empty() {
                    more.push("its claims are not allocated, and nobody has said why yet".to_owned());
                }
            }
            (explanation, more)
        }));
    }
    Ok(all)
}

/// The groups in at most `most` lines, and how many are left out.
pub(super) fn group_lines(groups: &[Waiting], most: usize) -> Vec<String> {
    let names = if most == usize::MAX { usize::MAX } else { NAMES };
    let mut lines: Vec<String> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let mut of_group = vec![format!("{}: {}", group.who(names), group.reason).trim_end().to_owned()];
        of_group.extend(group.sentences.iter().map(|sentence| format!("  {sentence}")));
        // The last line is for what is left out.
        let left = most.saturating_sub(lines.len() + usize::from(at + 1 < groups.len()));
        if of_group.len() > left {
            let pods: usize = groups[at..].iter().map(|group| group.pods.len()).sum();
            lines.push(format!("and {pods} more, for other reasons: --all prints them"));
            break;
        }
        lines.extend(of_group);
    }
    lines
}
