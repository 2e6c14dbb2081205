//! What a user may read of a cluster, for `vgpu explain` and `vgpu fit`.
//!
//! How it fails: each list has its own answer. Without the right to list pods or claims in the namespace there is nothing
//! to explain, which is an error. Without the right to list nodes, classes, slices or all claims nothing is said of
//! devices, because an answer from a part of the cluster's objects could be wrong, and the rights are named. It names no
//! other namespace's objects then, because none were read.

use serde_json::Value;

use crate::cluster::{self, Cluster, Kind, List, ReadError};

/// The lists that were read.
pub(super) struct Seen {
    /// As the API server answers them.
    pub(super) lists: Vec<Value>,
    /// Why some of the allocator's input is missing; empty if all of it was read.
    pub(super) missing: Vec<ReadError>,
}

impl Seen {
    /// Reads everything that the allocator reads, pods and templates of a namespace or of all, and `more` kinds there.
    pub(super) fn read(cluster: &Cluster, namespace: Option<&str>, more: &[Kind]) -> Result<Self, ReadError> {
        let here = |kind: Kind| List::of(kind, namespace);
        let needed = [cluster::NODES, cluster::CLASSES, cluster::SLICES, cluster::CLAIMS];
        let asked = [here(cluster::TEMPLATES), here(cluster::PODS)]
            .into_iter()
            .chain(more.iter().map(|kind| here(*kind)))
            .chain([List::everywhere(cluster::TAINT_RULES)])
            .chain(needed.map(List::everywhere));
        let mut answers = cluster.read_all(asked.collect()).into_iter();
        // If the user may not read templates, the answer is more general.
        let mut lists: Vec<Value> = answers.by_ref().take(1).flatten().collect();
        for answer in answers.by_ref().take(1 + more.len()) {
            lists.push(answer?);
        }
        let mut missing = Vec::new();
        for answer in answers {
            match answer {
                Ok(list) => lists.push(list),
                // Not every cluster has DeviceTaintRules.
                Err(ReadError::NotServed(kind)) if kind == cluster::TAINT_RULES.plural => {}
                Err(error) if error.is_of_one_list() => missing.push(error),
                Err(error) => return Err(error),
            }
        }
        if !missing.is_empty() {
            // The answer then omits devices, so what was read about them is dropped.
            let is_own =
                |list: &Value| !matches!(kind(list), "Node" | "DeviceClass" | "ResourceSlice" | "ResourceClaim");
            lists.retain(is_own);
            let [claims] = cluster.read([here(cluster::CLAIMS)]);
            lists.push(claims?);
        }
        Ok(Self { lists, missing })
    }
}

/// The kind of a list's items: the items themselves lack the field.
pub(super) fn kind(list: &Value) -> &str {
    let kind = list["kind"].as_str().unwrap_or_default();
    kind.strip_suffix("List").unwrap_or(kind)
}
