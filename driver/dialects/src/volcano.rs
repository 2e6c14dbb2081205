//! Volcano's GPU share, `volcano.sh/gpu-memory`, and its GPU number, `volcano.sh/gpu-number`.

use vgpu_api::config::Dialect;

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
