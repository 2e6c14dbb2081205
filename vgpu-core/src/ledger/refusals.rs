//! Records in the ledger that a call failed with out of memory. `vgpu_abi::ledger::refusal` has the layout, and says
//! what remains after a kill or a second writer.

use super::share::Share;
use crate::os::{process_name, unix_ns};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vgpu_abi::ledger::refusal::{Cause, Refusal, SLOTS, User};

const NS_PER_S: u64 = 1_000_000_000;

/// What a process knows of its refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub cause: Cause,
    /// Bytes; None: the call does not say how many.
    pub asked: Option<u64>,
    /// Bytes charged for contexts and code of this process.
    pub overhead: Option<u64>,
    /// Free bytes of the GPU itself.
    pub gpu_free: Option<u64>,
}

impl Share {
    /// Records a refused call of this process, first in a slot and then in the counters.
    #[cold]
    pub fn note_refusal(&self, refused: Refused) {
        let refusals = &self.region().refusals;
        let [by_limit, by_driver] = [0, 1].map(|cause: usize| refusals.counts[cause].load(Relaxed));
        let number = by_limit.wrapping_add(by_driver).wrapping_add(1);
        let own = self.region().lanes.get(self.own[0].index.load(Acquire));
        let pid_namespace = own.map_or(0, |lane| lane.pid_namespace.load(Relaxed));
        let refusal = Refusal {
            number,
            unix: unix_ns() / NS_PER_S,
            cause: refused.cause,
            pid: std::process::id(),
            pid_namespace,
            asked: refused.asked,
            charged: self.charged(),
            overhead: refused.overhead,
            gpu_free: refused.gpu_free,
            raw_name: process_name(),
            users: self.largest_users(pid_namespace),
        };
        let slot = &refusals.slots[(number % SLOTS as u64) as usize];
        for (word, value) in slot.iter().zip(refusal.words()) {
            word.store(value, Relaxed);
        }
        refusals.largest.fetch_max(refused.asked.unwrap_or(0), Relaxed);
        refusals.counts[refused.cause as usize].fetch_add(1, Release);
    }

    /// Returns the processes with most memory. Those of another PID namespace have no PID here.
    fn largest_users<const MOST: usize>(&self, here: u64) -> [User; MOST] {
        let mut sums = BTreeMap::new();
        for (namespace, pid, bytes) in self.holders() {
            let sum = sums.entry((namespace, pid)).or_insert(0_u64);
            *sum = bytes.saturating_add(*sum);
        }
        let mut users: Vec<_> = sums.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        users.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let mut largest = [User::default(); MOST];
        for (place, ((namespace, pid), bytes)) in largest.iter_mut().zip(users) {
            *place = User::new(if namespace == here { pid } else { 0 }, bytes);
        }
        largest
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::*;
    use crate::ledger::fresh;
    use vgpu_abi::ledger::{self, Usage};

    const MIB: u64 = 1 << 20;

    fn refused(cause: Cause, asked: u64) -> Refused {
        Refused {
            cause,
            asked: Some(asked),
            overhead: Some(3 * MIB),
            gpu_free: None,
        }
    }

    /// Reads the ledger as the node does.
    fn usage(folder: &std::path::Path) -> Usage {
        let bytes = std::fs::read(fresh::ledger(folder, "share")).expect("a ledger");
        ledger::read(&bytes).expect("intact")
    }

    #[test]
    fn the_node_reads_the_last_refusal_with_those_who_hold_the_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let share = fresh::share(folder.path(), "share", 64 * MIB);
        let kept = share.reserve(40 * MIB).expect("room");
        share.note_refusal(refused(Cause::Limit, 30 * MIB));
        share.note_refusal(refused(Cause::Driver, 20 * MIB));
        share.release(kept, 40 * MIB);
        let usage = usage(folder.path());
        let refusals = usage.refusals;
        assert_eq!(
            (refusals.by_limit, refusals.by_driver, refusals.largest),
            (1, 1, 30 * MIB)
        );
        let last = refusals.last.expect("written");
        assert_eq!(
            (last.number, last.cause, last.asked),
            (2, Cause::Driver, Some(20 * MIB))
        );
        assert_eq!((last.charged, last.pid), (40 * MIB, std::process::id()));
        assert_eq!(last.users[0], User::new(std::process::id(), 40 * MIB));
        assert_eq!(last.users[1], User::default());
        assert!(!last.name().is_empty() && last.unix > 1_700_000_000);
        assert_eq!((usage.peak, usage.charged), (40 * MIB, 0));
    }

    #[test]
    fn refusals_of_many_threads_are_all_counted_and_the_last_is_whole() {
        const EACH: u64 = 200;
        let folder = tempfile::tempdir().expect("a folder");
        let share = fresh::share(folder.path(), "share", MIB);
        std::thread::scope(|threads| {
            for cause in [Cause::Limit, Cause::Driver, Cause::Limit, Cause::Driver] {
                let share = &share;
                threads.spawn(move || (1..=EACH).for_each(|asked| share.note_refusal(refused(cause, asked))));
            }
        });
        share.note_refusal(refused(Cause::Limit, 7));
        let refusals = usage(folder.path()).refusals;
        assert_eq!((refusals.by_limit, refusals.by_driver), (2 * EACH + 1, 2 * EACH));
        assert_eq!(refusals.largest, EACH);
        let last = refusals.last.expect("written");
        assert_eq!((last.number, last.asked), (refusals.count(), Some(7)));
    }
}
