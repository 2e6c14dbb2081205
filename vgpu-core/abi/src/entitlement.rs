//! Computes the entries of a GPU's node page from the limits of its shares: the part of the GPU's time that each may
//! have. Does no I/O.
//!
//! ```text
//!  cores > 0   weight = cores
//!  cores = 0   weight = an equal part of what the cores of all shares leave, at least a tenth of a percent
//! ```
//!
//! A share with 30 cores and one without get 30 and 70. Shares with 30 and 70 cores leave only the idle time to a share
//! without cores. Unlimited shares have no part: they take what they want.
//!
//! How it fails: two shares with the same slot, possible only after a checkpoint was rebuilt without slots, get the
//! entry of the later one. More than 100 cores on a GPU are refused earlier. Here they would leave the smallest weight
//! to shares without cores.

use crate::arbitration::{Entry, LEAST_WEIGHT, SLOTS, WEIGHT_OF_ONE_CORE, entry_flags};
use crate::limits::{ComputePolicy, Priority};

const ALL_CORES: u32 = 100;

/// A share that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub slot: u8,
    pub cores: u32,
    pub compute_policy: ComputePolicy,
    pub priority: Priority,
    /// A different number for each share that gets the slot.
    pub generation: u64,
    /// The share was seen to break its limit.
    pub ignored: bool,
}

/// Returns the entries of a GPU's node page. `holders` are all shares on it.
#[must_use]
pub fn entries(holders: &[Holder]) -> [Entry; SLOTS] {
    let mut entries = [Entry::default(); SLOTS];
    let idle = weight_of_idle(holders);
    for holder in holders {
        if let Some(entry) = entries.get_mut(usize::from(holder.slot)) {
            *entry = Entry {
                weight: holder.weight(idle),
                flags: holder.flags(),
                generation: holder.generation,
            };
        }
    }
    entries
}

/// Returns the weight of each limited share without cores.
fn weight_of_idle(holders: &[Holder]) -> u32 {
    let cores: u32 = holders.iter().map(|holder| holder.cores).sum();
    let takers = holders.iter().filter(|holder| holder.is_best_effort()).count();
    let left = ALL_CORES.saturating_sub(cores) * WEIGHT_OF_ONE_CORE;
    // So many shares cannot have a slot each, so the number does not matter then.
    let takers = u32::try_from(takers.max(1)).unwrap_or(u32::MAX);
    (left / takers).max(LEAST_WEIGHT)
}

// === impl Holder ===

impl Holder {
    fn is_best_effort(&self) -> bool {
        self.cores == 0 && self.compute_policy != ComputePolicy::Unlimited
    }

    fn weight(&self, idle: u32) -> u32 {
        match self.is_best_effort() {
            true => idle,
            // A weight of 0 would mean a free slot.
            false => (self.cores * WEIGHT_OF_ONE_CORE).max(LEAST_WEIGHT),
        }
    }

    fn flags(&self) -> u32 {
        let policy = match self.compute_policy {
            ComputePolicy::Unlimited => entry_flags::UNLIMITED,
            _ if self.cores == 0 => entry_flags::BEST_EFFORT,
            ComputePolicy::Guaranteed => entry_flags::GUARANTEED,
            ComputePolicy::Balanced => 0,
        };
        let priority = match self.priority {
            Priority::High => entry_flags::HIGH,
            Priority::Low => 0,
        };
        policy | priority | if self.ignored { entry_flags::IGNORED } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ComputePolicy::{Balanced, Guaranteed, Unlimited};

    fn holder(slot: u8, cores: u32, compute_policy: ComputePolicy) -> Holder {
        Holder {
            slot,
            cores,
            compute_policy,
            priority: Priority::Low,
            generation: 100 + u64::from(slot),
            ignored: false,
        }
    }

    #[test]
    fn weights_are_cores_and_the_rest_is_for_those_without() {
        // The cores and the policy of each share, and the percentage that it gets.
        type Shares<'a> = &'a [(u32, ComputePolicy, f64)];
        let cases: [Shares<'_>; 10] = [
            &[(30, Balanced, 30.0), (0, Balanced, 70.0)],
            &[(30, Balanced, 30.0), (70, Balanced, 70.0), (0, Balanced, 0.1)],
            &[(30, Guaranteed, 30.0), (0, Balanced, 35.0), (0, Balanced, 35.0)],
            &[(0, Balanced, 100.0)],
            &[(0, Balanced, 50.0), (0, Guaranteed, 50.0)],
            &[(40, Unlimited, 40.0), (0, Balanced, 60.0)],
            &[(0, Unlimited, 0.1), (0, Balanced, 100.0)],
            &[
                (1, Balanced, 1.0),
                (0, Balanced, 33.0),
                (0, Balanced, 33.0),
                (0, Balanced, 33.0),
            ],
            &[(100, Balanced, 100.0)],
            &[(80, Balanced, 80.0), (80, Balanced, 80.0), (0, Balanced, 0.1)],
        ];
        for shares in cases {
            let holders = (0..)
                .zip(shares)
                .map(|(slot, (cores, policy, _))| holder(slot, *cores, *policy));
            let found = entries(&holders.collect::<Vec<_>>());
            for (entry, (_, _, percent)) in found.iter().zip(shares) {
                assert_eq!(f64::from(entry.weight) / 1000.0, *percent, "{shares:?}");
            }
            assert_eq!(found[shares.len()], Entry::default(), "the others are free");
        }
    }

    #[test]
    fn flags_say_policy_priority_and_who_is_ignored() {
        use entry_flags::{BEST_EFFORT, GUARANTEED, HIGH, IGNORED, UNLIMITED};
        for (cores, policy, expected) in [
            (30, Balanced, 0),
            (30, Guaranteed, GUARANTEED),
            (30, Unlimited, UNLIMITED),
            (0, Balanced, BEST_EFFORT),
            (0, Guaranteed, BEST_EFFORT),
            (0, Unlimited, UNLIMITED),
        ] {
            let low = holder(7, cores, policy);
            let high = Holder {
                priority: Priority::High,
                ..low
            };
            let ignored = Holder { ignored: true, ..high };
            for (holder, more) in [(low, 0), (high, HIGH), (ignored, HIGH | IGNORED)] {
                assert_eq!(entries(&[holder])[7].flags, expected | more, "{holder:?}");
            }
        }
    }

    #[test]
    fn each_entry_is_in_its_slot_with_its_generation() {
        let found = entries(&[
            holder(63, 20, Balanced),
            holder(0, 10, Balanced),
            holder(64, 5, Balanced),
        ]);
        let taken: Vec<_> = (0..).zip(&found).filter(|(_, entry)| entry.weight != 0).collect();
        assert_eq!(taken.len(), 2, "{taken:?}");
        assert_eq!((found[0].generation, found[63].generation), (100, 163));
        assert_eq!((found[0].weight, found[63].weight), (10_000, 20_000));
    }
}
