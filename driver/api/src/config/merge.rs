//! Merges the configs of a class and of a claim.
//!
//! Merges each field separately: later entries of the class override earlier ones, then the claim's override the
//! class's. A claim may tighten what its class says or leaves at its default, but never loosen it: only a class, which
//! an administrator writes, can grant `Unlimited`, `High`, `Oversubscribe` and capabilities beyond compute and utility.
//! `allocationPolicy` only decides where a share is placed, and `reportAs` which variables its containers get, so a
//! claim may choose them freely.

use super::{
    AllocationPolicy, Capabilities, ComputePolicy, ConfigError, Dialect, MemoryEnforcement, MemoryPolicy, Priority,
    Sharing, VgpuConfig, parse::AN_EXCLUSIVE_GPU,
};
use vgpu_quantity::format_bytes;

/// One parsed config that applies to a request, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path of the parameters, for messages: `status.allocation.devices.config[0].opaque.parameters`.
    pub at: String,
    pub config: VgpuConfig,
}

impl Entry {
    /// Parses the parameters at a path.
    pub fn parse(at: impl Into<String>, parameters: &serde_json::Value) -> Result<Self, ConfigError> {
        let at = at.into();
        let config = super::parse(&at, parameters)?;
        Ok(Self { at, config })
    }

    /// Returns true if an entry with these `requests` applies to the result of `request` (`gpu`, or `gpu/large` if an
    /// alternative of `firstAvailable` was taken). An empty list applies to every request.
    pub fn applies(requests: &[String], request: &str) -> bool {
        let base = request.split_once('/').map_or(request, |(base, _)| base);
        requests.is_empty() || requests.iter().any(|r| r == request || r == base)
    }
}

/// The config that applies to a share: every field has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub compute_policy: ComputePolicy,
    pub priority: Priority,
    /// The priority from a config; `None` if no config names one and the default applies.
    pub priority_said: Option<Priority>,
    pub memory_policy: MemoryPolicy,
    pub memory_enforcement: MemoryEnforcement,
    pub allocation_policy: AllocationPolicy,
    pub sharing: Sharing,
    /// `None`: no variables of an earlier system.
    pub report_as: Option<Dialect>,
    pub driver_capabilities: Capabilities,
    /// The paths at which computePolicy, sharing and memoryEnforcement were set, for messages.
    compute_at: String,
    sharing_at: String,
    enforcement_at: String,
}

/// The allocated amounts that a config can contradict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Bytes of device memory that the share holds.
    pub memory: u64,
    /// Bytes of device memory that the GPU publishes.
    pub device_memory: u64,
    /// Guaranteed percent of the GPU's time.
    pub cores: u32,
}

impl Effective {
    /// Checks a config against what was allocated.
    pub fn check(&self, grant: &Grant) -> Result<(), ConfigError> {
        if self.compute_policy == ComputePolicy::Guaranteed && grant.cores == 0 {
            return Err(ConfigError::GuaranteedWithoutCores {
                at: self.compute_at.clone(),
            });
        }
        if self.sharing == Sharing::Exclusive && grant.memory < grant.device_memory {
            return Err(ConfigError::ExclusiveWithoutAllMemory {
                at: self.sharing_at.clone(),
                memory: format_bytes(grant.memory),
                device_memory: format_bytes(grant.device_memory),
            });
        }
        if self.sharing == Sharing::Exclusive {
            self.check_without_limit(AN_EXCLUSIVE_GPU)?;
        }
        Ok(())
    }

    /// Checks the config of a share that has no limit; `what` it is.
    pub fn check_without_limit(&self, what: &'static str) -> Result<(), ConfigError> {
        match self.memory_enforcement {
            MemoryEnforcement::Prefer => Ok(()),
            MemoryEnforcement::Require => Err(ConfigError::RequireWithoutLimit {
                at: self.enforcement_at.clone(),
                what,
            }),
        }
    }
}

/// Merges the entries that apply to one request, each list in its own order.
pub fn merge(class: &[Entry], claim: &[Entry]) -> Result<Effective, ConfigError> {
    let tighter = |value: &ComputePolicy, bound: &ComputePolicy| value <= bound;
    let (compute_policy, compute_at) = field(class, claim, "computePolicy", |c| c.compute_policy, tighter)?;
    let (priority, _) = field(class, claim, "priority", |c| c.priority, |value, bound| value <= bound)?;
    let (memory_policy, _) = field(
        class,
        claim,
        "memoryPolicy",
        |c| c.memory_policy,
        |value, bound| value <= bound,
    )?;
    let (memory_enforcement, enforcement_at) = field(
        class,
        claim,
        "memoryEnforcement",
        |c| c.memory_enforcement,
        |value, bound| value >= bound,
    )?;
    let (allocation_policy, _) = field(class, claim, "allocationPolicy", |c| c.allocation_policy, |_, _| true)?;
    let (sharing, sharing_at) = field(class, claim, "sharing", |c| c.sharing, |value, bound| value >= bound)?;
    let (driver_capabilities, _) = field(
        class,
        claim,
        "driverCapabilities",
        |c| c.driver_capabilities,
        |value, bound| value.is_within(*bound),
    )?;
    let said = || class.iter().chain(claim);
    Ok(Effective {
        report_as: said().filter_map(|entry| entry.config.report_as).next_back(),
        priority_said: said().filter_map(|entry| entry.config.priority).next_back(),
        compute_policy,
        priority,
        memory_policy,
        memory_enforcement,
        allocation_policy,
        sharing,
        driver_capabilities,
        compute_at,
        sharing_at,
        enforcement_at,
    })
}

/// One field's value and the path of the config that set it.
fn field<T: Copy + Default + std::fmt::Display>(
    class: &[Entry],
    claim: &[Entry],
    name: &str,
    get: impl Fn(&VgpuConfig) -> Option<T>,
    at_least_as_tight: impl Fn(&T, &T) -> bool,
) -> Result<(T, String), ConfigError> {
    let written = |entries: &[Entry]| {
        entries
            .iter()
            .filter_map(|e| get(&e.config).map(|value| (value, format!("{}.{name}", e.at))))
            .collect::<Vec<_>>()
    };
    let bound = written(class).pop();
    let (bound_value, bound_at) = bound
        .clone()
        .unwrap_or_else(|| (T::default(), "its default".to_owned()));
    let mut effective = bound.unwrap_or_else(|| (T::default(), name.to_owned()));
    for (value, at) in written(claim) {
        if !at_least_as_tight(&value, &bound_value) {
            return Err(ConfigError::Loosens {
                at,
                value: value.to_string(),
                class_value: bound_value.to_string(),
                class_at: bound_at,
            });
        }
        effective = (value, at);
    }
    Ok(effective)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Capability, parse};
    use crate::{CONFIG_API_VERSION, CONFIG_KIND};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// An entry with these fields.
    fn entry(at: &str, fields: Value) -> Entry {
        let mut whole = json!({"apiVersion": CONFIG_API_VERSION, "kind": CONFIG_KIND});
        whole
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let config = parse(at, &whole).unwrap();
        Entry { at: at.into(), config }
    }

    /// An entry that lets a share have this much memory of the host.
    fn oversubscribed(at: &str, host_memory: &str) -> Entry {
        entry(
            at,
            json!({"memoryPolicy": {"type": "Oversubscribe", "hostMemory": host_memory}}),
        )
    }

    const GRANT: Grant = Grant {
        memory: 20 << 30,
        device_memory: 80 << 30,
        cores: 25,
    };

    #[test]
    fn without_configs_the_defaults_hold() {
        let effective = merge(&[], &[]).unwrap();
        assert_eq!(effective.compute_policy, ComputePolicy::Balanced);
        assert_eq!((effective.priority, effective.priority_said), (Priority::Low, None));
        assert_eq!(effective.memory_policy, MemoryPolicy::Hard);
        assert_eq!(effective.allocation_policy, AllocationPolicy::Binpack);
        assert_eq!(effective.sharing, Sharing::Shared);
        assert_eq!(effective.check(&GRANT), Ok(()));
    }

    #[test]
    fn fields_merge_one_by_one() {
        let class = [
            entry("a", json!({"computePolicy": "Unlimited"})),
            entry("b", json!({"priority": "High"})),
        ];
        let claim = [entry("c", json!({"allocationPolicy": "spread"}))];
        let effective = merge(&class, &claim).unwrap();
        assert_eq!(effective.compute_policy, ComputePolicy::Unlimited);
        let priority = (effective.priority, effective.priority_said);
        assert_eq!(priority, (Priority::High, Some(Priority::High)));
        assert_eq!(effective.allocation_policy, AllocationPolicy::Spread);
    }

    #[test]
    fn a_claim_chooses_freely_whose_variables_it_gets() {
        let class = [entry("a", json!({"reportAs": "hami"}))];
        assert_eq!(merge(&[], &[]).unwrap().report_as, None);
        assert_eq!(merge(&class, &[]).unwrap().report_as, Some(Dialect::Hami));
        let claim = [entry("b", json!({"reportAs": "kai"})), entry("c", json!({}))];
        assert_eq!(merge(&class, &claim).unwrap().report_as, Some(Dialect::Kai));
    }

    #[test]
    fn a_later_class_entry_wins_over_an_earlier_one() {
        let class = [
            entry("a", json!({"computePolicy": "Unlimited"})),
            entry("b", json!({"computePolicy": "Guaranteed"})),
        ];
        assert_eq!(merge(&class, &[]).unwrap().compute_policy, ComputePolicy::Guaranteed);
        let error = merge(&class, &[entry("c", json!({"computePolicy": "Balanced"}))]).unwrap_err();
        assert!(error.to_string().contains("Guaranteed, b.computePolicy"), "{error}");
    }

    #[test]
    fn a_claim_that_loosens_is_told_what_the_class_says_and_where() {
        for loosening in [
            entry("x.parameters", json!({"computePolicy": "Unlimited"})),
            entry("x.parameters", json!({"priority": "High"})),
            oversubscribed("x.parameters", "1"),
            entry("x.parameters", json!({"driverCapabilities": ["compute", "graphics"]})),
        ] {
            let error = merge(&[], &[loosening]).unwrap_err();
            assert!(matches!(error, ConfigError::Loosens { .. }), "{error}");
            assert!(error.to_string().contains("its default"), "{error}");
            assert!(error.to_string().starts_with("x.parameters."), "{error}");
        }
    }

    #[test]
    fn a_claim_may_tighten_and_use_what_the_class_grants() {
        let granted = [oversubscribed("k", "10Gi")];
        let of = |claim: Entry| merge(&granted, &[claim]).map(|effective| effective.memory_policy);
        let half = MemoryPolicy::Oversubscribe { host_memory: 5 << 30 };
        assert_eq!(of(oversubscribed("c", "5Gi")), Ok(half));
        let none = entry("c", json!({"memoryPolicy": {"type": "Hard"}}));
        assert_eq!(of(none), Ok(MemoryPolicy::Hard));
        let error = of(oversubscribed("c", "11Gi")).unwrap_err();
        assert!(error.to_string().contains("hostMemory 10Gi"), "{error}");
    }

    #[test]
    fn a_claim_gets_the_capabilities_of_its_class_or_fewer() {
        let class = [entry("k", json!({"driverCapabilities": ["compute", "video"]}))];
        let of = |claim: &[Entry]| merge(&class, claim).map(|effective| effective.driver_capabilities.to_string());
        assert_eq!(of(&[]).as_deref(), Ok("compute, video"));
        let fewer = entry("c", json!({"driverCapabilities": ["video"]}));
        assert_eq!(of(&[fewer]).as_deref(), Ok("video"));
        // A claim cannot add what the class left out, even if it is in the default.
        let error = of(&[entry("c", json!({"driverCapabilities": ["utility"]}))]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "c.driverCapabilities: utility is looser than what the class says (compute, video, k.driverCapabilities); a \
             claim may only tighten it: remove the field, or use a DeviceClass that grants utility"
        );
    }

    #[test]
    fn an_exclusive_class_stays_exclusive() {
        let class = [entry("k", json!({"sharing": "Exclusive"}))];
        let loosened = merge(&class, &[entry("c", json!({"sharing": "Shared"}))]);
        assert!(matches!(loosened, Err(ConfigError::Loosens { .. })));
        let effective = merge(&class, &[]).unwrap();
        let error = effective.check(&GRANT).unwrap_err();
        assert!(error.to_string().starts_with("k.sharing: "), "{error}");
        assert!(error.to_string().contains("20Gi of its 80Gi"), "{error}");
        let memory = 80 << 30;
        assert_eq!(effective.check(&Grant { memory, ..GRANT }), Ok(()));
    }

    #[test]
    fn a_claim_may_require_the_drivers_limit_and_never_do_without_it_where_its_class_requires_it() {
        let (require, prefer) = (
            json!({"memoryEnforcement": "Require"}),
            json!({"memoryEnforcement": "Prefer"}),
        );
        let of = |class: &[Entry], claim: &[Entry]| merge(class, claim).map(|effective| effective.memory_enforcement);
        assert_eq!(of(&[], &[]), Ok(MemoryEnforcement::Prefer));
        assert_eq!(of(&[], &[entry("c", require.clone())]), Ok(MemoryEnforcement::Require));
        let class = [entry("k", require)];
        assert_eq!(of(&class, &[]), Ok(MemoryEnforcement::Require));
        let error = of(&class, &[entry("c", prefer)]).unwrap_err().to_string();
        assert!(error.starts_with("c.memoryEnforcement: Prefer is looser"), "{error}");
        // A whole GPU has no limit that could be enforced.
        let effective = merge(&class, &[entry("c", json!({"sharing": "Exclusive"}))]).unwrap();
        let memory = 80 << 30;
        let error = effective.check(&Grant { memory, ..GRANT }).unwrap_err().to_string();
        assert!(error.starts_with("k.memoryEnforcement: Require"), "{error}");
        assert!(error.contains("an Exclusive GPU"), "{error}");
    }

    #[test]
    fn guaranteed_needs_cores() {
        let effective = merge(&[], &[entry("c", json!({"computePolicy": "Guaranteed"}))]).unwrap();
        assert_eq!(effective.check(&GRANT), Ok(()));
        let error = effective.check(&Grant { cores: 0, ..GRANT }).unwrap_err();
        assert!(error.to_string().starts_with("c.computePolicy: "), "{error}");
    }

    #[test]
    fn an_entry_applies_by_request_by_alternative_or_to_all() {
        let requests = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(Entry::applies(&[], "gpu"));
        assert!(Entry::applies(&requests(&["gpu"]), "gpu"));
        assert!(Entry::applies(&requests(&["gpu"]), "gpu/large"));
        assert!(Entry::applies(&requests(&["gpu/large"]), "gpu/large"));
        assert!(!Entry::applies(&requests(&["gpu/small"]), "gpu/large"));
        assert!(!Entry::applies(&requests(&["gpu/large"]), "gpu"));
        assert!(!Entry::applies(&requests(&["other"]), "gpu"));
    }

    fn configs() -> impl Strategy<Value = VgpuConfig> {
        (
            prop::option::of(prop::sample::select(
                &[
                    ComputePolicy::Guaranteed,
                    ComputePolicy::Balanced,
                    ComputePolicy::Unlimited,
                ][..],
            )),
            prop::option::of(prop::sample::select(&[Priority::Low, Priority::High][..])),
            prop::option::of(prop_oneof![
                Just(MemoryPolicy::Hard),
                (1u64..4).prop_map(|host_memory| MemoryPolicy::Oversubscribe { host_memory })
            ]),
            prop::option::of(prop::sample::select(
                &[MemoryEnforcement::Prefer, MemoryEnforcement::Require][..],
            )),
            prop::option::of(prop::sample::select(&[Sharing::Shared, Sharing::Exclusive][..])),
            prop::option::of(
                prop::sample::subsequence(&Capability::ALL[..], 1..=4).prop_map(|some| Capabilities::of(&some)),
            ),
        )
            .prop_map(
                |(compute_policy, priority, memory_policy, memory_enforcement, sharing, driver_capabilities)| {
                    VgpuConfig {
                        compute_policy,
                        priority,
                        memory_policy,
                        memory_enforcement,
                        sharing,
                        allocation_policy: None,
                        report_as: None,
                        driver_capabilities,
                    }
                },
            )
    }

    proptest! {
        /// No claim can make the result looser than without the claim.
        #[test]
        fn a_claim_never_loosens(class in prop::collection::vec(configs(), 0..3), claim in prop::collection::vec(configs(), 0..3)) {
            let entry = |config| Entry { at: "x".into(), config };
            let entries = |configs: Vec<VgpuConfig>| configs.into_iter().map(entry).collect::<Vec<_>>();
            let class = entries(class);
            let without = merge(&class, &[]).unwrap();
            if let Ok(with) = merge(&class, &entries(claim)) {
                prop_assert!(with.compute_policy <= without.compute_policy);
                prop_assert!(with.priority <= without.priority);
                prop_assert!(with.memory_policy <= without.memory_policy);
                prop_assert!(with.memory_enforcement >= without.memory_enforcement);
                prop_assert!(with.sharing >= without.sharing);
                prop_assert!(with.driver_capabilities.is_within(without.driver_capabilities));
            }
        }
    }
}
