//! Converts an allocated claim into shares, and validates it. Pure.
//!
//! ```text
//!  status.allocation.devices.results[] of our driver ──► device, memory, cores ─┐
//! spec.devices.requests[].capacity (Kubernetes accepts any unit) ────── check ├─► Share
//!  status.allocation.devices.config[] of our driver ── merge, class first ──────┘
//! ```
//!
//! Everything is checked although the API server stored it: it accepts a device that does not exist, 999Gi of
//! 80Gi, and negative amounts. Results and configs of other drivers are skipped.

use crate::dra::checkpoint::{NamedBy, Pod};
use crate::dra::metadata::POD_CLAIM_NAME;
use crate::dra::share::{Report, Role, Share};
use crate::publish::inventory::{Device, Gpu, Inventory};
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceAllocationConfiguration, DeviceRequestAllocationResult as Allocated, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use vgpu_abi::limits;
use vgpu_api::config::{self, ComputePolicy, ConfigError, Effective, Entry, Grant, MemoryPolicy, Priority, Sharing};
use vgpu_api::request::{self, RequestError};
use vgpu_api::{DRIVER_NAME, Pools, capacity};
use vgpu_quantity::{WholeError, format_bytes, whole};

/// The first release of NVIDIA's driver whose CUDA takes several instances, or an instance and a GPU.
const SEVERAL_INSTANCES_FROM: u32 = 570;
const RESULTS: &str = "status.allocation.devices.results";
const CONFIGS: &str = "status.allocation.devices.config";

/// Why a claim is refused; `at` is the path of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("status.allocation is empty: the claim is not allocated (any more); kubelet retries")]
    NotAllocated,
    #[error("{RESULTS} has no result of driver {DRIVER_NAME}: this plugin has nothing to prepare")]
    NoResult,
    #[error("{at}.pool {pool:?} is not this node's, {expected:?}: the claim is allocated elsewhere; delete the pod")]
    Pool { at: String, pool: String, expected: String },
    #[error("{at}.device {device:?} does not exist on this node; delete pod and claim, so that it is allocated again")]
    Device { at: String, device: String },
    #[error(
        "{at}: monitor device {device} without adminAccess; ask for it with adminAccess: true (class vgpu-monitor)"
    )]
    MonitorWithoutAdmin { at: String, device: String },
    #[error(
        "{at}: adminAccess to {device} would allocate a part of it; request its monitor device (class vgpu-monitor)"
    )]
    AdminOnGpu { at: String, device: String },
    #[error("{at}: the claim requests a monitor device and a share; use two claims and two containers")]
    Mixed { at: String },
    #[error(
        "{at}: no shareID or consumedCapacity[{key}]; the cluster dropped consumable capacity: \
         switch DRAConsumableCapacity on in kube-apiserver and kube-scheduler"
    )]
    NoCapacity { at: String, key: &'static str },
    #[error("{at}.shareID {name:?} is not a share's name ([a-z0-9-], at most 63); delete pod and claim")]
    ShareName { at: String, name: String },
    #[error("{at} is share {name:?} a second time; delete pod and claim, so that it is allocated again")]
    Repeated { at: String, name: String },
    #[error("{at}.consumedCapacity[{key}]: {reason}")]
    Quantity {
        at: String,
        key: String,
        reason: WholeError,
    },
    #[error(
        "{at}.consumedCapacity[{key}] {value} is not within {range}; delete pod and claim, so that it is allocated again"
    )]
    Range {
        at: String,
        key: String,
        value: String,
        range: String,
    },
    #[error(
        "{at}.consumedCapacity[{DRIVER_NAME}/{key}]: {}; delete pod and claim, so that it is allocated again",
        capacity::twice(.key, .short, .long)
    )]
    Twice {
        at: String,
        key: &'static str,
        short: String,
        long: String,
    },
    #[error(
        "{at}: instance {device} beside another device: NVIDIA's driver {version} gives a program one instance and nothing \
         else; use a claim and a container for each, or driver {SEVERAL_INSTANCES_FROM} or newer"
    )]
    OneInstance {
        at: String,
        device: String,
        version: String,
    },
    #[error("{at}.consumedCapacity[{key}]: no GPU of ours has this capacity; delete pod and claim")]
    UnknownCapacity { at: String, key: String },
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The pods that a claim is reserved for.
#[must_use]
pub fn pods(claim: &ResourceClaim) -> Vec<Pod> {
    let holders = claim
        .status
        .iter()
        .filter_map(|status| status.reserved_for.as_ref())
        .flatten();
    let pods = holders.filter(|holder| holder.resource == "pods");
    pods.map(|pod| Pod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    })
    .collect()
}

/// By which name pods know `claim`. Not validated: any user may write the annotation.
#[must_use]
pub fn named_by(claim: &ResourceClaim) -> NamedBy {
    let annotations = claim.metadata.annotations.as_ref();
    let name = annotations.and_then(|annotations| annotations.get(POD_CLAIM_NAME));
    name.filter(|name| !name.is_empty())
        .map_or(NamedBy::Claim, |name| NamedBy::Pod(name.clone()))
}

/// The names of this node's devices that `claim` was allocated and that it does not only administrate.
pub fn devices<'a>(claim: &'a ResourceClaim, pools: &'a Pools) -> impl Iterator<Item = &'a str> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.into_iter().flat_map(|devices| devices.results.iter().flatten());
    let own = results.filter(|result| result.driver == DRIVER_NAME && pools.contains(&result.pool));
    let used = own.filter(|result| result.admin_access != Some(true));
    used.map(|result| result.device.as_str())
}

/// Returns the shares of `claim` on the node that publishes `inventory` in `pools`, in the order of the
/// claim's results.
///
/// # Errors
/// The first field that is not valid.
pub fn shares(claim: &ResourceClaim, pools: &Pools, inventory: &Inventory) -> Result<Vec<Share>, Error> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.ok_or(Error::NotAllocated)?.devices.as_ref();
    let results = devices
        .and_then(|devices| devices.results.as_deref())
        .unwrap_or_default();
    let configs = devices
        .and_then(|devices| devices.config.as_deref())
        .unwrap_or_default();
    let mut shares: Vec<Share> = Vec::new();
    for (index, result) in results
        .iter()
        .enumerate()
        .filter(|(_, result)| result.driver == DRIVER_NAME)
    {
        let at = format!("{RESULTS}[{index}]");
        if !pools.contains(&result.pool) {
            return Err(Error::Pool {
                at,
                pool: result.pool.clone(),
                expected: pools.of_device(&result.device),
            });
        }
        let ask = ask(claim, &result.request);
        ask.as_ref().map_or(Ok(()), check_request)?;
        let config = effective(configs, &result.request, ask.map(|ask| ask.class))?;
        let share = match inventory.device(&result.device) {
            None => {
                return Err(Error::Device {
                    at,
                    device: result.device.clone(),
                });
            }
            Some(Device::Gpu(gpu)) => gpu_share(&at, result, gpu, &config)?,
            Some(Device::Monitor(gpu)) => monitor_share(&at, result, gpu, &config)?,
        };
        if shares.first().is_some_and(|first| first.role != share.role) {
            return Err(Error::Mixed { at });
        }
        // A share's name is that of its directory and limits file. Monitors have neither, so two requests may
        // monitor one GPU.
        if share.role == Role::Share && shares.iter().any(|other| other.name == share.name) {
            return Err(Error::Repeated { at, name: share.name });
        }
        shares.push(share);
    }
    match shares.as_slice() {
        [] => return Err(Error::NoResult),
        [_] => {}
        _ => check_instances(&shares, inventory)?,
    }
    Ok(shares)
}

/// Returns true if a program with this device has no other one: the driver gives it one instance alone.
#[must_use]
pub fn must_be_alone(gpu: &Gpu) -> bool {
    let release = gpu.driver_version.split('.').next();
    let release = release.and_then(|number| number.parse::<u32>().ok());
    gpu.mig.is_some() && release.is_some_and(|release| release < SEVERAL_INSTANCES_FROM)
}

/// Refuses an instance beside another device where the driver would leave out one of them in silence.
fn check_instances(shares: &[Share], inventory: &Inventory) -> Result<(), Error> {
    for share in shares {
        let Some(gpu) = inventory.gpu(&share.gpu).filter(|gpu| gpu.mig.is_some()) else {
            continue;
        };
        let are_others = shares.iter().any(|other| other.gpu != share.gpu);
        // Two shares of an instance are one device for CUDA.
        if are_others && must_be_alone(gpu) {
            return Err(Error::OneInstance {
                at: RESULTS.to_owned(),
                device: share.device.clone(),
                version: gpu.driver_version.clone(),
            });
        }
    }
    Ok(())
}

/// A request of the claim's spec, or the alternative of it that was allocated.
struct Ask<'a> {
    at: String,
    class: &'a str,
    capacity: Option<&'a CapacityRequirements>,
}

/// Finds the request of a result by the result's `request` field: `request` or `request/subrequest`.
fn ask<'a>(claim: &'a ResourceClaim, name: &str) -> Option<Ask<'a>> {
    let (base, sub) = name
        .split_once('/')
        .map_or((name, None), |(base, sub)| (base, Some(sub)));
    let requests = claim.spec.as_ref()?.devices.as_ref()?.requests.as_deref()?;
    let (index, request) = requests.iter().enumerate().find(|(_, request)| request.name == base)?;
    let at = format!("spec.devices.requests[{index}]");
    if let Some(exactly) = &request.exactly {
        return Some(Ask {
            at: format!("{at}.exactly"),
            class: &exactly.device_class_name,
            capacity: exactly.capacity.as_ref(),
        });
    }
    let alternatives = request.first_available.as_deref()?.iter().enumerate();
    let (index, chosen) = alternatives
        .into_iter()
        .find(|(_, one)| Some(one.name.as_str()) == sub)?;
    Some(Ask {
        at: format!("{at}.firstAvailable[{index}]"),
        class: &chosen.device_class_name,
        capacity: chosen.capacity.as_ref(),
    })
}

/// Checks units: without the admission policy, Kubernetes accepts any.
fn check_request(ask: &Ask<'_>) -> Result<(), Error> {
    let wanted = ask.capacity.and_then(|wanted| wanted.requests.as_ref());
    let pairs = wanted
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.0.as_str()));
    request::check(&format!("{}.capacity.requests", ask.at), ask.class, pairs)?;
    Ok(())
}

/// Merges the configs of our driver that apply to a result of a request of `class`.
fn effective(
    configs: &[DeviceAllocationConfiguration],
    request: &str,
    class_name: Option<&str>,
) -> Result<Effective, Error> {
    let (mut class, mut claim) = (Vec::new(), Vec::new());
    for (index, entry) in configs.iter().enumerate() {
        let Some(opaque) = entry.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER_NAME) else {
            continue;
        };
        if !Entry::applies(entry.requests.as_deref().unwrap_or_default(), request) {
            continue;
        }
        let at = format!("{CONFIGS}[{index}].opaque.parameters");
        if entry.source == "FromClass" {
            // The claim has a copy of the class's config; the class is what the user has to correct.
            let at = format!(
                "DeviceClass {} (FromClass), {at}",
                class_name.unwrap_or("of the request")
            );
            class.push(Entry::parse(at, &opaque.parameters.0)?);
        } else {
            claim.push(Entry::parse(at, &opaque.parameters.0)?);
        }
    }
    Ok(config::merge(&class, &claim)?)
}

/// Returns the share of a result that allocates a part of `gpu`, or all of it. An instance may be published as a device that is
/// not shared: then the result has neither a share ID nor consumed capacity.
fn gpu_share(at: &str, result: &Allocated, gpu: &Gpu, config: &Effective) -> Result<Share, Error> {
    if result.admin_access == Some(true) {
        return Err(Error::AdminOnGpu {
            at: at.to_owned(),
            device: result.device.clone(),
        });
    }
    let is_whole = gpu.mig.is_some() && result.share_id.is_none() && result.consumed_capacity.is_none();
    let ((memory, cores), name) = match is_whole {
        true => ((gpu.memory, 0), Some(result.device.clone())),
        false => (consumed(at, result, gpu)?, result.share_id.clone()),
    };
    let name = name.ok_or_else(|| Error::NoCapacity {
        at: at.to_owned(),
        key: capacity::SHARES,
    })?;
    if !limits::is_share_name(&name) {
        return Err(Error::ShareName {
            at: at.to_owned(),
            name,
        });
    }
    config.check(&Grant {
        memory,
        device_memory: gpu.memory,
        cores,
    })?;
    let compute_policy = match config.compute_policy {
        ComputePolicy::Guaranteed => limits::ComputePolicy::Guaranteed,
        ComputePolicy::Balanced => limits::ComputePolicy::Balanced,
        ComputePolicy::Unlimited => limits::ComputePolicy::Unlimited,
    };
    Ok(Share {
        name,
        role: Role::Share,
        request: result.request.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        gpu: gpu.uuid.clone(),
        memory,
        cores,
        compute_policy: compute_policy.of_share(cores, memory == gpu.memory),
        priority: match config.priority {
            Priority::High => limits::Priority::High,
            Priority::Low => limits::Priority::Low,
        },
        host_memory: match config.memory_policy {
            MemoryPolicy::Hard => 0,
            MemoryPolicy::Oversubscribe { host_memory } => host_memory,
        },
        memory_enforcement: config.memory_enforcement,
        report: config.report_as.map(|dialect| Report {
            dialect,
            whole: config.sharing == Sharing::Exclusive,
            priority: config.priority_said,
        }),
        driver_capabilities: config.driver_capabilities,
    })
}

/// Returns the memory and cores of `gpu` that a result takes.
fn consumed(at: &str, result: &Allocated, gpu: &Gpu) -> Result<(u64, u32), Error> {
    let consumed = result.consumed_capacity.as_ref().ok_or_else(|| Error::NoCapacity {
        at: at.to_owned(),
        key: capacity::MEMORY,
    })?;
    let amount = |key, low, high| amount(at, consumed, key, low, high);
    let memory = amount(capacity::MEMORY, request::MEMORY_MIN, gpu.memory)?;
    let cores = amount(capacity::CORES, 0, u64::from(request::CORES_MAX))?;
    amount(capacity::SHARES, 1, 1)?;
    // The slice lets each share take none of an instance's multiprocessors.
    let of_instances = gpu.mig.is_some().then_some(capacity::MULTIPROCESSORS);
    let known: Vec<&str> = [capacity::MEMORY, capacity::CORES, capacity::SHARES]
        .into_iter()
        .chain(of_instances)
        .collect();
    match consumed.keys().find(|key| !known.contains(&capacity::short(key))) {
        Some(key) => Err(Error::UnknownCapacity {
            at: at.to_owned(),
            key: key.clone(),
        }),
        None => Ok((memory, u32::try_from(cores).unwrap_or(request::CORES_MAX))),
    }
}

/// Returns the share of a result that allocates a monitor device of `gpu`.
fn monitor_share(at: &str, result: &Allocated, gpu: &Gpu, config: &Effective) -> Result<Share, Error> {
    if result.admin_access != Some(true) {
        return Err(Error::MonitorWithoutAdmin {
            at: at.to_owned(),
            device: result.device.clone(),
        });
    }
    config.check_without_limit("a monitor")?;
    Ok(Share {
        name: result.device.clone(),
        role: Role::Monitor,
        request: result.request.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        gpu: gpu.uuid.clone(),
        memory: 0,
        cores: 0,
        compute_policy: limits::ComputePolicy::Balanced,
        priority: limits::Priority::Low,
        host_memory: 0,
        memory_enforcement: config.memory_enforcement,
        report: None,
        driver_capabilities: config.driver_capabilities,
    })
}

/// Parses a consumed capacity. The scheduler writes it in the format of the policy's step.
fn amount(
    at: &str,
    consumed: &BTreeMap<String, Quantity>,
    key: &'static str,
    low: u64,
    high: u64,
) -> Result<u64, Error> {
    let text = capacity::find(key, |name| consumed.get(name))
        .map_err(|(short, long)| Error::Twice {
            at: at.to_owned(),
            key,
            short: short.0.clone(),
            long: long.0.clone(),
        })?
        .ok_or_else(|| Error::NoCapacity { at: at.to_owned(), key })?;
    let value = whole(&text.0).map_err(|reason| Error::Quantity {
        at: at.to_owned(),
        key: key.to_owned(),
        reason,
    })?;
    match u64::try_from(value).ok().filter(|value| (low..=high).contains(value)) {
        Some(value) => Ok(value),
        None => Err(Error::Range {
            at: at.to_owned(),
            key: key.to_owned(),
            value: text.0.clone(),
            range: match key {
                capacity::MEMORY => format!("{} to {}", format_bytes(low), format_bytes(high)),
                _ => format!("{low} to {high}"),
            },
        }),
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
