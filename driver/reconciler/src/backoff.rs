//! Pauses between attempts that fail.

use std::time::Duration;

use crate::Now;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(300);

/// The attempts at one thing, since the last that succeeded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backoff {
    pub(crate) failures: u32,
    pub(crate) not_before: Now,
}

impl Backoff {
    pub(crate) fn fail(&mut self, now: Now) {
        let pause = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            backoff.fail(Duration::from_secs(7));
            pauses.push((backoff.not_before - Duration::from_secs(7)).as_millis());
        }
        assert_eq!(pauses[..4], [500, 1_000, 2_000, 4_000]);
        assert_eq!(pauses[9..], [256_000, 300_000, 300_000]);
    }
}
