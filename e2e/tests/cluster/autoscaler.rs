//! The cluster autoscaler's rule for how far a node is in use, from its sources (1.36):
//!
//! ```text
//!  a pool whose devices take from no counters   allocated devices, by name and without admin access, of all devices
//!  a pool whose devices take from counters      of each counter set its fullest counter; their mean
//!  a node                                       the highest of its pools
//! ```
//!
//! A pool with both kinds of devices has a rule of its own there; none of this driver's has both.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;

#[derive(Default)]
struct Pool {
    /// By name.
    devices: BTreeMap<String, Value>,
    sets: Vec<Value>,
    allocated: BTreeSet<String>,
}

/// Returns how far each pool of the cluster is in use, from 0 to 1.
pub(crate) fn utilisation(kube: &Kube<'_>) -> Result<BTreeMap<String, f64>> {
    let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
    let slices = kube.get(&["resourceslices"])?;
    for slice in slices["items"].as_array().context("no slices")? {
        let spec = &slice["spec"];
        let name = spec["pool"]["name"].as_str().context("a slice without a pool")?;
        let pool = pools.entry(name.to_owned()).or_default();
        pool.sets.extend(list(&spec["sharedCounters"]).cloned());
        let devices = list(&spec["devices"]);
        pool.devices
            .extend(devices.map(|device| (text(&device["name"]), device.clone())));
    }
    let claims = kube.get(&["resourceclaims", "--all-namespaces"])?;
    let results = list(&claims["items"]).flat_map(|claim| list(&claim["status"]["allocation"]["devices"]["results"]));
    for result in results.filter(|result| result["adminAccess"] != true) {
        let pool = pools.get_mut(&text(&result["pool"])).context("a device of no pool")?;
        pool.allocated.insert(text(&result["device"]));
    }
    let of = |(name, pool): (String, Pool)| Ok((name, pool.utilisation()?));
    pools.into_iter().map(of).collect()
}

impl Pool {
    fn utilisation(&self) -> Result<f64> {
        let with_counters = self
            .devices
            .values()
            .filter(|device| device["consumesCounters"].is_array());
        match with_counters.count() {
            0 => Ok(self.allocated.len() as f64 / self.devices.len() as f64),
            all if all == self.devices.len() => {
                let fullest = self.sets.iter().map(|set| self.fullest(set));
                let sum: f64 = fullest.sum::<Result<f64>>()?;
                Ok(sum / self.sets.len() as f64)
            }
            _ => bail!("a pool has devices with counters and some without"),
        }
    }

    /// The fullest counter of a set.
    fn fullest(&self, set: &Value) -> Result<f64> {
        let mut fullest = 0.0;
        for (counter, total) in set["counters"].as_object().context("a set without counters")? {
            let total = value(total)?;
            let mut taken = 0.0;
            for device in self.allocated.iter().filter_map(|name| self.devices.get(name)) {
                let of_set = list(&device["consumesCounters"]).filter(|one| one["counterSet"] == set["name"]);
                for consumed in of_set.filter_map(|one| one["counters"].get(counter)) {
                    taken += value(consumed)?;
                }
            }
            ensure!(
                taken <= total,
                "{counter} of {}: {taken} of {total} are taken",
                set["name"]
            );
            fullest = f64::max(fullest, if total > 0.0 { taken / total } else { 0.0 });
        }
        Ok(fullest)
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn value(counter: &Value) -> Result<f64> {
    let value = counter["value"].as_str().and_then(install::bytes);
    Ok(value.with_context(|| format!("counter {counter}"))? as f64)
}
