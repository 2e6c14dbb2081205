//! Sums of what is free on all devices of a driver, updated with each change of a device.

use crate::allocated::Usage;
use crate::capacity::{CORES, MEMORY};
use crate::model::{Capacity, Device};
use crate::search::capacity_of;
use vgpu_quantity::Quantity;

/// Sums over devices that belong to one node each, whatever their taints are. Memory is in bytes, cores are in the
/// units of the device. Of a device that is allocated whole nothing is free. Devices that share counters are left out: the
/// placements on one GPU overlap, so their sum is several times the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Free {
    /// Memory of devices that no claim uses.
    pub memory_of_unused: i64,
    /// Free memory on devices that claims use.
    pub memory_of_used: i64,
    /// Free memory on devices where another capacity, such as cores, is used up: only a request that needs none of that
    /// capacity can use it.
    pub stranded_memory: i64,
    /// Free cores on devices where another capacity is used up. Memory is considered used up if less is left than the
    /// smallest request.
    pub stranded_cores: i64,
}

impl Free {
    /// The part of all free memory that is not on whole free devices: 0 if all of it is on such devices, 1 if none is.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.memory_of_used.max(0) as f64 / self.memory_of_unused.saturating_add(self.memory_of_used) as f64 {
            ratio if ratio.is_finite() => ratio.clamp(0.0, 1.0),
            _ => 0.0,
        }
    }

    /// The contribution of one device.
    pub(super) fn of(device: &Device, driver: &str, usage: Option<&Usage>) -> Self {
        if usage.is_some_and(Usage::is_dedicated) || !device.consumes_counters.is_empty() {
            return Self::default();
        }
        let free = |name| {
            let left = capacity_of(device, driver, name).map(|(name, capacity)| left(name, capacity, usage));
            left.map_or(0, |left| whole(&left).max(0))
        };
        let is_used_up = |(name, capacity): (&String, &Capacity)| {
            !capacity.value.is_zero() && !can_be_had(capacity, &left(name, capacity, usage))
        };
        let is_stranded = |name| {
            let own = capacity_of(device, driver, name).map(|(name, _)| name);
            let mut others = device.capacity.iter().filter(|(name, _)| Some(name.as_str()) != own);
            others.any(is_used_up)
        };
        let (memory, cores) = (free(MEMORY), free(CORES));
        let (of_unused, of_used) = match usage {
            None => (memory, 0),
            Some(_) => (0, memory),
        };
        Self {
            memory_of_unused: of_unused,
            memory_of_used: of_used,
            stranded_memory: if is_stranded(MEMORY) { memory } else { 0 },
            stranded_cores: if is_stranded(CORES) { cores } else { 0 },
        }
    }

    /// Replaces one device's contribution by another. Wrapping, so that every contribution can be removed again.
    pub(super) fn replace(&mut self, old: Self, new: Self) {
        let replace = |sum: &mut i64, old: i64, new: i64| *sum = sum.wrapping_sub(old).wrapping_add(new);
        replace(&mut self.memory_of_unused, old.memory_of_unused, new.memory_of_unused);
        replace(&mut self.memory_of_used, old.memory_of_used, new.memory_of_used);
        replace(&mut self.stranded_memory, old.stranded_memory, new.stranded_memory);
        replace(&mut self.stranded_cores, old.stranded_cores, new.stranded_cores);
    }
}

fn left(name: &str, capacity: &Capacity, usage: Option<&Usage>) -> Quantity {
    let mut left = capacity.value.clone();
    if let Some(used) = usage.and_then(|usage| usage.consumed().get(name)) {
        left.subtract(used);
    }
    left
}

fn whole(quantity: &Quantity) -> i64 {
    let whole = quantity.rank().div_euclid(1_000_000_000);
    whole.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// Returns true if a request can ask for some of what is left.
fn can_be_had(capacity: &Capacity, left: &Quantity) -> bool {
    let policy = capacity.request_policy.as_deref();
    let of_range = policy.and_then(|policy| policy.valid_range.as_ref()?.min.as_ref());
    let of_values = policy.and_then(|policy| policy.valid_values.as_ref()?.iter().min());
    let is_least = |least: &Quantity| least <= left;
    left.rank() > 0 && of_range.or(of_values).is_none_or(is_least)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::allocated::AllocatedDevices;
    use crate::features::Features;
    use serde_json::json;

    /// Returns the contribution of a GPU with 80 bytes (requests take at least 8), 100 cores and 2 shares, on which
    /// these shares are allocated.
    fn part(shares: &[(u32, u32)]) -> Free {
        let device: Device = serde_json::from_value(json!({"name": "d", "capacity": {
            "memory": {"value": "80", "requestPolicy": {"validRange": {"min": "8"}}},
            "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}},
            "shares": {"value": "2", "requestPolicy": {"default": "1", "validValues": ["1"]}}}}))
        .unwrap();
        let mut allocated = AllocatedDevices::default();
        for (memory, cores) in shares {
            let result = json!([{"driver": "drv", "pool": "p", "device": "d", "shareID": "s",
                "consumedCapacity": {"memory": memory, "cores": cores, "shares": 1}}]);
            let results: Vec<_> = serde_json::from_value(result).unwrap();
            allocated.add(&Arc::from("c"), &results, Features::default());
        }
        Free::of(&device, "drv", allocated.usage("drv", "p", "d"))
    }

    fn free(of_unused: i64, of_used: i64, stranded_memory: i64, stranded_cores: i64) -> Free {
        Free {
            memory_of_unused: of_unused,
            memory_of_used: of_used,
            stranded_memory,
            stranded_cores,
        }
    }

    #[test]
    fn what_is_left_is_stranded_where_something_else_is_used_up() {
        assert_eq!(part(&[]), free(80, 0, 0, 0));
        assert_eq!(part(&[(20, 25)]), free(0, 60, 0, 0));
        assert_eq!(part(&[(20, 100)]), free(0, 60, 60, 0), "no cores are left");
        assert_eq!(part(&[(80, 25)]), free(0, 0, 0, 75), "no memory is left");
        assert_eq!(part(&[(73, 25)]), free(0, 7, 0, 75), "too little for any request");
        assert_eq!(part(&[(10, 10), (10, 10)]), free(0, 60, 60, 80), "no shares are left");
        assert_eq!(part(&[(90, 110)]), free(0, 0, 0, 0), "more than there is");
    }

    #[test]
    fn placements_that_overlap_are_not_added_up() {
        let mut device = json!({"name": "d", "capacity": {"memory": {"value": "40"}}});
        let of = |device: &serde_json::Value| {
            let device: Device = serde_json::from_value(device.clone()).unwrap();
            Free::of(&device, "drv", None)
        };
        assert_eq!(of(&device), free(40, 0, 0, 0));
        device["consumesCounters"] = json!([{"counterSet": "gpu", "counters": {"memory-slice-0": {"value": "1"}}}]);
        assert_eq!(of(&device), Free::default());
    }

    #[test]
    fn memory_is_in_pieces_where_devices_are_used() {
        assert_eq!(free(0, 0, 0, 0).fragmentation(), 0.0, "nothing is free");
        assert_eq!(free(80, 0, 0, 0).fragmentation(), 0.0);
        assert_eq!(free(60, 20, 0, 0).fragmentation(), 0.25);
        assert_eq!(free(0, 20, 0, 0).fragmentation(), 1.0);
    }

    #[test]
    fn what_came_in_goes_out_again() {
        let enormous = free(i64::MAX, i64::MAX, i64::MAX, i64::MAX);
        let mut sum = free(1, 2, 3, 4);
        sum.replace(Free::default(), enormous);
        sum.replace(Free::default(), enormous);
        sum.replace(enormous, Free::default());
        sum.replace(enormous, Free::default());
        assert_eq!(sum, free(1, 2, 3, 4));
    }
}
