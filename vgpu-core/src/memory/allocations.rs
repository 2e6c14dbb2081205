//! The table of live allocations. Small allocations are charged by the granules in which they lie.
//!
//! A driver packs allocations of less than a granule together, and the pointer that it returns shows which granule it
//! used. So a granule is charged once, with the first allocation that lies in it, and released with the last:
//!
//! ```text
//!  alloc: reserve a granule ─► driver ─► pointer's granule known? ─ no ──► it keeps the reservation
//!                                                    └─ yes ─► count one more, release the reservation
//!  free:  alone in it? take the granule out ─► driver ─► release it
//!         else mark it as leaving            ─► driver ─► count one less, the last releases it
//! ```
//!
//! [`Allocations`] holds both kinds: an allocation with granules of its own under its pointer, a shared granule
//! under its address with the lowest bit set, which no pointer has. Both lie in one run of the table, so one lock
//! serves to find either.
//!
//! Why this is correct: an allocation is covered by its own reservation until it is counted, and stays counted until
//! the driver has freed it. So a granule that the driver has taken is always charged, whatever other threads do
//! meanwhile.
//!
//! How it fails: with less than a granule left, a small allocation is refused even if the driver would have placed it
//! in a granule that is charged already. Only the driver knows that, after the call.

use super::charge::charge;
use super::driver::{Driver, OUT_OF_MEMORY};
use super::gpu::{Gpu, Gpus, release};
use super::granule::GRANULE;
use super::live::{Live, key, place};
use crate::account::Charge;
use crate::table::Table;
use core::ffi::c_int;

/// Live allocations by pointer, and granules that small ones share.
#[derive(Debug, Default)]
pub struct Allocations(Table<Live>);

/// The result of [`Allocations::take`].
pub enum Taken {
    /// The only allocation in its granules, with their charge.
    Whole(Live),
    /// One of several in a granule.
    Leaving,
    Nothing,
}

impl Allocations {
    /// Adds an allocation with granules of its own.
    #[inline(always)]
    pub fn keep<D: Driver>(&self, gpus: &Gpus<D>, pointer: u64, live: Live) {
        // A driver reuses a pointer only after it was freed: by the end of a context that we missed.
        if let Some(stale) = self.0.insert(pointer, live) {
            release(gpus, stale);
        }
    }

    /// Calls `look` with an allocation that has granules of its own; `look` may change it.
    pub fn with<T>(&self, pointer: u64, look: impl FnOnce(&mut Live) -> T) -> Option<T> {
        self.0.with(pointer, look)
    }

    /// Counts a new small allocation in its granule. `live` has the charge of a whole granule: the first allocation
    /// in the granule keeps it, for any other it is released.
    #[inline(always)]
    pub fn join<D: Driver>(&self, gpus: &Gpus<D>, pointer: u64, bytes: u64, mut live: Live) -> Result<(), c_int> {
        if pointer % GRANULE + bytes > GRANULE {
            return self.straddle(gpus, pointer, live);
        }
        let (key, place) = (key(pointer), place(pointer));
        live.share(place);
        let surplus = self.0.run(key, |run| {
            run.meet(key, live, |granule, live| {
                if granule.gpu() != live.gpu() {
                    return Some(std::mem::replace(granule, live));
                }
                granule.enter(place);
                Some(live)
            })
        });
        if let Some(surplus) = surplus {
            release(gpus, surplus);
        }
        Ok(())
    }

    /// Charges both granules of an allocation that lies in two. No known driver places an allocation like this.
    #[cold]
    fn straddle<D: Driver>(&self, gpus: &Gpus<D>, pointer: u64, mut live: Live) -> Result<(), c_int> {
        let owner = gpus.get(live.gpu());
        let Some(more) = owner.and_then(|gpu| charge(gpu, GRANULE)) else {
            owner.map(|gpu| gpu.driver.free(pointer));
            release(gpus, live);
            return Err(OUT_OF_MEMORY);
        };
        live.join_charge(more);
        self.keep(gpus, pointer, live);
        Ok(())
    }

    /// Removes `pointer` from the table before the driver frees it. [`Self::finish_free`] must be called afterwards.
    #[inline(always)]
    pub fn take(&self, pointer: u64) -> Taken {
        let (key, place) = (key(pointer), place(pointer));
        self.0.run(pointer, |run| {
            // For the first address of a granule, the pointer may be that of a small allocation or of one with granules
            // of its own.
            let found = if place < 2 {
                run.find_either(pointer, key)
            } else {
                run.find(key)
            };
            if let Some(at) = found
                && let Some((known, granule)) = run.at(at)
            {
                if known.get() == pointer {
                    return run.remove_at(at).map_or(Taken::Nothing, Taken::Whole);
                }
                if granule.has(place) {
                    if granule.is_last() {
                        return run.remove_at(at).map_or(Taken::Nothing, Taken::Whole);
                    }
                    granule.leave(place);
                    return Taken::Leaving;
                }
            }
            run.remove(pointer).map_or(Taken::Nothing, Taken::Whole)
        })
    }

    /// Calls `act` with the charge of `pointer`, or of the granule that it shares; `act` may change it.
    pub fn with_charge<D: Driver>(&self, gpus: &[Gpu<D>], pointer: u64, act: impl FnOnce(&Gpu<D>, &mut Charge)) {
        let (key, place) = (key(pointer), place(pointer));
        self.0.run(pointer, |run| {
            let known = match run.find(pointer) {
                Some(_) => pointer,
                None => key,
            };
            let live = run.get(known).filter(|live| known == pointer || live.has(place));
            if let Some(live) = live
                && let Some(gpu) = gpus.get(live.gpu())
            {
                act(gpu, live.charge_mut());
            }
        });
    }

    /// If the driver has `freed` the pointer, releases the charge that [`Self::take`] removed; else puts it back.
    #[inline(always)]
    pub fn finish_free<D: Driver>(&self, gpus: &[Gpu<D>], pointer: u64, taken: Taken, freed: bool) {
        match taken {
            Taken::Whole(live) if freed => release(gpus, live),
            Taken::Leaving if freed => self.left(gpus, pointer),
            Taken::Nothing => {}
            kept => self.put_back(gpus, pointer, kept),
        }
    }

    /// Removes an allocation that has left its granule from the count. The last one releases the granule.
    fn left<D: Driver>(&self, gpus: &[Gpu<D>], pointer: u64) {
        let key = key(pointer);
        let last = self.0.run(key, |run| {
            if run.get(key)?.count_out() {
                run.remove(key)
            } else {
                None
            }
        });
        if let Some(last) = last {
            release(gpus, last);
        }
    }

    /// Keeps the charge that [`Self::take`] removed until the process ends, because others still use that memory.
    #[cold]
    pub fn keep_charged(&self, pointer: u64, taken: Taken) {
        if matches!(taken, Taken::Leaving) {
            // The others use the granule. Its address may be reused for other memory, with a new charge. The other
            // allocations in it are no longer counted; frees of them pass to the driver.
            let key = key(pointer);
            self.0.run(key, |run| run.remove(key));
        }
    }

    #[cold]
    fn put_back<D: Driver>(&self, gpus: &[Gpu<D>], pointer: u64, kept: Taken) {
        let (key, place) = (key(pointer), place(pointer));
        let surplus = match kept {
            Taken::Whole(live) if live.is_whole() => self.0.insert(pointer, live.unmarked()),
            Taken::Whole(live) => self.0.run(key, |run| match run.get(key) {
                Some(granule) => {
                    granule.enter(place);
                    Some(live)
                }
                None => run.insert(key, live.unmarked()),
            }),
            Taken::Leaving => self.0.run(key, |run| {
                let granule = run.get(key)?;
                granule.enter(place);
                granule.count_out(); // Its leaving was not counted.
                None
            }),
            Taken::Nothing => None,
        };
        if let Some(surplus) = surplus {
            release(gpus, surplus);
        }
    }

    /// Calls `note` with the key and bytes of each allocation on `gpu` that no thread is allocating or freeing.
    pub fn settled(&self, gpu: usize, mut note: impl FnMut(u64, u64)) {
        self.0.each(|key, live| {
            if live.gpu() == gpu && !live.is_host() && !live.is_unlisted() && !live.is_leaving() {
                note(key, live.bytes());
            }
        });
    }

    /// Marks the allocations on `gpu` for which `is_own` returns true, and granules if it returns true for all their
    /// pointers. They stay in the table, so that other threads can free them meanwhile.
    pub fn mark_ending(&self, gpu: usize, is_own: impl Fn(u64) -> bool) {
        self.0.drain(|key, live| {
            let is_own = live.gpu() == gpu && !live.is_leaving() && live.pointers(key).all(&is_own);
            live.set_ending(is_own);
            false
        });
    }

    /// Releases the marked allocations on `gpu` whose pointers have all ended, and unmarks the others. New memory at
    /// such an address is not marked.
    pub fn release_ended<D: Driver>(&self, gpus: &[Gpu<D>], gpu: usize, has_ended: impl Fn(u64) -> bool) {
        let ended = self.0.drain(|key, live| {
            let was_marked = live.gpu() == gpu && live.is_ending();
            live.set_ending(false);
            was_marked && live.pointers(key).all(&has_ended)
        });
        ended.into_iter().for_each(|live| release(gpus, live));
    }

    /// Releases every allocation on `gpu` whose pointer `is_gone`.
    pub fn sweep<D: Driver>(&self, gpus: &[Gpu<D>], gpu: usize, is_gone: impl Fn(u64) -> bool) {
        let gone = self.0.drain(|key, live| {
            if live.gpu() != gpu {
                return false;
            }
            if live.is_whole() {
                return is_gone(key);
            }
            let gone: Vec<u64> = live.pointers(key).filter(|pointer| is_gone(*pointer)).collect();
            for pointer in gone {
                live.leave(place(pointer));
                live.count_out();
            }
            live.is_empty()
        });
        gone.into_iter().for_each(|live| release(gpus, live));
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::driver::SUCCESS;
    use super::super::fake::{Fake, MIB, gpu};
    use super::super::free::free_charged;
    use super::super::live::STEP;
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const BASE: u64 = 0x7f00_0000_0000;

    /// Allocates `bytes` that the driver puts at `pointer`.
    fn allocate(gpus: &Gpus<Fake>, live: &Allocations, pointer: u64, bytes: u64) -> Result<(), c_int> {
        let charged = Live::new(0, charge(&gpus[0], bytes).ok_or(OUT_OF_MEMORY)?);
        if bytes < GRANULE {
            return live.join(gpus, pointer, bytes, charged);
        }
        live.keep(gpus, pointer, charged);
        Ok(())
    }

    #[test]
    fn a_refused_free_changes_nothing() {
        let (gpus, live) = (vec![gpu(64 * MIB)], Allocations::default());
        for (pointer, bytes) in [(BASE, MIB), (BASE + MIB, 256), (BASE + GRANULE, 4 * MIB)] {
            allocate(&gpus, &live, pointer, bytes).expect("room");
        }
        for pointer in [BASE, BASE + MIB, BASE + GRANULE] {
            assert_eq!(free_charged(&gpus, &live, pointer, || 1), 1);
            assert_eq!(gpus[0].account.charged(), 6 * MIB);
        }
        for (pointer, left) in [(BASE, 6), (BASE + GRANULE, 2), (BASE + MIB, 0)] {
            assert_eq!(free_charged(&gpus, &live, pointer, || SUCCESS), SUCCESS);
            assert_eq!(gpus[0].account.charged(), left * MIB, "{pointer:x}");
        }
        assert_eq!(
            free_charged(&gpus, &live, BASE, || SUCCESS),
            SUCCESS,
            "unknown pointers pass"
        );
    }

    #[test]
    fn a_neighbour_that_comes_while_the_last_is_freed_keeps_the_granule_charged() {
        let (gpus, live) = (vec![gpu(64 * MIB)], Allocations::default());
        allocate(&gpus, &live, BASE, 256).expect("room");
        free_charged(&gpus, &live, BASE, || {
            assert_eq!(gpus[0].account.charged(), GRANULE, "until the driver has freed it");
            allocate(&gpus, &live, BASE + 512, 256).expect("room");
            SUCCESS
        });
        assert_eq!(gpus[0].account.charged(), GRANULE);
        free_charged(&gpus, &live, BASE + 512, || SUCCESS);
        assert_eq!(gpus[0].account.charged(), 0);
    }

    #[test]
    fn one_in_two_granules_is_charged_both_or_freed_again() {
        let (gpus, live) = (vec![gpu(2 * GRANULE)], Allocations::default());
        let pointer = BASE + GRANULE - 256;
        allocate(&gpus, &live, pointer, MIB).expect("room");
        assert_eq!(gpus[0].account.charged(), 2 * GRANULE);
        free_charged(&gpus, &live, pointer, || SUCCESS);
        let filler = charge(&gpus[0], GRANULE).expect("room");
        assert_eq!(allocate(&gpus, &live, pointer, MIB), Err(OUT_OF_MEMORY));
        assert_eq!(gpus[0].driver.state().freed, [pointer]);
        assert_eq!(gpus[0].account.charged(), GRANULE, "the filler");
        gpus[0].account.release(filler);
    }

    #[test]
    fn what_went_with_a_context_is_swept() {
        let (gpus, live) = (vec![gpu(64 * MIB)], Allocations::default());
        for (pointer, bytes) in [
            (BASE, 256),
            (BASE + 256, 256),
            (BASE + GRANULE, 256),
            (BASE + 2 * GRANULE, 4 * MIB),
        ] {
            allocate(&gpus, &live, pointer, bytes).expect("room");
        }
        live.sweep(&gpus, 1, |_| true);
        assert_eq!(gpus[0].account.charged(), 8 * MIB, "of another GPU");
        live.sweep(&gpus, 0, |pointer| pointer != BASE);
        assert_eq!(gpus[0].account.charged(), GRANULE);
        let mut settled = Vec::new();
        live.settled(0, |key, bytes| settled.push((key, bytes)));
        assert_eq!(settled, [(BASE | 1, GRANULE)]);
        live.sweep(&gpus, 0, |_| true);
        assert_eq!(gpus[0].account.charged(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Each granule with an allocation in it is charged once, whatever is allocated and freed.
        #[test]
        fn a_granule_is_charged_as_long_as_anything_lies_in_it(
            steps in prop::collection::vec((0_u64..3, 0_u64..6, any::<bool>()), 1..80),
        ) {
            let (gpus, live) = (vec![gpu(64 * MIB)], Allocations::default());
            let mut known = BTreeMap::new();
            for (granule, place, refused) in steps {
                let pointer = BASE + granule * GRANULE + place * STEP;
                if known.remove(&pointer).is_some() {
                    let result = c_int::from(refused);
                    prop_assert_eq!(free_charged(&gpus, &live, pointer, || result), result);
                    if refused {
                        known.insert(pointer, granule);
                    }
                } else {
                    prop_assert_eq!(allocate(&gpus, &live, pointer, STEP), Ok(()));
                    known.insert(pointer, granule);
                }
                let granules: BTreeSet<_> = known.values().collect();
                prop_assert_eq!(gpus[0].account.charged(), granules.len() as u64 * GRANULE);
            }
        }
    }
}
