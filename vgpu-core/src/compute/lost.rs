//! Time that a share loses to many short waits: a page that changes all the time can keep another share from its `cores` without
//! any single long wait.

use super::{Ns, bucket};

/// The lost time. It grows by each wait and shrinks by the time between waits, so fast that it stays near 0 for a share
/// that gets half of its `cores` or pauses voluntarily.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    time: Ns,
    at: Ns,
}

impl Lost {
    /// Adds a wait of this length, which has ended.
    pub fn waited(&mut self, length: Ns, now: Ns, weight: u32) {
        let between = now.saturating_sub(self.at).saturating_sub(length);
        let regained = bucket::time_for(between.saturating_mul(2), weight);
        self.time = self.time.saturating_sub(regained).saturating_add(length);
        self.at = now;
    }

    #[must_use]
    pub fn time(&self) -> Ns {
        self.time
    }

    /// Sets the lost time to 0: the share that took it is ignored from now on.
    pub fn forget(&mut self) {
        self.time = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::limiter::times::OVERRIDE;
    use crate::compute::{MS, US};
    use vgpu_abi::arbitration::WEIGHT_OF_ONE_CORE;

    #[test]
    fn many_waits_are_one_but_not_those_of_a_share_that_has_its_cores() {
        let most = |cores: u32, wait: Ns, between: Ns| {
            let (mut lost, mut now, mut most) = (Lost::default(), 1000 * MS, 0);
            lost.at = now;
            for _ in 0..1000 {
                now += wait;
                lost.waited(wait, now, cores * WEIGHT_OF_ONE_CORE);
                most = most.max(lost.time);
                now += between;
            }
            most
        };
        assert!(most(50, 10 * MS, 500 * US) > OVERRIDE, "5 percent of 50");
        for (cores, wait, between) in [
            (50, 10 * MS, 10 * MS),
            (12, 70 * MS, 10 * MS),
            (10, 90 * MS, 5 * MS),
            (50, 2 * MS, MS),
        ] {
            assert!(most(cores, wait, between) < OVERRIDE, "{cores} {wait} {between}");
        }
    }
}
