//! What must hold after every write, whoever made it.

use std::collections::BTreeMap;

use vgpu_allocator::model::{Allocation, Device, ResourceSlice};
use vgpu_planner::Time;
use vgpu_planner::model::Claim;
use vgpu_planner::names::{CONTROLLER, DRIVER, TAINT_KEY};
use vgpu_quantity::Quantity;

const SETTLE: i64 = 30_000;

/// How often a device is held as a whole, the number of its shares, and the sums of their amounts.
type Used<'a> = (usize, usize, BTreeMap<&'a str, Quantity>);

/// Stores the first violation.
#[derive(Default)]
pub(crate) struct Checker {
    pub(crate) wrong: Option<String>,
    pub(crate) allocations: u64,
}

pub(crate) fn device<'a>(slices: &'a BTreeMap<String, ResourceSlice>, pool: &str, name: &str) -> Option<&'a Device> {
    let slices = slices.values().filter(|slice| slice.spec.pool.name == pool);
    slices
        .flat_map(|slice| &slice.spec.devices)
        .find(|device| device.name == name)
}

impl Checker {
    pub(crate) fn fail(&mut self, now: i64, message: String) {
        self.wrong.get_or_insert(format!("{now} ms: {message}"));
    }

    /// No device gives more than it has, and a device that is held as a whole is held once.
    pub(crate) fn check(
        &mut self,
        now: i64,
        claims: &BTreeMap<String, Claim>,
        slices: &BTreeMap<String, ResourceSlice>,
    ) {
        let mut used: BTreeMap<(&str, &str), Used<'_>> = BTreeMap::new();
        let results = claims.values().filter_map(Claim::allocation);
        for result in results.flat_map(|allocation| &allocation.devices.results) {
            let (whole, shares, sums) = used.entry((&result.pool, &result.device)).or_default();
            match result.share_id {
                None => *whole += 1,
                Some(_) => *shares += 1,
            }
            for (name, amount) in &result.consumed_capacity {
                sums.entry(name).or_default().add(amount);
            }
        }
        for ((pool, name), (whole, shares, sums)) in used {
            if whole > 1 || whole == 1 && shares > 0 {
                self.fail(
                    now,
                    format!("device {pool}/{name} is held whole {whole} times and shared {shares} times"),
                );
            }
            let capacity = device(slices, pool, name).map(|device| &device.capacity);
            for (amount, sum) in sums {
                let most = capacity
                    .and_then(|capacity| capacity.get(amount))
                    .map(|capacity| &capacity.value);
                if most.is_none_or(|most| sum > *most) {
                    self.fail(now, format!("device {pool}/{name} gives {sum} {amount}"));
                }
            }
        }
    }

    /// The controller may allocate devices that have been its own for a while, or were until a moment ago.
    pub(crate) fn controller_may(
        &mut self,
        now: i64,
        allocation: &Allocation,
        slices: &BTreeMap<String, ResourceSlice>,
    ) {
        self.allocations += 1;
        for result in &allocation.devices.results {
            let taint = taint(slices, &result.pool, &result.device);
            let is_ours = match &taint {
                Some((value, since)) if value == CONTROLLER => now - since >= SETTLE - 1_000,
                // Being returned; kube-scheduler owns it only once the taint is removed.
                Some(_) => true,
                None => false,
            };
            if !is_ours {
                let (pool, device) = (&result.pool, &result.device);
                self.fail(
                    now,
                    format!("the controller allocates {pool}/{device}, which is not its own: {taint:?}"),
                );
            }
        }
    }

    pub(crate) fn scheduler_may(
        &mut self,
        now: i64,
        allocation: &Allocation,
        slices: &BTreeMap<String, ResourceSlice>,
    ) {
        for result in allocation
            .devices
            .results
            .iter()
            .filter(|result| result.driver == DRIVER)
        {
            let taint = taint(slices, &result.pool, &result.device);
            if let Some((_, since)) = taint.filter(|(value, since)| value == CONTROLLER && now - since >= SETTLE) {
                let (pool, device) = (&result.pool, &result.device);
                self.fail(
                    now,
                    format!("kube-scheduler allocates {pool}/{device}, the controller's since {since}"),
                );
            }
        }
    }
}

fn taint(slices: &BTreeMap<String, ResourceSlice>, pool: &str, name: &str) -> Option<(String, i64)> {
    let device = device(slices, pool, name)?;
    let taint = device.taints.iter().find(|taint| taint.key == TAINT_KEY)?;
    let since = taint
        .time_added
        .as_deref()
        .and_then(Time::parse)
        .map_or(0, Time::millis);
    Some((taint.value.clone(), since))
}
