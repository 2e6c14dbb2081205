//! Parts of a dialect that have no effect here: unknown keys of the dialect, and known keys whose meaning is lost.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use vgpu_api::config::Dialect;
use vgpu_quantity::shortened;

use crate::instead;
use crate::keys::{asks_by_annotation, asks_by_resource, containers, is_removed};
use crate::pod::{MOST_KEYS, PodView, annotation_at};
use crate::problem::Warning;
use crate::profile;
use crate::resources::Resources;
use crate::settings::Settings;
use crate::{gpu_manager, hami, kai, kai_container, koordinator, legacy_view, volcano, volcano_vgpu};

const NOBODY: &str = "is not read: its dialect is switched off; switch it on, or make sure that another system gives \
                      the pod its GPU";

const NO_PROFILE: &str = "is not read: it names no profile of an instance; write it as NVIDIA's device plugin does, for \
                          example nvidia.com/mig-1g.10gb";

/// Returns true for a key of a dialect: of its domain, or a subdomain of it. KAI's oldest keys have no domain, and its
/// newest are in NVIDIA's.
fn is_of(dialect: Dialect, key: &str) -> bool {
    let domains: &[&str] = match dialect {
        Dialect::Hami => &["nvidia.com", "hami.io"],
        Dialect::Koordinator => &["koordinator.sh"],
        Dialect::Volcano | Dialect::VolcanoVgpu => &["volcano.sh"],
        Dialect::GpuManager => &["tencent.com"],
        Dialect::Kai if key.starts_with("gpu-") || kai_container::split(key).is_some() => return true,
        Dialect::Kai => &["kai.scheduler", "runai"],
    };
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_in = |of: &&str| {
        domain
            .strip_suffix(*of)
            .is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    };
    domains.iter().any(is_in)
}

/// Returns true for an annotation that is read.
fn reads_annotation(dialect: Dialect, key: &str) -> bool {
    match dialect {
        Dialect::Hami => hami::ANNOTATIONS.contains(&key),
        Dialect::VolcanoVgpu => volcano_vgpu::ANNOTATIONS.contains(&key),
        Dialect::GpuManager => gpu_manager::ANNOTATIONS.contains(&key),
        Dialect::Kai => kai::is_read(key),
        Dialect::Koordinator | Dialect::Volcano => false,
    }
}

/// What is lost with a key. Keys for a scheduler are lost unless the pod keeps its scheduler.
fn loss(key: &str, keeps_scheduler: bool) -> Option<&'static str> {
    hami::lost(key)
        .or_else(|| koordinator::lost(key))
        .or_else(|| volcano_vgpu::lost(key))
        .or_else(|| kai::lost(key))
        .or_else(|| scheduling(key).filter(|_| !keeps_scheduler))
}

/// Returns what to use instead of a key by which another scheduler decides: queue, quota, gang, topology or node pool.
fn scheduling(key: &str) -> Option<&'static str> {
    match key {
        // A key of the plugin for gangs, which any scheduler may have.
        "scheduling.x-k8s.io/pod-group" => Some(instead::GANG),
        _ => volcano::scheduling(key)
            .or_else(|| koordinator::scheduling(key))
            .or_else(|| kai::scheduling(key)),
    }
}

/// Returns the keys that the pod uses of dialects that are switched off and therefore not read here, and resources of MIG
/// that name no profile. In a cluster the
/// chart's policy warns about them. `nvidia.com/gpu` alone belongs to no dialect: NVIDIA's device plugin serves it too.
#[must_use]
pub fn unread(pod: &Pod, settings: &Settings) -> Vec<Warning> {
    let mut view = PodView::new(pod, settings);
    let off = || Dialect::ALL.into_iter().filter(|dialect| !settings.reads(*dialect));
    for (_, container) in containers(pod, settings) {
        let of_none = |key: &&str| {
            let known = container.names.known(key);
            *key != hami::GPU && off().any(|dialect| asks_by_resource(dialect, known))
        };
        let keys: BTreeSet<&str> = container.keys().filter(of_none).collect();
        for key in keys {
            view.findings.warn(container.place(key), NOBODY);
        }
    }
    let keys = view.annotations().into_iter().flatten().map(|(key, _)| key);
    let asking = keys.filter(|key| off().any(|dialect| asks_by_annotation(dialect, key)));
    for key in asking.take(MOST_KEYS) {
        view.findings.warn(annotation_at(&shortened(key)), NOBODY);
    }
    view.findings.warnings.extend(without_profile(pod, settings));
    view.findings.warnings
}

/// Returns the resources for instances of GPUs that name no profile. A pod that asks by nothing else is not translated.
#[must_use]
pub fn without_profile(pod: &Pod, settings: &Settings) -> Vec<Warning> {
    let is_unknown = |key: &&str| key.starts_with(profile::PREFIX) && profile::profile_of(key).is_none();
    let unknown = containers(pod, settings).into_iter().flat_map(|(_, container)| {
        let keys: BTreeSet<&str> = container.keys().filter(is_unknown).collect();
        let places = keys.into_iter().map(move |key| container.place(&shortened(key)));
        places.collect::<Vec<_>>()
    });
    unknown
        .take(MOST_KEYS)
        .map(|place| Warning::new(place, NO_PROFILE))
        .collect()
}

/// Warns of resources of a dialect in one container that are not known.
pub(crate) fn warn_of_resources(dialect: Dialect, container: &Resources<'_>, pod: &mut PodView<'_>) {
    let is_unknown = |key: &&str| is_of(dialect, key) && !is_removed(dialect, container.names.known(key));
    let unknown: Vec<&str> = container.keys().filter(is_unknown).take(MOST_KEYS).collect();
    for key in unknown {
        let text = "is not read and stays as it is; the pod waits until a device plugin has it. Correct or remove it";
        pod.findings.warn(container.place(&shortened(key)), text);
    }
}

/// Warns about annotations and labels that have no effect here.
pub(crate) fn warn_of_metadata(dialects: &[Dialect], pod: &mut PodView<'_>) {
    let metadata = &pod.pod.metadata;
    let keeps_scheduler = pod.keeps_scheduler();
    let mut said = 0;
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        let of_a_dialect = dialects.iter().any(|dialect| is_of(*dialect, key));
        let is_read = || dialects.iter().any(|dialect| reads_annotation(*dialect, key));
        if let Some(what) = loss(key, keeps_scheduler) {
            pod.findings.warn(annotation_at(key), format!("is lost: {what}"));
        } else if of_a_dialect
            && !is_read()
            && scheduling(key).is_none()
            && !legacy_view::is_legacy_key(key)
            && said < MOST_KEYS
        {
            said += 1;
            let text = "is not read, and changes nothing; correct or remove it";
            pod.findings.warn(annotation_at(&shortened(key)), text);
        }
    }
    for key in metadata.labels.iter().flatten().map(|(key, _)| key) {
        if let Some(what) = loss(key, keeps_scheduler) {
            pod.findings
                .warn(format!("metadata.labels[{key}]"), format!("is lost: {what}"));
        }
    }
}
