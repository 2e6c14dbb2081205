//! An API server: versions, conflicts, allocations that cannot be overwritten, finalizers, and a watch for each kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_allocator::model::{Allocation, DeviceClass, ResourceSlice};
use vgpu_planner::model::{Claim, Node, Pod, Slice, Version};
use vgpu_planner::{Change, Intent, Time, Write};

use super::check::Checker;

/// What is broken on purpose, to see that the check would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A mark does not make older versions fail.
    Fence,
    /// Writes are applied to any version, except for the checks that the API server makes itself.
    Versions,
    /// Devices change their allocator without a waiting time.
    Settling,
}

pub(crate) const KINDS: usize = 5;
pub(crate) const PODS: usize = 0;
pub(crate) const NODES: usize = 1;
pub(crate) const CLAIMS: usize = 2;
pub(crate) const SLICES: usize = 3;
pub(crate) const CLASSES: usize = 4;

#[derive(Default)]
pub(crate) struct Api {
    pub(crate) now: i64,
    pub(crate) version: u64,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) claims: BTreeMap<String, Claim>,
    /// The oldest version of each claim on which an accepted write may have been decided. It is the claim's current
    /// version, except for sabotage.
    pub(crate) oldest: BTreeMap<String, u64>,
    pub(crate) slices: BTreeMap<String, ResourceSlice>,
    pub(crate) slice_versions: BTreeMap<String, Version>,
    pub(crate) classes: BTreeMap<String, DeviceClass>,
    pub(crate) lease: Lease,
    /// When the oldest write in flight was decided.
    pub(crate) oldest_flying: Option<i64>,
    /// The events of the watches, by kind.
    pub(crate) log: [Vec<Change>; KINDS],
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) checker: Checker,
}

#[derive(Default, Clone)]
pub(crate) struct Lease {
    pub(crate) holder: String,
    pub(crate) renewed: i64,
    pub(crate) transitions: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Conflict,
    Invalid(&'static str),
}

impl Api {
    pub(crate) fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn bump(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    pub(crate) fn set_pod(&mut self, pod: Pod) {
        self.log[PODS].push(Change::Pod(pod.clone()));
        self.pods.insert(pod.key(), pod);
    }

    pub(crate) fn remove_pod(&mut self, key: &str) {
        if self.pods.remove(key).is_some() {
            self.log[PODS].push(Change::PodGone { key: key.to_owned() });
        }
    }

    pub(crate) fn set_node(&mut self, node: Node) {
        self.log[NODES].push(Change::Node(node.clone()));
        self.nodes.insert(node.name().to_owned(), node);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.log[NODES].push(Change::NodeGone { name: name.to_owned() });
        }
    }

    pub(crate) fn set_slice(&mut self, slice: ResourceSlice) {
        let version = self.bump();
        self.slice_versions.insert(slice.metadata.name.clone(), version);
        self.log[SLICES].push(Change::Slice {
            slice: Slice {
                version,
                facts: slice.clone(),
            },
            read: None,
        });
        self.slices.insert(slice.metadata.name.clone(), slice);
    }

    pub(crate) fn set_class(&mut self, class: DeviceClass) {
        self.log[CLASSES].push(Change::Class(class.clone()));
        self.classes.insert(class.metadata.name.clone(), class);
    }

    pub(crate) fn slice(&self, name: &str) -> Option<Slice> {
        Some(Slice {
            version: *self.slice_versions.get(name)?,
            facts: self.slices.get(name)?.clone(),
        })
    }

    /// A list of a kind, as a watch shows it: each object, then the end.
    pub(crate) fn list(&self, kind: usize) -> Vec<Change> {
        fn names<T>(objects: &BTreeMap<String, T>) -> Vec<String> {
            objects.keys().cloned().collect()
        }
        let (mut changes, end): (Vec<Change>, Change) = match kind {
            PODS => {
                let keys = names(&self.pods);
                (
                    self.pods.values().cloned().map(Change::Pod).collect(),
                    Change::Pods { keys },
                )
            }
            NODES => {
                let names = names(&self.nodes);
                (
                    self.nodes.values().cloned().map(Change::Node).collect(),
                    Change::Nodes { names },
                )
            }
            CLAIMS => (Vec::new(), self.claims(None)),
            SLICES => {
                let (names, version) = (names(&self.slices), Version(self.version));
                let slices = names.iter().filter_map(|name| self.slice(name));
                let slices = slices.map(|slice| Change::Slice { slice, read: None });
                (slices.collect(), Change::Slices { names, version })
            }
            _ => {
                let names = names(&self.classes);
                (
                    self.classes.values().cloned().map(Change::Class).collect(),
                    Change::Classes { names },
                )
            }
        };
        changes.push(end);
        changes
    }

    /// All claims.
    pub(crate) fn claims(&self, read: Option<Time>) -> Change {
        Change::Claims {
            claims: self.claims.values().cloned().collect(),
            same: Vec::new(),
            version: Version(self.version),
            read,
        }
    }

    /// Any write to a claim. `version` is the one that the writer knows; `None` means the current one.
    pub(crate) fn update(
        &mut self,
        key: &str,
        version: Option<Version>,
        change: impl FnOnce(&mut Claim),
    ) -> Result<Claim, Refusal> {
        let known = self.claims.get(key).ok_or(Refusal::Conflict)?;
        if version.is_some_and(|version| version != known.version) {
            return Err(Refusal::Conflict);
        }
        let mut claim = known.clone();
        change(&mut claim);
        validate(known, &claim)?;
        claim.version = self.bump();
        self.oldest.insert(key.to_owned(), claim.version.0);
        self.put(claim.clone());
        Ok(claim)
    }

    pub(crate) fn create_claim(&mut self, mut claim: Claim) {
        claim.version = self.bump();
        self.oldest.insert(claim.key(), claim.version.0);
        self.put(claim);
    }

    fn put(&mut self, claim: Claim) {
        let key = claim.key();
        if claim.is_deleted && !claim.is_protected {
            self.claims.remove(&key);
            self.log[CLAIMS].push(Change::ClaimGone {
                key,
                version: claim.version,
            });
        } else {
            self.log[CLAIMS].push(Change::Claim(claim.clone()));
            self.claims.insert(key, claim);
        }
        self.checker.check(self.now, &self.claims, &self.slices);
    }

    pub(crate) fn delete_claim(&mut self, key: &str) {
        // Errors are ignored: the object may be gone already.
        let _ = self.update(key, None, |claim| claim.is_deleted = true);
    }

    /// A write of a planner.
    pub(crate) fn write(&mut self, write: &Write) -> Result<Claim, Refusal> {
        let key = format!("{}/{}", write.namespace, write.name);
        let known = self.claims.get(&key).ok_or(Refusal::Conflict)?;
        let oldest = self.oldest.get(&key).copied().unwrap_or(0);
        let lands = match self.sabotage {
            Some(Sabotage::Versions) => true,
            Some(Sabotage::Fence) => write.version.0 >= oldest,
            _ => write.version == known.version,
        };
        if !lands || known.uid() != write.uid {
            return Err(Refusal::Conflict);
        }
        if let Intent::Allocate { allocation, .. } = &write.intent {
            let new = known.allocation().is_none();
            let settle = if self.sabotage == Some(Sabotage::Settling) {
                0
            } else {
                30_000
            };
            if new && settle > 0 {
                self.checker.controller_may(self.now, allocation, &self.slices);
            }
        }
        if matches!(write.intent, Intent::Mark { .. }) && known.is_deleted && !known.is_protected {
            return Err(Refusal::Invalid(
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        let before = self.oldest.get(&key).copied();
        let claim = self.update(&key, None, |claim| perform(claim, &write.intent))?;
        if self.sabotage == Some(Sabotage::Fence)
            && matches!(write.intent, Intent::Mark { .. })
            && let Some(before) = before
        {
            self.oldest.insert(key, before);
        }
        Ok(claim)
    }

    pub(crate) fn allocate(
        &mut self,
        key: &str,
        version: Version,
        allocation: Allocation,
        pod: &Pod,
    ) -> Result<Claim, Refusal> {
        self.checker.scheduler_may(self.now, &allocation, &self.slices);
        self.update(key, Some(version), |claim| {
            claim.is_protected = true;
            claim.facts.status.allocation = Some(Arc::new(allocation));
            claim.reserved_for.push(super::cluster::entry(pod));
        })
    }
}

fn perform(claim: &mut Claim, intent: &Intent) {
    match intent {
        Intent::Mark { epoch } => {
            claim.epoch = Some(epoch.clone());
            claim.is_protected = true;
        }
        Intent::Allocate { allocation, hold, .. } => {
            claim.facts.status.allocation = Some(allocation.clone());
            claim.reserved_for.push(hold.clone());
        }
        Intent::Release { hold } => claim.reserved_for.retain(|entry| entry.uid != hold.uid),
        Intent::Clear { hold } => {
            claim.facts.status.allocation = None;
            claim
                .reserved_for
                .retain(|entry| hold.as_ref().is_none_or(|hold| entry.uid != hold.uid));
        }
    }
}

fn validate(old: &Claim, new: &Claim) -> Result<(), Refusal> {
    if let (Some(old), Some(new)) = (old.allocation(), new.allocation())
        && old != new
    {
        return Err(Refusal::Invalid("status.allocation: field cannot be modified once set"));
    }
    if new.allocation().is_none() && !new.reserved_for.is_empty() {
        return Err(Refusal::Invalid(
            "status.reservedFor: may not be set without an allocation",
        ));
    }
    let is_new = |entry| !old.reserved_for.contains(entry);
    if new.is_deleted && new.reserved_for.iter().any(is_new) {
        return Err(Refusal::Invalid("status.reservedFor: the claim is being deleted"));
    }
    if new.allocation().is_some_and(|new| new.allocation_timestamp.is_none()) {
        return Err(Refusal::Invalid(
            "status.allocation.allocationTimestamp: kube-scheduler needs it",
        ));
    }
    Ok(())
}
