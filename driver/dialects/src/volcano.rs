//! Volcano's GPU share, `volcano.sh/gpu-memory`, and its GPU number, `volcano.sh/gpu-number`.

use vgpu_api::config::Dialect;

use crate::instead;
use crate::pod::PodView;
use crate::problem::Problem;
use crate::request::Request;
use crate::resources::Resources;

const MEMORY: &str = "volcano.sh/gpu-memory";
const NUMBER: &str = "volcano.sh/gpu-number";

pub(crate) const KEYS: &[&str] = &[MEMORY, NUMBER];

pub(crate) fn read(container: &Resources<'_>, pod: &mut PodView<'_>) -> Option<Request> {
    let number = container.amount(NUMBER, &mut pod.findings).filter(|number| *number > 0);
    let memory = container.mebibytes(MEMORY, &mut pod.findings);
    match (number, memory) {
        (Some(_), Some(_)) => {
            let advice = "asks for whole GPUs, and volcano.sh/gpu-memory for a part of one; remove one of them";
            let problem = Problem::invalid(container.at(NUMBER), container.written(NUMBER), advice);
            pod.findings.refuse(problem);
            None
        }
        (Some(number), None) => {
            let count = container.count(NUMBER, number, &mut pod.findings)?;
            Some(Request::whole(count, Dialect::Volcano))
        }
        (None, memory) => Some(Request::fraction(1, memory?, Dialect::Volcano)),
    }
}

/// Returns what to use instead of a key that Volcano's scheduler reads; None for any other key.
pub(crate) fn scheduling(key: &str) -> Option<&'static str> {
    Some(match key {
        "scheduling.volcano.sh/queue-name" | "volcano.sh/queue-name" => instead::QUEUE,
        "volcano.sh/hierarchy" | "volcano.sh/hierarchy-weights" => instead::QUEUE,
        "scheduling.k8s.io/group-name" => instead::GANG,
        "volcano.sh/preemptable" | "volcano.sh/cooldown-time" => {
            "other queues do not take the pod's place; use priority classes, or Kueue for preemption between queues"
        }
        "volcano.sh/jdb-min-available" | "volcano.sh/jdb-max-unavailable" => {
            "evictions of the job's pods are not bounded by it; use a PodDisruptionBudget"
        }
        "volcano.sh/revocable-zone" | "volcano.sh/nodegroup-name" => instead::NODE_POOL,
        "volcano.sh/numa-topology-policy" => instead::NUMA,
        _ if key.starts_with("scheduling.volcano.sh/group-") => instead::GANG,
        _ if key.starts_with("volcano.sh/network-topology-") => instead::NETWORK,
        _ => return None,
    })
}
