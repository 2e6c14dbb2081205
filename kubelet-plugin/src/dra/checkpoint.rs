//! The prepared claims of the node, in memory. `claimdir` has the file of each.

use crate::dra::share::{ClaimId, Role, Share, ShareKeys};
use crate::publish::inventory::Gpu;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use vgpu_api::gpu_of_dynamic;
use vgpu_node::files::safe_name;

/// All prepared claims, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    pub claims: BTreeMap<String, Entry>,
    /// The GPUs of which claims have shares, by UUID, as they were published: also after a restart, a lost GPU stays
    /// published.
    pub gpus: BTreeMap<String, Gpu>,
}

/// A GPU or instance that claims have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    pub gpu: Gpu,
    /// False: they only monitor it.
    pub has_shares: bool,
    /// It is an instance that they made, or a GPU whose MIG mode they switch: it is published whether the driver lists it or not.
    pub is_dynamic: bool,
}

/// One prepared claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub namespace: String,
    pub name: String,
    /// Digest of the library to which the claim is bound since its first Prepare.
    #[serde(deserialize_with = "safe_name")]
    pub library: String,
    /// In the order of the claim's results.
    pub shares: Vec<PreparedShare>,
    /// By which name pods find the claim's metadata. None: not known, because the record was rebuilt from limits files or is of
    /// a release without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_by: Option<NamedBy>,
    /// The pods for which the claim was reserved when it was last prepared. Messages name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Pod>,
    /// Nothing on the node says whether the claim requires the driver's limit, so its shares do, until the API server or the
    /// driver of its GPUs answers (`dra::node::recover`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_require_limit: bool,
}

/// By which name pods know a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NamedBy {
    /// By its own.
    Claim,
    /// By this entry of a pod's `spec.resourceClaims`: the claim was made from a template.
    Pod(String),
}

/// A pod of a claim, in the claim's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub name: String,
    pub uid: String,
}

/// A share with its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedShare {
    #[serde(flatten)]
    pub share: Share,
    /// Its file in the GPU's arbitration directory; `None` for a monitor.
    pub slot: Option<u8>,
}

/// The sum of what all shares hold of one GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldOnGpu {
    pub shares: ShareKeys,
    /// Bytes.
    pub memory: u64,
    /// Percent of the GPU's time that is reserved.
    pub cores: u32,
    /// The part of the GPU that they have: [`Share::fraction`], added up.
    pub fraction: f64,
}

// === impl Entry ===

impl Entry {
    /// Its shares, monitors included.
    pub fn all(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().map(|prepared| &prepared.share)
    }

    /// Its shares without monitors, which have no limit.
    pub fn limited(&self) -> impl Iterator<Item = &Share> {
        self.all().filter(|share| share.role == Role::Share)
    }

    /// Replaces the names and shares of this entry by those of the API server, which have the same results.
    pub(crate) fn name_as(&mut self, id: &ClaimId, shares: &[Share]) {
        for (prepared, share) in self.shares.iter_mut().zip(shares) {
            prepared.share = share.clone();
        }
        (self.namespace, self.name) = (id.namespace.clone(), id.name.clone());
        self.may_require_limit = false;
    }

    /// The claim with this UID.
    #[must_use]
    pub fn id(&self, uid: &str) -> ClaimId {
        ClaimId {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: uid.to_owned(),
        }
    }
}

// === impl Checkpoint ===

impl Checkpoint {
    /// The GPUs that claims have, by index. A claim that was rebuilt from limits files may have an instance in a place that
    /// nobody knows.
    #[must_use]
    pub fn in_use(&self) -> Vec<InUse> {
        let limited = self.claims.values().flat_map(Entry::limited);
        let with_shares: BTreeSet<&str> = limited.map(|share| share.gpu.as_str()).collect();
        let all = self.claims.values().flat_map(Entry::all);
        let dynamic = all.filter(|share| gpu_of_dynamic(&share.device).is_some());
        let dynamic: BTreeSet<&str> = dynamic.map(|share| share.gpu.as_str()).collect();
        let in_use = |gpu: &Gpu| InUse {
            has_shares: with_shares.contains(gpu.uuid.as_str()),
            is_dynamic: dynamic.contains(gpu.uuid.as_str()),
            gpu: gpu.clone(),
        };
        let unknown = with_shares.iter().filter(|uuid| !self.gpus.contains_key(**uuid));
        let unplaced = unknown.filter_map(|uuid| Gpu::in_unknown_place(uuid));
        let mut all: Vec<InUse> = self.gpus.values().map(&in_use).collect();
        all.extend(unplaced.map(|gpu| in_use(&gpu)));
        all.sort_by_key(|one| one.gpu.index);
        all
    }

    /// Returns the GPU or instance that a claim has by the name of its device, as it was published.
    #[must_use]
    pub fn gpu_by_device(&self, uid: &str, device: &str) -> Option<&Gpu> {
        let mut shares = self.claims.get(uid)?.all();
        self.gpus.get(&shares.find(|share| share.device == device)?.gpu)
    }

    /// Returns what shares hold of a GPU. Monitors hold nothing.
    #[must_use]
    pub fn held_on(&self, gpu: &Gpu) -> HeldOnGpu {
        let mut all = HeldOnGpu::default();
        for (uid, entry) in &self.claims {
            for share in entry.limited().filter(|share| share.gpu == gpu.uuid) {
                all.shares.insert((uid.clone(), share.name.clone()));
                all.memory = all.memory.saturating_add(share.memory);
                all.cores = all.cores.saturating_add(share.cores);
                all.fraction += share.fraction(gpu.memory);
            }
        }
        all
    }
}
