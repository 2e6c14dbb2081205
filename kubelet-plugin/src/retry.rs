//! Pauses between attempts, and attempts until one succeeds.

use crate::ready::Readiness;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(60);

/// Tries until it succeeds. Until then `part` is not ready, with the error as its reason.
pub(crate) async fn until_done<T, F: Future<Output = Result<T, String>>>(
    readiness: &Readiness,
    part: &'static str,
    attempt: impl Fn() -> F,
) -> T {
    let mut failures = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return done,
            Err(error) => error,
        };
        if readiness.set(part, Err(error.clone())) {
            tracing::error!("{error}; retrying");
        }
        tokio::time::sleep(delay(failures)).await;
        failures += 1;
    }
}

/// Doubles with every failure, minus a random part of up to half, so that not all nodes meet a restarted API
/// server at once.
pub(crate) fn delay(failures: u32) -> Duration {
    let whole = FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LAST_DELAY);
    // std seeds this hasher at random, which saves a crate for one number.
    let random = RandomState::new().build_hasher().finish() % 1000;
    whole - whole.mul_f64(random as f64 / 2000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_scatter() {
        for failures in 0..40 {
            let delay = delay(failures);
            assert!(delay >= FIRST_DELAY / 2 && delay <= LAST_DELAY, "{delay:?}");
        }
        assert!(delay(30) >= LAST_DELAY / 2);
    }
}
