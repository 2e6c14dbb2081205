//! The translation itself.
//!
//! ```text
//!  pod ─undo─► the pod as its author wrote it ─plan─► Record ─apply─► the translated pod
//! ```
//!
//! A pod may come a second time: the API server calls a webhook again after others, and `kubectl apply` adds the
//! limits of the manifest to the translated pod. So a translation is undone first, by its record, and a pod in which
//! nothing of a dialect is left stays as it is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use vgpu_api::config::Dialect;

use crate::applied::{apply, undo};
use crate::keys::{DIALECTS, Kind, asks_by_resource, containers, is_removed, kai_annotations};
use crate::owners;
use crate::patch;
use crate::plan::plan;
use crate::pod::PodView;
use crate::problem::{Refusal, Warning};
use crate::record::{Record, TRANSLATED};
use crate::resources::{Findings, Resources};
use crate::settings::Settings;
use crate::translation::Translation;

/// The label with which HAMi's users opt a pod out.
const HAMI_WEBHOOK: &str = "hami.io/webhook";

/// Translates a pod that is being created. `None`: nothing to change, because it asks in no dialect that is read, is
/// translated already, or carries the label `hami.io/webhook: ignore`.
///
/// # Errors
/// All reasons why the pod cannot run as it asks.
pub fn translate(pod: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    if is_ignored(pod) || pod.spec.is_none() {
        return Ok(None);
    }
    // A record that cannot be read was not written by a translation. It is replaced, or, if the pod asks for nothing, the
    // controller reports it.
    let record = Record::of(pod).ok().flatten();
    if !asks(pod, record.as_ref(), settings) {
        return Ok(None);
    }
    fresh(pod, record.as_ref(), settings, true)
}

/// Like [`translate`], for an update. A pod that was not translated when it was created is left alone. A translated pod
/// stays translated in the same way, even if the settings have changed.
///
/// # Errors
/// The errors of [`translate`].
pub fn update(old: &Pod, new: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    let Ok(Some(record)) = Record::of(old) else {
        return Ok(None);
    };
    // The record does not describe the old pod, so its author wrote it. Changing the spec to match it is an update that the API
    // server refuses, and then not even the pod's finalizers could be removed.
    let mut same = old.clone();
    apply(&mut same, &record, settings);
    if same.spec != old.spec {
        return Ok(None);
    }
    // If the pod now asks for something else, the new translation goes to the API server, which refuses changes to
    // immutable fields.
    if !is_unchanged(new, &record, settings) {
        return fresh(new, Some(&record), settings, false);
    }
    let mut pod = new.clone();
    apply(&mut pod, &record, settings);
    let annotation = old.metadata.annotations.as_ref().and_then(|all| all.get(TRANSLATED));
    write_annotation(&mut pod, annotation.cloned().unwrap_or_default());
    Ok(translation(new, pod, record, Vec::new()))
}

fn is_ignored(pod: &Pod) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(HAMI_WEBHOOK));
    label.is_some_and(|label| label == "ignore")
}

/// Returns true if anything of a dialect is in the pod that its record does not have.
fn asks(pod: &Pod, record: Option<&Record>, settings: &Settings) -> bool {
    let asks = |name: &str| settings.dialects.iter().any(|dialect| asks_by_resource(*dialect, name));
    if containers(pod, settings)
        .iter()
        .any(|(_, container)| container.asks_where(asks))
    {
        return true;
    }
    let kai = kai_annotations(pod, settings);
    let recorded = record.and_then(|record| record.containers.iter().find(|asked| asked.dialect == Dialect::Kai));
    !kai.is_empty() && recorded.is_none_or(|asked| asked.annotations != kai)
}

/// Returns true if a pod asks for what its record contains, or for less: translated containers have no such limits any
/// more.
fn is_unchanged(pod: &Pod, record: &Record, settings: &Settings) -> bool {
    let same = |(_, container): &(Kind, Resources<'_>)| {
        DIALECTS.iter().all(|(dialect, ..)| {
            let is_removed = |name: &str| is_removed(*dialect, name);
            !settings.reads(*dialect) && !record.containers.iter().any(|asked| asked.dialect == *dialect)
                || !container.asks_where(|name| asks_by_resource(*dialect, name))
                || record.containers.iter().any(|asked| {
                    asked.name == container.container.name
                        && asked.dialect == *dialect
                        && same_amounts(&asked.limits, &container.entries(true, is_removed))
                        && same_amounts(&asked.requests, &container.entries(false, is_removed))
                })
        })
    };
    containers(pod, settings).iter().all(same)
}

/// Compares numbers, not texts: `3000M` comes as `3G` the second time. Requests follow from limits.
fn same_amounts(recorded: &BTreeMap<String, String>, written: &BTreeMap<String, String>) -> bool {
    let same = |(key, value): (&String, &String)| {
        recorded.get(key).is_some_and(|old| {
            old == value || vgpu_quantity::whole(old).is_ok_and(|old| vgpu_quantity::whole(value) == Ok(old))
        })
    };
    written.is_empty() || recorded.len() == written.len() && written.iter().all(same)
}

fn write_annotation(pod: &mut Pod, text: String) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(TRANSLATED.to_owned(), text);
}

/// `None` if the pod is unchanged.
fn translation(before: &Pod, mut after: Pod, record: Record, warnings: Vec<Warning>) -> Option<Translation> {
    owners::release(before, &mut after);
    let patch = patch::patch(before, &after);
    if patch.as_array().is_none_or(Vec::is_empty) {
        return None;
    }
    Some(Translation {
        pod: after,
        patch,
        templates: record.templates(),
        warnings,
    })
}

/// Translates the pod as its author wrote it.
fn fresh(
    pod: &Pod,
    record: Option<&Record>,
    settings: &Settings,
    create: bool,
) -> Result<Option<Translation>, Refusal> {
    let written = match record {
        Some(record) => undo(pod, record, settings),
        None => pod.clone(),
    };
    let mut view = PodView::new(&written, settings);
    let record = plan(&mut view, create);
    let Findings { problems, warnings } = view.findings;
    if let Some(refusal) = Refusal::of(problems) {
        return Err(refusal);
    }
    if record.containers.is_empty() {
        return Ok(None);
    }
    let mut translated = written;
    apply(&mut translated, &record, settings);
    write_annotation(&mut translated, record.text());
    Ok(translation(pod, translated, record, warnings))
}
