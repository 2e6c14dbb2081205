//! What the driver counts: handles of physical memory, mappings of another process's memory.
//!
//! ```text
//!  come:     driver ─ done ──► one more, or the first
//!  release:  one less, the last takes it out ──► driver ─ refused ──► one more again
//! ```
//!
//! How it holds: it is counted down before the driver is asked, because the driver may give the value to
//! another thread as soon as it let go; and whoever releases keeps the memory charged until the driver has
//! answered, so of two at once the later one gives it back.

use crate::codes::SUCCESS;
use crate::hooks::vmm::Backing;
use core::ffi::c_int;
use std::sync::Arc;
use vgpu_core::table::Table;

/// By handle or address: what it is, and how often it is held.
pub(crate) type Counted = Table<(Arc<Backing>, u32)>;

/// Counts what is known under `key` once more, else `backing` as the first: two threads may come at once.
pub(crate) fn come(known: &Counted, key: u64, backing: Arc<Backing>) {
    let surplus = known.run(key, |run| {
        run.meet(key, (backing, 1), |(_, count), surplus| {
            *count += 1;
            Some(surplus)
        })
    });
    // Gives its charge back, for which no lock is held any more.
    drop(surplus);
}

/// Counts what is known under `key` once more; false: nothing is.
pub(crate) fn again(known: &Counted, key: u64) -> bool {
    known.with(key, |(_, count)| *count += 1).is_some()
}

/// Releases what is known under `key` once, through `call`.
pub(crate) fn release(known: &Counted, key: u64, call: impl FnOnce() -> c_int) -> c_int {
    let kept = known.run(key, |run| {
        let (backing, count) = run.get(key)?;
        let kept = backing.clone();
        *count = count.saturating_sub(1);
        if *count == 0 {
            run.remove(key);
        }
        Some(kept)
    });
    let result = call();
    if let (true, Some(kept)) = (result != SUCCESS, kept) {
        known.run(key, |run| {
            run.meet(key, (kept, 1), |(_, count), _| {
                *count += 1;
                None
            })
        });
    }
    result
}
