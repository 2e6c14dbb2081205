//! Containers: their requests, summed up for the pod as kube-scheduler does, their host ports and extended resources.

use litemap::LiteMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use vgpu_allocator::model::{fitted, or_default};
use vgpu_quantity::Quantity;

use super::Requests;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostPort {
    #[serde(deserialize_with = "or_default")]
    pub host_port: u16,
    #[serde(rename = "hostIP", deserialize_with = "or_default")]
    pub host_ip: String,
    #[serde(deserialize_with = "or_default")]
    pub protocol: String,
}

/// An extended resource of a container: one whose name has a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    pub container: String,
    pub resource: String,
    /// At least 1.
    pub count: i64,
}

/// The fields of a container that are needed here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Resources,
    #[serde(deserialize_with = "or_default")]
    pub(super) restart_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<HostPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(super) requests: Requests,
    /// As text, so that an invalid quantity does not keep the pod from being decoded.
    #[serde(deserialize_with = "or_default")]
    limits: LiteMap<String, Text>,
    #[serde(deserialize_with = "fitted")]
    claims: Vec<ClaimName>,
}

/// An entry of `resources.claims`: the name of an entry of the pod's `resourceClaims`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ClaimName {
    #[serde(deserialize_with = "or_default")]
    name: String,
}

/// A string; any other value is read as nothing.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Other(IgnoredAny),
}

impl Container {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if it names this entry of the pod's `resourceClaims`.
    pub(super) fn names(&self, entry: &str) -> bool {
        self.references(entry) > 0
    }

    /// How many entries of its `resources.claims` name this entry of the pod's `resourceClaims`: one for each request that
    /// it lists by name.
    pub(super) fn references(&self, entry: &str) -> usize {
        let claims = self.resources.claims.iter();
        claims.filter(|claim| claim.name == entry).count()
    }

    /// Its extended resources: those whose name has a domain.
    pub(super) fn extended(&self) -> impl Iterator<Item = Extended> {
        let limits = self.resources.limits.iter();
        limits
            .filter(|(resource, _)| resource.contains('/'))
            .map(|(resource, count)| Extended {
                container: self.name.clone(),
                resource: resource.clone(),
                count: whole(count),
            })
            .filter(|extended| extended.count > 0)
    }
}

/// Parses a quantity, limited to 64 bits; 0 if it is invalid.
fn whole(count: &Text) -> i64 {
    let Text::Text(count) = count else {
        return 0;
    };
    let count = Quantity::parse(count).unwrap_or_default();
    let limit = if count.is_negative() { i64::MIN } else { i64::MAX };
    count.whole_away_from_zero().unwrap_or(limit)
}

/// Sidecars run alongside everything after them; other init containers run alone, one after the other. Requests at pod
/// level replace the sum of the containers' requests.
pub(super) fn requests_of(
    containers: &[Container],
    init: &[Container],
    pod: &Requests,
    overhead: &Requests,
) -> Requests {
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
        let sum = requests_of(&main, &init, &none, &overhead);
        assert_eq!(
            *sum.0.get("cpu").unwrap(),
            "3200m".parse().unwrap(),
            "2.9 beside the sidecar, and overhead"
        );
        assert_eq!(*sum.0.get("memory").unwrap(), "1Gi".parse().unwrap());
        assert_eq!(
            *requests_of(&main, &init[1..2], &none, &none).0.get("cpu").unwrap(),
            "1700m".parse().unwrap()
        );
        let pod: Requests = serde_json::from_str(r#"{"cpu":"4"}"#).unwrap();
        assert_eq!(
            *requests_of(&main, &init, &pod, &overhead).0.get("cpu").unwrap(),
            "4100m".parse().unwrap()
        );
    }
}
