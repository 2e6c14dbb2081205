//! KAI's annotations that name a container, of its mode NvFractions: `nvidia.com/container.<container>.gpu-memory.limit`.

use vgpu_quantity::{Quantity, format_bytes, quoted, shortened};

use crate::pod::{PodView, annotation_at};
use crate::request::Memory;
use crate::resources::{Resources, memory_of};

const PREFIX: &str = "nvidia.com/container.";
/// How a key goes on that asks for memory, spelled correctly or not.
const ASKS: &str = "gpu-memory";
const REQUEST: &str = "gpu-memory.request";
const LIMIT: &str = "gpu-memory.limit";
/// The GPUs that KAI's binder chose.
const DEVICES: &str = "gpus.devices";
/// How the container shares a GPU's time.
pub(crate) const MODE: &str = "gpu-compute.mode";
/// The least amount that KAI takes.
const LEAST: u64 = 1 << 20;

/// Splits a key of this kind into the container's name and the rest; None for any other key.
pub(crate) fn split(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(PREFIX)?.split_once('.')
}

/// Returns true if a pod with this annotation asks for a GPU. A key that is misspelled behind `gpu-memory` asks too, and is
/// refused.
pub(crate) fn asks(key: &str) -> bool {
    split(key).is_some_and(|(_, what)| what.starts_with(ASKS))
}

/// Returns true for the keys that are read.
pub(crate) fn is_read(key: &str) -> bool {
    split(key).is_some_and(|(_, what)| what.starts_with(ASKS) || what == MODE || what == DEVICES)
}

/// The annotations of one container, as pairs of key and value.
#[derive(Default)]
pub(crate) struct Asked<'a> {
    pub(crate) container: &'a str,
    pub(crate) request: Option<(&'a str, &'a str)>,
    pub(crate) limit: Option<(&'a str, &'a str)>,
}

/// Returns the annotations of the container that gets the GPU, and its memory. `None` after a problem.
pub(crate) fn read<'a>(containers: &[Resources<'a>], pod: &mut PodView<'a>) -> Option<(Asked<'a>, Memory)> {
    let asked = asked(pod)?;
    let (key, _) = asked.limit.or(asked.request)?;
    if !containers.iter().any(|of| of.container.name == asked.container) {
        let advice = format!(
            "the pod has no container {}; write the name of one",
            quoted(asked.container)
        );
        pod.refuse_annotation(key, advice);
        return None;
    }
    let memory = memory(&asked, pod)?;
    Some((asked, memory))
}

/// The annotations of the only container that has some.
fn asked<'a>(pod: &mut PodView<'a>) -> Option<Asked<'a>> {
    let mut asked: Option<Asked<'a>> = None;
    for (key, value) in pod.annotations().into_iter().flatten() {
        let Some((container, what)) = split(key) else { continue };
        let is_limit = match what {
            REQUEST => false,
            LIMIT => true,
            DEVICES => {
                pod.refuse_annotation(key, "names GPUs, which only KAI's binder does; remove it");
                return None;
            }
            _ if what.starts_with(ASKS) => {
                let advice = format!("is no annotation of KAI; write {PREFIX}<container>.{LIMIT}");
                pod.refuse_annotation(key, advice);
                return None;
            }
            _ => continue,
        };
        let asked = asked.get_or_insert_with(|| Asked {
            container,
            ..Asked::default()
        });
        if asked.container != container {
            let advice = format!(
                "is for a second container beside {}; only one container of a pod can have such annotations: remove \
                 those of the other, or write a claim for each",
                quoted(asked.container)
            );
            pod.refuse_annotation(key, advice);
            return None;
        }
        let entry = Some((key.as_str(), value.as_str()));
        if is_limit {
            asked.limit = entry;
        } else {
            asked.request = entry;
        }
    }
    asked
}

/// The limit, or the request if there is no limit. A share has one size, all of which is allocated.
fn memory(asked: &Asked<'_>, pod: &mut PodView<'_>) -> Option<Memory> {
    let mut read = |entry: Option<(&str, &str)>| match entry {
        Some((key, value)) => bytes(key, value, pod).map(Some),
        None => Some(None),
    };
    let (request, limit) = (read(asked.request)?, read(asked.limit)?);
    let (key, _) = asked.limit.or(asked.request)?;
    if let (Some((at, _)), Some(request), Some(limit)) = (asked.request, request, limit) {
        if request > limit {
            let advice = format!("is more than the limit, {}; write at most that", format_bytes(limit));
            pod.refuse_annotation(at, advice);
            return None;
        }
        if request < limit {
            let text = format!(
                "does not count: a share has one size, the limit, and all of it is allocated: {}. Memory beyond a \
                 request is not lent here",
                format_bytes(limit)
            );
            pod.findings.warn(annotation_at(&shortened(at)), text);
        }
    }
    match memory_of(limit.or(request)) {
        Ok(memory) => Some(memory),
        Err(advice) => {
            pod.refuse_annotation(key, advice);
            None
        }
    }
}

/// Reads an amount as KAI does: any quantity of Kubernetes of at least 1Mi.
fn bytes(key: &str, value: &str, pod: &mut PodView<'_>) -> Option<u64> {
    let advice = match Quantity::parse(value) {
        Err(why) => format!("must be an amount of memory ({why})"),
        Ok(quantity) if quantity.is_negative() => "must not be negative".to_owned(),
        // An amount that does not fit in 64 bits is more than any GPU has.
        Ok(quantity) => match quantity.whole_away_from_zero().map_or(u64::MAX, i64::unsigned_abs) {
            bytes if bytes >= LEAST => return Some(bytes),
            bytes => format!("is {bytes} bytes, and the minimum is 1Mi; write a number with a unit, for example 4Gi"),
        },
    };
    pod.refuse_annotation(key, advice);
    None
}
