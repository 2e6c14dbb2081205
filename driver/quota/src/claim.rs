//! The amount that a ResourceClaim counts.

use std::sync::Arc;

use vgpu_allocator::Index;
use vgpu_allocator::model::{
    CapacityRequirements, ClaimSpec, ClaimStatus, DeviceClaim, DeviceResult, Exactly, Metadata, Mode, Request,
    ResourceClaim,
};
use vgpu_api::request::{MEMORY_MIN, MEMORY_STEP};
use vgpu_api::{DRIVER_NAME, capacity};
use vgpu_planner::Time;
use vgpu_planner::model::Claim;
use vgpu_quantity::Quantity;

use crate::amount::{Amount, CORES, bytes};
use crate::class::{Counts, counts};
use crate::gpus::Gpus;

/// The beginning of the key under which a pod's extended resources are reserved.
const EXTENDED_KEY: &str = "pod-";
/// The most that evaluating the selectors of one claim may cost, as CEL counts it. One evaluation may cost as much in
/// Kubernetes; a usual selector costs less than 50.
const COST_MAX: u64 = 1_000_000;
/// Kubernetes allocates at most this many devices to a claim.
pub(crate) const DEVICES_MAX: u64 = 32;

/// Why a claim cannot be counted yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Uncounted {
    #[error("its DeviceClass {0:?} is not there; create it, or name another")]
    NoClass(String),
    #[error("no GPU was published yet, so it is not known what part of a GPU its shares are; wait for the plugin")]
    NoGpu,
    #[error("it cannot be read, so it is not known what it takes: {0}; make the claim again without that part")]
    Unreadable(String),
}

/// Why it is not known which GPUs a claim could have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown {
    #[error("its DeviceClass {0:?} is not there")]
    NoClass(String),
    #[error("a constraint is about devices of another driver too")]
    Constrained,
    #[error("{0}")]
    Refused(String),
    #[error(
        "the search for a place takes too many steps; ask for fewer devices, or with fewer alternatives and constraints"
    )]
    TooLong,
}

/// When it was allocated, in whole seconds.
pub(crate) fn allocated_at(claim: &Claim) -> Option<Time> {
    Time::parse(claim.allocation()?.allocation_timestamp.as_deref()?)
}

pub(crate) fn is_allocated(claim: &Claim) -> bool {
    claim.allocation().is_some()
}

/// The amount that a claim counts toward the quota: the capacity that it consumes if it is allocated, else the worst case.
pub(crate) fn amount(claim: &Claim, index: &Index, gpus: &Gpus) -> Result<Amount, Uncounted> {
    match is_allocated(claim) {
        true => Ok(shares(claim).map(|share| amount_of(share, gpus)).sum()),
        false => worst(claim, index, gpus),
    }
}

/// Returns the capacity that it consumes; `None` while one of its GPUs is not published, as when kubelet restarts.
pub(crate) fn measured(claim: &Claim, gpus: &Gpus) -> Option<Amount> {
    claim.allocation()?;
    let amount = |share: &DeviceResult| gpus.memory(&share.pool, &share.device).map(|_| amount_of(share, gpus));
    shares(claim).try_fold(Amount::default(), |sum, share| Some(sum + amount(share)?))
}

/// The pools of its shares.
pub(crate) fn pools(claim: &Claim) -> impl Iterator<Item = &str> {
    shares(claim).map(|share| share.pool.as_str())
}

/// Its allocated shares of our GPUs. Administrative access and monitors hold nothing.
fn shares(claim: &Claim) -> impl Iterator<Item = &DeviceResult> {
    let allocation = claim.allocation().into_iter();
    let results = allocation.flat_map(|allocation| &allocation.devices.results);
    results.filter(|result| {
        let is_share = result.driver == DRIVER_NAME && result.admin_access != Some(true);
        is_share && !result.device.ends_with("-monitor")
    })
}

fn worst(claim: &Claim, index: &Index, gpus: &Gpus) -> Result<Amount, Uncounted> {
    let asked = claim.asked();
    // If no spec can be read, it is not known that anything is hidden. (A readable claim may ask for nothing.)
    if let Some(unreadable) = claim.unreadable.as_ref().filter(|_| asked.devices.requests.is_empty()) {
        return Err(Uncounted::Unreadable(unreadable.why.clone()));
    }
    let limit = gpus.cost().saturating_add(COST_MAX);
    let mut sum = Amount::default();
    for request in &asked.devices.requests {
        let mut worst = Amount::default();
        for ask in request.asks() {
            worst = worst.worst(worst_of(ask, index, gpus, limit)?);
        }
        sum += worst;
    }
    Ok(sum)
}

/// Returns the claim for the allocator, with the requests that need shares of our GPUs; `None` if there is none. A
/// request that may get something else is left out: it can do without. Sets `not_known` if the claim may need more than
/// this.
pub(crate) fn wanted(claim: &Claim, index: &Index, not_known: &mut Option<NotKnown>) -> Option<ResourceClaim> {
    let devices = &claim.asked().devices;
    let mut requests = Vec::new();
    for request in &devices.requests {
        let mut needs_shares = true;
        for ask in request.asks() {
            let counts = counts(index, &ask.class);
            needs_shares &= counts == Counts::Shares && ask.admin_access != Some(true);
            if counts == Counts::Unknown {
                not_known.get_or_insert_with(|| NotKnown::NoClass(ask.class.clone()));
            }
        }
        requests.extend(needs_shares.then(|| request.clone()));
    }
    if requests.is_empty() {
        // Its constraints only concern devices of other drivers.
        return None;
    }
    let is_all = requests.len() == devices.requests.len();
    let is_kept = |name: &String| {
        let name = name.split('/').next().unwrap_or_default();
        requests.iter().any(|request| request.name == name)
    };
    let mut constraints = Vec::new();
    for constraint in &devices.constraints {
        let named = &constraint.requests;
        let kept = named.iter().filter(|name| is_kept(name)).count();
        match (named.is_empty(), kept == named.len()) {
            (true, _) if is_all => constraints.push(constraint.clone()),
            (false, true) => constraints.push(constraint.clone()),
            (false, false) if kept == 0 => {}
            _ => *not_known = Some(NotKnown::Constrained),
        }
    }
    Some(for_allocator(&claim.facts.metadata.name, requests, constraints))
}

fn for_allocator(
    name: &str,
    requests: Vec<Request>,
    constraints: Vec<vgpu_allocator::model::Constraint>,
) -> ResourceClaim {
    ResourceClaim {
        metadata: Metadata {
            name: name.to_owned(),
            ..Metadata::default()
        },
        spec: Arc::new(ClaimSpec {
            devices: DeviceClaim {
                requests,
                constraints,
                config: Vec::new(),
            },
        }),
        status: ClaimStatus::default(),
    }
}

/// The claim that kube-scheduler would make for this many extended resources of a class.
pub(crate) fn for_extended(class: &str, count: u64) -> ResourceClaim {
    let ask = Exactly {
        class: class.to_owned(),
        mode: Mode::Exact(i64::try_from(count.min(DEVICES_MAX)).unwrap_or(1)),
        ..Exactly::default()
    };
    let request = Request {
        name: "container".to_owned(),
        exactly: Some(ask),
        first_available: Vec::new(),
    };
    for_allocator(class, vec![request], Vec::new())
}

fn worst_of(ask: &Exactly, index: &Index, gpus: &Gpus, limit: u64) -> Result<Amount, Uncounted> {
    match counts(index, &ask.class) {
        Counts::Unknown => return Err(Uncounted::NoClass(ask.class.clone())),
        Counts::Nothing => return Ok(Amount::default()),
        // Administrative access takes no share.
        Counts::Shares if ask.admin_access == Some(true) => return Ok(Amount::default()),
        Counts::Shares => {}
    }
    let requests = |name: &str| {
        ask.capacity
            .as_ref()
            .and_then(|capacity: &CapacityRequirements| capacity.requests.get(name))
    };
    let Some(class) = index.class(&ask.class) else {
        return Err(Uncounted::NoClass(ask.class.clone()));
    };
    let memory = requests(capacity::MEMORY).and_then(rounded);
    let cores = cores(requests(capacity::CORES));
    let (one, count) = gpus.worst(class, ask, (memory, cores), limit).ok_or(Uncounted::NoGpu)?;
    Ok(one.times(match ask.mode {
        Mode::Exact(count) => u64::try_from(count).unwrap_or(1).max(1),
        Mode::All | Mode::Unknown(_) => u64::try_from(count).unwrap_or(u64::MAX).min(DEVICES_MAX),
    }))
}

fn amount_of(share: &DeviceResult, gpus: &Gpus) -> Amount {
    let consumed = |name: &str| share.consumed_capacity.get(name);
    let (memory, cores) = (
        consumed(capacity::MEMORY).and_then(bytes),
        cores(consumed(capacity::CORES)),
    );
    gpus.share(&share.pool, &share.device, memory, cores)
}

/// The key of a pod's extended resources, which are reserved before their claim exists.
#[must_use]
pub(crate) fn extended_key(pod_uid: &str) -> String {
    format!("{EXTENDED_KEY}{pod_uid}")
}

/// The pod's UID in such a key.
pub(crate) fn pod_of_key(key: &str) -> Option<&str> {
    key.strip_prefix(EXTENDED_KEY)
}

/// The most that this many extended resources can use, whichever of these classes gives them: whole devices.
pub(crate) fn extended_amount<'c>(
    classes: impl IntoIterator<Item = &'c str>,
    count: u64,
    index: &Index,
    gpus: &Gpus,
) -> Result<Amount, Uncounted> {
    let limit = gpus.cost().saturating_add(COST_MAX);
    let mut worst = Amount::default();
    for class in classes {
        let one = Exactly {
            class: class.to_owned(),
            ..Exactly::default()
        };
        worst = worst.worst(worst_of(&one, index, gpus, limit)?);
    }
    Ok(worst.times(count))
}

/// Bytes as the scheduler rounds them. An invalid amount counts like no amount: all of a GPU.
fn rounded(quantity: &Quantity) -> Option<u64> {
    let bytes = bytes(quantity)?.clamp(MEMORY_MIN, u64::MAX / 2);
    Some(bytes.next_multiple_of(MEMORY_STEP))
}

fn cores(quantity: Option<&Quantity>) -> u64 {
    let Some(quantity) = quantity else { return 0 };
    let cores = quantity
        .whole_away_from_zero()
        .map(|cores| u64::try_from(cores).unwrap_or(0));
    cores.map_or(CORES, |cores| cores.min(CORES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::tests::{instances, slice};
    use serde_json::{Value, json};
    use vgpu_allocator::Features;
    use vgpu_planner::model::Unreadable;

    const GI: u64 = 1 << 30;

    fn world() -> (Index, Gpus) {
        let mut index = Index::new(Features::default());
        for (name, cel) in [
            ("vgpu", "device.driver == 'dra.vgpu'"),
            ("nic", "device.driver == 'nic'"),
        ] {
            let class = json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": cel}}]}});
            index.set_class(serde_json::from_value(class).unwrap());
        }
        let mut gpus = Gpus::default();
        gpus.set(&slice("n1", &[80, 40]), crate::Now::ZERO);
        (index, gpus)
    }

    fn claim(requests: Value, status: Value) -> Claim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "t", "uid": "u"},
            "spec": {"devices": {"requests": requests}}, "status": status}))
        .unwrap()
    }

    fn amount(requests: Value) -> Result<Amount, Uncounted> {
        let (index, gpus) = world();
        super::amount(&claim(requests, json!({})), &index, &gpus)
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
        // No memory is named, so the largest GPU counts.
        let whole = amount(exactly(json!({"deviceClassName": "vgpu"}))).unwrap();
        assert_eq!((whole.memory, whole.cores, whole.gpus), (80 * GI, 100, 1_000_000));
        // The maximum over the alternatives, in each dimension.
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
        // No device is known that matches, so a node may come with as many as a claim can have.
        let huge = json!({"deviceClassName": "vgpu", "allocationMode": "All", "selectors":
            [{"cel": {"expression": "device.attributes['dra.vgpu'].profile == '1g.10gb'"}}]});
        assert_eq!(amount(exactly(huge)).unwrap().shares, DEVICES_MAX);
        let watch = json!({"deviceClassName": "vgpu", "adminAccess": true});
        assert_eq!(amount(exactly(watch)), Ok(Amount::default()));
        assert_eq!(
            amount(exactly(json!({"deviceClassName": "nic"}))),
            Ok(Amount::default())
        );
        let none = amount(exactly(json!({"deviceClassName": "none"})));
        assert_eq!(none, Err(Uncounted::NoClass("none".into())));
        // A name may have our domain, and from Kubernetes 1.38 on is the same name.
        let long = amount(exactly(ask(
            "vgpu",
            json!({"dra.vgpu/memory": "20Gi", "dra.vgpu/cores": "25"}),
        )));
        assert_eq!(long, Ok(part));
        // The smallest share there is.
        let tiny = amount(exactly(ask("vgpu", json!({"memory": "1"})))).unwrap();
        assert_eq!(tiny.memory, 64 << 20);
    }

    #[test]
    fn an_extended_resource_takes_what_its_class_gives() {
        let (mut index, mut gpus) = world();
        let cel = "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'mig'";
        let class = json!({"metadata": {"name": "mig"}, "spec": {"selectors": [{"cel": {"expression": cel}}]}});
        index.set_class(serde_json::from_value(class).unwrap());
        gpus.set(&instances("m", &[("1g.10gb", 9)], false), crate::Now::ZERO);
        let two = extended_amount(["mig"], 2, &index, &gpus).unwrap();
        assert_eq!((two.memory, two.shares, two.compute_slices), (18 * GI, 2, 2_000_000));
        assert_eq!(extended_amount(["vgpu"], 2, &index, &gpus).unwrap().memory, 160 * GI);
        // It is not known which of two classes with the name Kubernetes takes.
        let either = extended_amount(["mig", "vgpu"], 1, &index, &gpus).unwrap();
        assert_eq!((either.memory, either.compute_slices), (80 * GI, 1_000_000));
        let huge = extended_amount(["mig"], u64::MAX, &index, &gpus).unwrap();
        assert_eq!(huge.memory, crate::amount::MOST);
    }

    #[test]
    fn what_cannot_be_decoded_hides_nothing() {
        let (index, gpus) = world();
        let asked = claim(
            json!([{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]),
            json!({}),
        )
        .facts
        .spec;
        let unreadable = |asked| Claim {
            unreadable: Some(Box::new(Unreadable {
                why: "spec: too deep".into(),
                asked,
            })),
            ..Claim::default()
        };
        let counted = |claim: &Claim| super::amount(claim, &index, &gpus);
        assert_eq!(counted(&unreadable(asked)).unwrap().memory, 80 * GI);
        let unknown = unreadable(Arc::default());
        assert_eq!(counted(&unknown), Err(Uncounted::Unreadable("spec: too deep".into())));
        assert_eq!(counted(&Claim::default()), Ok(Amount::default()), "it asks for nothing");
    }

    #[test]
    fn the_allocator_is_asked_about_our_gpus_only() {
        let (index, _) = world();
        let ask = |name: &str, class: &str| json!({"name": name, "exactly": {"deviceClassName": class}});
        let constrained = |requests: Value| {
            json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [ask("gpu", "vgpu"), ask("nic", "nic")],
                "constraints": [{"requests": requests, "matchAttribute": "resource.kubernetes.io/pcieRoot"}]}}})
        };
        let wanted = |claim: Claim| {
            let mut not_known = None;
            let wanted = super::wanted(&claim, &index, &mut not_known);
            let devices = wanted.map(|wanted| wanted.spec.devices.clone());
            let counts = devices.map(|devices| (devices.requests.len(), devices.constraints.len()));
            (counts, not_known)
        };
        for (requests, constraints, not_known) in [
            (json!(["gpu"]), 1, None),
            (json!(["nic"]), 0, None),
            (json!(["gpu", "nic"]), 0, Some(NotKnown::Constrained)),
            (json!([]), 0, Some(NotKnown::Constrained)),
        ] {
            let claim = serde_json::from_value(constrained(requests)).unwrap();
            assert_eq!(wanted(claim), (Some((1, constraints)), not_known));
        }
        let nics = json!({"metadata": {"name": "c"}, "spec": {"devices": {
            "requests": [ask("a", "nic"), ask("b", "nic")], "constraints": [{"matchAttribute": "nic/root"}]}}});
        assert_eq!(wanted(serde_json::from_value(nics).unwrap()), (None, None));
        let none = NotKnown::NoClass("none".into());
        assert_eq!(
            wanted(claim(json!([ask("gpu", "none")]), json!({}))),
            (None, Some(none))
        );
    }

    #[test]
    fn after_it_counts_what_is_consumed() {
        let (index, gpus) = world();
        let result = |device: &str, memory: &str| {
            json!({"driver": "dra.vgpu", "pool": "n1", "device": device, "shareID": "s",
                "consumedCapacity": {"memory": memory, "cores": "5", "shares": "1"}})
        };
        let mut long = result("gpu-1", "20Gi");
        long["consumedCapacity"] = json!({"dra.vgpu/memory": "20Gi", "dra.vgpu/cores": "5", "dra.vgpu/shares": "1"});
        let results = json!([result("gpu-0", "20Gi"), long,
            {"driver": "nic", "pool": "n1", "device": "x"}, {"driver": "dra.vgpu", "pool": "n1", "device": "gpu-0-monitor"}]);
        let status =
            json!({"allocation": {"devices": {"results": results}, "allocationTimestamp": "2026-11-24T00:00:01Z"}});
        let claim = claim(json!([]), status);
        let amount = super::amount(&claim, &index, &gpus).unwrap();
        assert_eq!(
            (amount.memory, amount.cores, amount.gpus, amount.shares),
            (40 * GI, 10, 750_000, 2)
        );
        assert_eq!(allocated_at(&claim).unwrap().text(), "2026-11-24T00:00:01Z");
    }
}
