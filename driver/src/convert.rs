//! From the API's objects to [`crate::model`]: the only file that reads resource types.
//!
//! Only what is needed is kept, so that ten thousand claims cost their results and no more. Numbers that others wrote
//! are read with saturation; a quantity that cannot be read counts as nothing, because the API server would not have
//! stored it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use vgpu_api::{DRIVER_NAME, device_type, quantity};

use crate::model::{
    Amount, Ask, Capacity, Claim, ClaimState, Class, Device, Extended, Key, OpaqueConfig, Pod, Request, Slice, Taint,
    Taken, Toleration,
};

pub fn key(meta: &ObjectMeta) -> Key {
    Key {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    }
}

pub fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
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
            count: u64::try_from(amount(count)).unwrap_or(0),
        })
        .filter(|extended| extended.count > 0)
        .collect()
}

pub fn claim(claim: resource::ResourceClaim) -> Claim {
    let state = match claim.status.and_then(|status| status.allocation) {
        Some(allocation) => ClaimState::Allocated(
            allocation
                .devices
                .and_then(|devices| devices.results)
                .into_iter()
                .flatten()
                .filter(|result| result.driver == DRIVER_NAME)
                .map(taken)
                .collect(),
        ),
        None => {
            let devices = claim.spec.and_then(|spec| spec.devices).unwrap_or_default();
            let config = devices
                .config
                .into_iter()
                .flatten()
                .enumerate()
                .filter_map(|(i, config)| {
                    opaque(
                        config.opaque,
                        config.requests.unwrap_or_default(),
                        format!("spec.devices.config[{i}]"),
                    )
                });
            ClaimState::Waiting {
                requests: devices
                    .requests
                    .into_iter()
                    .flatten()
                    .enumerate()
                    .map(|(i, r)| request(i, r))
                    .collect(),
                configs: config.collect(),
            }
        }
    };
    Claim {
        key: key(&claim.metadata),
        state,
    }
}

fn taken(result: resource::DeviceRequestAllocationResult) -> Taken {
    Taken {
        pool: result.pool,
        device: result.device,
        share: result.share_id.is_some(),
        admin: result.admin_access.unwrap_or(false),
        consumed: result
            .consumed_capacity
            .into_iter()
            .flatten()
            .map(|(key, value)| (key, amount(&value)))
            .collect(),
    }
}

fn request(index: usize, request: resource::DeviceRequest) -> Request {
    let at = |of: &str| format!("spec.devices.requests[{index}].{of}.capacity.requests");
    let exactly = request.exactly.map(|exact| Ask {
        name: String::new(),
        at: at("exactly"),
        class: exact.device_class_name,
        capacity: capacity_requests(exact.capacity),
        amount: devices(exact.allocation_mode.as_deref(), exact.count),
        admin: exact.admin_access.unwrap_or(false),
        selectors: exact.selectors.is_some_and(|selectors| !selectors.is_empty()),
        tolerations: tolerations(exact.tolerations),
    });
    let alternatives = request
        .first_available
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(i, sub)| Ask {
            name: sub.name,
            at: at(&format!("firstAvailable[{i}]")),
            class: sub.device_class_name,
            capacity: capacity_requests(sub.capacity),
            amount: devices(sub.allocation_mode.as_deref(), sub.count),
            admin: false,
            selectors: sub.selectors.is_some_and(|selectors| !selectors.is_empty()),
            tolerations: tolerations(sub.tolerations),
        });
    Request {
        name: request.name,
        alternatives: exactly.into_iter().chain(alternatives).collect(),
    }
}

fn capacity_requests(capacity: Option<resource::CapacityRequirements>) -> BTreeMap<String, String> {
    let requests = capacity.and_then(|capacity| capacity.requests).unwrap_or_default();
    requests.into_iter().map(|(key, value)| (key, value.0)).collect()
}

fn devices(mode: Option<&str>, count: Option<i64>) -> Amount {
    match mode {
        Some("All") => Amount::All,
        _ => Amount::Exactly(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(1)),
    }
}

fn tolerations(tolerations: Option<Vec<resource::DeviceToleration>>) -> Vec<Toleration> {
    let toleration = |t: resource::DeviceToleration| Toleration {
        key: t.key.unwrap_or_default(),
        value: if t.operator.as_deref() == Some("Exists") {
            None
        } else {
            Some(t.value.unwrap_or_default())
        },
        effect: t.effect.unwrap_or_default(),
    };
    tolerations.into_iter().flatten().map(toleration).collect()
}

/// A config for our driver; those of others are none of our business.
fn opaque(
    opaque: Option<resource::OpaqueDeviceConfiguration>,
    requests: Vec<String>,
    at: String,
) -> Option<OpaqueConfig> {
    let opaque = opaque.filter(|opaque| opaque.driver == DRIVER_NAME)?;
    Some(OpaqueConfig {
        at: format!("{at}.opaque.parameters"),
        requests,
        parameters: opaque.parameters.0,
    })
}

pub fn class(class: resource::DeviceClass) -> Class {
    let name = name(&class.metadata);
    let spec = class.spec.unwrap_or_default();
    let selectors: Vec<String> = spec
        .selectors
        .into_iter()
        .flatten()
        .filter_map(|selector| selector.cel)
        .map(|cel| cel.expression)
        .collect();
    // Whoever derives a class from ours names the driver: a class must, or it would select everybody's devices.
    let says = |text: &str| selectors.iter().any(|selector| selector.contains(text));
    let selects = |value: &str| says(&format!("\"{value}\"")) || says(&format!("'{value}'"));
    let device_type = [device_type::MONITOR, device_type::SLOT]
        .into_iter()
        .find(|value| selects(value));
    let configs = spec.config.into_iter().flatten().enumerate();
    Class {
        ours: selects(DRIVER_NAME),
        device_type: device_type.unwrap_or(device_type::GPU).to_owned(),
        extended_resource: spec.extended_resource_name,
        configs: configs
            .filter_map(|(i, c)| opaque(c.opaque, Vec::new(), format!("spec.config[{i}]")))
            .collect(),
        name,
    }
}

pub fn slice(slice: resource::ResourceSlice) -> Slice {
    let spec = slice.spec;
    Slice {
        name: name(&slice.metadata),
        pool: spec.pool.name,
        node: spec.node_name.unwrap_or_default(),
        generation: spec.pool.generation,
        slice_count: spec.pool.resource_slice_count,
        devices: spec.devices.into_iter().flatten().map(device).collect(),
    }
}

fn device(device: resource::Device) -> Device {
    let attribute = device
        .attributes
        .as_ref()
        .and_then(|attributes| attributes.get(device_type::ATTRIBUTE));
    let taint = |taint: resource::DeviceTaint| Taint {
        key: taint.key,
        value: taint.value.unwrap_or_default(),
        effect: taint.effect,
    };
    Device {
        device_type: attribute.and_then(|a| a.string.clone()).unwrap_or_default(),
        name: device.name,
        shared: device.allow_multiple_allocations.unwrap_or(false),
        capacity: device
            .capacity
            .into_iter()
            .flatten()
            .map(|(key, value)| (key, capacity(&value)))
            .collect(),
        taints: device.taints.into_iter().flatten().map(taint).collect(),
    }
}

fn capacity(capacity: &resource::DeviceCapacity) -> Capacity {
    let value = amount(&capacity.value);
    // Without a policy, or without a default in it, whoever asks for nothing takes everything.
    let default = capacity
        .request_policy
        .as_ref()
        .and_then(|policy| policy.default.as_ref());
    Capacity {
        value,
        default: default.map_or(value, amount),
    }
}

fn amount(quantity: &Quantity) -> i64 {
    quantity::parse_rounded_up(&quantity.0).unwrap_or(0)
}
