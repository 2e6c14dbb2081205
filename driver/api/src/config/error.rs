//! Errors of configs.

use vgpu_quantity::{WholeError, quoted};

/// `at` is the path of the opaque parameters, or of the field, in the object that the user wrote or can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "{at}: the parameters are not JSON: {reason}; write an object with apiVersion {} and kind {}",
        crate::CONFIG_API_VERSION,
        crate::CONFIG_KIND
    )]
    NotJson { at: String, reason: String },
    #[error("{at}: is {found}, not {expected}; see the fields of VgpuConfig")]
    WrongType {
        at: String,
        found: &'static str,
        expected: &'static str,
    },
    #[error("{at}: is missing; set it to {expected:?}")]
    Missing { at: String, expected: &'static str },
    #[error("{at}: {} is not what this driver reads; set it to {expected:?}", quoted(.value))]
    WrongVersion {
        at: String,
        value: String,
        expected: &'static str,
    },
    #[error("{at}: is not a field of VgpuConfig; {}use one of {known}", .suggestion.map(|s| format!("did you mean {s}? ")).unwrap_or_default())]
    UnknownField {
        at: String,
        known: String,
        suggestion: Option<&'static str>,
    },
    #[error("{at}: {} is not allowed; use one of {allowed}", quoted(.value))]
    BadValue { at: String, value: String, allowed: String },
    #[error("{at}: has {count} entries; name one to four of {allowed}")]
    BadCount { at: String, count: usize, allowed: String },
    #[error("{at}: {reason}")]
    BadQuantity { at: String, reason: WholeError },
    #[error("{at}: {} is more than 1Pi, which no machine has; write how much host memory may be used, for example 10Gi", quoted(.value))]
    TooMuch { at: String, value: String },
    #[error("{at}: {} is not positive; write how much host memory may be used, for example 10Gi", quoted(.value))]
    NotPositive { at: String, value: String },
    #[error("{at}: is needed with type Oversubscribe; write how much host memory may be used, for example 10Gi")]
    HostMemoryMissing { at: String },
    #[error("{at}: contradicts type Hard, which uses no host memory; remove it, or set type to Oversubscribe")]
    HostMemoryWithHard { at: String },
    #[error(
        "{at}: {value} is looser than what the class says ({class_value}, {class_at}); \
         a claim may only tighten it: remove the field, or use a DeviceClass that grants {value}"
    )]
    Loosens {
        at: String,
        value: String,
        class_value: String,
        class_at: String,
    },
    #[error(
        "{at}: Guaranteed caps the share at its cores, and it has 0 cores; \
         ask for capacity cores of at least 1, or set computePolicy to Balanced"
    )]
    GuaranteedWithoutCores { at: String },
    #[error(
        "{at}: Exclusive needs the whole GPU, and the share holds {memory} of its {device_memory}; \
         remove the capacity request for memory, or use class vgpu with sharing Shared"
    )]
    ExclusiveWithoutAllMemory {
        at: String,
        memory: String,
        device_memory: String,
    },
    #[error(
        "{at}: Require asks for the driver's limit of a share's memory, and {what} has no limit; remove the field, or ask \
         for a part of a GPU (class vgpu)"
    )]
    RequireWithoutLimit { at: String, what: &'static str },
}
