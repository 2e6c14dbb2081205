//! The allocated devices: by which claims each is held, and how much of it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::capacity::Amounts;
use crate::features::Features;
use crate::model::DeviceResult;

/// The part of one device that claims hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of allocations that hold the whole device.
    dedicated: usize,
    /// The number of shares, including shares without consumed capacity.
    shares: usize,
    consumed: Amounts,
    holders: Vec<Arc<str>>,
}

/// The usage of each device, by driver, pool and name.
#[derive(Debug, Clone, Default)]
pub struct AllocatedDevices {
    drivers: HashMap<String, HashMap<String, HashMap<String, Usage>>>,
}

/// One result of an allocation that uses a device.
struct Entry<'a> {
    driver: &'a str,
    pool: &'a str,
    device: &'a str,
    share: Option<&'a Amounts>,
}

impl Usage {
    /// Returns true if a claim holds the whole device.
    #[must_use]
    pub fn is_dedicated(&self) -> bool {
        self.dedicated > 0
    }

    /// Returns true if claims hold shares of the device.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shares > 0
    }

    /// The capacity that all shares consume together.
    #[must_use]
    pub fn consumed(&self) -> &Amounts {
        &self.consumed
    }

    /// The claims that hold it: one entry for each of their results.
    #[must_use]
    pub fn holders(&self) -> &[Arc<str>] {
        &self.holders
    }

    fn is_unused(&self) -> bool {
        self.dedicated == 0 && self.shares == 0
    }
}

impl AllocatedDevices {
    #[must_use]
    pub fn usage(&self, driver: &str, pool: &str, device: &str) -> Option<&Usage> {
        self.drivers.get(driver)?.get(pool)?.get(device)
    }

    /// Adds the results of an allocation. A result with admin access takes nothing. A result without a share takes the
    /// whole device, and so does every result if the gate for consumable capacity is off.
    pub fn add(&mut self, holder: &Arc<str>, results: &[DeviceResult], features: Features) {
        for entry in entries(results, features) {
            let usage = self
                .drivers
                .entry(entry.driver.to_owned())
                .or_default()
                .entry(entry.pool.to_owned())
                .or_default()
                .entry(entry.device.to_owned())
                .or_default();
            usage.holders.push(holder.clone());
            match entry.share {
                None => usage.dedicated += 1,
                Some(amounts) => {
                    usage.shares += 1;
                    for (name, amount) in amounts {
                        usage.consumed.entry(name.clone()).or_default().add(amount);
                    }
                }
            }
        }
    }

    /// Removes what [`Self::add`] added for the same arguments.
    pub fn remove(&mut self, holder: &Arc<str>, results: &[DeviceResult], features: Features) {
        for entry in entries(results, features) {
            let Some(pools) = self.drivers.get_mut(entry.driver) else {
                continue;
            };
            let Some(devices) = pools.get_mut(entry.pool) else {
                continue;
            };
            let Some(usage) = devices.get_mut(entry.device) else {
                continue;
            };
            if let Some(at) = usage.holders.iter().position(|is| is == holder) {
                usage.holders.swap_remove(at);
            }
            match entry.share {
                None => usage.dedicated = usage.dedicated.saturating_sub(1),
                Some(amounts) => {
                    usage.shares = usage.shares.saturating_sub(1);
                    for (name, amount) in amounts {
                        usage.consumed.entry(name.clone()).or_default().subtract(amount);
                    }
                }
            }
            if usage.is_unused() {
                devices.remove(entry.device);
                if devices.is_empty() {
                    pools.remove(entry.pool);
                }
            }
        }
    }
}

fn entries(results: &[DeviceResult], features: Features) -> impl Iterator<Item = Entry<'_>> {
    results
        .iter()
        .filter(|result| !result.admin_access.unwrap_or(false))
        .map(move |result| Entry {
            driver: &result.driver,
            pool: &result.pool,
            device: &result.device,
            share: (features.consumable_capacity && result.share_id.is_some()).then_some(&result.consumed_capacity),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(results: &str) -> Vec<DeviceResult> {
        serde_json::from_str(&format!("[{results}]")).unwrap()
    }

    const SHARE: &str =
        r#"{"request":"r","driver":"a","pool":"p","device":"d","shareID":"s","consumedCapacity":{"memory":"2Gi"}}"#;

    #[test]
    fn what_is_added_is_what_is_removed() {
        let mut allocated = AllocatedDevices::default();
        let on = Features::default();
        let (one, two): (Arc<str>, Arc<str>) = ("ns/one".into(), "ns/two".into());
        let both = allocation(&[SHARE, SHARE].join(","));
        allocated.add(&one, &both, on);
        allocated.add(&two, &allocation(SHARE), on);
        let usage = allocated.usage("a", "p", "d").unwrap();
        assert_eq!(*usage.consumed().get("memory").unwrap(), "6Gi".parse().unwrap());
        assert!(usage.is_shared() && !usage.is_dedicated() && usage.holders().len() == 3);
        allocated.remove(&one, &both, on);
        let usage = allocated.usage("a", "p", "d").unwrap();
        assert_eq!(
            (usage.consumed().get("memory").unwrap().to_string(), usage.holders()),
            ("2Gi".to_owned(), &[two.clone()][..])
        );
        allocated.remove(&two, &allocation(SHARE), on);
        assert_eq!(allocated.usage("a", "p", "d"), None);
        allocated.remove(&two, &allocation(SHARE), on);
    }

    #[test]
    fn admin_access_takes_nothing_and_no_share_takes_all() {
        let mut allocated = AllocatedDevices::default();
        let holder: Arc<str> = "c".into();
        allocated.add(
            &holder,
            &allocation(&SHARE.replace("\"shareID\"", "\"adminAccess\":true,\"x\"")),
            Features::default(),
        );
        assert_eq!(allocated.usage("a", "p", "d"), None);
        allocated.add(&holder, &allocation(SHARE), Features::all(false));
        assert!(
            allocated.usage("a", "p", "d").unwrap().is_dedicated(),
            "without the gate nothing is shared"
        );
    }
}
