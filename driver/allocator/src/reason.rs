//! Why claims do not fit: one [`Reason`] for each device that is blocked.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use vgpu_api::device_type::{ATTRIBUTE, MIG, PLACEMENT, PROFILE};

use crate::capacity::Shortage;
use crate::error::{AllocateError, RequestError};
use crate::model::{Device, ResourceClaim};

/// Why a device, a pool or a node cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ReasonKind {
    /// A selector of the claim or its class does not match the device.
    Selector,
    /// A selector does not compile, or fails on the device.
    #[serde(rename = "CELError")]
    CelError,
    /// The device has too little left, or its policy does not allow the amount.
    Capacity,
    /// A shared counter of the pool does not suffice.
    Counter,
    /// A taint that the request does not tolerate.
    Taint,
    /// A constraint of the claim, or devices that fit one by one but not together.
    Constraint,
    /// Another claim, or another request of these claims, has the device.
    InUse,
    /// The device or pool is not for the node.
    NodeMismatch,
    /// Slices of the pool are missing, or contradict each other.
    IncompletePool,
    /// There is no such class.
    UnknownClass,
}

/// One reason. Fields that do not apply are empty. `claim` is the claim's index in the attempt (`usize`), until the
/// caller replaces it by the name (`String`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason<C = usize> {
    pub claim: C,
    pub request: String,
    pub node: String,
    pub pool: String,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    pub reason: ReasonKind,
    /// The field of the claim, or of the object that the message names.
    pub field: String,
    pub message: String,
    /// With `Capacity`, the numbers of the message.
    #[serde(skip)]
    pub shortages: Vec<Shortage>,
    /// The claims that hold the device, by `namespace/name`. Not every reader may know of those of other namespaces.
    #[serde(skip)]
    pub holders: Vec<Arc<str>>,
    /// The claims of the attempt that would use the device themselves.
    #[serde(skip)]
    pub together: Vec<C>,
}

/// An instance of a GPU in MIG mode, as its attributes describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Instance {
    pub profile: String,
    /// The first memory slice, and how many; empty if that is not known.
    pub placement: String,
}

impl Instance {
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let text = |name: &str| device.attributes.get(name)?.text();
        // GPUs have these attributes too.
        let is_instance = text(ATTRIBUTE) == Some(MIG);
        is_instance.then(|| Self {
            profile: text(PROFILE).unwrap_or_default().to_owned(),
            placement: text(PLACEMENT).unwrap_or_default().to_owned(),
        })
    }
}

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { profile, placement } = self;
        match placement.is_empty() {
            true => f.write_str(profile),
            false => write!(f, "{profile} at {placement}"),
        }
    }
}

impl ReasonKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Selector => "Selector",
            Self::CelError => "CELError",
            Self::Capacity => "Capacity",
            Self::Counter => "Counter",
            Self::Taint => "Taint",
            Self::Constraint => "Constraint",
            Self::InUse => "InUse",
            Self::NodeMismatch => "NodeMismatch",
            Self::IncompletePool => "IncompletePool",
            Self::UnknownClass => "UnknownClass",
        }
    }

    /// Returns what to do, if that is not obvious from the reason.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::UnknownClass => "; install dra-driver-vgpu's chart, or name another class",
            Self::IncompletePool => "; see the log of the driver's plugin on its node",
            _ => "",
        }
    }
}

impl<C> Reason<C> {
    /// The reason without the node, pool and device.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("{}: {}{}", self.reason.name(), self.message, self.reason.hint())
    }
}

impl Reason {
    /// The reason if only the fact that the claims do not fit is known.
    pub(crate) fn of_all(node: &str) -> Self {
        Self {
            claim: 0,
            request: String::new(),
            node: node.to_owned(),
            pool: String::new(),
            device: String::new(),
            instance: None,
            reason: ReasonKind::Constraint,
            field: String::new(),
            message: "the claims do not fit together".to_owned(),
            shortages: Vec::new(),
            holders: Vec::new(),
            together: Vec::new(),
        }
    }

    /// Replaces indices by the names of the claims.
    #[must_use]
    pub fn named(self, claims: &[&ResourceClaim]) -> Reason<String> {
        let name = |place: usize| claims.get(place).map_or_else(String::new, |claim| claim.key());
        Reason {
            claim: name(self.claim),
            request: self.request,
            node: self.node,
            pool: self.pool,
            device: self.device,
            instance: self.instance,
            reason: self.reason,
            field: self.field,
            message: self.message
                + &few(HELD_BY, self.holders.iter().map(ToString::to_string).collect())
                + &together(self.together.iter().copied().map(name).collect()),
            shortages: self.shortages,
            holders: Vec::new(),
            together: Vec::new(),
        }
    }
}

/// The claims that would use a device, as the end of a message.
#[must_use]
pub fn together(claims: Vec<String>) -> String {
    few(", and asked for together with ", claims)
}

const HELD_BY: &str = ", held by ";

/// The claims that hold a device, as the end of a message for readers of `namespace`. Names of other namespaces' claims
/// are left out.
#[must_use]
pub fn held(holders: &[Arc<str>], namespace: &str) -> String {
    let is_own = |holder: &&Arc<str>| holder.split_once('/').is_none_or(|(of, _)| of == namespace);
    let (own, others): (Vec<_>, Vec<_>) = holders.iter().partition(is_own);
    let others: BTreeSet<_> = others.into_iter().collect();
    let own = few(HELD_BY, own.into_iter().map(ToString::to_string).collect());
    let of_others = match others.len() {
        0 => return own,
        1 => "a claim of another namespace".to_owned(),
        many => format!("{many} claims of other namespaces"),
    };
    let start = if own.is_empty() { HELD_BY } else { " and " };
    format!("{own}{start}{of_others}")
}

/// Names the first few claims, after `start`; empty without claims.
#[must_use]
pub fn few(start: &str, mut claims: Vec<String>) -> String {
    const NAMED: usize = 3;
    claims.sort_unstable();
    claims.dedup();
    let more = claims.len().saturating_sub(NAMED);
    claims.truncate(NAMED);
    match (claims.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("{start}{}", claims.join(", ")),
        (false, more) => format!("{start}{} and {more} more", claims.join(", ")),
    }
}

impl<C> Reason<C> {
    /// Returns true if the device is not of the requested class, as most devices of a cluster.
    #[must_use]
    pub fn is_of_another_class(&self) -> bool {
        self.reason == ReasonKind::Selector && self.field.starts_with(CLASS_SELECTORS)
    }
}

/// The field of a class's selectors. In a claim the path is longer.
pub(crate) const CLASS_SELECTORS: &str = "spec.selectors";

impl std::fmt::Display for Reason<String> {
    /// Writes the reason in words, in one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            ("claim", &self.claim),
            ("request", &self.request),
            ("node", &self.node),
            ("pool", &self.pool),
            ("device", &self.device),
        ];
        let given = parts.iter().filter(|(_, value)| !value.is_empty());
        let place: Vec<String> = given.map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&place.join(", "))?;
        if let Some(instance) = &self.instance {
            write!(f, ", {instance}")?;
        }
        write!(f, ": {}: {}", self.reason.name(), self.message)
    }
}

impl AllocateError {
    /// Converts an error to a reason on a node; `None` for a mistake in the claims themselves, which is the same on
    /// every node.
    pub(crate) fn reason(&self, node: &str, claims: &[&ResourceClaim]) -> Option<Reason> {
        let (claim, request, fault) = match self {
            Self::Exhausted { .. } => {
                return Some(Reason {
                    message: self.to_string(),
                    ..Reason::of_all(node)
                });
            }
            Self::Request { claim, request, fault } => (*claim, request, fault),
            _ => return None,
        };
        let of_request = claims
            .get(claim)
            .map_or_else(String::new, |claim| field_of(claim, request));
        let (kind, path, field) = fault.place(&of_request)?;
        // DRIVER/POOL/DEVICE: only the name of a pool may have slashes.
        let path = path.split_once('/').map_or("", |(_, path)| path);
        let (pool, device) = match kind {
            ReasonKind::IncompletePool => (path, ""),
            _ => path.rsplit_once('/').unwrap_or((path, "")),
        };
        Some(Reason {
            claim,
            request: request.clone(),
            node: node.to_owned(),
            pool: pool.to_owned(),
            device: device.to_owned(),
            instance: None,
            reason: kind,
            field,
            message: fault.to_string(),
            shortages: Vec::new(),
            holders: Vec::new(),
            together: Vec::new(),
        })
    }
}

impl RequestError {
    /// The reason kind of the error, the path of the device or pool, and the field; `None` for a mistake in the claim.
    /// `of_request` is the path of the request in its claim.
    fn place(&self, of_request: &str) -> Option<(ReasonKind, &str, String)> {
        Some(match self {
            RequestError::UnknownClass { .. } => {
                let field = format!("{of_request}.deviceClassName");
                (ReasonKind::UnknownClass, "", field)
            }
            RequestError::Cel {
                class, index, device, ..
            } => {
                let object = match class {
                    Some(_) => "spec",
                    None => of_request,
                };
                let field = format!("{object}.selectors[{index}].cel.expression");
                (ReasonKind::CelError, &**device, field)
            }
            RequestError::Capacity { device, .. } => {
                let field = format!("{of_request}.capacity.requests");
                (ReasonKind::Capacity, &**device, field)
            }
            RequestError::AllAgainstConstraint { device, .. } => {
                let field = "spec.devices.constraints".to_owned();
                (ReasonKind::Constraint, &**device, field)
            }
            RequestError::IncompletePool { pool } | RequestError::InvalidPool { pool, .. } => {
                let field = format!("{of_request}.allocationMode");
                (ReasonKind::IncompletePool, &**pool, field)
            }
            _ => return None,
        })
    }
}

/// The path of a request, or an alternative of one, in its claim.
pub(crate) fn field_of(claim: &ResourceClaim, request: &str) -> String {
    let requests = &claim.spec.devices.requests;
    for (index, known) in requests.iter().enumerate() {
        let Some(rest) = request.strip_prefix(known.name.as_str()) else {
            continue;
        };
        if rest.is_empty() && known.first_available.is_empty() {
            return format!("spec.devices.requests[{index}].exactly");
        }
        let alternative = known
            .first_available
            .iter()
            .position(|alternative| rest.strip_prefix('/') == Some(alternative.name.as_str()));
        if let Some(alternative) = alternative {
            return format!("spec.devices.requests[{index}].firstAvailable[{alternative}]");
        }
    }
    "spec.devices.requests".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_namespaces_are_counted_and_not_said() {
        let seen = |holders: &[&str]| {
            let holders: Vec<Arc<str>> = holders.iter().map(|holder| (*holder).into()).collect();
            held(&holders, "a")
        };
        assert_eq!(seen(&[]), "");
        assert_eq!(seen(&["a/x", "a/y"]), ", held by a/x, a/y");
        assert_eq!(seen(&["b/secret"]), ", held by a claim of another namespace");
        assert_eq!(
            seen(&["b/x", "a/x", "c/x", "b/x"]),
            ", held by a/x and 2 claims of other namespaces",
            "each once"
        );
    }
}
