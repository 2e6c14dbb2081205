//! Koordinator: `koordinator.sh/gpu`, or totals of a container that `koordinator.sh/gpu.shared` divides among GPUs.
//!
//! Koordinator adds up the requests of a pod's containers, and each container gets all GPUs of the pod. Here each
//! container gets only what it asks for itself.

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
    warn_of_provider(pod);
    let before = pod.findings.problems.len();
    let mut read = |key| container.amount(key, &mut pod.findings);
    let mut asked = Asked {
        gpu: read(GPU),
        shared: read(SHARED),
        core: read(CORE),
        memory: read(MEMORY),
        ratio: read(RATIO),
    };
    if pod.findings.problems.len() > before {
        return None;
    }
    let count = asked.check_fields().and_then(|()| {
        // `gpu` is both amounts.
        asked.core = asked.core.or(asked.gpu);
        asked.ratio = asked.ratio.filter(|ratio| *ratio > 0).or(asked.gpu);
        asked.memory = asked.memory.filter(|memory| *memory > 0);
        asked.count()
    });
    let (key, count) = match count {
        Ok(counted) => counted,
        Err((key, advice)) => {
            let problem = Problem::invalid(container.at(key), container.written(key), advice);
            pod.findings.refuse(problem);
            return None;
        }
    };
    let count = container.count(key, count, &mut pod.findings)?;
    let each = |total: u64| (total / u64::from(count)) as u32;
    let cores = asked.core.map(each);
    let memory = match (asked.memory, asked.ratio.map(each)) {
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

fn warn_of_provider(pod: &mut PodView<'_>) {
    let provider = pod.label(ISOLATION);
    if let Some(provider) = provider.filter(|value| !value.eq_ignore_ascii_case("hami-core")) {
        let text = format!(
            "{} is not known here; the limits are enforced by this driver's library, whatever it says",
            vgpu_quantity::quoted(provider)
        );
        pod.findings.warn(format!("metadata.labels[{ISOLATION}]"), text);
    }
}

/// The amounts of a container. All but `shared` are totals of its GPUs.
struct Asked {
    gpu: Option<u64>,
    shared: Option<u64>,
    core: Option<u64>,
    memory: Option<u64>,
    ratio: Option<u64>,
}

/// The resource that is wrong, and what to do.
type Refused = (&'static str, String);

impl Asked {
    /// Checks which fields are given together.
    fn check_fields(&self) -> Result<(), Refused> {
        let refuse = |key, advice: &str| Err((key, advice.to_owned()));
        let positive = |amount: Option<u64>| amount.is_some_and(|amount| amount > 0);
        let at_least_one = [(GPU, self.gpu), (SHARED, self.shared), (CORE, self.core)];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, amount)| *amount == Some(0)) {
            return refuse(key, "must be greater than 0; remove it, or write the amount");
        }
        if self.gpu.is_some() && self.shared.is_some() {
            return refuse(SHARED, "and koordinator.sh/gpu exclude each other; remove one");
        }
        if self.gpu.is_some() && (self.core.is_some() || self.memory.is_some() || self.ratio.is_some()) {
            let advice = "stands for gpu-core and gpu-memory-ratio; remove it, or the others";
            return refuse(GPU, advice);
        }
        if positive(self.memory) && positive(self.ratio) {
            let advice = "and koordinator.sh/gpu-memory exclude each other; give the memory in bytes or in percent";
            return refuse(RATIO, advice);
        }
        if self.gpu.is_none() && !positive(self.memory) && !positive(self.ratio) {
            let key = if self.core.is_some() { CORE } else { SHARED };
            let advice = "says nothing of memory; add koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio";
            return refuse(key, advice);
        }
        Ok(())
    }

    /// Returns how many GPUs the totals are for, and the resource from which that follows.
    fn count(&self) -> Result<(&'static str, u64), Refused> {
        let (core_key, ratio_key) = if self.gpu.is_some() { (GPU, GPU) } else { (CORE, RATIO) };
        let totals = [(ratio_key, self.ratio), (core_key, self.core)];
        let totals = || totals.into_iter().filter_map(|(key, total)| Some((key, total?)));
        if let Some(shared) = self.shared {
            for (key, total) in totals() {
                if total % shared != 0 {
                    return Err((
                        key,
                        format!("must be a multiple of koordinator.sh/gpu.shared, {shared}"),
                    ));
                }
                if total > shared.saturating_mul(100) {
                    return Err((key, format!("is more than 100 for each of {shared} GPUs")));
                }
            }
            return Ok((SHARED, shared));
        }
        if let Some((key, _)) = totals().find(|(_, total)| *total > 100 && total % 100 != 0) {
            let advice = "is above 100 and must then be a multiple of 100";
            return Err((key, advice.to_owned()));
        }
        let leading = self.ratio.or(self.core).unwrap_or(100);
        let count = if leading > 100 { leading / 100 } else { 1 };
        if let Some((key, _)) = totals().find(|(_, total)| total % count != 0 || total / count > 100) {
            let advice =
                format!("does not divide among {count} GPUs; give 100 for each, or add koordinator.sh/gpu.shared");
            return Err((key, advice));
        }
        let key = if self.ratio.is_some() { ratio_key } else { core_key };
        Ok((key, count))
    }
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
