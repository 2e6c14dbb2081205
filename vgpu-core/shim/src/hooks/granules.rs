//! Small allocations: charged by the granules in which they lie.
//!
//! A driver packs allocations of less than a granule together, and the pointer that it returns tells
//! which granule it took. So a granule is charged once, with the first allocation that lies in it, and
//! given back with the last:
//!
//! ```text
//!  alloc: reserve a granule ─► driver ─► pointer's granule known? ─ no ──► it keeps the reservation
//!                                                    └─ yes ─► count one more, give the reservation back
//!  free:  alone in it? take the granule out ─► driver ─► give it back
//!         else mark it as leaving            ─► driver ─► count one less, the last gives it back
//! ```
//!
//! The table of live allocations holds both: what has granules of its own under its pointer, a shared
//! granule under its address with the lowest bit set, which no pointer has. Both lie in one run of the
//! table, so one lock serves to look for either.
//!
//! How it holds: an allocation is covered by its own reservation until it is counted, and one that is
//! freed stays counted until the driver has let go. So a granule that the driver has taken is always
//! charged, whatever other threads do between the two.
//!
//! How it fails: with less than a granule left, a small allocation is refused even where the driver
//! would have found room in a granule that is charged already: only the driver knows, after the call.

use crate::codes::OUT_OF_MEMORY;
use crate::hooks::memory::{GRANULE, charge, keep};
use crate::process::{Gpu, Ready};
use crate::real::real;
use core::ffi::c_int;
use vgpu_core::account::Charge;

/// Pointers are multiples of this.
const STEP: u64 = 256;
/// No place in a granule: it has its granules to itself.
const OWN: u16 = u16::MAX;
const WORDS: usize = (GRANULE / STEP / 64) as usize;

/// One allocation, or a granule that several share.
#[derive(Debug)]
pub(crate) struct Live {
    gpu: u16,
    /// Allocations in the granule, leaving ones included.
    count: u16,
    /// The one for which a shared granule was made, or [`OWN`].
    first: u16,
    /// Which pointers are in a shared granule; None: the first alone.
    places: Option<Box<Places>>,
    charge: Charge,
}

/// A bit a possible pointer.
type Places = [u64; WORDS];

/// What [`take`] found.
pub(crate) enum Taken {
    /// All of it: it has its granules to itself, or is alone in one.
    Whole(Live),
    /// One of several in a granule.
    Leaving,
    Nothing,
}

fn key(pointer: u64) -> u64 {
    pointer & !(GRANULE - 1) | 1
}

fn place(pointer: u64) -> u16 {
    (pointer % GRANULE / STEP) as u16
}

fn bit(place: u16) -> (usize, u64) {
    (place as usize / 64, 1 << (place % 64))
}

impl Live {
    #[inline(always)]
    pub(crate) fn new(gpu: usize, charge: Charge) -> Self {
        Self {
            gpu: gpu as u16,
            count: 1,
            first: OWN,
            places: None,
            charge,
        }
    }

    /// Gives back what it was charged.
    #[inline(always)]
    pub(crate) fn forget(self, ready: &Ready) {
        if let Some(gpu) = ready.gpus.get(self.gpu as usize) {
            gpu.account.release(self.charge);
        }
    }

    pub(crate) fn gpu(&self) -> usize {
        self.gpu as usize
    }

    /// What it is charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Whether it lies on the host.
    pub(crate) fn is_host(&self) -> bool {
        self.charge.is_host()
    }

    pub(crate) fn join_charge(&mut self, more: Charge) {
        self.charge.join(more);
    }

    fn has(&self, place: u16) -> bool {
        match &self.places {
            None => self.first == place,
            Some(places) => {
                let (word, bit) = bit(place);
                places[word] & bit != 0
            }
        }
    }

    /// Whether a thread is about to free a part of it.
    fn is_leaving(&self) -> bool {
        let known = self
            .places
            .as_ref()
            .map(|places| places.iter().map(|word| word.count_ones()).sum());
        known.is_some_and(|known: u32| known != u32::from(self.count))
    }

    /// Counts the allocation at `place`, unless it is known.
    fn enter(&mut self, place: u16) {
        let first = bit(self.first);
        let places = self.places.get_or_insert_with(|| {
            let mut places = Box::new([0; WORDS]);
            places[first.0] |= first.1;
            places
        });
        let (word, bit) = bit(place);
        // Known already: it went with a context whose end we missed.
        if places[word] & bit == 0 {
            places[word] |= bit;
            self.count += 1;
        }
    }

    /// Marks `place` as free, without counting it out.
    fn leave(&mut self, place: u16) {
        let (word, bit) = bit(place);
        if let Some(places) = &mut self.places {
            places[word] &= !bit;
        }
    }
}

/// Counts a new small allocation in; `live` is its reservation.
#[inline(always)]
pub(crate) fn join(ready: &Ready, pointer: u64, bytes: u64, mut live: Live) -> Result<(), c_int> {
    if pointer % GRANULE + bytes > GRANULE {
        return straddle(ready, pointer, live);
    }
    let (key, place) = (key(pointer), place(pointer));
    live.first = place;
    let surplus = ready.live.run(key, |run| {
        run.meet(key, live, |granule, live| {
            if granule.gpu != live.gpu {
                return Some(std::mem::replace(granule, live));
            }
            granule.enter(place);
            Some(live)
        })
    });
    if let Some(surplus) = surplus {
        surplus.forget(ready);
    }
    Ok(())
}

/// It lies in two granules, as no driver known places it: charged both, to itself.
#[cold]
fn straddle(ready: &Ready, pointer: u64, mut live: Live) -> Result<(), c_int> {
    let more = ready.gpus.get(live.gpu as usize).and_then(|gpu| charge(gpu, GRANULE));
    let Some(more) = more else {
        // SAFETY: a pointer that the driver has just given.
        unsafe { real!(cuMemFree_v2(u64))(pointer) };
        live.forget(ready);
        return Err(OUT_OF_MEMORY);
    };
    live.join_charge(more);
    keep(ready, pointer, live);
    Ok(())
}

/// Takes out what `pointer` is charged, before the driver frees it.
#[inline(always)]
pub(crate) fn take(ready: &Ready, pointer: u64) -> Taken {
    let (key, place) = (key(pointer), place(pointer));
    ready.live.run(pointer, |run| {
        // The first in a granule lies where one with granules of its own would.
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
                if granule.count == 1 {
                    return run.remove_at(at).map_or(Taken::Nothing, Taken::Whole);
                }
                granule.leave(place);
                return Taken::Leaving;
            }
        }
        run.remove(pointer).map_or(Taken::Nothing, Taken::Whole)
    })
}

/// Looks at what `pointer` is charged, all of its granule where it shares one, and may change it.
pub(crate) fn with_charge(ready: &Ready, pointer: u64, act: impl FnOnce(&Gpu, &mut Charge)) {
    let (key, place) = (key(pointer), place(pointer));
    ready.live.run(pointer, |run| {
        let known = match run.find(pointer) {
            Some(_) => pointer,
            None => key,
        };
        let live = run.get(known).filter(|live| known == pointer || live.has(place));
        if let Some(live) = live
            && let Some(gpu) = ready.gpus.get(live.gpu as usize)
        {
            act(gpu, &mut live.charge);
        }
    });
}

/// After the driver has freed `pointer`, or has not.
#[inline(always)]
pub(crate) fn settle(ready: &Ready, pointer: u64, taken: Taken, freed: bool) {
    match taken {
        Taken::Whole(live) if freed => live.forget(ready),
        Taken::Leaving if freed => left(ready, pointer),
        Taken::Nothing => {}
        kept => put_back(ready, pointer, kept),
    }
}

/// Counts one out that had left its granule; the last gives that back.
fn left(ready: &Ready, pointer: u64) {
    let key = key(pointer);
    let last = ready.live.run(key, |run| {
        let granule = run.get(key)?;
        granule.count = granule.count.saturating_sub(1);
        if granule.count == 0 { run.remove(key) } else { None }
    });
    if let Some(last) = last {
        last.forget(ready);
    }
}

/// Leaves what [`take`] found charged until the process ends: others hold on to that memory.
#[cold]
pub(crate) fn keep_charged(ready: &Ready, pointer: u64, taken: Taken) {
    if matches!(taken, Taken::Leaving) {
        // The granule is what they hold. Its address may come again with other memory, to be charged anew;
        // what lies in it beside is no longer counted, and frees of that pass.
        let key = key(pointer);
        ready.live.run(key, |run| run.remove(key));
    }
}

#[cold]
fn put_back(ready: &Ready, pointer: u64, kept: Taken) {
    let (key, place) = (key(pointer), place(pointer));
    let surplus = match kept {
        Taken::Whole(live) if live.first == OWN => ready.live.insert(pointer, live),
        Taken::Whole(live) => ready.live.run(key, |run| match run.get(key) {
            Some(granule) => {
                granule.enter(place);
                Some(live)
            }
            None => run.insert(key, live),
        }),
        Taken::Leaving => ready.live.run(key, |run| {
            let granule = run.get(key)?;
            granule.enter(place);
            granule.count -= 1; // Its leaving was not counted.
            None
        }),
        Taken::Nothing => None,
    };
    if let Some(surplus) = surplus {
        surplus.forget(ready);
    }
}

/// What lies on `gpu` that no thread is about to free, nor has yet to count in: where, and its bytes.
pub(crate) fn at_rest(ready: &Ready, gpu: usize, mut note: impl FnMut(u64, u64)) {
    ready.live.each(|key, live| {
        if live.gpu as usize == gpu && !live.is_host() && !live.is_leaving() {
            note(key, live.bytes());
        }
    });
}

/// Gives back every allocation on `gpu` that `is_gone`.
pub(crate) fn sweep(ready: &Ready, gpu: usize, is_gone: impl Fn(u64) -> bool) {
    let gone = ready.live.drain(|key, live| {
        if live.gpu as usize != gpu {
            return false;
        }
        if key & 1 == 0 {
            return is_gone(key);
        }
        let start = key & !1;
        for place in 0..(GRANULE / STEP) as u16 {
            if live.has(place) && is_gone(start + u64::from(place) * STEP) {
                live.leave(place);
                live.count = live.count.saturating_sub(1);
            }
        }
        live.count == 0
    });
    gone.into_iter().for_each(|live| live.forget(ready));
}
