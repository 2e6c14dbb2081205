//! Finds this process among those that NVML lists. NVML may report PIDs of another namespace, and many processes may
//! start at the same time. So this process allocates some memory for a moment and checks which entry grows by exactly
//! this size:
//!
//! ```text
//!  charge it ─► list ─► allocate ─► list ─► several grew by as much: allocate more ─► list ─► free
//!               └─────────────────────┴─────────────────────────────────────────────────┴──► who grew by exactly that
//! ```
//! If an entry with our own PID grew, that is this process. Processes of one share do this one at a time, so that many
//! of them take little of the share, and two seldom grow by the same amount.
//!
//! How it fails: if several entries grow equally twice, other sizes are tried. A late list shows no growth, or only
//! that of another process. If this process takes that entry for its own, the entry's figure is soon less than this
//! process has allocated, and the PID is forgotten ([`measure`](super::measure)). Without NVML this process stays
//! unknown. Without room in the share, the entry with our own PID is taken, if there is one. A process that is stopped
//! during its turn delays each of the others by [`TURN`]; a dead process does not. A neighbour that needs the last
//! bytes of the share at that moment waits for them ([`first_contexts`](super::first_contexts)).

use super::charge::charge_now;
use super::driver::{Driver, SUCCESS};
use super::gpu::Gpu;
use super::granule::GRANULE;
use crate::account::Charge;
use std::time::Duration;

/// Number of pairs of sizes to try.
pub const TRIES: u32 = 4;
/// How long a process waits for its turn. Then it goes on without it.
pub const TURN: Duration = Duration::from_secs(2);
/// Number of sizes: small enough to take little of a share, large enough to differ from other shares' sizes.
const SIZES: u64 = 16;

/// A PID and its bytes in NVML's list.
pub type Entry = (u32, u64);

/// Returns the number of bytes to allocate first, and the number to add afterwards. `random`: a number that differs
/// between processes; `room`: free bytes of the share.
#[must_use]
pub fn sizes(random: u64, room: u64) -> [u64; 2] {
    let most = (room / 2 / GRANULE).clamp(1, SIZES);
    [random, random / SIZES].map(|random| (1 + random % most) * GRANULE)
}

/// The allocated memory and its charges.
#[derive(Debug, Default)]
pub struct Beacon {
    charges: Vec<Charge>,
    pointers: Vec<u64>,
    context: usize,
}

impl Beacon {
    /// Charges `bytes` more. Returns false if they do not fit.
    pub fn charge<D: Driver>(&mut self, gpu: &Gpu<D>, bytes: u64) -> bool {
        let charge = charge_now(gpu, bytes);
        let fits = charge.is_some();
        self.charges.extend(charge);
        fits
    }

    /// Allocates `bytes`, which must be charged already, in `context`. Returns None if the driver refuses.
    pub fn allocate<D: Driver>(&mut self, gpu: &Gpu<D>, context: usize, bytes: u64) -> Option<()> {
        self.context = context;
        let pointer = in_context(gpu, context, |driver| driver.allocate(bytes).ok())?;
        self.pointers.push(pointer);
        Some(())
    }

    /// Returns the charged bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.charges.iter().map(Charge::bytes).sum()
    }

    /// Frees the memory. Memory that the driver does not free stays charged.
    pub fn end<D: Driver>(self, gpu: &Gpu<D>) {
        let mut pointers = self.pointers.into_iter();
        for charge in self.charges {
            let freed = match pointers.next() {
                Some(pointer) => in_context(gpu, self.context, |driver| Some(driver.free(pointer))),
                None => Some(SUCCESS),
            };
            if freed == Some(SUCCESS) {
                gpu.account.release(charge);
            }
        }
    }
}

fn in_context<D: Driver, T>(gpu: &Gpu<D>, context: usize, call: impl FnOnce(&D) -> Option<T>) -> Option<T> {
    if gpu.driver.push_context(context) != SUCCESS {
        return None;
    }
    let answer = call(&gpu.driver);
    gpu.driver.pop_context();
    answer
}

/// The processes that may be this one.
#[derive(Debug)]
pub struct Search {
    before: Vec<Entry>,
    own_pid: u32,
}

impl Search {
    /// Starts a search. `before`: the list before anything was allocated. `own_pid`: our PID in our own namespace.
    #[must_use]
    pub fn new(before: Vec<Entry>, own_pid: u32) -> Self {
        Self { before, own_pid }
    }

    /// Keeps the entries that have grown by exactly `bytes` since the first list. Returns this process if it is found.
    pub fn narrow(&mut self, now: &[Entry], bytes: u64) -> Option<Entry> {
        let held = |pid: u32| now.iter().find(|(listed, _)| *listed == pid).map(|(_, held)| *held);
        self.before
            .retain(|(pid, old)| old.checked_add(bytes).is_some_and(|grown| held(*pid) == Some(grown)));
        let own = self.before.iter().find(|(pid, _)| *pid == self.own_pid);
        let found = match self.before.as_slice() {
            [one] => Some(one),
            _ => own,
        };
        found.map(|(pid, old)| (*pid, old + bytes))
    }

    /// Returns true if an entry has our own PID.
    #[must_use]
    pub fn has_own_pid(&self) -> bool {
        self.before.iter().any(|(pid, _)| *pid == self.own_pid)
    }

    /// Returns true if more than one process may be this one.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.before.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: [Entry; 4] = [(1, 100), (2, 500), (3, 500), (4, 7)];

    fn search() -> Search {
        Search::new(BEFORE.to_vec(), 99)
    }

    #[test]
    fn it_is_the_only_process_that_grew_by_that_much() {
        assert_eq!(
            search().narrow(&[(1, 100), (2, 516), (3, 500), (4, 7)], 16),
            Some((2, 516))
        );
        assert_eq!(search().narrow(&[(1, 100), (2, 500)], 16), None, "the list is late");
        assert_eq!(
            search().narrow(&[(2, 517), (5, 16)], 16),
            None,
            "more, or not there before"
        );
        assert_eq!(Search::new(vec![(1, u64::MAX)], 1).narrow(&[(1, 3)], 4), None);
        assert_eq!(Search::new(Vec::new(), 1).narrow(&[], 4), None);
    }

    #[test]
    fn of_several_it_is_the_one_that_grows_again_or_has_the_own_pid() {
        let both = [(1, 100), (2, 516), (3, 516), (4, 7)];
        let mut search = search();
        assert_eq!(search.narrow(&both, 16), None);
        assert!(search.is_open());
        assert_eq!(
            search.narrow(&[(1, 120), (2, 520), (3, 516), (4, 27)], 20),
            Some((2, 520))
        );
        assert_eq!(Search::new(BEFORE.to_vec(), 3).narrow(&both, 16), Some((3, 516)));
        assert_eq!(
            Search::new(BEFORE.to_vec(), 1).narrow(&[(1, 100), (2, 516)], 16),
            Some((2, 516)),
            "another process has that PID where NVML takes its PIDs from"
        );
    }

    #[test]
    fn sizes_are_some_whole_granules_that_fit_together() {
        for random in 0..300 {
            for room in [2 * GRANULE, 9 * GRANULE, u64::MAX] {
                let [first, second] = sizes(random, room);
                assert!(
                    first.min(second) >= GRANULE && first + second <= room,
                    "{first} {second}"
                );
                assert!(first.is_multiple_of(GRANULE) && second.is_multiple_of(GRANULE));
                assert!(first.max(second) <= SIZES * GRANULE);
            }
        }
    }
}
