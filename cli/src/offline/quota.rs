//! The quota of a namespace, for `vgpu explain`: what is used of it, and why the pod waits for it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_quota::{Change, Quota, Wall, names, waits};

use super::kubectl::{self, KubectlError};

/// The part of an explanation that is about a namespace's quota.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The quota in a line, then why the pod waits for it.
    pub(super) lines: Vec<String>,
    /// The pod waits for it, whatever is free on the nodes.
    pub(super) is_waited_for: bool,
}

/// Reads the quota of a namespace. `pod` is a pod of it, and `lists` are the cluster's objects that were read already. A
/// user who may not read quotas is told so.
pub(super) fn of(namespace: &str, pod: Option<&str>, lists: &[Value]) -> Said {
    match read(namespace, pod, lists) {
        Ok(said) => said,
        Err(error) => Said {
            lines: vec![format!("the VgpuQuota of namespace {namespace} is not known: {error}")],
            is_waited_for: false,
        },
    }
}

fn read(namespace: &str, pod: Option<&str>, lists: &[Value]) -> Result<Said, KubectlError> {
    let Some(quotas) = kubectl::quotas(namespace)? else {
        return Ok(Said::default());
    };
    let mut quotas = items(&quotas).filter_map(object::<Quota>);
    let Some(quota) = quotas.find(|quota| quota.name == names::QUOTA) else {
        return Ok(Said::default());
    };
    let mut lines = vec![quota.to_string()];
    let Some(pod) = pod else {
        return Ok(Said {
            lines,
            is_waited_for: false,
        });
    };
    let resource_quotas = match kubectl::resource_quotas(namespace) {
        Ok(list) => list,
        Err(error) => {
            lines.push(format!("whether pod {pod} waits for it is not known: {error}"));
            return Ok(Said {
                lines,
                is_waited_for: false,
            });
        }
    };
    let others = lists.iter().chain([&resource_quotas]).flat_map(items);
    let objects = others.filter_map(change).chain([Change::Quota(Box::new(quota))]);
    let told = waits(objects, now()).into_iter();
    let told = told.filter(|(subject, _)| subject.namespace == namespace && subject.name == pod);
    let before = lines.len();
    lines.extend(told.map(|(_, notice)| format!("pod {pod}: {notice}")));
    Ok(Said {
        is_waited_for: lines.len() > before,
        lines,
    })
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// `None` for a kind that quotas do not look at, and for an object that cannot be read: it is the API server's.
fn change(item: &Value) -> Option<Change> {
    Some(match item["kind"].as_str()? {
        "DeviceClass" => Change::Class(object(item)?),
        "ResourceSlice" => Change::Slice(object(item)?),
        "ResourceClaim" => Change::Claim(object(item)?),
        "Pod" => Change::Pod(object(item)?),
        "ResourceQuota" => Change::ResourceQuota(object(item)?),
        _ => return None,
    })
}

fn object<T: DeserializeOwned>(item: &Value) -> Option<T> {
    T::deserialize(item).ok()
}

fn now() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
