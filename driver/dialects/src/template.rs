//! The template of a request.
//!
//! A claim asks for bytes. So a part of a GPU becomes `firstAvailable`: one alternative for each memory size among the
//! GPUs that the request allows, with that part of the size. Kubernetes allows at most eight; beyond that, GPUs of
//! similar sizes share an alternative, which uses the smallest size.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, CapacityRequirements, DeviceClaim, DeviceClaimConfiguration, DeviceRequest, DeviceSelector,
    DeviceSubRequest, ExactDeviceRequest, OpaqueDeviceConfiguration, ResourceClaimSpec, ResourceClaimTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use vgpu_api::config::Priority;
use vgpu_api::device_type::PARENT_UUID;
use vgpu_api::request::{MEMORY_MIN, MEMORY_STEP};
use vgpu_api::{CONFIG_API_VERSION, CONFIG_KIND, DRIVER_NAME, Profile, capacity};
use vgpu_quantity::format_bytes;

use crate::inventory::{Gpu, Inventory};
use crate::profile::{Instance, is_profile};
use crate::request::{MILLION, Memory, Request};
use crate::selector;

/// Kubernetes' limit of alternatives in a request.
pub const ALTERNATIVES_MAX: usize = 8;
/// The most profiles that a selector names. They differ only in their attributes, of which there are few.
const PROFILES_MAX: usize = 16;
/// The name of the only request of a claim.
pub const REQUEST_NAME: &str = "gpu";

/// The template's spec. For a part of a GPU, `None` if that part is less than 64Mi on every published GPU that the
/// request allows: a claim is never changed, so a claim without the right alternatives would wait forever.
#[must_use]
pub fn template(request: &Request, inventory: &Inventory) -> Option<ResourceClaimTemplateSpec> {
    let uuid = if request.instance.is_some() {
        PARENT_UUID
    } else {
        "uuid"
    };
    let mut selectors = selector::selectors(&request.devices, uuid);
    // Shared instances are in class vgpu too, and have UUIDs of their own, which no list of GPUs forbids.
    if request.instance.is_none() && !request.devices.not_uuids.is_empty() {
        selectors.push(selector::is_gpu());
    }
    let first_of = |alternatives| DeviceRequest {
        name: REQUEST_NAME.to_owned(),
        first_available: Some(alternatives),
        ..DeviceRequest::default()
    };
    let devices = match (&request.instance, request.memory) {
        (Some(Instance::Profile(profile)), _) => {
            selectors.push(selector::profiles(std::slice::from_ref(profile)));
            exactly(request, selectors, None)
        }
        (Some(Instance::AtLeast(bytes)), _) => {
            let profiles = smallest(request, *bytes, inventory);
            if !profiles.is_empty() {
                selectors.push(selector::profiles(&profiles));
            }
            selectors.push(format!("{} >= 0", compared(*bytes)));
            exactly(request, selectors, None)
        }
        (None, Memory::All) => exactly(request, selectors, None),
        (None, Memory::Bytes(bytes)) => exactly(request, selectors, Some(bytes)),
        (None, Memory::Millionths(part)) => first_of(alternatives(request, &selectors, part, inventory)?),
    };
    let claim = DeviceClaim {
        requests: Some(vec![devices]),
        config: Some(vec![DeviceClaimConfiguration {
            opaque: Some(OpaqueDeviceConfiguration {
                driver: DRIVER_NAME.to_owned(),
                parameters: RawExtension(config(request)),
            }),
            requests: None,
        }]),
        constraints: None,
    };
    Some(ResourceClaimTemplateSpec {
        metadata: None,
        spec: Some(ResourceClaimSpec { devices: Some(claim) }),
    })
}

fn exactly(request: &Request, selectors: Vec<String>, memory: Option<u64>) -> DeviceRequest {
    DeviceRequest {
        name: REQUEST_NAME.to_owned(),
        exactly: Some(ExactDeviceRequest {
            allocation_mode: Some("ExactCount".to_owned()),
            capacity: amounts(request, memory),
            count: Some(i64::from(request.count)),
            device_class_name: request.class.clone(),
            selectors: cel(selectors),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

/// One alternative for each memory size. The smallest comes first, because it takes the least memory.
fn alternatives(
    request: &Request,
    selectors: &[String],
    part: u32,
    inventory: &Inventory,
) -> Option<Vec<DeviceSubRequest>> {
    let gpus = inventory.gpus.iter().filter(|gpu| gpu.parent.is_none());
    let allowed = gpus.filter(|gpu| request.devices.allow(&gpu.uuid, &gpu.model));
    let sizes: BTreeSet<u64> = allowed
        .map(|gpu| gpu.memory)
        .filter(|size| part_of(*size, part) >= MEMORY_MIN)
        .collect();
    let alternatives: Vec<DeviceSubRequest> = groups(sizes.into_iter().collect(), ALTERNATIVES_MAX)
        .into_iter()
        .map(|(smallest, largest)| {
            let name = format!("mib-{}", smallest >> 20);
            let memory = Some(part_of(smallest, part));
            alternative(request, name, selectors, sized(smallest, largest), memory)
        })
        .collect();
    (!alternatives.is_empty()).then_some(alternatives)
}

/// The profiles of the smallest instances that are large enough; those that differ only in attributes, such as `+me`. Not the
/// larger ones: a quota counts the largest instance that a claim may get. None if there is no such instance: one may come.
fn smallest(request: &Request, bytes: u64, inventory: &Inventory) -> Vec<String> {
    let fitting = inventory.gpus.iter().filter(|gpu| {
        let parent = gpu.parent.as_ref();
        let is_allowed = parent.is_some_and(|parent| request.devices.allow(parent, &gpu.model));
        is_allowed && gpu.memory >= bytes && is_profile(&gpu.profile)
    });
    let fitting = fitting.filter_map(|gpu| Some((gpu, Profile::parse(&gpu.profile)?)));
    let fitting: Vec<(&Gpu, Profile)> = fitting.collect();
    let of = |(gpu, profile): &&(&Gpu, Profile)| (gpu.memory, profile.compute_slices);
    let Some((_, smallest)) = fitting.iter().min_by_key(of) else {
        return Vec::new();
    };
    let alike = fitting.iter().filter(|(_, profile)| profile == smallest);
    let names: BTreeSet<&String> = alike.map(|(gpu, _)| &gpu.profile).collect();
    names.into_iter().take(PROFILES_MAX).cloned().collect()
}

fn alternative(
    request: &Request,
    name: String,
    selectors: &[String],
    sized: String,
    memory: Option<u64>,
) -> DeviceSubRequest {
    let mut selectors = selectors.to_vec();
    selectors.push(sized);
    DeviceSubRequest {
        name,
        allocation_mode: Some("ExactCount".to_owned()),
        capacity: amounts(request, memory),
        count: Some(i64::from(request.count)),
        device_class_name: request.class.clone(),
        selectors: cel(selectors),
        ..DeviceSubRequest::default()
    }
}

/// A part, given in millionths of a size, rounded down to whole MiB so that it never exceeds the request.
fn part_of(size: u64, part: u32) -> u64 {
    let bytes = u128::from(size) * u128::from(part) / u128::from(MILLION);
    u64::try_from(bytes).unwrap_or(u64::MAX) / MEMORY_STEP * MEMORY_STEP
}

/// Groups sorted sizes into at most `most` ranges by joining the neighbours with the smallest ratio.
/// Sizes within one MiB are also joined, since driver versions differ that much for one model: an alternative is named
/// by its MiB, and the API server refuses duplicate names.
fn groups(sizes: Vec<u64>, most: usize) -> Vec<(u64, u64)> {
    let mut groups: Vec<(u64, u64)> = Vec::new();
    for size in sizes {
        match groups.last_mut() {
            Some((smallest, largest)) if *smallest >> 20 == size >> 20 => *largest = size,
            _ => groups.push((size, size)),
        }
    }
    while groups.len() > most {
        let ratio = |at: &usize| groups[at + 1].1 as f64 / groups[*at].0 as f64;
        let closest = (0..groups.len() - 1).min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let Some(at) = closest else { break };
        groups[at].1 = groups[at + 1].1;
        groups.remove(at + 1);
    }
    groups
}

/// Compares a device's memory.
fn compared(bytes: u64) -> String {
    let memory = format!(r#"device.capacity["{DRIVER_NAME}"].{}"#, capacity::MEMORY);
    format!(r#"{memory}.compareTo(quantity("{}"))"#, format_bytes(bytes))
}

/// Selects devices with that much memory.
fn sized(smallest: u64, largest: u64) -> String {
    match smallest == largest {
        true => format!("{} == 0", compared(smallest)),
        false => format!("{} >= 0 && {} <= 0", compared(smallest), compared(largest)),
    }
}

/// `None` for classes `gpu` and `vgpu-mig`, which have no amounts because they give whole devices.
fn amounts(request: &Request, memory: Option<u64>) -> Option<CapacityRequirements> {
    let mut requests = BTreeMap::new();
    if let Some(bytes) = memory {
        requests.insert(capacity::MEMORY.to_owned(), Quantity(format_bytes(bytes)));
    }
    if request.cores > 0 {
        requests.insert(capacity::CORES.to_owned(), Quantity(request.cores.to_string()));
    }
    (!requests.is_empty() && !request.is_whole()).then_some(CapacityRequirements {
        requests: Some(requests),
    })
}

fn cel(selectors: Vec<String>) -> Option<Vec<DeviceSelector>> {
    let selector = |expression| DeviceSelector {
        cel: Some(CELDeviceSelector { expression }),
    };
    (!selectors.is_empty()).then(|| selectors.into_iter().map(selector).collect())
}

/// The claim's VgpuConfig. Priority High is not in it: only the class grants it.
fn config(request: &Request) -> Value {
    let mut config = json!({"apiVersion": CONFIG_API_VERSION, "kind": CONFIG_KIND, "reportAs": request.report_as});
    if request.guaranteed {
        config["computePolicy"] = json!("Guaranteed");
    }
    if request.priority == Some(Priority::Low) {
        config["priority"] = json!("Low");
    }
    if let Some(policy) = request.allocation_policy {
        config["allocationPolicy"] = json!(policy);
    }
    config
}
