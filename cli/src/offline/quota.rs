//! The quota of a namespace, for `vgpu explain`: how much of it is used, and why the pod waits for it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_api::usage::VgpuNode;
use vgpu_planner::Change as OfCluster;
use vgpu_planner::explain::{Explanation, Standing};
use vgpu_quota::{Change, Notice, Quota, Unclaimed, names, waits};

use super::now;
use super::seen::{Seen, kind};
use crate::cluster::{Cluster, List, QUOTAS, RESOURCE_QUOTAS, ReadError, VGPU_NODES};

/// What is known of the quotas of a namespace, or of all.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// By namespace, the quota in a line.
    lines: BTreeMap<String, String>,
    /// By namespace and name of the pod.
    notices: BTreeMap<(String, String), Vec<Notice>>,
    /// Why quotas are not known.
    unread: Option<ReadError>,
    /// Why it is not known which pods wait for quotas.
    undecided: Option<ReadError>,
}

/// The part of an explanation that is about a namespace's quota.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The quota in a line, then why the pod waits for it.
    pub(super) lines: Vec<String>,
    /// Why the pod waits for it, without its name.
    pub(super) notices: Vec<String>,
    /// The event's reason, if the pod waits for the quota, whatever is free on the nodes.
    reason: Option<&'static str>,
    is_never: bool,
}

impl Quotas {
    /// Reads the quotas of a namespace, or of all. A user who may not read them gets a line that says so.
    pub(super) fn read(cluster: &Cluster, namespace: Option<&str>, seen: &Seen) -> Self {
        let here = |kind| List::of(kind, namespace);
        let [quotas, resource_quotas, nodes] =
            cluster.read([here(QUOTAS), here(RESOURCE_QUOTAS), List::everywhere(VGPU_NODES)]);
        let quotas = match quotas {
            Err(ReadError::NotServed(_)) => return Self::default(),
            Err(error) => {
                return Self {
                    unread: Some(error),
                    ..Self::default()
                };
            }
            Ok(quotas) => quotas,
        };
        let quotas: Vec<Quota> = items(&quotas)
            .filter_map(object::<Quota>)
            .filter(|quota| quota.name == names::QUOTA)
            .collect();
        let lines = quotas.iter().map(|quota| (quota.namespace.clone(), quota.to_string()));
        let mut known = Self {
            lines: lines.collect(),
            ..Self::default()
        };
        match resource_quotas {
            Err(error) => known.undecided = Some(error),
            // Without classes a pod's demand is not known; the controller's event contains it.
            Ok(_) if !seen.missing.is_empty() => {}
            Ok(resource_quotas) => {
                // Tenants may not read what nodes hold for claims that are gone: it is then left out.
                let lists = seen.lists.iter().chain([&resource_quotas]).chain(nodes.as_ref().ok());
                let others = lists.flat_map(|list| items(list).filter_map(|item| change(kind(list), item)));
                let quotas = quotas.into_iter().map(|quota| Change::Quota(Box::new(quota)));
                for (about, notice) in waits(others.chain(quotas), now()) {
                    let of_pod = known.notices.entry((about.namespace, about.name));
                    of_pod.or_default().push(notice);
                }
            }
        }
        known
    }

    /// Returns the quota's lines for a pod of the namespace, or for the namespace alone.
    pub(super) fn said(&self, namespace: &str, pod: Option<&str>) -> Said {
        let mut said = Said::default();
        if let Some(error) = &self.unread {
            said.lines
                .push(format!("the VgpuQuota of namespace {namespace} is not known: {error}"));
        }
        let Some(quota) = self.lines.get(namespace) else {
            return said;
        };
        said.lines.push(quota.clone());
        let Some(pod) = pod else {
            return said;
        };
        if let Some(error) = &self.undecided {
            said.lines
                .push(format!("whether pod {pod} waits for it is not known: {error}"));
        }
        let of_pod = self.notices.get(&(namespace.to_owned(), pod.to_owned()));
        for notice in of_pod.into_iter().flatten() {
            // A pod that was ungated by hand does not wait for the quota, even if the quota is exceeded.
            if !matches!(notice, Notice::Ungated { .. }) {
                said.reason = Some(notice.reason());
                said.is_never |= matches!(notice, Notice::TooLarge { .. });
            }
            said.notices.push(notice.to_string());
            said.lines.push(format!("pod {pod}: {notice}"));
        }
        said
    }
}

impl Said {
    /// If the pod waits for the quota, makes that the explanation's reason.
    pub(super) fn settle(&self, explanation: &mut Explanation) {
        let Some(reason) = self.reason else {
            return;
        };
        let standing = if self.is_never {
            Standing::Never
        } else {
            Standing::Blocked
        };
        explanation.state = explanation.state.max(standing);
        explanation.reason = reason.to_owned();
        explanation.is_ours = true;
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// `None` for a kind that quotas ignore, and for an object that cannot be read.
fn change(kind: &str, item: &Value) -> Option<Change> {
    let change = match kind {
        "DeviceClass" => OfCluster::Class(object(item)?),
        "ResourceSlice" => OfCluster::Slice {
            slice: object(item)?,
            read: None,
        },
        "ResourceClaim" => OfCluster::Claim(object(item)?),
        "Pod" => OfCluster::Pod(object(item)?),
        "ResourceQuota" => return object(item).map(Change::ResourceQuota),
        "VgpuNode" => {
            let node: VgpuNode = object(item)?;
            return Some(Change::Node {
                name: node.metadata.name?,
                shares: Unclaimed::of(&node.status.unwrap_or_default()),
            });
        }
        _ => return None,
    };
    Change::of(&change)
}

fn object<T: DeserializeOwned>(item: &Value) -> Option<T> {
    T::deserialize(item).ok()
}
