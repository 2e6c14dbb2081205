//! Reads containers that ask for instances of GPUs in MIG mode: by the resources `nvidia.com/mig-1g.10gb` of NVIDIA's device
//! plugin, which KAI reads too, or by HAMi's mode `mig`.

use vgpu_api::config::Dialect;

use crate::pod::PodView;
use crate::problem::Problem;
use crate::profile::{Instance, profile_of};
use crate::request::{Memory, Request};
use crate::resources::Resources;

/// Returns true if the container asks for an instance by a resource.
pub(crate) fn is_asked(container: &Resources<'_>) -> bool {
    container.asks_where(|name| profile_of(name).is_some())
}

/// The request of a container for instances by resources; `None` after a problem, and for 0 instances.
pub(crate) fn read(container: &Resources<'_>, others: &[&str], pod: &mut PodView<'_>) -> Option<Request> {
    let mut asked: Vec<(&str, String)> = container
        .keys()
        .filter_map(|name| Some((name, profile_of(name)?)))
        .filter(|(name, _)| container.asks_for(&[name]))
        .collect();
    asked.sort_unstable();
    asked.dedup();
    let mut given = others.iter().filter(|key| container.asks_for(&[key]));
    let second = asked.get(1).map(|(name, _)| *name).or(given.next().copied());
    let (name, profile) = asked.into_iter().next()?;
    if let Some(second) = second {
        let advice = format!(
            "is asked for beside {}, and a container gets one kind of device; divide them among containers, or write a \
             ResourceClaimTemplate with a request for each",
            container.name(second)
        );
        let problem = Problem::invalid(container.place(name), container.value(name), advice);
        pod.findings.refuse(problem);
        return None;
    }
    let count = container.amount(name, &mut pod.findings)?;
    request(container, name, count, Instance::Profile(profile), Dialect::Hami, pod)
}

/// The request for this many instances. `key` is the resource with their number.
pub(crate) fn request(
    container: &Resources<'_>,
    key: &str,
    count: u64,
    instance: Instance,
    dialect: Dialect,
    pod: &mut PodView<'_>,
) -> Option<Request> {
    let count = container.count(key, count, &mut pod.findings)?;
    Some(Request::instances(count, instance, dialect))
}

/// Reads a container of a pod in HAMi's or Volcano's mode `mig`, with what it asks for in their other modes.
pub(crate) fn of_mode(
    container: &Resources<'_>,
    mode: &str,
    asked: &Request,
    keys: &ModeKeys,
    pod: &mut PodView<'_>,
) -> Option<Request> {
    let Memory::Bytes(bytes) = asked.memory else {
        pod.refuse_annotation(
            mode,
            format!(
                "gives instances of GPUs by their memory, and how much that is of a GPU is not known before it is chosen; \
                 name the MiB by {}, or remove the annotation",
                keys.memory
            ),
        );
        return None;
    };
    for key in [keys.cores, keys.priority].into_iter().flatten() {
        if container.asks_for(&[key]) {
            let text = "is lost: an instance has multiprocessors of its own, and is shared with nobody";
            pod.findings.warn(container.at(key), text);
        }
    }
    let count = u64::from(asked.count);
    let request = request(
        container,
        keys.count,
        count,
        Instance::AtLeast(bytes),
        asked.report_as,
        pod,
    )?;
    Some(Request {
        devices: asked.devices.clone(),
        allocation_policy: asked.allocation_policy,
        ..request
    })
}

/// The resources of a dialect beside its mode.
pub(crate) struct ModeKeys {
    pub(crate) count: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) cores: Option<&'static str>,
    pub(crate) priority: Option<&'static str>,
}
