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
