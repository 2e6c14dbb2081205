//! Remembers why a call of this thread fails with out of memory, from the decision to the end of the call.
//!
//! ```text
//!  by_limit, by_driver ─► a note of this thread ─► [host memory instead: forget] ─► the call answers out of memory: record ─► ledgers
//! ```
//!
//! The result is known only at the end of a call, because host memory may replace the refused memory, but the size is
//! known only where the memory is refused. Nothing here runs in calls that succeed at once.
//!
//! How it fails:
//! - A refusal without a note (memory whose size no call shows, an error of the driver that the library passes on): the
//!   size is not known, and the driver is recorded as the cause if the share has room.
//! - If a call succeeds after a refusal in another way than by host memory, its note remains. The next call of this
//!   thread that fails with out of memory, and has no note of its own, is recorded with it.
//! - A thread that is ending cannot store a note, so its refusals have none.

use super::driver::Driver;
use super::gpu::Gpu;
use crate::ledger::Refused;
use crate::log;
use std::cell::Cell;
use vgpu_abi::ledger::refusal::Cause;

thread_local! {
    static NOTE: Cell<Option<Note>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Note {
    /// The address of the GPU, to compare.
    gpu: usize,
    cause: Cause,
    bytes: u64,
}

/// Notes that the share has no room for `bytes`.
#[cold]
#[inline(never)]
pub fn by_limit<D: Driver>(gpu: &Gpu<D>, bytes: u64) {
    note(gpu, Cause::Limit, bytes);
}

/// Notes that the driver has refused `bytes` for which the share had room.
#[cold]
#[inline(never)]
pub fn by_driver<D: Driver>(gpu: &Gpu<D>, bytes: u64) {
    note(gpu, Cause::Driver, bytes);
}

fn note<D: Driver>(gpu: &Gpu<D>, cause: Cause, bytes: u64) {
    log::refused(&gpu.uuid, &gpu.account, bytes, cause);
    let gpu = core::ptr::from_ref(gpu) as usize;
    let _ = NOTE.try_with(|slot| slot.set(Some(Note { gpu, cause, bytes })));
}

/// Forgets the note: the call has got its memory elsewhere, or ends with another error.
#[cold]
pub fn forget() {
    let _ = NOTE.try_with(Cell::take);
}

/// Records in the shares of the note's GPU that the call returns out of memory. `current`: the GPU to use if there is
/// no note. `free` returns the free bytes of the GPU itself.
#[cold]
pub fn record<D: Driver>(gpus: &[Gpu<D>], current: Option<usize>, free: impl FnOnce() -> Option<u64>) {
    let note = NOTE.try_with(Cell::take).ok().flatten();
    let noted = note.and_then(|note| {
        gpus.iter()
            .position(|gpu| core::ptr::from_ref(gpu) as usize == note.gpu)
    });
    let Some(gpu) = noted.or(current).and_then(|index| gpus.get(index)) else {
        return;
    };
    let cause = match note {
        Some(note) => note.cause,
        None if gpu.account.has_room() => Cause::Driver,
        None => Cause::Limit,
    };
    // Not waited for, because another thread that is measuring may hold the lock for long.
    let overhead = gpu.overhead.try_lock();
    gpu.account.note_refusal(Refused {
        cause,
        asked: note.map(|note| note.bytes).filter(|bytes| *bytes > 0),
        overhead: overhead.map(|overhead| overhead.borrow().charge.bytes()),
        gpu_free: (noted.is_none() || noted == current).then(free).flatten(),
    });
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::charge::charge;
    use super::super::fake::{Fake, MIB, gpu};
    use super::super::granule::GRANULE;
    use super::*;
    use vgpu_abi::ledger::refusal::Refusals;

    /// Returns what the node reads in the ledger of a fake GPU.
    fn refusals(gpu: &Gpu<Fake>) -> Refusals {
        let bytes = std::fs::read(gpu.driver.ledger()).expect("a ledger");
        vgpu_abi::ledger::read(&bytes).expect("intact").refusals
    }

    fn record_all(gpus: &[Gpu<Fake>]) {
        record(gpus, Some(0), || Some(9 * MIB));
    }

    #[test]
    fn a_refused_charge_is_recorded_when_the_call_ends() {
        let gpus = [gpu(64 * MIB)];
        assert!(charge(&gpus[0], 65 * MIB).is_none());
        assert_eq!(refusals(&gpus[0]).count(), 0, "host memory may replace it");
        record_all(&gpus);
        let found = refusals(&gpus[0]);
        let last = found.last.expect("recorded");
        assert_eq!((found.by_limit, found.largest), (1, 66 * MIB));
        assert_eq!((last.cause, last.gpu_free), (Cause::Limit, Some(9 * MIB)));
        assert!(charge(&gpus[0], u64::MAX).is_none(), "more than there are granules");
        record_all(&gpus);
        assert_eq!(refusals(&gpus[0]).largest, u64::MAX);
    }

    #[test]
    fn the_driver_is_named_if_it_refused_or_if_the_share_has_room() {
        let gpus = [gpu(64 * MIB)];
        by_driver(&gpus[0], 5 * MIB);
        record_all(&gpus);
        // These calls do not tell a size.
        record_all(&gpus);
        let found = refusals(&gpus[0]);
        assert_eq!((found.by_driver, found.by_limit, found.largest), (2, 0, 5 * MIB));
        assert_eq!(found.last.and_then(|last| last.asked), None, "the note was used");
        let all = charge(&gpus[0], 64 * MIB).expect("room");
        record_all(&gpus);
        assert_eq!(refusals(&gpus[0]).by_limit, 1);
        gpus[0].account.release(all);
    }

    #[test]
    fn what_a_call_got_elsewhere_is_not_recorded_by_the_next_one() {
        let gpus = [gpu(GRANULE)];
        assert!(charge(&gpus[0], 4 * MIB).is_none());
        forget();
        record_all(&gpus);
        let last = refusals(&gpus[0]).last.expect("recorded");
        assert_eq!((last.cause, last.asked), (Cause::Driver, None));
    }

    #[test]
    fn another_gpu_than_the_threads_own_has_the_refusal_and_no_free_memory() {
        let gpus = [gpu(64 * MIB), gpu(2 * MIB)];
        assert!(charge(&gpus[1], 4 * MIB).is_none());
        record_all(&gpus);
        assert_eq!(refusals(&gpus[0]).count(), 0);
        let last = refusals(&gpus[1]).last.expect("recorded");
        assert_eq!((last.asked, last.gpu_free), (Some(4 * MIB), None));
        record(&gpus, None, || None);
        record(&gpus, Some(7), || None);
        assert_eq!(refusals(&gpus[1]).count(), 1, "nobody knows whose");
    }
}
