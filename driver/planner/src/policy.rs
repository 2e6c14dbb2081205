//! Which policy claims name: `allocationPolicy` in a VgpuConfig, the claim's own before its class's.

use vgpu_allocator::Policy;
use vgpu_allocator::model::{DeviceClass, RequestedConfig, ResourceClaim};

use crate::allocation::asks;
use crate::names::DRIVER;

/// The first claim that says anything decides for all that are allocated with it. A name that nobody knows counts as
/// none: admission refuses it.
pub(crate) fn of<'a>(claims: &[ResourceClaim], class: impl Fn(&str) -> Option<&'a DeviceClass>) -> Policy {
    let of_claim = |claim: &ResourceClaim| {
        let of_class = || asks(claim).find_map(|ask| named(&class(&ask.class)?.spec.config));
        named(&claim.spec.devices.config).or_else(of_class)
    };
    claims.iter().find_map(of_claim).unwrap_or_default()
}

/// Later entries win.
fn named(config: &[RequestedConfig]) -> Option<Policy> {
    let opaque = config.iter().rev().filter_map(|entry| entry.opaque.as_ref());
    let mut names = opaque
        .filter(|opaque| opaque.driver == DRIVER)
        .filter_map(|opaque| opaque.parameters["allocationPolicy"].as_str());
    names.find_map(|name| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(driver: &str, policy: &str) -> String {
        format!(r#"{{"opaque":{{"driver":"{driver}","parameters":{{"allocationPolicy":"{policy}"}}}}}}"#)
    }

    #[test]
    fn a_claim_overrides_its_class() {
        let class: DeviceClass =
            serde_json::from_str(&format!(r#"{{"spec":{{"config":[{}]}}}}"#, config(DRIVER, "spread"))).unwrap();
        let claim = |configs: &str| -> ResourceClaim {
            serde_json::from_str(&format!(
                r#"{{"spec":{{"devices":{{"requests":[{{"name":"r","exactly":{{"deviceClassName":"vgpu"}}}}],"config":[{configs}]}}}}}}"#
            ))
            .unwrap()
        };
        let of = |configs: &str| of(&[claim(configs)], |name| (name == "vgpu").then_some(&class));
        assert_eq!(of(""), Policy::Spread);
        assert_eq!(of(&config(DRIVER, "numa")), Policy::Numa);
        assert_eq!(
            of(&format!("{},{}", config(DRIVER, "numa"), config(DRIVER, "best"))),
            Policy::Numa
        );
        assert_eq!(of(&config("other", "numa")), Policy::Spread);
        let none: Vec<ResourceClaim> = Vec::new();
        assert_eq!(super::of(&none, |_| None), Policy::Binpack);
    }
}
