//! HAMi and UK8S: `nvidia.com/gpu` and the amounts of each GPU beside it.

use vgpu_api::class;
use vgpu_api::config::{AllocationPolicy, Dialect, Priority};

use crate::instance::{self, ModeKeys};
use crate::pod::{DeviceKeys, Mode, PodView, annotation_at};
use crate::problem::Problem;
use crate::request::{Memory, Request};
use crate::resources::Resources;

pub(crate) const GPU: &str = "nvidia.com/gpu";
const MEMORY: &str = "nvidia.com/gpumem";
const PERCENTAGE: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";

/// A container with one of these asks for GPUs; without `nvidia.com/gpu` for one GPU.
pub(crate) const ASKS: &[&str] = &[GPU, MEMORY, PERCENTAGE, CORES];
/// All resources that are removed from a container.
pub(crate) const KEYS: &[&str] = &[GPU, MEMORY, PERCENTAGE, CORES, PRIORITY];

const MODE: &str = "nvidia.com/vgpu-mode";
const NUMA_BIND: &str = "nvidia.com/numa-bind";
const GPU_POLICY: &str = "hami.io/gpu-scheduler-policy";
const DEVICES: DeviceKeys = DeviceKeys {
    use_uuids: "nvidia.com/use-gpuuuid",
    not_uuids: "nvidia.com/nouse-gpuuuid",
    use_types: "nvidia.com/use-gputype",
    not_types: "nvidia.com/nouse-gputype",
};
const MODE_KEYS: ModeKeys = ModeKeys {
    count: GPU,
    memory: MEMORY,
    cores: Some(CORES),
    priority: Some(PRIORITY),
};
/// Annotations that have an effect here.
pub(crate) const ANNOTATIONS: &[&str] = &[
    MODE,
    NUMA_BIND,
    GPU_POLICY,
    DEVICES.use_uuids,
    DEVICES.not_uuids,
    DEVICES.use_types,
    DEVICES.not_types,
];

/// `None` if the container gets no GPU, or after a problem.
pub(crate) fn read(container: &Resources<'_>, pod: &mut PodView<'_>) -> Option<Request> {
    if instance::is_asked(container) {
        warn_beside_instances(pod);
        return instance::read(container, ASKS, pod);
    }
    let is_mig = pod.mode(MODE) == Mode::Mig;
    let count = container.amount(GPU, &mut pod.findings);
    let memory = container.mebibytes(MEMORY, &mut pod.findings);
    let percentage = percentage(container, PERCENTAGE, &mut *pod);
    let cores = cores(container, CORES, &mut *pod);
    let priority = container.amount(PRIORITY, &mut pod.findings);
    let (policy, idle_only) = pod.gpu_policy(GPU_POLICY);
    let devices = pod.devices(&DEVICES)?;
    if count == Some(0) {
        let text = "asks for no GPU: the container gets none, and its other GPU resources are removed";
        pod.findings.warn(container.at(GPU), text);
        return None;
    }
    let count = container.count(GPU, count.unwrap_or(1), &mut pod.findings)?;
    if memory.is_some() && percentage.is_some() {
        let text = format!("{} is given too, and counts", container.name(MEMORY));
        pod.findings.warn(container.at(PERCENTAGE), text);
    }
    let memory = memory.or(percentage).unwrap_or(Memory::All);
    let all_of_it = memory == Memory::All && cores.is_none();
    let mut request = if is_mig {
        Request::fraction(count, memory, Dialect::Hami)
    } else if all_of_it || cores == Some(100) || idle_only {
        if memory != Memory::All {
            let why = if idle_only { GPU_POLICY } else { CORES };
            let text = format!("{why} asks for whole GPUs, shared with nobody: the container gets all of their memory");
            pod.findings.warn(container.at(MEMORY), text);
        }
        Request::whole(count, Dialect::Hami)
    } else {
        let mut request = Request::fraction(count, memory, Dialect::Hami);
        request.cores = cores.unwrap_or(0);
        prioritise(&mut request, priority, container, pod);
        request
    };
    request.devices = devices;
    request.allocation_policy = match truth(pod.annotation(NUMA_BIND)) {
        true => Some(AllocationPolicy::Numa),
        false => policy,
    };
    if is_mig {
        // Cores are no reason for a whole GPU here.
        let asked = Request { memory, ..request };
        return instance::of_mode(container, MODE, &asked, &MODE_KEYS, pod);
    }
    Some(request)
}

/// Warns of annotations that have no effect where a container asks for instances by their profile.
fn warn_beside_instances(pod: &mut PodView<'_>) {
    for key in ANNOTATIONS {
        let value = pod.annotation(key).unwrap_or_default().trim();
        let says_the_same = *key == MODE && value.eq_ignore_ascii_case("mig");
        if !value.is_empty() && !says_the_same {
            let text = "has no effect on containers that ask for instances by a profile (nvidia.com/mig-...); ask by \
                        nvidia.com/vgpu-mode: mig with nvidia.com/gpumem, or write a ResourceClaimTemplate with selectors";
            pod.findings.warn(annotation_at(key), text);
        }
    }
}

/// 0 is High, which only a class of the administrator grants; everything else is Low.
fn prioritise(request: &mut Request, priority: Option<u64>, container: &Resources<'_>, pod: &mut PodView<'_>) {
    let Some(priority) = priority else { return };
    request.priority = Some(Priority::Low);
    if priority > 0 {
        return;
    }
    match &pod.settings.high_priority_class {
        // Class gpu gives whole GPUs, which no other share uses: priority would mean nothing.
        Some(class) if !class.is_empty() && class != class::GPU => {
            request.class.clone_from(class);
            request.priority = Some(Priority::High);
        }
        _ => pod.findings.warn(
            container.at(PRIORITY),
            "0 asks for priority High, which no DeviceClass grants here: the container gets Low; \
             an administrator can name a class by translate.highPriorityClass",
        ),
    }
}

/// Percent of each GPU's memory; 0 is the same as not given.
pub(crate) fn percentage(container: &Resources<'_>, key: &str, pod: &mut PodView<'_>) -> Option<Memory> {
    match container.amount(key, &mut pod.findings)? {
        0 => None,
        100 => Some(Memory::All),
        percent @ 1..100 => Some(Memory::Millionths(percent as u32 * 10_000)),
        _ => {
            let advice = "must be an integer from 0 to 100";
            pod.findings
                .refuse(Problem::invalid(container.at(key), container.written(key), advice));
            None
        }
    }
}

/// Percent of each GPU's time, at most 100.
pub(crate) fn cores(container: &Resources<'_>, key: &str, pod: &mut PodView<'_>) -> Option<u32> {
    match container.amount(key, &mut pod.findings)? {
        cores @ 0..=100 => Some(cores as u32),
        _ => {
            let text = format!("{} is more than a GPU has: 100 counts", container.written(key));
            pod.findings.warn(container.at(key), text);
            Some(100)
        }
    }
}

/// Go's spellings of true.
fn truth(text: Option<&str>) -> bool {
    matches!(text.map(str::trim), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// HAMi's annotations that change nothing here, with what is lost.
pub(crate) fn lost(key: &str) -> Option<&'static str> {
    Some(match key {
        "hami.io/node-scheduler-policy" => "the node is chosen by kube-scheduler or by controller.policy",
        "hami.io/device-scoring-weights" => "GPUs are not scored by weights; allocationPolicy chooses",
        _ => return None,
    })
}
