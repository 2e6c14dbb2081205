//! Claims that ended here without an Unprepare: deleted by force while the plugin or kubelet was
//! down, or deallocated, and perhaps allocated on another node, after kubelet lost its own state.
//! Their entries would hold a GPU's capacity for ever. Pure: looks and times in, UIDs out.
//!
//! A claim that is gone may still have a container that ends; kubelet unprepares it then. So a
//! claim must be seen gone for a while, and a look that failed says nothing.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vgpu_api::DRIVER_NAME;

/// Longer than kubelet needs to end a force-deleted pod and unprepare its claims.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What a look at a claim showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It exists under its UID and holds a device of this node.
    There,
    /// It does not, or another one has its name.
    Gone,
    /// The API server did not answer.
    Unknown,
}

/// Since when claims are gone.
#[derive(Debug, Default)]
pub struct Gone(BTreeMap<String, Instant>);

// === impl Look ===

impl Look {
    /// What the claim that has the name now says of the one with this UID and the devices of `pool`.
    #[must_use]
    pub fn at(found: Option<&ResourceClaim>, uid: &str, pool: &str) -> Self {
        let status = found
            .filter(|claim| claim.metadata.uid.as_deref() == Some(uid))
            .and_then(|claim| claim.status.as_ref());
        let devices = status.and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.as_ref());
        let ours = |result: &DeviceRequestAllocationResult| result.driver == DRIVER_NAME && result.pool == pool;
        match devices.is_some_and(|results| results.iter().any(ours)) {
            true => Self::There,
            false => Self::Gone,
        }
    }
}

// === impl Gone ===

impl Gone {
    /// Takes one round of looks; the UIDs that are gone for good.
    pub fn round(&mut self, looks: &[(String, Look)], now: Instant) -> Vec<String> {
        // Entries that were unprepared meanwhile are not looked at any more.
        self.0.retain(|uid, _| looks.iter().any(|(seen, _)| seen == uid));
        let mut over = Vec::new();
        for (uid, look) in looks {
            match look {
                Look::There => drop(self.0.remove(uid)),
                Look::Unknown => {}
                Look::Gone => {
                    let since = *self.0.entry(uid.clone()).or_insert(now);
                    if now.duration_since(since) >= PATIENCE {
                        over.push(uid.clone());
                    }
                }
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_holds_nothing_of_this_node_is_gone() {
        let (_, claim) = crate::node::tests::claim("u", &[("s1", 20, 25)]);
        let look = |claim: &ResourceClaim, pool| Look::at(Some(claim), "u", pool);
        assert_eq!(look(&claim, "n1/vgpu"), Look::There);
        assert_eq!(look(&claim, "n2/vgpu"), Look::Gone, "it was allocated elsewhere");
        assert_eq!(Look::at(Some(&claim), "another", "n1/vgpu"), Look::Gone);
        assert_eq!(Look::at(None, "u", "n1/vgpu"), Look::Gone);
        let mut free = claim;
        free.status = None;
        assert_eq!(look(&free, "n1/vgpu"), Look::Gone, "it was deallocated");
    }

    #[test]
    fn only_a_claim_that_stays_gone_is_given_up() {
        let mut gone = Gone::default();
        let start = Instant::now();
        let look = |what| [("u".to_owned(), what)];
        assert!(gone.round(&look(Look::Gone), start).is_empty());
        assert!(gone.round(&look(Look::Gone), start + PATIENCE / 2).is_empty());
        assert!(
            gone.round(&look(Look::There), start + PATIENCE * 3 / 4).is_empty(),
            "back"
        );
        assert!(
            gone.round(&look(Look::Gone), start + PATIENCE).is_empty(),
            "counted anew"
        );
        assert!(
            gone.round(&look(Look::Unknown), start + PATIENCE * 3).is_empty(),
            "no answer, no verdict"
        );
        assert_eq!(gone.round(&look(Look::Gone), start + PATIENCE * 3), ["u"]);
        assert!(gone.round(&[], start + PATIENCE * 3).is_empty());
        assert!(
            gone.round(&look(Look::Gone), start + PATIENCE * 4).is_empty(),
            "forgotten once unprepared"
        );
    }
}
