//! Which resources and annotations belong to which dialect, and which of them a pod has.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use vgpu_api::config::Dialect;

use crate::names::{ResourceNames, ResourceNamesError};
use crate::profile::profile_of;
use crate::resources::Resources;
use crate::settings::Settings;
use crate::{gpu_manager, hami, kai, koordinator, volcano, volcano_vgpu};

/// A dialect, the resources of containers that ask in it, and all resources that are removed.
type Dialects = [(Dialect, &'static [&'static str], &'static [&'static str]); 5];
pub(crate) const DIALECTS: Dialects = [
    (Dialect::Hami, hami::ASKS, hami::KEYS),
    (Dialect::Koordinator, koordinator::KEYS, koordinator::KEYS),
    (Dialect::Volcano, volcano::KEYS, volcano::KEYS),
    (Dialect::VolcanoVgpu, volcano_vgpu::KEYS, volcano_vgpu::KEYS),
    (Dialect::GpuManager, gpu_manager::KEYS, gpu_manager::KEYS),
];

/// The resources by which a container asks in a dialect: a webhook has to check limits and requests for them.
#[must_use]
pub fn asking_resources(dialect: Dialect) -> &'static [&'static str] {
    let found = DIALECTS.iter().find(|(of, ..)| *of == dialect);
    found.map_or(&[], |(_, asks, _)| asks)
}

/// The annotations with a fixed name by which a pod asks in a dialect. Only KAI has some; others of it have the
/// container's name in their key ([`asks_by_annotation`]).
#[must_use]
pub fn asking_annotations(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Kai => kai::ASKS,
        _ => &[],
    }
}

/// Returns true if a pod with this annotation asks in a dialect.
#[must_use]
pub fn asks_by_annotation(dialect: Dialect, key: &str) -> bool {
    dialect == Dialect::Kai && kai::asks(key)
}

/// Returns true if a container with this resource asks in a dialect. Those for instances of a profile have no list: who asks
/// for GPUs as NVIDIA's device plugin has them is read as HAMi.
#[must_use]
pub fn asks_by_resource(dialect: Dialect, name: &str) -> bool {
    asking_resources(dialect).contains(&name) || is_of_instances(dialect, name)
}

/// Returns true for a resource of a dialect; translated pods have none of them.
#[must_use]
pub fn is_resource(name: &str) -> bool {
    DIALECTS.iter().any(|(dialect, ..)| is_removed(*dialect, name))
}

/// Returns true if the resource is removed from a container that asks in the dialect.
pub(crate) fn is_removed(dialect: Dialect, name: &str) -> bool {
    let found = DIALECTS.iter().find(|(of, ..)| *of == dialect);
    found.is_some_and(|(.., keys)| keys.contains(&name)) || is_of_instances(dialect, name)
}

fn is_of_instances(dialect: Dialect, name: &str) -> bool {
    dialect == Dialect::Hami && profile_of(name).is_some()
}

/// Reads a list of names that a cluster chose: `nvidia.com/vgpu=nvidia.com/gpu`, with commas.
///
/// # Errors
/// An item that is no chosen name for a resource of a dialect.
pub fn resource_names(text: &str) -> Result<ResourceNames, ResourceNamesError> {
    let own: Vec<&str> = DIALECTS.iter().flat_map(|(.., keys)| *keys).copied().collect();
    ResourceNames::parse(text, &own)
}

/// KAI's annotations, if the pod asks in them.
pub(crate) fn kai_annotations(pod: &Pod, settings: &Settings) -> BTreeMap<String, String> {
    let annotations = || pod.metadata.annotations.iter().flatten();
    if !settings.reads(Dialect::Kai) || !annotations().any(|(key, _)| kai::asks(key)) {
        return BTreeMap::new();
    }
    annotations()
        .filter(|(key, _)| kai::is_read(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The containers in the order in which they are translated, with their paths.
pub(crate) fn containers<'a>(pod: &'a Pod, settings: &'a Settings) -> Vec<(Kind, Resources<'a>)> {
    let names = &settings.resource_names;
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec
        .init_containers
        .iter()
        .flatten()
        .enumerate()
        .map(|(at, container)| {
            let kind = match container.restart_policy.as_deref() {
                Some("Always") => Kind::Sidecar,
                _ => Kind::Init,
            };
            let path = format!("spec.initContainers[{at}]");
            (kind, Resources { path, container, names })
        });
    let app = spec.containers.iter().enumerate().map(|(at, container)| {
        let path = format!("spec.containers[{at}]");
        (Kind::App, Resources { path, container, names })
    });
    init.chain(app).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ends before the next container starts.
    Init,
    /// An init container that runs beside all others.
    Sidecar,
    App,
}
