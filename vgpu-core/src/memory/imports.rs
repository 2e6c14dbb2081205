//! Memory that another process allocated. It is charged to the process that maps it. But if the memory can be matched
//! to an export by a process of the same share ([`export_identity`](super::export_identity)), it is charged once while
//! either process has it.
//!
//! ```text
//!  recognised: hold the object ─► driver ─ done, of the same size ──► shared charge
//!  else:                          driver ─► charge, or close it again
//! ```
//!
//! An object is held before the driver is asked, because its other holders may die meanwhile. Other memory is charged
//! after the call, because only the call shows its size. It is charged to its importer as well as to its exporter,
//! which may die first. So memory of another share is charged twice while both have it.
//!
//! How it fails: if memory was not recognised and its exporter dies between the driver's call and the charge, it is
//! charged to nobody for that moment.

use super::backing::Backing;
use super::charge::charge;
use super::driver::{Driver, OUT_OF_MEMORY};
use super::gpu::Gpu;
use super::granule::granules;
use crate::account::Charge;
use crate::ledger::Key;

/// A hold on memory that a process of the share exported. Dropping it releases the hold.
#[derive(Debug)]
pub struct Held<D: 'static> {
    gpus: &'static [Gpu<D>],
    gpu: usize,
    charge: Option<Charge>,
}

impl<D: Driver> Held<D> {
    /// Holds the memory with `key`.
    #[must_use]
    pub fn of(gpus: &'static [Gpu<D>], key: Key) -> Option<Self> {
        let find = |(gpu, owner): (usize, &Gpu<D>)| Some((gpu, owner.account.import(key)?));
        let (gpu, charge) = gpus.iter().enumerate().find_map(find)?;
        Some(Self {
            gpus,
            gpu,
            charge: Some(charge),
        })
    }

    /// Returns the charge if the memory lies on `gpu`, as the driver says.
    #[must_use]
    pub fn on(mut self, gpu: usize) -> Option<Charge> {
        if gpu == self.gpu { self.charge.take() } else { None }
    }

    fn bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }
}

impl<D: 'static> Drop for Held<D> {
    fn drop(&mut self) {
        if let (Some(gpu), Some(charge)) = (self.gpus.get(self.gpu), self.charge.take()) {
            gpu.account.release(charge);
        }
    }
}

/// Returns the backing of memory that was just mapped. `extent`: its GPU and size, if the driver reports them; `held`:
/// the recognised memory. Ok(None): the memory is on none of these GPUs.
///
/// # Errors The memory does not fit.
pub fn mapped<D: Driver>(
    gpus: &'static [Gpu<D>],
    extent: Option<(usize, u64)>,
    held: Option<Held<D>>,
) -> Result<Option<Backing<D>>, i32> {
    let shared = |gpu, charge| Backing::new(gpus, gpu, Some(charge));
    match (extent, held) {
        (None, None) => Ok(None),
        (None, Some(mut held)) => Ok(held.charge.take().map(|charge| shared(held.gpu, charge))),
        (Some((gpu, bytes)), held) => {
            // If its size differs, it is not the memory that we hold.
            let held = held.filter(|held| Some(held.bytes()) == granules(bytes));
            let held = held.and_then(|held| held.on(gpu)).map(|charge| shared(gpu, charge));
            let pay = || Some(Backing::surplus(gpus, gpu, charge(gpus.get(gpu)?, bytes)?));
            held.or_else(pay).map(Some).ok_or(OUT_OF_MEMORY)
        }
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::fake::{Fake, MIB, gpu_of};
    use super::*;
    use crate::account::Account;
    use crate::ledger::{Kind, fresh};
    use std::sync::atomic::Ordering;

    /// Two processes of one share of 16 MiB; the first has 4 MiB, and exports them by the key.
    fn scene(folder: &tempfile::TempDir) -> (&'static [Gpu<Fake>], Account, Charge, Key) {
        let maker = Account::new(vec![fresh::share(folder.path(), "share", 16 * MIB)]);
        let importer = Account::new(vec![fresh::again(folder.path(), "share", 16 * MIB)]);
        let key = Key::new(Kind::Ipc, 1, [1; 8]);
        let mut charge = maker.reserve(4 * MIB).expect("room");
        maker.export(&mut charge, key);
        // Backings need GPUs that live as long as the process.
        (Box::leak(Box::new([gpu_of(importer)])), maker, charge, key)
    }

    #[test]
    fn recognised_memory_is_charged_once_and_outlives_its_maker() {
        let folder = tempfile::tempdir().expect("a folder");
        let (gpus, maker, charge, key) = scene(&folder);
        let held = Held::of(gpus, key);
        let backing = mapped(gpus, Some((0, 4 * MIB)), held).expect("room").expect("memory");
        assert_eq!(maker.charged(), 4 * MIB);
        maker.release(charge);
        assert_eq!(maker.charged(), 4 * MIB, "the importer has it");
        drop(backing);
        assert_eq!(maker.charged(), 0);
    }

    #[test]
    fn memory_of_another_size_or_of_nobody_is_charged_to_its_importer() {
        let folder = tempfile::tempdir().expect("a folder");
        let (gpus, maker, charge, key) = scene(&folder);
        let other = Held::of(gpus, key);
        let backing = mapped(gpus, Some((0, 6 * MIB)), other).expect("room").expect("memory");
        assert_eq!(maker.charged(), 10 * MIB);
        assert_eq!(
            gpus[0].surplus.load(Ordering::Relaxed),
            6 * MIB,
            "the driver counts it once"
        );
        drop(backing);
        assert_eq!((maker.charged(), gpus[0].surplus.load(Ordering::Relaxed)), (4 * MIB, 0));
        let unknown = Held::of(gpus, Key::new(Kind::Ipc, 1, [2; 8]));
        assert!(unknown.is_none());
        let refused = mapped(gpus, Some((0, 14 * MIB)), unknown).map(|mapped| mapped.is_some());
        assert_eq!(refused, Err(OUT_OF_MEMORY));
        assert_eq!(
            mapped(gpus, None, None).map(|mapped| mapped.is_some()),
            Ok(false),
            "no GPU of ours"
        );
        maker.release(charge);
    }

    #[test]
    fn memory_that_was_held_for_a_call_that_failed_is_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let (gpus, maker, charge, key) = scene(&folder);
        let held = Held::of(gpus, key).expect("it is there");
        maker.release(charge);
        assert_eq!(maker.charged(), 4 * MIB);
        drop(held);
        assert_eq!(maker.charged(), 0);
    }
}
