//! gpu-manager, gpu-admission and GPUSharing: `tencent.com/vcuda-core` and `tencent.com/vcuda-memory`.

use vgpu_api::config::Dialect;

use crate::pod::{PodView, annotation_at};
use crate::problem::Problem;
use crate::request::Request;
use crate::resources::Resources;

const CORE: &str = "tencent.com/vcuda-core";
const MEMORY: &str = "tencent.com/vcuda-memory";
const CORE_LIMIT: &str = "tencent.com/vcuda-core-limit";
/// One unit of `vcuda-memory`.
const BLOCK: u64 = 256 << 20;

pub(crate) const KEYS: &[&str] = &[CORE, MEMORY];
pub(crate) const ANNOTATIONS: &[&str] = &[CORE_LIMIT];

pub(crate) fn read(container: &Resources<'_>, pod: &mut PodView<'_>) -> Option<Request> {
    let before = pod.findings.problems.len();
    let core = container.amount(CORE, &mut pod.findings).unwrap_or(0);
    let blocks = container.amount(MEMORY, &mut pod.findings).unwrap_or(0);
    if pod.findings.problems.len() > before {
        return None;
    }
    let refuse = |pod: &mut PodView<'_>, key: &str, advice: &str| {
        let problem = Problem::invalid(container.at(key), container.written(key), advice);
        pod.findings.refuse(problem);
        None
    };
    if core >= 100 {
        if !core.is_multiple_of(100) {
            return refuse(pod, CORE, "is above 100 and must be a multiple of 100: whole GPUs");
        }
        if blocks > 0 {
            let text = "is ignored: tencent.com/vcuda-core asks for whole GPUs with all of their memory";
            pod.findings.warn(container.at(MEMORY), text);
        }
        let count = container.count(CORE, core / 100, &mut pod.findings)?;
        return Some(Request::whole(count, Dialect::GpuManager));
    }
    if core == 0 {
        let advice = "stands alone; a part of a GPU needs tencent.com/vcuda-core from 1 to 99 and tencent.com/vcuda-memory: give both";
        return refuse(pod, MEMORY, advice);
    }
    if blocks == 0 {
        let advice = "stands alone; below 100 it needs tencent.com/vcuda-memory too, in units of 256Mi: give both";
        return refuse(pod, CORE, advice);
    }
    let memory = container.bytes(MEMORY, blocks.checked_mul(BLOCK), &mut pod.findings)?;
    let mut request = Request::fraction(1, memory, Dialect::GpuManager);
    request.cores = core as u32; // below 100
    limit(&mut request, pod);
    Some(request)
}

/// If its limit equals its cores, a share never gets more; without a limit it also gets idle time. GPUSharing writes
/// that limit into every pod, so its users do not.
fn limit(request: &mut Request, pod: &mut PodView<'_>) {
    request.guaranteed = pod.settings.limit_vcuda_cores;
    let Some(written) = pod
        .annotation(CORE_LIMIT)
        .map(str::trim)
        .filter(|text| !text.is_empty())
    else {
        return;
    };
    match written.parse::<u32>() {
        Ok(limit @ 1..=100) if limit <= request.cores => {
            request.guaranteed = true;
            if limit < request.cores {
                let text =
                    format!("{limit} is below tencent.com/vcuda-core and counts: the container gets {limit} percent");
                pod.findings.warn(annotation_at(CORE_LIMIT), text);
                request.cores = limit;
            }
        }
        Ok(1..=100) if request.guaranteed => {}
        Ok(1..=100) => pod.findings.warn(
            annotation_at(CORE_LIMIT),
            "is above tencent.com/vcuda-core: the container gets idle time beyond its cores, without this limit",
        ),
        _ => pod.refuse_annotation(
            CORE_LIMIT,
            "must be a whole number from 1 to 100, the percent of a GPU's time",
        ),
    }
}
