//! Kubernetes' feature gates that change how devices are allocated.

/// One switch for each gate. The default is Kubernetes 1.37's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    pub admin_access: bool,
    pub binding_conditions: bool,
    pub claim_device_status: bool,
    pub consumable_capacity: bool,
    pub device_taint_rules: bool,
    pub device_taints: bool,
    pub fractional_range: bool,
    pub partitionable_devices: bool,
    pub prioritized_list: bool,
}

/// Gates that are alpha in 1.37 and that this allocator does not have: they can only be off.
const ALPHA: [&str; 8] = [
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "DRAPartitionableDevicesType",
    "DRAResourcePoolStatus",
    "DRAWorkloadResourceClaims",
];

/// Gates that change nothing here: a driver or kubelet reads them.
const ELSEWHERE: [&str; 6] = [
    "DRAExtendedResource",
    "DRAResourceClaimGranularStatusAuthorization",
    "DRASchedulerFilterTimeout",
    "DynamicResourceAllocation",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error("feature gate {0:?} is unknown; known are {known}", known = Features::NAMES.join(", "))]
    Unknown(String),
    #[error("feature gate {0} is alpha in Kubernetes 1.37 and not supported; leave it out")]
    Alpha(String),
    #[error("feature gate {name} has the value {value:?}; write {name}=true or {name}=false")]
    Value { name: String, value: String },
}

impl Default for Features {
    fn default() -> Self {
        let mut features = Self::all(true);
        features.fractional_range = false;
        features
    }
}

impl Features {
    /// The names that [`Self::set`] accepts and that have an effect.
    pub const NAMES: [&str; 9] = [
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaintRules",
        "DRADeviceTaints",
        "DRAFractionalCapacityRange",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
    ];

    /// All on, or all off.
    #[must_use]
    pub const fn all(on: bool) -> Self {
        Self {
            admin_access: on,
            binding_conditions: on,
            claim_device_status: on,
            consumable_capacity: on,
            device_taint_rules: on,
            device_taints: on,
            fractional_range: on,
            partitionable_devices: on,
            prioritized_list: on,
        }
    }

    /// Reads `A=true,B=false`, as Kubernetes' flag of that name does.
    ///
    /// # Errors
    /// The gate that is unknown, or whose value is not true or false.
    pub fn parse(mut self, text: &str) -> Result<Self, FeatureError> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let on = match value.trim() {
                "true" | "True" | "TRUE" | "1" | "t" | "T" => true,
                "false" | "False" | "FALSE" | "0" | "f" | "F" => false,
                other => {
                    return Err(FeatureError::Value {
                        name: name.trim().to_owned(),
                        value: other.to_owned(),
                    });
                }
            };
            self.set(name.trim(), on)?;
        }
        Ok(self)
    }

    /// Switches one gate.
    ///
    /// # Errors
    /// The gate is unknown, or it is alpha and `on` is true.
    pub fn set(&mut self, name: &str, on: bool) -> Result<(), FeatureError> {
        let switch = match name {
            "DRAAdminAccess" => &mut self.admin_access,
            "DRAConsumableCapacity" => &mut self.consumable_capacity,
            "DRADeviceBindingConditions" => &mut self.binding_conditions,
            "DRADeviceTaintRules" => &mut self.device_taint_rules,
            "DRADeviceTaints" => &mut self.device_taints,
            "DRAFractionalCapacityRange" => &mut self.fractional_range,
            "DRAPartitionableDevices" => &mut self.partitionable_devices,
            "DRAPrioritizedList" => &mut self.prioritized_list,
            "DRAResourceClaimDeviceStatus" => &mut self.claim_device_status,
            name if ALPHA.contains(&name) && on => return Err(FeatureError::Alpha(name.to_owned())),
            name if ALPHA.contains(&name) || ELSEWHERE.contains(&name) => return Ok(()),
            name => return Err(FeatureError::Unknown(name.to_owned())),
        };
        *switch = on;
        Ok(())
    }

    /// Binding conditions take two gates.
    #[must_use]
    pub fn binds_with_conditions(&self) -> bool {
        self.binding_conditions && self.claim_device_status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_that_of_kubernetes_1_37() {
        let default = Features::default();
        assert!(default.consumable_capacity && default.device_taint_rules && default.binds_with_conditions());
        assert!(!default.fractional_range);
    }

    #[test]
    fn gates_are_switched_by_name() {
        let features = Features::default()
            .parse("DRAConsumableCapacity=false, DRAFractionalCapacityRange=true,DRAListTypeAttributes=false,")
            .unwrap();
        assert!(!features.consumable_capacity && features.fractional_range && features.device_taints);
        for name in Features::NAMES {
            let mut features = Features::all(false);
            features.set(name, true).unwrap();
            assert_ne!(features, Features::all(false), "{name} switches nothing");
        }
    }

    #[test]
    fn a_mistake_names_the_gate() {
        for (text, words) in [
            ("DRAConsumable=true", "\"DRAConsumable\" is unknown"),
            ("DRAListTypeAttributes=true", "DRAListTypeAttributes is alpha"),
            ("DRADeviceTaints", "DRADeviceTaints=true or DRADeviceTaints=false"),
            ("DRADeviceTaints=maybe", "\"maybe\""),
        ] {
            let error = Features::default().parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
