//! Errors that end an attempt without an answer.
//!
//! An error contains the index of its claim among the claims of the attempt. The caller knows their names: see
//! [`AllocateError::in_words`].

use crate::capacity::CapacityError;
use crate::model::ResourceClaim;
use crate::pools::{PoolError, ViewError};

/// A mistake that makes every answer wrong. Each names the object and the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("request {request}: {fault}")]
    Request {
        /// Index of the claim in the attempt.
        claim: usize,
        /// The request, or `REQUEST/ALTERNATIVE`.
        request: String,
        fault: Box<RequestError>,
    },
    #[error("constraints[{index}] has neither matchAttribute nor distinctAttribute; write one")]
    UnknownConstraint { claim: usize, index: usize },
    #[error("the alternatives that fit would give a claim more than {most} devices; ask for fewer")]
    TooManyChosen { most: i64 },
    #[error("nothing fits, and pool {pool} is invalid: {error}")]
    InvalidPools { pool: String, error: Box<PoolError> },
    #[error("device {device}: {message}")]
    NodeSelector { device: String, message: String },
    #[error(transparent)]
    View(Box<ViewError>),
    #[error("no answer after {steps} steps; ask for fewer devices in one claim, or with fewer constraints")]
    Exhausted { steps: u64 },
}

/// What is wrong with a request, or with a device that it must have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{field} takes the feature gate {gate}, which is off")]
    FeatureOff { field: &'static str, gate: &'static str },
    #[error("derivedAttributes are alpha in Kubernetes 1.37 and not supported")]
    DerivedAttributes,
    #[error("neither exactly nor firstAvailable is set; write one")]
    NoAsk,
    #[error("deviceClassName is empty; name a DeviceClass")]
    NoClass,
    #[error("deviceClassName {class:?}: there is no such DeviceClass")]
    UnknownClass { class: String },
    #[error("class {class} cannot be read: {error}; write it anew")]
    UnreadableClass { class: String, error: String },
    #[error("selectors[{index}] is of a kind that is not known here; write cel.expression")]
    UnknownSelector { index: usize },
    #[error("allocationMode {mode:?} is unknown; it is ExactCount or All")]
    UnknownMode { mode: String },
    #[error("{count} devices are more than the {most} of a claim, of which {before} are asked for already")]
    TooMany { count: i64, before: i64, most: i64 },
    #[error("allocationMode All: pool {pool} is incomplete: the driver is publishing it")]
    IncompletePool { pool: String },
    #[error("allocationMode All: pool {pool} is invalid: {error}")]
    InvalidPool { pool: String, error: Box<PoolError> },
    #[error("{}selectors[{index}] on device {device}: {message}", .class.as_ref().map(|class| format!("class {class}: ")).unwrap_or_default())]
    Cel {
        /// The class that has the selector; `None` if the request has it.
        class: Option<String>,
        index: usize,
        device: String,
        message: String,
    },
    #[error("device {device}: {error}")]
    Capacity { device: String, error: Box<CapacityError> },
    #[error("allocationMode All takes device {device} too, which the claim's constraint on {attribute} forbids")]
    AllAgainstConstraint { device: String, attribute: String },
}

impl From<ViewError> for AllocateError {
    fn from(error: ViewError) -> Self {
        Self::View(Box::new(error))
    }
}

impl RequestError {
    pub(crate) fn at(self, claim: usize, request: String) -> AllocateError {
        AllocateError::Request {
            claim,
            request,
            fault: Box::new(self),
        }
    }

    fn is_of_devices(&self) -> bool {
        matches!(
            self,
            Self::IncompletePool { .. }
                | Self::InvalidPool { .. }
                | Self::Cel { .. }
                | Self::Capacity { .. }
                | Self::AllAgainstConstraint { .. }
                | Self::TooMany { .. }
        )
    }
}

impl AllocateError {
    /// Returns true if the devices of one node are at fault, and not the claims: another node may have an answer.
    #[must_use]
    pub fn is_of_devices(&self) -> bool {
        match self {
            Self::Request { fault, .. } => fault.is_of_devices(),
            Self::InvalidPools { .. }
            | Self::NodeSelector { .. }
            | Self::TooManyChosen { .. }
            | Self::Exhausted { .. } => true,
            Self::UnknownConstraint { .. } | Self::View(_) => false,
        }
    }

    /// Returns the message with the name of its claim. `name` returns the name for an index.
    #[must_use]
    pub fn in_words(&self, name: impl FnOnce(usize) -> String) -> String {
        match self {
            Self::Request { claim, .. } => format!("claim {}, {self}", name(*claim)),
            Self::UnknownConstraint { claim, .. } => format!("claim {}: {self}", name(*claim)),
            _ => self.to_string(),
        }
    }

    /// Like [`Self::in_words`], with the names of these claims.
    #[must_use]
    pub fn of_claims(&self, claims: &[&ResourceClaim]) -> String {
        self.in_words(|place| claims.get(place).map_or_else(String::new, |claim| claim.key()))
    }
}
