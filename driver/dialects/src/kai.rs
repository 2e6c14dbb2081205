//! KAI-Scheduler: annotations of the pod, for one of its containers. Those with the container in their key are in
//! [`crate::kai_container`].

use vgpu_api::config::Dialect;
use vgpu_api::request::{MEMORY_MAX, MEMORY_MIN};
use vgpu_quantity::{quoted, shortened, whole};

use crate::hami;
use crate::instead;
use crate::kai_container::{self, Asked};
use crate::pod::{MOST_KEYS, PodView, annotation_at};
use crate::request::{COUNT_MAX, MILLION, Memory, Request};
use crate::resources::Resources;

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
/// KAI's webhook makes the limit of a container from it.
const MEMORY_LIMIT: &str = "gpu-memory.limit";
/// How the pod shares a GPU's time.
const SHARING_MODE: &str = "kai.scheduler/gpu-compute-sharing-mode";

/// Asks for NVIDIA's MPS for the pod's shares.
const MPS: &str = "mps";
/// If `"false"`, KAI's isolator does not limit the pod's memory.
const INJECT: &str = "kai-resource-isolator.io/inject";
/// The folder by which a pod of KAI reaches the node's MPS daemon.
const MPS_FOLDER: &str = "nvidia-mps";

const NO_MPS: &str = "is lost: MPS is not started, and shares of a GPU take turns; \
                      computePolicy of the claim's class says how its time is shared";

/// A pod with one of these asks for GPUs.
pub(crate) const ASKS: &[&str] = &[FRACTION, MEMORY, DEVICES];
/// Everything that is read, beside the keys with a container's name.
const ANNOTATIONS: &[&str] = &[FRACTION, MEMORY, DEVICES, CONTAINER, SHARING_MODE];

/// Returns true if a pod with this annotation asks for a GPU.
pub(crate) fn asks(key: &str) -> bool {
    ASKS.contains(&key) || kai_container::asks(key)
}

/// Returns true for an annotation that is read.
pub(crate) fn is_read(key: &str) -> bool {
    ANNOTATIONS.contains(&key) || kai_container::is_read(key)
}

/// The name of the container that gets the GPU, and its request. `first` is the first container's name.
pub(crate) fn read<'a>(
    containers: &[Resources<'a>],
    first: &'a str,
    pod: &mut PodView<'a>,
) -> Option<(&'a str, Request)> {
    let (fraction, memory) = (pod.annotation(FRACTION), pod.annotation(MEMORY));
    if fraction.is_some() && memory.is_some() {
        pod.refuse_annotation(FRACTION, "and gpu-memory exclude each other; remove one of them");
        return None;
    }
    let mut keys = pod.annotations().into_iter().flatten().map(|(key, _)| key.as_str());
    let by_container = keys.find(|key| kai_container::asks(key));
    for container in containers {
        if container.asks_for(&[hami::GPU]) {
            let key = match (by_container, fraction, memory) {
                (Some(key), ..) => key,
                (None, Some(_), _) => FRACTION,
                (None, None, Some(_)) => MEMORY,
                (None, None, None) => DEVICES,
            };
            let advice = format!(
                "and {} exclude each other; remove {} or the resource",
                container.at(hami::GPU),
                shortened(key)
            );
            pod.refuse_annotation(key, advice);
            return None;
        }
    }
    let (name, memory) = match by_container {
        Some(_) => {
            let (asked, memory) = kai_container::read(containers, pod)?;
            check_older(&asked, pod)?;
            (asked.container, memory)
        }
        None => {
            let memory = memory_of(fraction, memory, pod)?;
            (container_of_pod(containers, first, pod)?, memory)
        }
    };
    let count = count(pod)?;
    check_modes(pod);
    warn_of_isolation(pod);
    Some((name, Request::fraction(count, memory, Dialect::Kai)))
}

/// Checks the older annotations beside those of a container, by KAI's rules: KAI's own webhook writes the latter beside
/// `gpu-memory`.
fn check_older(asked: &Asked<'_>, pod: &mut PodView<'_>) -> Option<()> {
    let newer = shortened(asked.limit.or(asked.request)?.0);
    if let Some(name) = pod.annotation(CONTAINER)
        && name != asked.container
    {
        let advice = format!("must be the container of {newer}; remove it");
        pod.refuse_annotation(CONTAINER, advice);
        return None;
    }
    if let Some(written) = pod.annotation(MEMORY) {
        // A limit that KAI's webhook took from `gpu-memory.limit`.
        let is_shorthand = pod.annotation(MEMORY_LIMIT).is_some();
        if asked.limit.is_some() && !is_shorthand {
            pod.refuse_annotation(MEMORY, format!("and {newer} exclude each other; remove one of them"));
            return None;
        }
        let mebibytes = written.trim().parse::<u64>().ok();
        let older = mebibytes.and_then(|mebibytes| mebibytes.checked_mul(1 << 20));
        let request = asked.request.and_then(|(_, value)| vgpu_quantity::read_bytes(value));
        if request.is_some() && older != request {
            let (key, value) = asked.request.unwrap_or_default();
            let advice = format!(
                "is MiB, and not the same as {} in {}; remove it",
                quoted(value),
                shortened(key)
            );
            pod.refuse_annotation(MEMORY, advice);
            return None;
        }
    }
    if pod.annotation(FRACTION).is_some() {
        if asked.limit.is_some() {
            pod.refuse_annotation(FRACTION, format!("and {newer} exclude each other; remove one of them"));
            return None;
        }
        let text = format!("does not count beside {newer}; remove it");
        pod.findings.warn(annotation_at(FRACTION), text);
    }
    Some(())
}

/// The container that the pod's annotation names, else the first one.
fn container_of_pod<'a>(containers: &[Resources<'a>], first: &'a str, pod: &mut PodView<'a>) -> Option<&'a str> {
    let Some(name) = pod.annotation(CONTAINER) else {
        return Some(first);
    };
    let named = containers.iter().find(|container| container.container.name == name);
    if named.is_none() {
        pod.refuse_annotation(CONTAINER, "is no container of the pod; write the name of one");
    }
    Some(named?.container.name.as_str())
}

/// The part of each GPU.
fn memory_of(fraction: Option<&str>, memory: Option<&str>, pod: &mut PodView<'_>) -> Option<Memory> {
    let (key, advice) = match (fraction, memory) {
        (Some(written), _) => match millionths(written) {
            Some(part) => return Some(Memory::Millionths(part)),
            None => (FRACTION, "must be a positive number smaller than 1.0, for example 0.5"),
        },
        (None, Some(written)) => match written.trim().parse::<u64>() {
            Ok(mebibytes) if mebibytes > 0 => match mebibytes.checked_mul(1 << 20) {
                Some(bytes) if (MEMORY_MIN..=MEMORY_MAX).contains(&bytes) => return Some(Memory::Bytes(bytes)),
                _ => (MEMORY, "must be from 64 to 10485760 MiB"),
            },
            _ => (MEMORY, "must be a positive whole number of MiB, for example 4096"),
        },
        (None, None) => (
            DEVICES,
            "stands alone; it needs gpu-fraction or gpu-memory, the part of each GPU",
        ),
    };
    pod.refuse_annotation(key, advice);
    None
}

/// How many GPUs.
fn count(pod: &mut PodView<'_>) -> Option<u32> {
    let Some(written) = pod.annotation(DEVICES) else {
        return Some(1);
    };
    match whole(written.trim()) {
        Ok(count) if (1..=i64::from(COUNT_MAX)).contains(&count) => Some(count as u32),
        _ => {
            pod.refuse_annotation(DEVICES, format!("must be a whole number from 1 to {COUNT_MAX}"));
            None
        }
    }
}

/// Checks how the pod, or its container, shares a GPU's time: by turns, as here, or by MPS.
fn check_modes(pod: &mut PodView<'_>) {
    // A tenant chooses how many such keys there are.
    let mut warned = 0;
    for (key, value) in pod.annotations().into_iter().flatten() {
        let is_mode =
            key == SHARING_MODE || kai_container::split(key).is_some_and(|(_, what)| what == kai_container::MODE);
        match value.trim() {
            _ if !is_mode => {}
            "time-slicing" => {}
            "sm-sharing" => {
                warned += 1;
                if warned <= MOST_KEYS {
                    pod.findings.warn(annotation_at(&shortened(key)), NO_MPS);
                }
            }
            _ => pod.refuse_annotation(key, "is no mode; remove it, or write time-slicing"),
        }
    }
}

/// KAI's pods choose how they are isolated from each other. Here that is this driver's library, for all of them.
fn warn_of_isolation(pod: &mut PodView<'_>) {
    for (key, value) in pod.annotations().into_iter().flatten() {
        let said = match (key.as_str(), value.trim()) {
            (MPS, value) if !value.eq_ignore_ascii_case("false") => NO_MPS,
            (INJECT, value) if value.eq_ignore_ascii_case("false") => {
                "is lost: the limit of memory holds in every share, and no DeviceClass lifts it; \
                 for all of a GPU's memory write the resource nvidia.com/gpu instead of a fraction"
            }
            _ => continue,
        };
        pod.findings.warn(annotation_at(&shortened(key)), said);
    }
    let volumes = pod.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for (at, volume) in volumes.enumerate() {
        let path = volume.host_path.as_ref().map(|folder| folder.path.as_str());
        if path.is_some_and(|path| path.trim_end_matches('/').ends_with(MPS_FOLDER)) {
            pod.findings.warn(format!("spec.volumes[{at}].hostPath.path"), NO_MPS);
        }
    }
}

/// A decimal number between 0 and 1 in millionths, rounded down so that it never exceeds the request.
fn millionths(text: &str) -> Option<u32> {
    let text = text.trim();
    let (before, after) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let before = before.strip_prefix('+').unwrap_or(before);
    if !digits(before) || !digits(after) || text.len() > 64 || before.bytes().any(|digit| digit != b'0') {
        return None;
    }
    let mut part = 0;
    for at in 0..6 {
        let digit = after.as_bytes().get(at).map_or(0, |digit| digit - b'0');
        part = part * 10 + u32::from(digit);
    }
    (1..MILLION).contains(&part).then_some(part)
}

pub(crate) fn lost(key: &str) -> Option<&'static str> {
    Some(match key {
        "gpu-sm-cores" => "GPU time is not reserved by a number of cores",
        "gpu-fraction.limit" | MEMORY_LIMIT => {
            "a share has one size, and all of it is allocated; write the limit as gpu-fraction or gpu-memory"
        }
        _ => return None,
    })
}

/// Returns what to use instead of a key that KAI's scheduler reads; None for any other key.
pub(crate) fn scheduling(key: &str) -> Option<&'static str> {
    Some(match key {
        "kai.scheduler/queue" | "runai/queue" => instead::QUEUE,
        "kai.scheduler/node-pool" | "runai/node-pool" => instead::NODE_POOL,
        "pod-group-name" | "kai.scheduler/subgroup-name" => instead::GANG,
        "kai.scheduler/preemptibility" => {
            "whether other queues may take the pod's place is not decided by it; use priority classes, or Kueue"
        }
        _ if key.starts_with("kai.scheduler/topology") => instead::NETWORK,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_read_as_decimals() {
        for (text, part) in [
            ("0.5", Some(500_000)),
            (".25", Some(250_000)),
            ("0.333333333", Some(333_333)),
            ("0.99", Some(990_000)),
            ("0.29", Some(290_000)),
            ("+0.1", Some(100_000)),
            ("0", None),
            ("1", None),
            ("1.0", None),
            ("-0.5", None),
            ("0.0000001", None),
            ("", None),
            (".", None),
            ("half", None),
            ("NaN", None),
            ("0.5.5", None),
        ] {
            assert_eq!(millionths(text), part, "{text}");
        }
    }
}
