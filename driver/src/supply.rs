//! What our GPUs have, and what of it is free: published capacity less what allocated claims hold.

use std::collections::{BTreeMap, HashMap};

use vgpu_api::capacity::{CORES, MEMORY, SHARES};

use crate::model::{Amount, Claim, ClaimState, Device, Slice, Taint, Taken, Toleration};

/// The three capacities of a GPU, or of a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    pub memory: i64,
    pub cores: i64,
    pub shares: i64,
}

/// One device, and what is free of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub node: String,
    pub pool: String,
    pub name: String,
    pub device_type: String,
    pub shared: bool,
    pub taints: Vec<Taint>,
    pub total: Amounts,
    /// What a request that names no capacity consumes.
    pub default: Amounts,
    /// Never negative, even where others have over-committed the device.
    pub free: Amounts,
    /// Taken as a whole, by a result that is not a share.
    pub dedicated: bool,
}

/// A pool whose newest generation is not wholly published; the scheduler takes nothing from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompletePool {
    pub pool: String,
    pub slices: usize,
    pub expected: i64,
}

/// All that our driver has published, in the scheduler's order: pool, slice, device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Supply {
    pub gpus: Vec<Gpu>,
    pub incomplete: Vec<IncompletePool>,
}

impl Supply {
    /// Adds up slices and claims.
    pub fn new<'a>(slices: impl Iterator<Item = &'a Slice>, claims: impl Iterator<Item = &'a Claim>) -> Self {
        let mut pools: BTreeMap<&str, Vec<&Slice>> = BTreeMap::new();
        for slice in slices {
            pools.entry(&slice.pool).or_default().push(slice);
        }
        let mut supply = Self::default();
        for (pool, mut slices) in pools {
            let newest = slices.iter().map(|slice| slice.generation).max().unwrap_or_default();
            slices.retain(|slice| slice.generation == newest);
            slices.sort_by(|a, b| a.name.cmp(&b.name));
            let expected = slices.first().map_or(0, |slice| slice.slice_count);
            if i64::try_from(slices.len()) != Ok(expected) {
                supply.incomplete.push(IncompletePool {
                    pool: pool.to_owned(),
                    slices: slices.len(),
                    expected,
                });
                continue;
            }
            for slice in slices {
                supply
                    .gpus
                    .extend(slice.devices.iter().map(|device| Gpu::new(slice, device)));
            }
        }
        supply.take(claims);
        supply
    }

    fn take<'a>(&mut self, claims: impl Iterator<Item = &'a Claim>) {
        let index: HashMap<(String, String), usize> = self
            .gpus
            .iter()
            .enumerate()
            .map(|(i, gpu)| ((gpu.pool.clone(), gpu.name.clone()), i))
            .collect();
        for claim in claims {
            let ClaimState::Allocated(results) = &claim.state else {
                continue;
            };
            for taken in results {
                // A device that is not published (any more) has nothing to give.
                if let Some(i) = index.get(&(taken.pool.clone(), taken.device.clone())) {
                    self.gpus[*i].take(taken);
                }
            }
        }
    }
}

impl Gpu {
    fn new(slice: &Slice, device: &Device) -> Self {
        let amounts = |get: fn(&crate::model::Capacity) -> i64| Amounts {
            memory: device.capacity.get(MEMORY).map_or(0, get),
            cores: device.capacity.get(CORES).map_or(0, get),
            shares: device.capacity.get(SHARES).map_or(0, get),
        };
        let total = amounts(|c| c.value.max(0));
        Self {
            node: slice.node.clone(),
            pool: slice.pool.clone(),
            name: device.name.clone(),
            device_type: device.device_type.clone(),
            shared: device.shared,
            taints: device.taints.clone(),
            total,
            default: amounts(|c| c.default),
            free: total,
            dedicated: false,
        }
    }

    fn take(&mut self, taken: &Taken) {
        if taken.admin {
            return;
        }
        if !taken.share {
            self.dedicated = true;
            self.free = Amounts::default();
            return;
        }
        let consumed = |key| taken.consumed.get(key).copied().unwrap_or(0);
        self.free = self.free.less(&Amounts {
            memory: consumed(MEMORY),
            cores: consumed(CORES),
            shares: consumed(SHARES),
        });
    }

    /// Takes what a request needs, so that the pod's next request sees what is left.
    pub fn reserve(&mut self, need: &Amounts) {
        if self.shared {
            self.free = self.free.less(need);
        } else {
            self.dedicated = true;
        }
    }

    /// The first taint that keeps a request with these tolerations away.
    pub fn repels(&self, tolerations: &[Toleration]) -> Option<&Taint> {
        self.taints.iter().find(|taint| {
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
                && !tolerations.iter().any(|t| t.tolerates(taint))
        })
    }

    /// Whether it is free for a request that needs so much. Administrative access needs nothing.
    pub fn has_room(&self, need: &Amounts) -> bool {
        !self.dedicated && (!self.shared || self.free.covers(need))
    }
}

impl Amounts {
    /// What is left; never below nothing, never more than there was.
    fn less(self, taken: &Self) -> Self {
        let less = |have: i64, taken: i64| have.saturating_sub(taken.max(0)).max(0);
        Self {
            memory: less(self.memory, taken.memory),
            cores: less(self.cores, taken.cores),
            shares: less(self.shares, taken.shares),
        }
    }

    pub fn covers(&self, need: &Self) -> bool {
        self.memory >= need.memory && self.cores >= need.cores && self.shares >= need.shares
    }
}

impl Amount {
    /// How many devices are needed of `candidates`.
    pub fn of(self, candidates: usize) -> usize {
        match self {
            Self::Exactly(count) => usize::try_from(count).unwrap_or(usize::MAX),
            // All of none is an error in Kubernetes, not a success.
            Self::All => candidates.max(1),
        }
    }
}
