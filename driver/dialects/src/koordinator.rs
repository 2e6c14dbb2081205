//! Koordinator: `koordinator.sh/gpu`, or totals of a container that `koordinator.sh/gpu.shared` divides among GPUs.
//!
//! Koordinator adds up the requests of a pod's containers and gives each of them all of its GPUs. Here each container
//! gets what it asks for itself.

use vgpu_api::config::Dialect;

use crate::instead;
use crate::pod::PodView;
use crate::problem::Problem;
use crate::request::{Memory, Request};
use crate::resources::Resources;

const GPU: &str = "koordinator.sh/gpu";
const SHARED: &str = "koordinator.sh/gpu.shared";
const CORE: &str = "koordinator.sh/gpu-core";
const MEMORY: &str = "koordinator.sh/gpu-memory";
const RATIO: &str = "koordinator.sh/gpu-memory-ratio";

pub(crate) const KEYS: &[&str] = &[GPU, SHARED, CORE, MEMORY, RATIO];

const ISOLATION: &str = "koordinator.sh/gpu-isolation-provider";

pub(crate) fn read(container: &Resources<'_>, pod: &mut PodView<'_>) -> Option<Request> {
    if let Some(provider) = pod
        .label(ISOLATION)
        .filter(|value| !value.eq_ignore_ascii_case("hami-core"))
    {
        let text = format!(
            "{} is not known here; the limits are enforced by this driver's library, whatever it says",
            vgpu_quantity::quoted(provider)
        );
        pod.findings.warn(format!("metadata.labels[{ISOLATION}]"), text);
    }
    let before = pod.findings.problems.len();
    let mut read = |key| container.amount(key, &mut pod.findings);
    let (gpu, shared, core, memory, ratio) = (read(GPU), read(SHARED), read(CORE), read(MEMORY), read(RATIO));
    if pod.findings.problems.len() > before {
        return None;
    }
    let refuse = |pod: &mut PodView<'_>, key: &str, advice: &str| {
        let problem = Problem::invalid(container.at(key), container.written(key), advice);
        pod.findings.refuse(problem);
        None::<Request>
    };

    // Which fields may stand together.
    if let Some((key, _)) = [(GPU, gpu), (SHARED, shared), (CORE, core)]
        .into_iter()
        .find(|(_, amount)| *amount == Some(0))
    {
        return refuse(pod, key, "must be greater than 0; remove it, or write the amount");
    }
    if gpu.is_some() && shared.is_some() {
        return refuse(pod, SHARED, "and koordinator.sh/gpu exclude each other; remove one");
    }
    if gpu.is_some() && (core.is_some() || memory.is_some() || ratio.is_some()) {
        let advice = "stands for gpu-core and gpu-memory-ratio; remove it, or the others";
        return refuse(pod, GPU, advice);
    }
    let (memory, ratio_given) = (memory.filter(|memory| *memory > 0), ratio.filter(|ratio| *ratio > 0));
    if memory.is_some() && ratio_given.is_some() {
        let advice = "and koordinator.sh/gpu-memory exclude each other; give the memory in bytes or in percent";
        return refuse(pod, RATIO, advice);
    }
    let (core, ratio) = match gpu {
        Some(gpu) => (Some(gpu), Some(gpu)),
        None => (core, ratio_given),
    };
    if memory.is_none() && ratio.is_none() {
        let key = if core.is_some() { CORE } else { SHARED };
        let advice = "says nothing of memory; add koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio";
        return refuse(pod, key, advice);
    }

    // Of how many GPUs these are totals.
    let (core_key, ratio_key) = if gpu.is_some() { (GPU, GPU) } else { (CORE, RATIO) };
    let totals = [(ratio_key, ratio), (core_key, core)];
    let count = match shared {
        Some(shared) => {
            for (key, total) in totals {
                let Some(total) = total else { continue };
                if total % shared != 0 {
                    let advice = format!("must be a multiple of koordinator.sh/gpu.shared, {shared}");
                    return refuse(pod, key, &advice);
                }
                if total > shared.saturating_mul(100) {
                    let advice = format!("is more than 100 for each of {shared} GPUs");
                    return refuse(pod, key, &advice);
                }
            }
            shared
        }
        None => {
            for (key, total) in totals {
                if total.is_some_and(|total| total > 100 && total % 100 != 0) {
                    return refuse(pod, key, "is above 100 and must then be a multiple of 100");
                }
            }
            let leading = ratio.or(core).unwrap_or(100);
            let count = if leading > 100 { leading / 100 } else { 1 };
            for (key, total) in totals {
                if total.is_some_and(|total| total % count != 0 || total / count > 100) {
                    let advice = format!(
                        "does not divide among {count} GPUs; give 100 for each, or add koordinator.sh/gpu.shared"
                    );
                    return refuse(pod, key, &advice);
                }
            }
            count
        }
    };
    let count_key = if shared.is_some() {
        SHARED
    } else if ratio.is_some() {
        ratio_key
    } else {
        core_key
    };
    let count = container.count(count_key, count, &mut pod.findings)?;
    let each = |total: u64| (total / u64::from(count)) as u32;

    let cores = core.map(each);
    let memory = match (memory, ratio.map(each)) {
        (Some(bytes), _) => container.bytes(MEMORY, Some(bytes / u64::from(count)), &mut pod.findings)?,
        (None, Some(percent)) if percent < 100 => Memory::Millionths(percent * 10_000),
        (None, _) => Memory::All,
    };
    if memory == Memory::All && cores == Some(100) {
        return Some(Request::whole(count, Dialect::Koordinator));
    }
    let mut request = Request::fraction(count, memory, Dialect::Koordinator);
    request.cores = cores.unwrap_or(0);
    Some(request)
}

pub(crate) fn lost(key: &str) -> Option<&'static str> {
    Some(match key {
        "scheduling.koordinator.sh/device-allocate-hint" => "hints are not read: name GPUs by a claim's selectors",
        "scheduling.koordinator.sh/device-joint-allocate" => "devices of other kinds are not allocated jointly",
        "scheduling.koordinator.sh/gpu-partition-spec" => "partitions of GPUs are not allocated",
        _ => return None,
    })
}

/// Returns what to use instead of a key that Koordinator's scheduler reads; None for any other key.
pub(crate) fn scheduling(key: &str) -> Option<&'static str> {
    let (domain, name) = key.split_once('/')?;
    Some(match (domain, name) {
        ("quota.scheduling.koordinator.sh", "preemptible") => {
            "no quota of Koordinator decides what is preempted; use priority classes"
        }
        ("quota.scheduling.koordinator.sh", _) => {
            "the pod counts in no ElasticQuota; use a VgpuQuota or a ResourceQuota, or Kueue for quotas of a queue"
        }
        ("gang.scheduling.koordinator.sh", "network-topology-spec" | "network-topology-index") => instead::NETWORK,
        ("gang.scheduling.koordinator.sh" | "pod-group.scheduling.sigs.k8s.io", _) => instead::GANG,
        ("scheduling.koordinator.sh", "reservation-affinity") => {
            "the pod gets no place of a Reservation, which kube-scheduler does not know; remove it"
        }
        ("scheduling.koordinator.sh", "numa-topology-spec") => instead::NUMA,
        ("scheduling.koordinator.sh", "resource-spec") => {
            "CPUs are not bound by the scheduler; use kubelet's CPU manager policy static"
        }
        ("koordinator.sh", "priority") => {
            "pods of one priority class are in no order among each other; use priority classes"
        }
        _ => return None,
    })
}
