//! Why an attempt ended without an answer.

use crate::capacity::CapacityError;
use crate::pools::{PoolError, ViewError};

/// The attempt met something with which no answer is right. Each names the object and the field at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("claim {claim}, request {request}: {field} takes the feature gate {gate}, which is off")]
    FeatureOff {
        claim: String,
        request: String,
        field: &'static str,
        gate: &'static str,
    },
    #[error("claim {claim}, request {request}: derivedAttributes are alpha in Kubernetes 1.37 and not supported")]
    DerivedAttributes { claim: String, request: String },
    #[error("claim {claim}, request {request}: neither exactly nor firstAvailable is set; write one")]
    NoAsk { claim: String, request: String },
    #[error("claim {claim}, request {request}: deviceClassName is empty; name a DeviceClass")]
    NoClass { claim: String, request: String },
    #[error("claim {claim}, request {request}: deviceClassName {class:?}: there is no such DeviceClass")]
    UnknownClass {
        claim: String,
        request: String,
        class: String,
    },
    #[error("claim {claim}, request {request}: class {class} cannot be read: {error}; write it anew")]
    UnreadableClass {
        claim: String,
        request: String,
        class: String,
        error: String,
    },
    #[error(
        "claim {claim}, request {request}: selectors[{index}] is of a kind that is not known here; write cel.expression"
    )]
    UnknownSelector {
        claim: String,
        request: String,
        index: usize,
    },
    #[error("claim {claim}, request {request}: allocationMode {mode:?} is unknown; it is ExactCount or All")]
    UnknownMode {
        claim: String,
        request: String,
        mode: String,
    },
    #[error("claim {claim}: constraints[{index}] has neither matchAttribute nor distinctAttribute; write one")]
    UnknownConstraint { claim: String, index: usize },
    #[error(
        "claim {claim}, request {request}: {count} devices are more than the {most} of a claim, of which {before} are asked for already"
    )]
    TooMany {
        claim: String,
        request: String,
        count: i64,
        before: i64,
        most: i64,
    },
    #[error("the alternatives that fit would give a claim more than {most} devices; ask for fewer")]
    TooManyChosen { most: i64 },
    #[error(
        "claim {claim}, request {request}: allocationMode All: pool {pool} is incomplete: the driver is publishing it"
    )]
    IncompletePool {
        claim: String,
        request: String,
        pool: String,
    },
    #[error("claim {claim}, request {request}: allocationMode All: pool {pool} is invalid: {error}")]
    InvalidPool {
        claim: String,
        request: String,
        pool: String,
        error: Box<PoolError>,
    },
    #[error("nothing fits, and pool {pool} is invalid: {error}")]
    InvalidPools { pool: String, error: Box<PoolError> },
    #[error(transparent)]
    Cel(Box<CelError>),
    #[error("claim {claim}, request {request}, device {device}: {error}")]
    Capacity {
        claim: String,
        request: String,
        device: String,
        error: Box<CapacityError>,
    },
    #[error(
        "claim {claim}, request {request}: allocationMode All takes device {device} too, which the claim's constraint on {attribute} forbids"
    )]
    AllAgainstConstraint {
        claim: String,
        request: String,
        device: String,
        attribute: String,
    },
    #[error("device {device}: {message}")]
    NodeSelector { device: String, message: String },
    #[error(transparent)]
    View(Box<ViewError>),
    #[error("no answer after {steps} steps; ask for fewer devices in one claim, or with fewer constraints")]
    Exhausted { steps: u64 },
}

/// A selector that does not compile, or fails on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim}, request {request}: {}selectors[{index}] on device {device}: {message}", .class.as_ref().map(|class| format!("class {class}: ")).unwrap_or_default())]
pub struct CelError {
    pub claim: String,
    pub request: String,
    /// The class, where the selector is not the request's own.
    pub class: Option<String>,
    pub index: usize,
    pub device: String,
    pub message: String,
}

impl From<ViewError> for AllocateError {
    fn from(error: ViewError) -> Self {
        Self::View(Box::new(error))
    }
}

impl AllocateError {
    /// Whether the devices of one node are at fault, and not the claims: another node may have an answer.
    #[must_use]
    pub fn is_of_devices(&self) -> bool {
        matches!(
            self,
            Self::IncompletePool { .. }
                | Self::InvalidPool { .. }
                | Self::InvalidPools { .. }
                | Self::Cel(_)
                | Self::Capacity { .. }
                | Self::AllAgainstConstraint { .. }
                | Self::NodeSelector { .. }
                | Self::TooMany { .. }
                | Self::TooManyChosen { .. }
                | Self::Exhausted { .. }
        )
    }
}
