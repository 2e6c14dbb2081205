//! Shared counters, which partitions of one physical device consume together.

use std::collections::BTreeMap;

use crate::model::{CounterSet, Device};
use vgpu_quantity::Quantity;

/// Counter set and counter.
type Key<'a> = (&'a str, &'a str);

/// The counters of one pool during one attempt.
#[derive(Debug, Default)]
pub(crate) struct Counters<'a> {
    available: BTreeMap<Key<'a>, Quantity>,
    consumed: BTreeMap<Key<'a>, Quantity>,
}

/// The counter that is insufficient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) set: String,
    pub(crate) counter: String,
    pub(crate) free: Quantity,
}

impl<'a> Counters<'a> {
    /// The amounts of the sets minus those that devices in use consume. A counter may fall below zero, which means a
    /// shortage.
    pub(crate) fn new(sets: impl Iterator<Item = &'a CounterSet>, in_use: impl Iterator<Item = &'a Device>) -> Self {
        let mut available: BTreeMap<Key<'a>, Quantity> = sets
            .flat_map(|set| {
                set.counters
                    .iter()
                    .map(|(name, counter)| ((&*set.name, &**name), counter.value.clone()))
            })
            .collect();
        for (key, amount) in in_use.flat_map(consumption) {
            if let Some(counter) = available.get_mut(&key) {
                counter.subtract(amount);
            }
        }
        Self {
            available,
            consumed: BTreeMap::new(),
        }
    }

    /// Draws what the device consumes, or leaves everything as it was.
    ///
    /// Every counter of the pool is checked, not only the device's own: if any of them is overdrawn, the pool must not
    /// give away more (as in Kubernetes).
    pub(crate) fn reserve(&mut self, device: &'a Device) -> Result<(), Shortage> {
        for (key, amount) in consumption(device) {
            self.consumed.entry(key).or_default().add(amount);
        }
        let none = Quantity::default();
        let short = self.available.iter().find_map(|(key, available)| {
            let consumed = self.consumed.get(key).unwrap_or(&none);
            (available < consumed).then_some(*key)
        });
        let Some(key) = short else {
            return Ok(());
        };
        self.release(device);
        let mut free = self.available.get(&key).cloned().unwrap_or_default();
        if let Some(consumed) = self.consumed.get(&key) {
            free.subtract(consumed);
        }
        Err(Shortage {
            set: key.0.to_owned(),
            counter: key.1.to_owned(),
            free,
        })
    }

    pub(crate) fn release(&mut self, device: &'a Device) {
        for (key, amount) in consumption(device) {
            self.consumed.entry(key).or_default().subtract(amount);
        }
    }
}

fn consumption(device: &Device) -> impl Iterator<Item = (Key<'_>, &Quantity)> {
    device.consumes_counters.iter().flat_map(|consumed| {
        consumed
            .counters
            .iter()
            .map(|(name, counter)| ((&*consumed.counter_set, &**name), &counter.value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> CounterSet {
        serde_json::from_str(r#"{"name":"s","counters":{"memory":{"value":"8Gi"},"other":{"value":"1"}}}"#).unwrap()
    }

    fn device(memory: &str) -> Device {
        serde_json::from_str(&format!(
            r#"{{"name":"d","consumesCounters":[{{"counterSet":"s","counters":{{"memory":{{"value":"{memory}"}}}}}}]}}"#
        ))
        .unwrap()
    }

    #[test]
    fn partitions_share_and_a_failed_reservation_leaves_nothing() {
        let (set, small, large) = (set(), device("3Gi"), device("6Gi"));
        let mut counters = Counters::new([&set].into_iter(), std::iter::once(&small));
        let shortage = counters.reserve(&large).unwrap_err();
        assert_eq!(
            (shortage.counter.as_str(), shortage.free),
            ("memory", "5Gi".parse().unwrap())
        );
        counters.reserve(&small).unwrap();
        assert!(counters.reserve(&small).is_err());
        counters.release(&small);
        counters.reserve(&small).unwrap();
    }

    #[test]
    fn an_overdrawn_counter_closes_the_pool() {
        let (set, large) = (set(), device("6Gi"));
        let unrelated: Device = serde_json::from_str(
            r#"{"name":"e","consumesCounters":[{"counterSet":"s","counters":{"other":{"value":"1"}}}]}"#,
        )
        .unwrap();
        let mut counters = Counters::new([&set].into_iter(), [&large, &large].into_iter());
        assert_eq!(counters.reserve(&unrelated).unwrap_err().counter, "memory");
    }
}
