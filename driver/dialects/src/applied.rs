//! A record's translation: written into a pod's spec, and taken out of it again.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim, ResourceClaim};

use crate::keys::is_removed;
use crate::names::ResourceNames;
use crate::record::{Asked, Record};
use crate::settings::{DEFAULT_SCHEDULER, Settings};

/// Writes a record's translation into a pod's spec. Existing entries stay where they are.
pub(crate) fn apply(pod: &mut Pod, record: &Record, settings: &Settings) {
    let Some(spec) = &mut pod.spec else { return };
    if record.scheduler_name.is_some() && spec.scheduler_name == record.scheduler_name {
        spec.scheduler_name = Some(DEFAULT_SCHEDULER.to_owned());
    }
    for (claim, template) in record.claims() {
        let known = |known: &PodResourceClaim| {
            known.name == claim && known.resource_claim_template_name.as_deref() == Some(template)
        };
        let claims = spec.resource_claims.get_or_insert_default();
        if !claims.iter().any(known) {
            claims.push(PodResourceClaim {
                name: claim.to_owned(),
                resource_claim_template_name: Some(template.to_owned()),
                ..PodResourceClaim::default()
            });
        }
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(asked) = record.containers.iter().find(|asked| asked.name == container.name) {
            take(container, asked, &settings.resource_names);
        }
    }
}

/// Takes the dialect's resources from a container and gives it its claim.
fn take(container: &mut Container, asked: &Asked, names: &ResourceNames) {
    if let Some(resources) = &mut container.resources {
        for map in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
            map.retain(|key, _| !is_removed(asked.dialect, names.known(key)));
        }
    }
    if let Some(claim) = &asked.claim {
        let claims = container
            .resources
            .get_or_insert_default()
            .claims
            .get_or_insert_default();
        if !claims.iter().any(|known| known.name == *claim) {
            claims.push(ResourceClaim {
                name: claim.clone(),
                request: None,
            });
        }
    }
}

/// The pod without its record's translation. Containers without any resources of their dialect get them back.
pub(crate) fn undo(pod: &Pod, record: &Record, settings: &Settings) -> Pod {
    let names = &settings.resource_names;
    let mut pod = pod.clone();
    let ours: BTreeSet<&str> = record.claims().iter().map(|(claim, _)| *claim).collect();
    let Some(spec) = &mut pod.spec else { return pod };
    if let Some(claims) = &mut spec.resource_claims {
        claims.retain(|claim| !ours.contains(claim.name.as_str()));
        if claims.is_empty() {
            spec.resource_claims = None;
        }
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let Some(asked) = record.containers.iter().find(|asked| asked.name == container.name) else {
            continue;
        };
        let is_removed = |key: &String| is_removed(asked.dialect, names.known(key));
        let resources = container.resources.get_or_insert_default();
        if let Some(claims) = &mut resources.claims {
            claims.retain(|claim| !ours.contains(claim.name.as_str()));
            if claims.is_empty() {
                resources.claims = None;
            }
        }
        let has = |map: &Option<BTreeMap<String, _>>| map.as_ref().is_some_and(|map| map.keys().any(is_removed));
        if has(&resources.limits) || has(&resources.requests) {
            continue;
        }
        for (map, asked) in [
            (&mut resources.limits, &asked.limits),
            (&mut resources.requests, &asked.requests),
        ] {
            // Only keys of the dialect, because anybody may have written the annotation.
            let asked = asked.iter().filter(|(key, _)| is_removed(key));
            for (key, value) in asked {
                let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(value.clone());
                map.get_or_insert_default().insert(key.clone(), quantity);
            }
        }
    }
    if let (Some(original), Some(DEFAULT_SCHEDULER)) = (&record.scheduler_name, spec.scheduler_name.as_deref()) {
        spec.scheduler_name = Some(original.clone());
    }
    pod
}
