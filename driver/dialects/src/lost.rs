//! What a pod says in a dialect that changes nothing here: keys of the dialect that are not known, and known ones
//! whose meaning is lost.

use vgpu_api::config::Dialect;
use vgpu_quantity::shortened;

use crate::pod::{PodView, annotation_at};
use crate::resources::Resources;
use crate::{given_back, gpu_manager, hami, kai, koordinator, volcano, volcano_vgpu};

/// A warning has at most so many unknown keys: a tenant chooses how many there are.
const MOST_KEYS: usize = 8;

/// Whose key it is, by its prefix.
fn prefixes(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Hami => &["nvidia.com/", "hami.io/"],
        Dialect::Koordinator => &["koordinator.sh/", "scheduling.koordinator.sh/"],
        Dialect::Volcano | Dialect::VolcanoVgpu => &["volcano.sh/"],
        Dialect::GpuManager => &["tencent.com/"],
        Dialect::Kai => &["gpu-"],
    }
}

fn resources(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Hami => hami::KEYS,
        Dialect::Koordinator => koordinator::KEYS,
        Dialect::Volcano => volcano::KEYS,
        Dialect::VolcanoVgpu => volcano_vgpu::KEYS,
        Dialect::GpuManager => gpu_manager::KEYS,
        Dialect::Kai => &[],
    }
}

/// Annotations that are read.
fn annotations(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Hami => hami::ANNOTATIONS,
        Dialect::VolcanoVgpu => volcano_vgpu::ANNOTATIONS,
        Dialect::GpuManager => gpu_manager::ANNOTATIONS,
        Dialect::Kai => kai::ANNOTATIONS,
        Dialect::Koordinator | Dialect::Volcano => &[],
    }
}

fn loss(key: &str) -> Option<&'static str> {
    hami::lost(key)
        .or_else(|| koordinator::lost(key))
        .or_else(|| volcano_vgpu::lost(key))
        .or_else(|| kai::lost(key))
}

/// Warns of resources of a dialect in one container that are not known.
pub(crate) fn warn_of_resources(dialect: Dialect, container: &Resources<'_>, pod: &mut PodView<'_>) {
    let is_unknown = |key: &&str| {
        prefixes(dialect).iter().any(|prefix| key.starts_with(prefix)) && !resources(dialect).contains(key)
    };
    let unknown: Vec<&str> = container.keys().filter(is_unknown).take(MOST_KEYS).collect();
    for key in unknown {
        let text = "is not read and stays as it is; the pod waits until a device plugin has it. Correct or remove it";
        pod.findings.warn(container.at(&shortened(key)), text);
    }
}

/// Warns of annotations and labels that change nothing here.
pub(crate) fn warn_of_metadata(dialects: &[Dialect], pod: &mut PodView<'_>) {
    let metadata = &pod.pod.metadata;
    let mut said = 0;
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        let of_a_dialect = dialects
            .iter()
            .any(|dialect| prefixes(*dialect).iter().any(|prefix| key.starts_with(prefix)));
        let is_read = || {
            dialects
                .iter()
                .any(|dialect| annotations(*dialect).contains(&key.as_str()))
        };
        if let Some(what) = loss(key) {
            pod.findings.warn(annotation_at(key), format!("is lost: {what}"));
        } else if of_a_dialect && !is_read() && !given_back::is_given_back(key) && said < MOST_KEYS {
            said += 1;
            let text = "is not read, and changes nothing; correct or remove it";
            pod.findings.warn(annotation_at(&shortened(key)), text);
        }
    }
    for key in metadata.labels.iter().flatten().map(|(key, _)| key) {
        if let Some(what) = loss(key) {
            pod.findings
                .warn(format!("metadata.labels[{key}]"), format!("is lost: {what}"));
        }
    }
}
