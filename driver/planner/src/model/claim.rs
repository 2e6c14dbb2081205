//! ResourceClaims, with what the allocator's model leaves out: version, deletion, epoch, `reservedFor`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vgpu_allocator::model::{Allocation, ClaimSpec, ClaimStatus, Metadata, ResourceClaim, fitted, or_default};

use super::Version;
use super::meta::Object;
use crate::names::{EPOCH, EXTENDED, FINALIZER};

/// A claim with everything that decisions depend on.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Object<ClaimSpec, Status>")]
pub struct Claim {
    pub version: Version,
    /// It has a deletionTimestamp, and still exists because of finalizers.
    pub is_deleted: bool,
    /// It has the delete-protection finalizer.
    pub is_protected: bool,
    /// kube-scheduler created it for an extended resource, and allocates it itself.
    pub is_extended: bool,
    /// A part of it cannot be decoded.
    pub unreadable: Option<Box<Unreadable>>,
    /// The mark: see [`crate::term`].
    pub epoch: Option<String>,
    /// The uid of the pod for which it was created.
    pub owner: Option<String>,
    pub reserved_for: Vec<Consumer>,
    /// The allocator's model of it, with its allocation.
    pub facts: ResourceClaim,
}

/// What is known of a claim that cannot be decoded as a whole. It is never allocated, and `facts` has an empty spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unreadable {
    pub why: String,
    /// The requests, if they can be decoded, so that nobody can hide a claim's usage from a quota.
    pub asked: Arc<ClaimSpec>,
}

/// An entry of `reservedFor`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consumer {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub uid: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    allocation: Option<Allocation>,
    #[serde(deserialize_with = "fitted")]
    reserved_for: Vec<Consumer>,
}

impl From<Object<ClaimSpec, Status>> for Claim {
    fn from(raw: Object<ClaimSpec, Status>) -> Self {
        let meta = raw.metadata;
        let owner = meta.owner_references.into_iter().find(|owner| owner.kind == "Pod");
        Self {
            version: meta.resource_version,
            is_deleted: meta.deletion_timestamp.is_some(),
            is_protected: meta.finalizers.iter().any(|finalizer| finalizer == FINALIZER),
            is_extended: meta.annotations.get(EXTENDED).is_some_and(|value| value == "true"),
            unreadable: None,
            epoch: meta.annotations.get(EPOCH).cloned(),
            owner: owner.map(|owner| owner.uid),
            reserved_for: raw.status.reserved_for,
            facts: ResourceClaim {
                metadata: Metadata {
                    name: meta.name,
                    namespace: meta.namespace,
                    uid: meta.uid,
                    ..Metadata::default()
                },
                spec: Arc::new(raw.spec),
                status: ClaimStatus {
                    allocation: raw.status.allocation.map(Arc::new),
                },
            },
        }
    }
}

impl Claim {
    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        self.facts.key()
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        &self.facts.metadata.uid
    }

    /// Its requests, as far as they can be decoded.
    #[must_use]
    pub fn asked(&self) -> &Arc<ClaimSpec> {
        self.unreadable
            .as_ref()
            .map_or(&self.facts.spec, |unreadable| &unreadable.asked)
    }

    /// The pod for whose extended resources kube-scheduler made the claim, according to its annotation. Anybody can
    /// write that, so it matters only if the pod names the claim.
    #[must_use]
    pub fn extended_of(&self) -> Option<&str> {
        self.owner.as_deref().filter(|_| self.is_extended)
    }

    #[must_use]
    pub fn allocation(&self) -> Option<&Allocation> {
        self.facts.status.allocation.as_deref()
    }
}
