//! Counts references as the driver does: to handles of physical memory, and to mappings of another process's memory.
//!
//! ```text
//!  acquire:  driver ─ done ──► one more, or the first
//!  release:  one less, the last removes it ──► driver ─ refused ──► one more again
//! ```
//!
//! The count falls before the driver is called, because the driver may reuse the value for another thread as soon as it
//! has released it. The caller keeps the memory charged until the driver's call returns, so of two releases at once the
//! later one ends the charge.

use crate::table::Table;
use core::ffi::c_int;
use std::sync::Arc;

const SUCCESS: c_int = 0;

/// Memory by handle or address, with its reference count.
pub type Refcounts<M> = Table<(Arc<M>, u32)>;

/// Adds a reference to the memory under `key`, or keeps `backing` as the first: two threads may race here.
pub fn acquire<M>(known: &Refcounts<M>, key: u64, backing: Arc<M>) {
    let surplus = known.run(key, |run| {
        run.meet(key, (backing, 1), |(_, count), surplus| {
            *count += 1;
            Some(surplus)
        })
    });
    // This may release the charge, so it happens without a lock.
    drop(surplus);
}

/// Adds a reference to the memory under `key`. Returns false if there is none.
pub fn retain<M>(known: &Refcounts<M>, key: u64) -> bool {
    known.with(key, |(_, count)| *count += 1).is_some()
}

/// Drops one reference to the memory under `key`, which `call` releases in the driver.
pub fn release<M>(known: &Refcounts<M>, key: u64, call: impl FnOnce() -> c_int) -> c_int {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lives_until_its_last_reference_is_released() {
        let (table, memory) = (Refcounts::default(), Arc::new("memory"));
        assert!(!retain(&table, 7));
        acquire(&table, 7, memory.clone());
        acquire(&table, 7, Arc::new("of another thread, dropped"));
        assert!(retain(&table, 7));
        for left in [2, 1] {
            assert_eq!(release(&table, 7, || SUCCESS), SUCCESS);
            assert_eq!(table.with(7, |(_, count)| *count), Some(left));
        }
        assert_eq!(Arc::strong_count(&memory), 2);
        let at_last = release(&table, 7, || {
            assert_eq!(Arc::strong_count(&memory), 2, "kept until the driver has answered");
            assert!(table.is_empty(), "the driver may give the value to another thread");
            SUCCESS
        });
        assert_eq!((at_last, Arc::strong_count(&memory), table.len()), (SUCCESS, 1, 0));
    }

    #[test]
    fn a_refused_release_changes_nothing() {
        let (table, memory) = (Refcounts::default(), Arc::new(()));
        acquire(&table, 7, memory.clone());
        assert_eq!(release(&table, 7, || 1), 1);
        assert_eq!(table.with(7, |(_, count)| *count), Some(1));
        assert_eq!(Arc::strong_count(&memory), 2);
        assert_eq!(release(&table, 8, || 1), 1, "unknown values pass");
    }

    #[test]
    fn a_value_that_another_thread_got_during_a_refused_release_is_counted_twice() {
        let (table, memory) = (Refcounts::default(), Arc::new(()));
        acquire(&table, 7, memory.clone());
        release(&table, 7, || {
            acquire(&table, 7, memory.clone());
            1
        });
        assert_eq!(table.with(7, |(_, count)| *count), Some(2));
    }
}
