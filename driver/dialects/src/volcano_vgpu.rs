//! Volcano's vGPU: HAMi's resources under other names. Here a percentage takes precedence over MiB, and missing cores
//! mean 0.

use vgpu_api::config::Dialect;

use crate::hami;
use crate::instance::{self, ModeKeys};
use crate::pod::{DeviceKeys, Mode, PodView};
use crate::request::{Memory, Request};
use crate::resources::Resources;

const NUMBER: &str = "volcano.sh/vgpu-number";
const MEMORY: &str = "volcano.sh/vgpu-memory";
const PERCENTAGE: &str = "volcano.sh/vgpu-memory-percentage";
const CORES: &str = "volcano.sh/vgpu-cores";

pub(crate) const KEYS: &[&str] = &[NUMBER, MEMORY, PERCENTAGE, CORES];

const MODE: &str = "volcano.sh/vgpu-mode";
const DEVICES: DeviceKeys = DeviceKeys {
    use_uuids: "volcano.sh/vgpu-use-gpuuuid",
    not_uuids: "volcano.sh/vgpu-nouse-gpuuuid",
    use_types: "nvidia.com/use-gputype",
    not_types: "nvidia.com/nouse-gputype",
};
const MODE_KEYS: ModeKeys = ModeKeys {
    count: NUMBER,
    memory: MEMORY,
    cores: Some(CORES),
    priority: None,
};
pub(crate) const ANNOTATIONS: &[&str] = &[
    MODE,
    DEVICES.use_uuids,
    DEVICES.not_uuids,
    DEVICES.use_types,
    DEVICES.not_types,
];

pub(crate) fn read(container: &Resources<'_>, pod: &mut PodView<'_>) -> Option<Request> {
    let is_mig = pod.mode(MODE) == Mode::Mig;
    let number = container.amount(NUMBER, &mut pod.findings);
    let memory = container.mebibytes(MEMORY, &mut pod.findings);
    let percentage = hami::percentage(container, PERCENTAGE, &mut *pod);
    let cores = hami::cores(container, CORES, &mut *pod);
    let devices = pod.devices(&DEVICES)?;
    if number == Some(0) {
        let text = "asks for no GPU: the container gets none, and its other GPU resources are removed";
        pod.findings.warn(container.at(NUMBER), text);
        return None;
    }
    let count = container.count(NUMBER, number.unwrap_or(1), &mut pod.findings)?;
    if memory.is_some() && percentage.is_some() {
        let text = "volcano.sh/vgpu-memory-percentage is given too, and counts";
        pod.findings.warn(container.at(MEMORY), text);
    }
    let memory = percentage.or(memory).unwrap_or(Memory::All);
    let mut request = if cores == Some(100) && !is_mig {
        if memory != Memory::All {
            let text =
                "volcano.sh/vgpu-cores asks for whole GPUs, shared with nobody: the container gets all of their memory";
            pod.findings.warn(container.at(MEMORY), text);
        }
        Request::whole(count, Dialect::VolcanoVgpu)
    } else {
        Request::fraction(count, memory, Dialect::VolcanoVgpu)
    };
    if !request.is_whole() {
        request.cores = cores.unwrap_or(0);
    }
    request.devices = devices;
    if is_mig {
        return instance::of_mode(container, MODE, &request, &MODE_KEYS, pod);
    }
    Some(request)
}

pub(crate) fn lost(key: &str) -> Option<&'static str> {
    Some(match key {
        "volcano.sh/vgpu-podgroup-policy" => {
            "the pods of a group are not spread over GPUs; use topologySpreadConstraints"
        }
        _ => return None,
    })
}
