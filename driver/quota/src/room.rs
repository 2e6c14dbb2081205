//! The free memory, time and shares of each node's GPUs. Selectors and other needs of pods and nodes are not looked at, so
//! a place may be found where kube-scheduler finds none.

use std::collections::{BTreeMap, HashMap};

use crate::amount::{Amount, CORES};
use crate::demand::Demand;
use crate::gpus::Gpus;

/// The limit of placements that are tried for one set of wants on one node. After that the answer is that there is none.
const TRIES: u32 = 2_000;

/// The placements that may still be tried for one plan: pods are the tenants' to make, and the leader has other work.
#[derive(Debug)]
pub(crate) struct Tries(u32);

impl Tries {
    pub(crate) const fn new(count: u32) -> Self {
        Self(count)
    }

    /// Returns true if no more may be tried: answers are not known any more.
    pub(crate) const fn are_over(&self) -> bool {
        self.0 == 0
    }

    /// Sets a half aside.
    pub(crate) const fn split(&mut self) -> Self {
        let half = self.0 / 2;
        self.0 -= half;
        Self(half)
    }

    pub(crate) const fn join(&mut self, rest: &Self) {
        self.0 += rest.0;
    }
}

/// The free room of each GPU, by node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    nodes: BTreeMap<String, Vec<Free>>,
    /// The types of devices, which have these numbers.
    kinds: Vec<String>,
    /// By pool and device.
    places: HashMap<(String, String), Place>,
}

/// A device: its node, and its number there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    pub(crate) device: usize,
}

/// The free room of a device. Negative if more is counted than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    total: i64,
    memory: i64,
    cores: i64,
    shares: i64,
    /// Its type's number.
    kind: usize,
}

impl Free {
    pub(crate) fn take(&mut self, share: Amount) {
        self.memory = self.memory.saturating_sub(signed(share.memory));
        self.cores = self.cores.saturating_sub(signed(share.cores));
        self.shares = self.shares.saturating_sub(signed(share.shares));
    }

    pub(crate) fn give_back(&mut self, share: Amount) {
        self.memory = self.memory.saturating_add(signed(share.memory));
        self.cores = self.cores.saturating_add(signed(share.cores));
        self.shares = self.shares.saturating_add(signed(share.shares));
    }

    fn has(&self, want: &Want) -> bool {
        let kinds = want.kind.is_none_or(|kind| kind == self.kind);
        let memory = want.memory.unwrap_or(self.total);
        kinds && self.shares >= 1 && self.memory >= memory && self.cores >= want.cores
    }
}

/// A [`Demand`] in the numbers of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Want {
    memory: Option<i64>,
    cores: i64,
    kind: Option<usize>,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Room {
    /// All GPUs that take new claims, free.
    pub(crate) fn new(gpus: &Gpus) -> Self {
        let mut room = Self::default();
        for (node, pool, device, gpu) in gpus.all().filter(|(.., gpu)| !gpu.is_tainted) {
            let of_node = room.nodes.entry(node.to_owned()).or_default();
            let place = Place {
                node: node.to_owned(),
                device: of_node.len(),
            };
            let kind = room.kinds.iter().position(|kind| *kind == *gpu.kind);
            let kind = kind.unwrap_or_else(|| {
                room.kinds.push(gpu.kind.to_string());
                room.kinds.len() - 1
            });
            of_node.push(Free {
                total: signed(gpu.memory),
                memory: signed(gpu.memory),
                cores: signed(CORES),
                shares: signed(gpu.shares),
                kind,
            });
            room.places.insert((pool.to_owned(), device.to_owned()), place);
        }
        room
    }

    /// Where a device is, if it takes new claims.
    pub(crate) fn place(&self, pool: &str, device: &str) -> Option<&Place> {
        self.places.get(&(pool.to_owned(), device.to_owned()))
    }

    pub(crate) fn take(&mut self, pool: &str, device: &str, share: Amount) {
        if let Some(place) = self.place(pool, device).cloned()
            && let Some(free) = self.device(&place)
        {
            free.take(share);
        }
    }

    pub(crate) fn device(&mut self, place: &Place) -> Option<&mut Free> {
        self.nodes.get_mut(&place.node)?.get_mut(place.device)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &[Free])> {
        self.nodes.iter().map(|(node, free)| (node.as_str(), free.as_slice()))
    }

    /// In this room's numbers.
    pub(crate) fn wants(&self, demands: &[Demand]) -> Vec<Want> {
        let kind = |kind: &String| self.kinds.iter().position(|known| known == kind);
        let want = |demand: &Demand| Want {
            memory: demand.memory.map(signed),
            cores: signed(demand.cores),
            kind: demand.kind.as_ref().map(|name| kind(name).unwrap_or(usize::MAX)),
        };
        demands.iter().map(want).collect()
    }

    /// Returns true if all of these fit on one node, of those that are allowed.
    pub(crate) fn fits(&self, wants: &[Want], is_allowed: impl Fn(&str) -> bool, tries: &mut Tries) -> bool {
        let mut nodes = self.nodes.iter().filter(|(node, _)| is_allowed(node));
        nodes.any(|(_, free)| pack(free, wants, tries).is_some())
    }

    /// Takes what these need on that node. Returns false if they do not fit.
    pub(crate) fn reserve(&mut self, node: &str, wants: &[Want]) -> bool {
        let Some(free) = self.nodes.get_mut(node) else {
            return false;
        };
        let packed = pack(free, wants, &mut Tries::new(TRIES));
        let is_packed = packed.is_some();
        *free = packed.unwrap_or_else(|| std::mem::take(free));
        is_packed
    }
}

/// Places all wants on these devices, the largest first and each on the tightest device, and tries other placements if
/// that fails. Returns the room that is left.
pub(crate) fn pack(free: &[Free], wants: &[Want], tries: &mut Tries) -> Option<Vec<Free>> {
    let mut own = tries.0.min(TRIES);
    // An answer takes time also if nothing can be placed.
    tries.0 = tries.0.checked_sub(1)?;
    let before = own;
    let mut wants = wants.to_vec();
    wants.sort_by_key(|want| std::cmp::Reverse((want.memory.unwrap_or(i64::MAX), want.cores, want.kind)));
    let mut free = free.to_vec();
    let order = tightest_first(&free);
    let is_packed = pack_on(&mut free, &wants, &order, &mut own);
    tries.0 = tries.0.saturating_sub(before - own);
    is_packed.then_some(free)
}

fn tightest_first(free: &[Free]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..free.len()).collect();
    order.sort_by_key(|at| (free[*at].memory, free[*at].cores));
    order
}

/// `order`: the devices that may be used, the tightest first. Of equal wants each is placed on the device of the one before
/// it or on a later one: any other order of them leads to the same. (A device that is used only becomes tighter, so the
/// order stays right.)
fn pack_on(free: &mut [Free], wants: &[Want], order: &[usize], tries: &mut u32) -> bool {
    let Some((first, rest)) = wants.split_first() else {
        return true;
    };
    let mut last = None;
    for (place, at) in order.iter().enumerate() {
        let before = free[*at];
        // Equal devices lead to the same.
        if !before.has(first) || last.replace(before) == Some(before) {
            continue;
        }
        let Some(left) = tries.checked_sub(1) else { return false };
        *tries = left;
        free[*at].memory -= first.memory.unwrap_or(before.total);
        free[*at].cores -= first.cores;
        free[*at].shares -= 1;
        let is_packed = match rest.first() == Some(first) {
            true => pack_on(free, rest, &order[place..], tries),
            false => pack_on(free, rest, &tightest_first(free), tries),
        };
        if is_packed {
            return true;
        }
        free[*at] = before;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_wants_are_placed_without_a_search() {
        let want = Want {
            memory: Some(10),
            cores: 0,
            kind: None,
        };
        for room in [|at: i64| 20 + at, |at: i64| 40 - at] {
            let device = |at| Free {
                total: 100,
                memory: room(at),
                cores: 100,
                shares: 16,
                kind: 0,
            };
            let free: Vec<Free> = (0..16).map(device).collect();
            let most: i64 = free.iter().map(|free| free.memory / 10).sum();
            let most = usize::try_from(most).unwrap();
            let mut tries = Tries::new(1_000);
            assert!(pack(&free, &vec![want; most], &mut tries).is_some());
            assert!(tries.0 >= 1_000 - 1 - u32::try_from(most).unwrap(), "one try each");
        }
    }
}
