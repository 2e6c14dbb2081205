//! Finds claims that ended without an Unprepare. Pure: observations and times in, UIDs out.
//!
//! This happens to claims that were deleted by force while the plugin or kubelet was down, and to claims that
//! were deallocated (and perhaps allocated on another node) after kubelet lost its own state. Their entries
//! would block a GPU's capacity.
//!
//! A claim whose container lives is never unprepared (`mount_users`): its GPU memory is in use, and kubelet unprepares it
//! when the container has ended; `unclaimed` reports it. Any other claim must be gone for a while, because a container may
//! be starting, and a failed request to the API server does not show that it is gone.

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vgpu_api::{DRIVER_NAME, Pools};

/// Longer than a runtime needs from reading the CDI file to the container's mounts.
pub const STALE_AFTER: Duration = Duration::from_secs(30);

/// The result of a request for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The claim exists with its UID and has a device of this node allocated.
    There,
    /// The claim does not exist, or another one has its name.
    Gone,
    /// The API server did not answer.
    Unknown,
}

/// Since when each claim is gone.
#[derive(Debug)]
pub struct Gone {
    since: BTreeMap<String, Instant>,
    lasting: Duration,
}

// === impl ClaimState ===

impl ClaimState {
    /// Compares the claim that now has the name with `uid` and the devices of this node's pools.
    #[must_use]
    pub fn of(found: Option<&ResourceClaim>, uid: &str, pools: &Pools) -> Self {
        let status = found
            .filter(|claim| claim.metadata.uid.as_deref() == Some(uid))
            .and_then(|claim| claim.status.as_ref());
        let devices = status.and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.as_ref());
        let ours =
            |result: &DeviceRequestAllocationResult| result.driver == DRIVER_NAME && pools.contains(&result.pool);
        match devices.is_some_and(|results| results.iter().any(ours)) {
            true => Self::There,
            false => Self::Gone,
        }
    }
}

// === impl Gone ===

impl Gone {
    /// Claims have to be gone for `lasting`.
    #[must_use]
    pub fn new(lasting: Duration) -> Self {
        Self {
            since: BTreeMap::new(),
            lasting,
        }
    }

    /// Returns true if this claim was gone when it was last asked about.
    #[must_use]
    pub fn has(&self, uid: &str) -> bool {
        self.since.contains_key(uid)
    }

    /// Applies one round of observations, and returns the UIDs of claims that have been gone for long enough.
    pub fn apply(&mut self, states: &[(String, ClaimState)], now: Instant) -> Vec<String> {
        // Drop entries that were unprepared since the last round.
        self.since.retain(|uid, _| states.iter().any(|(seen, _)| seen == uid));
        let mut over = Vec::new();
        for (uid, state) in states {
            match state {
                ClaimState::There => drop(self.since.remove(uid)),
                ClaimState::Unknown => {}
                ClaimState::Gone => {
                    let since = *self.since.entry(uid.clone()).or_insert(now);
                    if now.duration_since(since) >= self.lasting {
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
        let (_, claim) = crate::dra::node::tests::claim("u", &[("s1", 20, 25)]);
        let look = |claim: &ResourceClaim, node| ClaimState::of(Some(claim), "u", &Pools::of(node));
        assert_eq!(look(&claim, "n1"), ClaimState::There);
        assert_eq!(look(&claim, "n2"), ClaimState::Gone, "it was allocated elsewhere");
        assert_eq!(
            ClaimState::of(Some(&claim), "another", &Pools::of("n1")),
            ClaimState::Gone
        );
        assert_eq!(ClaimState::of(None, "u", &Pools::of("n1")), ClaimState::Gone);
        let mut free = claim;
        free.status = None;
        assert_eq!(look(&free, "n1"), ClaimState::Gone, "it was deallocated");
    }

    #[test]
    fn only_a_claim_that_stays_gone_is_given_up() {
        let mut gone = Gone::new(STALE_AFTER);
        let start = Instant::now();
        let seen = |what| [("u".to_owned(), what)];
        assert!(gone.apply(&seen(ClaimState::Gone), start).is_empty());
        assert!(gone.apply(&seen(ClaimState::Gone), start + STALE_AFTER / 2).is_empty());
        assert!(
            gone.apply(&seen(ClaimState::There), start + STALE_AFTER * 3 / 4)
                .is_empty(),
            "back"
        );
        assert!(
            gone.apply(&seen(ClaimState::Gone), start + STALE_AFTER).is_empty(),
            "counted again"
        );
        assert!(
            gone.apply(&seen(ClaimState::Unknown), start + STALE_AFTER * 3)
                .is_empty(),
            "no answer, no verdict"
        );
        assert_eq!(gone.apply(&seen(ClaimState::Gone), start + STALE_AFTER * 3), ["u"]);
        assert!(gone.apply(&[], start + STALE_AFTER * 3).is_empty());
        assert!(
            gone.apply(&seen(ClaimState::Gone), start + STALE_AFTER * 4).is_empty(),
            "forgotten once unprepared"
        );
    }
}
