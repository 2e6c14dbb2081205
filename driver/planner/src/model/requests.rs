//! Amounts of node resources that a pod requests, summed up as kube-scheduler does.

use litemap::LiteMap;

use serde::Deserialize;
use vgpu_quantity::Quantity;

/// Amounts by resource name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Requests(pub LiteMap<String, Quantity>);

impl Requests {
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            self.0.entry(name.clone()).or_default().add(amount);
        }
    }

    /// Adds what a device takes of a node's resource for a pod, and for each container that names its claim.
    pub(crate) fn add_overhead(&mut self, name: &str, per_pod: &Quantity, per_container: &Quantity, containers: usize) {
        let sum = self.0.entry(name.to_owned()).or_default();
        sum.add(per_pod);
        for _ in 0..containers {
            sum.add(per_container);
        }
    }

    /// Subtracts amounts; those that reach zero are removed.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            if let Some(known) = self.0.get_mut(name) {
                known.subtract(amount);
                if known.is_zero() {
                    self.0.remove(name);
                }
            }
        }
    }

    /// The amounts of resources that `other` does not name.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let rest = self.0.iter().filter(|(name, _)| !other.0.contains_key(*name));
        Self(rest.map(|(name, amount)| (name.clone(), amount.clone())).collect())
    }

    pub(super) fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let known = self.0.entry(name.clone()).or_default();
            if *known < *amount {
                *known = amount.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_off_is_gone() {
        let mut sum: Requests = serde_json::from_str(r#"{"cpu":"1","memory":"1Gi"}"#).unwrap();
        let other: Requests = serde_json::from_str(r#"{"cpu":"1000m","gpu":"1"}"#).unwrap();
        sum.subtract(&other);
        assert_eq!(sum.0.keys().collect::<Vec<_>>(), ["memory"]);
    }
}
