//! What a pod takes of a node: the sum that kube-scheduler makes.

use litemap::LiteMap;

use serde::Deserialize;
use vgpu_allocator::model::or_default;
use vgpu_quantity::Quantity;

/// Amounts by resource name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Requests(pub LiteMap<String, Quantity>);

/// A container's part in the sum.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Resources,
    #[serde(deserialize_with = "or_default")]
    pub(super) restart_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<super::HostPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(super) requests: Requests,
}

impl Requests {
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            self.0.entry(name.clone()).or_default().add(amount);
        }
    }

    /// What reaches zero is dropped.
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

    fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let known = self.0.entry(name.clone()).or_default();
            if *known < *amount {
                *known = amount.clone();
            }
        }
    }
}

/// Sidecars run beside everything after them; other init containers run alone, one after the other. What the pod says
/// for itself takes the place of its containers' sum.
pub(super) fn of_pod(containers: &[Container], init: &[Container], pod: &Requests, overhead: &Requests) -> Requests {
    let mut sidecars = Requests::default();
    let mut peak = Requests::default();
    for container in init {
        let mut now = sidecars.clone();
        now.add(&container.resources.requests);
        if container.restart_policy == "Always" {
            sidecars = now.clone();
        }
        peak.raise(&now);
    }
    let mut all = sidecars;
    for container in containers {
        all.add(&container.resources.requests);
    }
    all.raise(&peak);
    for (name, amount) in &pod.0 {
        all.0.insert(name.clone(), amount.clone());
    }
    all.add(overhead);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containers(text: &str) -> Vec<Container> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn sidecars_add_up_and_init_containers_take_turns() {
        let main = containers(r#"[{"resources":{"requests":{"cpu":"1"}}},{"resources":{"requests":{"cpu":"500m"}}}]"#);
        let init = containers(
            r#"[{"resources":{"requests":{"cpu":"3"}}},
                {"restartPolicy":"Always","resources":{"requests":{"cpu":"200m"}}},
                {"resources":{"requests":{"cpu":"2900m","memory":"1Gi"}}}]"#,
        );
        let overhead: Requests = serde_json::from_str(r#"{"cpu":"100m"}"#).unwrap();
        let none = Requests::default();
        let sum = of_pod(&main, &init, &none, &overhead);
        assert_eq!(
            *sum.0.get("cpu").unwrap(),
            "3200m".parse().unwrap(),
            "2.9 beside the sidecar, and overhead"
        );
        assert_eq!(*sum.0.get("memory").unwrap(), "1Gi".parse().unwrap());
        assert_eq!(
            *of_pod(&main, &init[1..2], &none, &none).0.get("cpu").unwrap(),
            "1700m".parse().unwrap()
        );
        let pod: Requests = serde_json::from_str(r#"{"cpu":"4"}"#).unwrap();
        assert_eq!(
            *of_pod(&main, &init, &pod, &overhead).0.get("cpu").unwrap(),
            "4100m".parse().unwrap()
        );
    }

    #[test]
    fn what_is_taken_off_is_gone() {
        let mut sum: Requests = serde_json::from_str(r#"{"cpu":"1","memory":"1Gi"}"#).unwrap();
        let other: Requests = serde_json::from_str(r#"{"cpu":"1000m","gpu":"1"}"#).unwrap();
        sum.subtract(&other);
        assert_eq!(sum.0.keys().collect::<Vec<_>>(), ["memory"]);
    }
}
