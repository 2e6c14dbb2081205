//! Checks that this instance can read claims. Otherwise it cannot prepare any, however well its driver works.
//!
//! How it fails: if the API server cannot be reached, or refuses, it is asked again, after pauses of up to a minute. Once
//! claims could be read, it is not asked any more: a later failure of the API server affects every instance of the node,
//! and Prepare reports it.

use crate::api::Claims;
use crate::ready::Readiness;
use crate::retry::until_done;

/// The part's name in [`Readiness`].
pub const PART: &str = "claims";
/// A claim that does not exist: the right to read it is enough to get that answer.
const MADE_UP: (&str, &str) = ("default", "dra.vgpu-can-claims-be-read");

/// Returns once the API server has answered a request for a claim.
pub async fn wait<C: Claims>(claims: &C, readiness: &Readiness) {
    let read = || async {
        let read = claims.get(MADE_UP.0, MADE_UP.1).await;
        read.map_err(|error| format!("cannot read ResourceClaims: {error}"))
    };
    until_done(readiness, PART, read).await;
    readiness.set(PART, Ok(()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Error;
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Refuses this many requests, and then answers that there is no claim.
    struct Refusing(AtomicU32);

    impl Claims for Refusing {
        async fn get(&self, _: &str, _: &str) -> Result<Option<ResourceClaim>, Error> {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            match left {
                0 => Ok(None),
                _ => Err(Error::Other("forbidden (403)".into())),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_not_there_shows_that_claims_can_be_read_and_a_refusal_does_not() {
        let readiness = Readiness::new(&[PART]);
        let refusing = Refusing(AtomicU32::new(u32::MAX));
        let refused = tokio::time::timeout(std::time::Duration::from_secs(600), wait(&refusing, &readiness)).await;
        assert!(refused.is_err() && !readiness.status().0);
        assert!(readiness.status().1.contains("forbidden"), "{}", readiness.status().1);
        wait(&Refusing(AtomicU32::new(2)), &readiness).await;
        assert!(readiness.status().0);
    }
}
