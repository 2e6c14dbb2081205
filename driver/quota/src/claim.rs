//! A ResourceClaim, as far as counting needs it, and what it counts.

mod wire;

use std::collections::BTreeMap;

use serde::Deserialize;
use vgpu_api::request::MEMORY_STEP;
use vgpu_api::{DRIVER_NAME, capacity};

use crate::amount::{Amount, CORES};
use crate::class::{Classes, Counts};
use crate::demand::Demand;
use crate::gpus::Gpus;
use crate::time::Wall;

/// The annotation of a claim that kube-scheduler makes for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// The beginning of the key under which a pod's extended resources are reserved.
const EXTENDED_KEY: &str = "pod-";

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Empty once it is allocated: then it counts what it was given. Boxed, as there may be ten thousand claims and a
    /// vector keeps room for more.
    asks: Box<[Box<[Ask]>]>,
    given: Option<Box<[Given]>>,
    /// When it was allocated, in whole seconds.
    pub allocated_at: Option<Wall>,
    /// The UID of the pod that it says it was made for, by that pod's extended resources. Anybody can write that: what
    /// counts is whether the pod names it.
    pub(crate) extended_of: Option<String>,
    /// Its devices must have an attribute in common, or differ in one.
    is_constrained: bool,
}

/// One alternative of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ask {
    class: String,
    is_admin: bool,
    count: Count,
    memory: Option<u64>,
    cores: u64,
    /// It selects devices by an expression.
    is_selective: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Exactly(u64),
    All,
}

/// One allocated share of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    pool: String,
    device: String,
    memory: Option<u64>,
    cores: u64,
}

/// Why a claim cannot be counted yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Uncounted {
    #[error("its DeviceClass {0:?} is not there; create it, or name another")]
    NoClass(String),
    #[error("no GPU was published yet, so it is not known what part of a GPU its shares are; wait for the plugin")]
    NoGpu,
}

impl Claim {
    #[must_use]
    pub const fn is_allocated(&self) -> bool {
        self.given.is_some()
    }

    /// The amount that it counts toward the quota: what it consumes if it is allocated, else the worst case.
    pub(crate) fn amount(&self, classes: &Classes, gpus: &Gpus) -> Result<Amount, Uncounted> {
        match &self.given {
            Some(given) => Ok(given.iter().map(|share| share.amount(gpus)).sum()),
            None => self.worst(classes, gpus),
        }
    }

    /// Returns what it consumes; `None` while one of its GPUs is not published, as when kubelet restarts.
    pub(crate) fn measured(&self, gpus: &Gpus) -> Option<Amount> {
        let mut shares = self.given.as_ref()?.iter();
        let amount = |share: &Given| gpus.memory(&share.pool, &share.device).map(|_| share.amount(gpus));
        shares.try_fold(Amount::default(), |sum, share| Some(sum + amount(share)?))
    }

    /// Its shares on devices.
    pub(crate) fn given(&self, gpus: &Gpus) -> impl Iterator<Item = (&str, &str, Amount)> {
        let shares = self.given.iter().flatten();
        shares.map(|share| (share.pool.as_str(), share.device.as_str(), share.amount(gpus)))
    }

    /// Returns its demands for each combination of its requests' alternatives, at most `WAYS_MAX`. They are right only if
    /// [`Self::not_known`] returns `None`.
    pub(crate) fn ways(&self, classes: &Classes) -> Vec<Vec<Demand>> {
        let mut ways = vec![Vec::new()];
        for alternatives in &self.asks {
            let mut next = Vec::new();
            for ask in alternatives {
                let demands = ask.demands(classes);
                next.extend(ways.iter().map(|way: &Vec<Demand>| [&way[..], &demands].concat()));
            }
            next.truncate(WAYS_MAX);
            ways = next;
        }
        ways
    }

    /// Why it is not known which GPUs it could have, if so.
    pub(crate) fn not_known(&self, classes: &Classes) -> Option<NotKnown> {
        if self.is_constrained {
            return Some(NotKnown::Constrained);
        }
        self.asks.iter().flatten().find_map(|ask| ask.not_known(classes))
    }

    fn worst(&self, classes: &Classes, gpus: &Gpus) -> Result<Amount, Uncounted> {
        let mut sum = Amount::default();
        for alternatives in &self.asks {
            let mut worst = Amount::default();
            for ask in alternatives {
                worst = worst.worst(ask.amount(classes, gpus)?);
            }
            sum += worst;
        }
        Ok(sum)
    }
}

impl Ask {
    fn amount(&self, classes: &Classes, gpus: &Gpus) -> Result<Amount, Uncounted> {
        match classes.counts(&self.class) {
            Counts::Unknown => return Err(Uncounted::NoClass(self.class.clone())),
            Counts::Nothing => return Ok(Amount::default()),
            // Administrative access holds nothing.
            Counts::Shares if self.is_admin => return Ok(Amount::default()),
            Counts::Shares => {}
        }
        let one = gpus.worst(self.memory, self.cores).ok_or(Uncounted::NoGpu)?;
        Ok(one.times(match self.count {
            Count::Exactly(count) => count,
            Count::All => u64::try_from(gpus.count()).unwrap_or(u64::MAX).min(32),
        }))
    }
}

impl Ask {
    /// Its shares. Administrative access and devices of others are none.
    fn demands(&self, classes: &Classes) -> Vec<Demand> {
        if self.is_admin || classes.counts(&self.class) != Counts::Shares {
            return Vec::new();
        }
        let one = Demand {
            memory: self.memory,
            cores: self.cores,
            kind: classes.kind(&self.class).flatten().map(str::to_owned),
        };
        let count = match self.count {
            Count::Exactly(count) => usize::try_from(count).unwrap_or(usize::MAX).min(DEVICES_MAX),
            Count::All => 1,
        };
        vec![one; count]
    }

    fn not_known(&self, classes: &Classes) -> Option<NotKnown> {
        match classes.counts(&self.class) {
            Counts::Unknown => Some(NotKnown::NoClass(self.class.clone())),
            Counts::Shares if !self.is_admin => match (classes.kind(&self.class), self.count) {
                (None, _) => Some(NotKnown::ClassSelects(self.class.clone())),
                _ if self.is_selective => Some(NotKnown::Selects),
                (_, Count::All) => Some(NotKnown::All),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Given {
    fn amount(&self, gpus: &Gpus) -> Amount {
        let device = gpus.memory(&self.pool, &self.device);
        match (self.memory, device) {
            (Some(memory), Some(device)) => Amount::share(memory, self.cores, device),
            // A GPU that is not published now: as before the allocation.
            (memory, None) => gpus.worst(memory, self.cores).unwrap_or_default(),
            // Without consumedCapacity the device is held whole.
            (None, Some(device)) => Amount::share(device, self.cores, device),
        }
    }
}

/// Kubernetes allocates at most this many devices to a claim.
const DEVICES_MAX: usize = 32;
/// At most this many combinations of alternatives are tried.
const WAYS_MAX: usize = 16;

/// Why it is not known which GPUs a claim could have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown {
    #[error("its DeviceClass {0:?} is not there")]
    NoClass(String),
    #[error("its DeviceClass {0:?} selects by more than driver and type")]
    ClassSelects(String),
    #[error("a request selects devices by an expression")]
    Selects,
    #[error("its devices are constrained")]
    Constrained,
    #[error("a request asks for all devices of a node")]
    All,
}

/// The key of what a pod's extended resources take: it is reserved before there is a claim.
#[must_use]
pub(crate) fn extended_key(pod_uid: &str) -> String {
    format!("{EXTENDED_KEY}{pod_uid}")
}

/// The pod's UID in such a key.
pub(crate) fn pod_of_key(key: &str) -> Option<&str> {
    key.strip_prefix(EXTENDED_KEY)
}

/// The worst that so many extended resources of ours may take: whole GPUs.
pub(crate) fn extended_amount(count: u64, gpus: &Gpus) -> Result<Amount, Uncounted> {
    Ok(gpus.worst(None, 0).ok_or(Uncounted::NoGpu)?.times(count))
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(wire::Claim::deserialize(deserializer)?.into())
    }
}

/// Bytes as the scheduler rounds them. What is no number of bytes counts as not given: all of a GPU.
fn memory(capacity: Option<&BTreeMap<String, String>>) -> Option<u64> {
    let bytes = vgpu_quantity::whole(capacity?.get(capacity::MEMORY)?).ok()?;
    let bytes = u64::try_from(bytes).ok()?;
    Some(
        bytes
            .clamp(vgpu_api::request::MEMORY_MIN, u64::MAX / 2)
            .next_multiple_of(MEMORY_STEP),
    )
}

fn consumed(capacity: Option<&BTreeMap<String, String>>) -> Option<u64> {
    let bytes = vgpu_quantity::whole(capacity?.get(capacity::MEMORY)?).ok()?;
    u64::try_from(bytes).ok()
}

fn cores(capacity: Option<&BTreeMap<String, String>>) -> u64 {
    let Some(text) = capacity.and_then(|capacity| capacity.get(capacity::CORES)) else {
        return 0;
    };
    let read = vgpu_quantity::Quantity::parse(text).ok();
    let cores = read.and_then(|cores| cores.whole_away_from_zero());
    cores.map_or(CORES, |cores| u64::try_from(cores).unwrap_or(0).min(CORES))
}

impl From<wire::Ask> for Ask {
    fn from(ask: wire::Ask) -> Self {
        let requests = ask.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref());
        Self {
            is_admin: ask.admin_access == Some(true),
            count: match ask.allocation_mode.as_deref() {
                Some("All") => Count::All,
                _ => Count::Exactly(u64::try_from(ask.count.unwrap_or(1)).unwrap_or(1).max(1)),
            },
            memory: memory(requests),
            cores: cores(requests),
            is_selective: ask.selectors.is_some_and(|selectors| !selectors.is_empty()),
            class: ask.device_class_name,
        }
    }
}

impl From<wire::Claim> for Claim {
    fn from(claim: wire::Claim) -> Self {
        let constraints = claim.spec.devices.constraints.as_ref();
        let is_constrained = constraints.is_some_and(|constraints| !constraints.is_empty());
        let requests = claim.spec.devices.requests.into_iter().flatten();
        let alternatives = |request: wire::Request| -> Box<[Ask]> {
            let exactly = request.exactly.into_iter();
            let all = exactly.chain(request.first_available.into_iter().flatten());
            all.map(Ask::from).collect()
        };
        let is_extended = claim
            .metadata
            .annotations
            .get(EXTENDED)
            .is_some_and(|value| value == "true");
        let mut owners = claim.metadata.owner_references.into_iter();
        let owner = owners.find(|owner| owner.kind == "Pod").map(|owner| owner.uid);
        let given: Option<Box<[Given]>> = claim.status.allocation.as_ref().map(|allocation| {
            let results = allocation.devices.results.iter().flatten();
            let ours = results.filter(|result| result.driver == DRIVER_NAME && result.admin_access != Some(true));
            // Monitors of ours have no capacity and are no GPU; `Gpus` does not know them.
            let shares = ours.filter(|result| !result.device.ends_with("-monitor"));
            let given = shares.map(|result| Given {
                pool: result.pool.clone(),
                device: result.device.clone(),
                memory: consumed(result.consumed_capacity.as_ref()),
                cores: cores(result.consumed_capacity.as_ref()),
            });
            given.collect()
        });
        let at = claim
            .status
            .allocation
            .and_then(|allocation| allocation.allocation_timestamp);
        Self {
            namespace: claim.metadata.namespace,
            name: claim.metadata.name,
            uid: claim.metadata.uid,
            asks: requests.filter(|_| given.is_none()).map(alternatives).collect(),
            given,
            allocated_at: at.as_deref().and_then(Wall::parse),
            extended_of: owner.filter(|_| is_extended),
            is_constrained,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::tests::slice;
    use serde_json::{Value, json};

    const GI: u64 = 1 << 30;

    fn world() -> (Classes, Gpus) {
        let mut classes = Classes::default();
        for (name, cel) in [
            ("vgpu", "device.driver == 'dra.vgpu'"),
            ("nic", "device.driver == 'nic'"),
        ] {
            let class = json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": cel}}]}});
            classes.set(serde_json::from_value(class).unwrap());
        }
        let mut gpus = Gpus::default();
        gpus.set(slice("n1", &[80, 40]), crate::time::Now::ZERO);
        (classes, gpus)
    }

    fn claim(requests: Value, status: Value) -> Claim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "t", "uid": "u"},
            "spec": {"devices": {"requests": requests}}, "status": status}))
        .unwrap()
    }

    fn amount(requests: Value) -> Result<Amount, Uncounted> {
        let (classes, gpus) = world();
        claim(requests, json!({})).amount(&classes, &gpus)
    }

    #[test]
    fn before_the_allocation_the_worst_case_counts() {
        let ask = |class: &str, capacity: Value| json!({"deviceClassName": class, "capacity": {"requests": capacity}});
        let exactly = |ask: Value| json!([{"name": "gpu", "exactly": ask}]);
        let part = amount(exactly(ask("vgpu", json!({"memory": "20Gi", "cores": "25"})))).unwrap();
        assert_eq!(
            (part.memory, part.cores, part.gpus, part.shares),
            (20 * GI, 25, 500_000, 1)
        );
        // No memory named: the largest GPU.
        let whole = amount(exactly(json!({"deviceClassName": "vgpu"}))).unwrap();
        assert_eq!((whole.memory, whole.cores, whole.gpus), (80 * GI, 100, 1_000_000));
        // The largest alternative, in each dimension.
        let either = json!([{"name": "gpu", "firstAvailable": [
            ask("vgpu", json!({"memory": "30Gi", "cores": "10"})), ask("vgpu", json!({"memory": "10Gi", "cores": "90"})),
            ask("nic", json!({}))]}]);
        let either = amount(either).unwrap();
        assert_eq!((either.memory, either.cores, either.shares), (30 * GI, 90, 1));
        let mut two = ask("vgpu", json!({"memory": "1Gi"}));
        two["count"] = json!(2);
        assert_eq!(amount(exactly(two)).unwrap().memory, 2 * GI);
        let all = json!({"deviceClassName": "vgpu", "allocationMode": "All"});
        assert_eq!(amount(exactly(all)).unwrap().shares, 2);
        let watch = json!({"deviceClassName": "vgpu", "adminAccess": true});
        assert_eq!(amount(exactly(watch)), Ok(Amount::default()));
        assert_eq!(
            amount(exactly(json!({"deviceClassName": "nic"}))),
            Ok(Amount::default())
        );
        let none = amount(exactly(json!({"deviceClassName": "none"})));
        assert_eq!(none, Err(Uncounted::NoClass("none".into())));
        // The smallest share there is, and a number that is none.
        assert_eq!(
            amount(exactly(ask("vgpu", json!({"memory": "1"})))).unwrap().memory,
            64 << 20
        );
        assert_eq!(
            amount(exactly(ask("vgpu", json!({"memory": "x"})))).unwrap().memory,
            80 * GI
        );
    }

    #[test]
    fn after_it_counts_what_is_consumed() {
        let (classes, gpus) = world();
        let result = |device: &str, memory: &str| {
            json!({"driver": "dra.vgpu", "pool": "n1", "device": device, "shareID": "s",
                "consumedCapacity": {"memory": memory, "cores": "5", "shares": "1"}})
        };
        let results = json!([result("gpu-0", "20Gi"), result("gpu-1", "20Gi"),
            {"driver": "nic", "pool": "n1", "device": "x"}, {"driver": "dra.vgpu", "pool": "n1", "device": "gpu-0-monitor"}]);
        let status =
            json!({"allocation": {"devices": {"results": results}, "allocationTimestamp": "2026-11-24T00:00:01Z"}});
        let claim = claim(json!([]), status);
        let amount = claim.amount(&classes, &gpus).unwrap();
        assert_eq!(
            (amount.memory, amount.cores, amount.gpus, amount.shares),
            (40 * GI, 10, 750_000, 2)
        );
        assert_eq!(claim.allocated_at.unwrap().text(), "2026-11-24T00:00:01Z");
    }

    #[test]
    fn a_claim_for_extended_resources_says_whose_it_is() {
        let claim: Claim = serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "t", "uid": "u",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"kind": "Pod", "uid": "p"}]}}))
        .unwrap();
        assert_eq!(claim.extended_of.as_deref(), Some("p"));
    }
}
