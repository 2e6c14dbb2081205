//! GPU time of shares: the usage of their processes by NVML, and the charges on their pages.
//!
//! How it fails: where no process can be matched with a share, or NVML does not answer, nothing is known of a GPU.

use super::counters::Intervals;
use super::processes::Seen;
use super::verdicts::compute::{self, Paged, Use, Verdicts};
use crate::dra::node::Node;
use crate::dra::share::{PlacedShare, ShareKey, ShareKeys};
use crate::nvml::{Sample, Used};
use std::collections::BTreeMap;
use std::time::Instant;
use vgpu_abi::arbitration::entry_flags;

/// Knowledge from former samples.
#[derive(Debug, Default)]
pub(super) struct Compute {
    verdicts: Verdicts,
    intervals: Intervals,
}

/// The facts about GPU time in the node's records and pages.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The shares whose time is limited, each with its GPU and page entry.
    limited: Vec<PlacedShare>,
    paged: BTreeMap<ShareKey, Paged>,
    /// Nanoseconds that each share was ever charged.
    charged: BTreeMap<ShareKey, u64>,
}

// === impl Placed ===

impl Placed {
    pub(super) fn is_limited(&self, key: &ShareKey) -> bool {
        self.limited.iter().any(|placed| placed.key == *key)
    }

    /// Returns the nanoseconds that a share was ever charged; None if its page does not say that.
    pub(super) fn charged(&self, key: &ShareKey) -> Option<u64> {
        self.charged.get(key).copied()
    }

    /// The shares that were charged something since the last sample.
    pub(super) fn active(&self) -> impl Iterator<Item = &ShareKey> {
        let charged = self.paged.iter().filter(|(_, paged)| paged.charged > 0.0);
        charged.map(|(key, _)| key)
    }
}

// === impl Compute ===

impl Compute {
    pub(super) fn read(&mut self, node: &Node) -> Placed {
        let placed = node.placed().into_iter();
        // A share without a limit cannot break it, and does not limit others.
        let limited = placed.filter(|placed| placed.entry.flags & entry_flags::UNLIMITED == 0);
        let paged = self.intervals.read(node, Instant::now());
        let charged = self.intervals.charged();
        Placed {
            limited: limited.collect(),
            paged,
            charged: charged.filter_map(|(key, ns)| Some((key.clone(), ns?))).collect(),
        }
    }

    /// Applies one sample. `seen` has the processes in it; None if they cannot be recognised.
    pub(super) fn apply(
        &mut self,
        placed: &Placed,
        sample: &Sample,
        seen: Option<&Seen>,
    ) -> BTreeMap<ShareKey, compute::Verdict> {
        let gpus = sample.gpus().filter_map(|(uuid, gpu)| {
            let used = sums(gpu.used.as_ref()?, seen?, uuid, &placed.limited)?;
            Some((uuid, used))
        });
        let used: BTreeMap<&str, BTreeMap<&ShareKey, f64>> = gpus.collect();
        let share = |share: &PlacedShare| compute::Share {
            key: share.key.clone(),
            gpu: share.gpu.clone(),
            cores: share.cores,
            entry: share.entry,
            seen: used.get(share.gpu.as_str()).and_then(|used| {
                Some(Use {
                    used: *used.get(&share.key)?,
                    paged: placed.paged.get(&share.key).copied(),
                })
            }),
        };
        let shares: Vec<compute::Share> = placed.limited.iter().map(share).collect();
        self.verdicts.apply(&shares, Instant::now());
        self.verdicts.by_share()
    }

    /// The shares that others are to ignore.
    pub(super) fn broken(&self) -> ShareKeys {
        self.verdicts.broken().cloned().collect()
    }
}

/// The sum over the processes of each share of a GPU, in percent. None if no process could be matched with a share, because
/// then the PIDs are not those that this process sees.
fn sums<'a>(used: &Used, seen: &Seen, gpu: &str, shares: &'a [PlacedShare]) -> Option<BTreeMap<&'a ShareKey, f64>> {
    let own = || shares.iter().filter(|share| share.gpu == gpu).map(|share| &share.key);
    let mut sums: BTreeMap<&ShareKey, f64> = own().map(|key| (key, 0.0)).collect();
    let mut is_known = used.is_empty();
    for (pid, percent) in used {
        let Some(process) = seen.processes.get(pid) else {
            continue;
        };
        is_known |= !process.shares.is_empty();
        // If a container has several shares of a GPU, the library uses the first one first.
        if let Some(sum) = own()
            .find(|key| process.shares.contains(*key))
            .and_then(|key| sums.get_mut(key))
        {
            *sum = (*sum + percent).min(100.0);
        }
    }
    is_known.then_some(sums)
}

#[cfg(test)]
mod tests {
    use super::super::processes::Process;
    use super::*;
    use vgpu_abi::arbitration::Entry;

    fn key(uid: &str) -> ShareKey {
        (uid.to_owned(), "s".to_owned())
    }

    #[test]
    fn processes_count_toward_their_share_and_strangers_toward_none() {
        let placed = |uid: &str| PlacedShare {
            key: key(uid),
            gpu: "GPU-1".into(),
            cores: 30,
            entry: Entry {
                weight: 30_000,
                flags: 0,
                generation: 1,
            },
        };
        let shares = [placed("u1"), placed("u2")];
        let process = |uids: &[&str]| Process {
            shares: uids.iter().map(|uid| key(uid)).collect(),
            ..Process::default()
        };
        let seen = Seen {
            processes: [
                (1, process(&["u1"])),
                (2, process(&["u2"])),
                (3, process(&["u1"])),
                (9, process(&[])),
            ]
            .into(),
            ..Seen::default()
        };
        let ask = |used: &[(u32, f64)]| {
            let sums = sums(&used.iter().copied().collect(), &seen, "GPU-1", &shares)?;
            Some([sums[&key("u1")], sums[&key("u2")]])
        };
        assert_eq!(ask(&[(1, 30.0), (3, 15.5), (9, 40.0)]), Some([45.5, 0.0]));
        assert_eq!(ask(&[(1, 80.0), (3, 80.0)]), Some([100.0, 0.0]));
        assert_eq!(ask(&[(9, 40.0)]), None, "PIDs of another namespace, perhaps");
        assert_eq!(ask(&[(7, 40.0)]), None);
        assert_eq!(ask(&[]), Some([0.0, 0.0]));
    }
}
