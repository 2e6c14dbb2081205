//! The cluster's objects: from files, or those that the user may read.

use std::collections::BTreeMap;

use serde_json::Value;
use vgpu_allocator::offline::Objects;

use super::super::documents::{Documents, Object};
use super::super::quota::Quotas;
use super::super::seen::Seen;
use super::super::{OfflineError, objects};
use super::asked::Asked;
use crate::cluster::{self, Cluster, List, ReadError};
use crate::flags::ExplainFlags;

/// The objects to answer from.
pub(super) struct Known {
    pub(super) objects: Objects,
    /// Objects of kinds that the allocator does not read, by kind: workloads, templates, events.
    others: BTreeMap<String, Vec<Object>>,
    /// `None` for all namespaces.
    pub(super) namespace: Option<String>,
    pub(super) quotas: Quotas,
    /// Objects of the input that cannot be read.
    pub(super) failed: Vec<String>,
    /// Why nothing is known of devices; empty if it is.
    pub(super) unknown: Vec<String>,
    /// Why other kinds are not known.
    pub(super) unread: BTreeMap<&'static str, ReadError>,
    is_files: bool,
}

impl Known {
    pub(super) fn read(flags: &ExplainFlags, asked: &Asked) -> Result<Self, OfflineError> {
        if !flags.files.is_empty() {
            let namespace = flags.look.namespace.as_deref().unwrap_or("default").to_owned();
            let namespace = (!flags.all_namespaces).then_some(namespace);
            // Files have no quota.
            return Ok(Self::of(
                Documents::read(&flags.files)?,
                namespace,
                Quotas::default(),
                true,
            ));
        }
        let cluster = Cluster::connect(&flags.look.cluster, flags.look.namespace.as_deref())?;
        let namespace = (!flags.all_namespaces).then(|| cluster.namespace().to_owned());
        let seen = Seen::read(&cluster, namespace.as_deref(), asked.lists())?;
        let quotas = Quotas::read(&cluster, namespace.as_deref(), &seen);
        let mut documents = Documents::default();
        seen.lists.into_iter().for_each(|list| documents.add_list(list));
        let mut known = Self::of(documents, namespace, quotas, false);
        known.unknown = seen.missing.iter().map(ToString::to_string).collect();
        known.read_more(&cluster, asked)?;
        Ok(known)
    }

    fn of(documents: Documents, namespace: Option<String>, quotas: Quotas, is_files: bool) -> Self {
        let mut others: BTreeMap<String, Vec<Object>> = BTreeMap::new();
        let of_allocator = [
            "Node",
            "DeviceClass",
            "ResourceSlice",
            "DeviceTaintRule",
            "ResourceClaim",
            "Pod",
        ];
        for object in &documents.objects {
            let kind = object.value["kind"].as_str().unwrap_or_default();
            if !of_allocator.contains(&kind) {
                others.entry(kind.to_owned()).or_default().push(object.clone());
            }
        }
        let (objects, failed) = objects(documents);
        Self {
            objects,
            others,
            namespace,
            quotas,
            failed,
            unknown: Vec::new(),
            unread: BTreeMap::new(),
            is_files,
        }
    }

    /// Reads the events that an answer needs, and what shares use.
    fn read_more(&mut self, cluster: &Cluster, asked: &Asked) -> Result<(), ReadError> {
        let namespace = self.namespace.clone();
        let mut kinds = Vec::new();
        if !self.unknown.is_empty() || matches!(asked, Asked::Workload(..)) {
            kinds.push(cluster::EVENTS);
        }
        if matches!(asked, Asked::One(_)) {
            kinds.push(cluster::USAGES);
        }
        let lists = kinds.iter().map(|kind| List::of(*kind, namespace.as_deref()));
        for (kind, answer) in kinds.iter().zip(cluster.read_all(lists.collect())) {
            match answer {
                Ok(list) => {
                    let mut documents = Documents::default();
                    documents.add_list(list);
                    for object in documents.objects {
                        let kind = object.value["kind"].as_str().unwrap_or_default().to_owned();
                        self.others.entry(kind).or_default().push(object);
                    }
                }
                Err(error) if error.is_of_one_list() => {
                    if *kind == cluster::EVENTS && !self.unknown.is_empty() {
                        self.unknown.push(error.to_string());
                    }
                    self.unread.insert(kind.plural, error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Objects of a kind that the allocator does not read.
    pub(super) fn others(&self, kind: &str) -> impl Iterator<Item = &Object> {
        self.others.get(kind).into_iter().flatten()
    }

    /// Returns the objects of a kind as they were read.
    pub(super) fn values(&self, kind: &str) -> Vec<Value> {
        self.others(kind).map(|object| object.value.clone()).collect()
    }

    /// True if it is known what is free on the GPUs.
    pub(super) fn knows_devices(&self) -> bool {
        self.unknown.is_empty()
    }

    /// The namespace of an object that was asked about.
    pub(super) fn one_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// Returns true if objects of this namespace are asked about.
    pub(super) fn is_here(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|here| here == namespace)
    }

    /// True if the objects are from a cluster. Files may be incomplete.
    pub(super) fn is_of_cluster(&self) -> bool {
        !self.is_files
    }

    /// Returns the quota of the namespace that was asked about, or why it is not known.
    pub(super) fn quota_lines(&self) -> Vec<String> {
        let namespace = self.namespace.iter();
        namespace
            .flat_map(|namespace| self.quotas.said(namespace, None).lines)
            .collect()
    }

    /// Advice for an object that does not exist.
    pub(super) fn hint(&self) -> &'static str {
        match self.is_files {
            true => "give the object too, and its namespace by -n",
            false => "name its namespace by -n",
        }
    }
}
