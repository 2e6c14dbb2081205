//! The policy of a pod's claims: `allocationPolicy` of a VgpuConfig, the claim's own before its class's.

use vgpu_allocator::model::{DeviceClass, RequestedConfig, ResourceClaim};
use vgpu_api::config::{self, AllocationPolicy};

use crate::allocation::asks;
use crate::names::DRIVER;

/// Returns the policy of the first claim that names one; it applies to all claims that are allocated together.
/// Parameters that Prepare would refuse are ignored.
pub(crate) fn of<'a>(
    claims: &[ResourceClaim],
    class: impl Fn(&str) -> Option<&'a DeviceClass>,
) -> Option<AllocationPolicy> {
    let of_claim = |claim: &ResourceClaim| {
        let of_class = || asks(claim).find_map(|ask| named(&class(&ask.class)?.spec.config));
        named(&claim.spec.devices.config).or_else(of_class)
    };
    claims.iter().find_map(of_claim)
}

/// The policy that a config names; later entries win.
fn named(config: &[RequestedConfig]) -> Option<AllocationPolicy> {
    let opaque = config.iter().rev().filter_map(|entry| entry.opaque.as_ref());
    let mut named = opaque
        .filter(|opaque| opaque.driver == DRIVER)
        .filter_map(|opaque| config::parse("", &opaque.parameters).ok()?.allocation_policy);
    named.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(driver: &str, policy: &str) -> String {
        format!(
            r#"{{"opaque":{{"driver":"{driver}","parameters":
                {{"apiVersion":"dra.vgpu/v1alpha1","kind":"VgpuConfig","allocationPolicy":"{policy}"}}}}}}"#
        )
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
        assert_eq!(of(""), Some(AllocationPolicy::Spread));
        assert_eq!(of(&config(DRIVER, "numa")), Some(AllocationPolicy::Numa));
        assert_eq!(
            of(&format!("{},{}", config(DRIVER, "numa"), config(DRIVER, "best"))),
            Some(AllocationPolicy::Numa)
        );
        assert_eq!(of(&config("other", "numa")), Some(AllocationPolicy::Spread));
        let none: Vec<ResourceClaim> = Vec::new();
        assert_eq!(super::of(&none, |_| None), None);
    }
}
