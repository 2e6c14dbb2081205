//! From the API's pods, and the allocator's classes, to [`crate::model`].
//!
//! Of a pod only what is needed is kept. Numbers that others wrote are read with saturation; a quantity that cannot be
//! read counts as nothing, because the API server would not have stored it.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use vgpu_allocator::model::DeviceClass;
use vgpu_api::{DRIVER_NAME, device_type};
use vgpu_quantity::Quantity;

use crate::model::{Class, Extended, Key, Pod};

fn key(meta: &ObjectMeta) -> Key {
    Key {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    }
}

pub fn pod(pod: core::Pod) -> Pod {
    let key = key(&pod.metadata);
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    // The scheduler's word: Unschedulable, or SchedulerError. A gated pod was not tried.
    let unschedulable = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() != Some("SchedulingGated")
    });
    let statuses = status.resource_claim_statuses.unwrap_or_default();
    let claims = spec.resource_claims.iter().flatten().filter_map(|claim| {
        let generated = || {
            statuses
                .iter()
                .find(|s| s.name == claim.name)
                .and_then(|s| s.resource_claim_name.clone())
        };
        claim.resource_claim_name.clone().or_else(generated)
    });
    let extended = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .flat_map(extended);
    Pod {
        claims: claims.collect(),
        extended: extended.collect(),
        uid: pod.metadata.uid.unwrap_or_default(),
        unschedulable,
        key,
    }
}

/// A container's extended resources: those whose name has a domain.
fn extended(container: &core::Container) -> Vec<Extended> {
    let limits = container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref());
    limits
        .into_iter()
        .flatten()
        .filter(|(resource, _)| resource.contains('/'))
        .map(|(resource, count)| Extended {
            container: container.name.clone(),
            resource: resource.clone(),
            count: whole(&count.0),
        })
        .filter(|extended| extended.count > 0)
        .collect()
}

/// Limited to 64 bits; 0 for what is no quantity.
fn whole(count: &str) -> i64 {
    let count = Quantity::parse(count).unwrap_or_default();
    let limit = if count.is_negative() { i64::MIN } else { i64::MAX };
    count.whole_away_from_zero().unwrap_or(limit)
}

pub(crate) fn class(class: &DeviceClass) -> Class {
    let expressions = || {
        let selectors = class.spec.selectors.iter();
        selectors.filter_map(|selector| selector.cel.as_ref().map(|cel| &*cel.expression))
    };
    // Whoever derives a class from ours names the driver: a class must, or it would select everybody's devices.
    let says = |text: &str| expressions().any(|expression| expression.contains(text));
    let selects = |value: &str| says(&format!("\"{value}\"")) || says(&format!("'{value}'"));
    let device_type = [device_type::MONITOR, device_type::SLOT]
        .into_iter()
        .find(|value| selects(value));
    Class {
        name: class.metadata.name.clone(),
        // One that cannot be read is told by its name alone.
        ours: selects(DRIVER_NAME) || class.unreadable.is_some() && vgpu_api::class::is_ours(&class.metadata.name),
        device_type: device_type.unwrap_or(device_type::GPU),
        extended_resource: class.spec.extended_resource_name.clone(),
        config: class.spec.config.clone(),
    }
}
