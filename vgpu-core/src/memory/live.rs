//! A live allocation, or a granule that small allocations share.

use super::granule::GRANULE;
use crate::account::Charge;

/// Pointers are multiples of this.
pub const STEP: u64 = 256;
/// In `first`: the allocation has granules of its own.
const OWN: u16 = u16::MAX;
const WORDS: usize = (GRANULE / STEP / 64) as usize;

/// An allocation, or a granule that several allocations share.
#[derive(Debug)]
pub struct Live {
    gpu: u16,
    /// Number of allocations in the granule, including those that are being freed.
    count: u16,
    /// The place of the first allocation in a shared granule, or [`OWN`].
    first: u16,
    /// NVML counts the memory for no process.
    is_unlisted: bool,
    /// The driver is ending the context to which it belongs.
    is_ending: bool,
    /// The places in use in a shared granule; None: only `first`.
    places: Option<Box<Places>>,
    charge: Charge,
}

/// A bit for each possible pointer.
type Places = [u64; WORDS];

/// Returns the key of the granule of `pointer`.
#[inline(always)]
pub fn key(pointer: u64) -> u64 {
    pointer & !(GRANULE - 1) | 1
}

/// Returns the place of `pointer` in its granule.
#[inline(always)]
pub fn place(pointer: u64) -> u16 {
    (pointer % GRANULE / STEP) as u16
}

#[inline]
fn bit(place: u16) -> (usize, u64) {
    (place as usize / 64, 1 << (place % 64))
}

impl Live {
    #[inline(always)]
    pub fn new(gpu: usize, charge: Charge) -> Self {
        Self {
            gpu: gpu as u16,
            count: 1,
            first: OWN,
            is_unlisted: false,
            is_ending: false,
            places: None,
            charge,
        }
    }

    /// Marks managed memory, which NVML counts for no process.
    #[must_use]
    pub fn unlisted(self) -> Self {
        Self {
            is_unlisted: true,
            ..self
        }
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    pub fn set_ending(&mut self, is_ending: bool) {
        self.is_ending = is_ending;
    }

    #[must_use]
    pub fn unmarked(self) -> Self {
        Self {
            is_ending: false,
            ..self
        }
    }

    /// Returns true if NVML counts the memory for no process.
    #[inline(always)]
    pub fn is_unlisted(&self) -> bool {
        self.is_unlisted
    }

    /// Returns the charge, which its GPU must release.
    #[inline(always)]
    pub fn into_charge(self) -> Charge {
        self.charge
    }

    #[inline(always)]
    pub fn gpu(&self) -> usize {
        self.gpu as usize
    }

    #[inline]
    pub fn charge_mut(&mut self) -> &mut Charge {
        &mut self.charge
    }

    /// Returns true if the allocation has granules of its own.
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        self.first == OWN
    }

    /// Makes it the first allocation of a shared granule.
    #[inline(always)]
    pub fn share(&mut self, place: u16) {
        self.first = place;
    }

    #[inline(always)]
    pub fn is_last(&self) -> bool {
        self.count == 1
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Subtracts one allocation from the count. Returns true if none is left.
    #[inline]
    pub fn count_out(&mut self) -> bool {
        self.count = self.count.saturating_sub(1);
        self.count == 0
    }

    /// Returns the charged bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Returns true if the memory is in host memory.
    #[inline]
    pub fn is_host(&self) -> bool {
        self.charge.is_host()
    }

    #[inline]
    pub fn join_charge(&mut self, more: Charge) {
        self.charge.join(more);
    }

    #[inline]
    pub fn has(&self, place: u16) -> bool {
        match &self.places {
            None => self.first == place,
            Some(places) => {
                let (word, bit) = bit(place);
                places[word] & bit != 0
            }
        }
    }

    /// Returns the pointers of the allocations. `key`: the key of this entry in the table.
    pub fn pointers(&self, key: u64) -> impl Iterator<Item = u64> {
        let places = (0..(GRANULE / STEP) as u16).filter(|place| self.has(*place));
        let shared = places.map(move |place| (key & !1) + u64::from(place) * STEP);
        let whole = self.is_whole().then_some(key);
        whole.into_iter().chain(shared)
    }

    /// Returns true if a thread is freeing one of the allocations.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        let known = self
            .places
            .as_ref()
            .map(|places| places.iter().map(|word| word.count_ones()).sum());
        known.is_some_and(|known: u32| known != u32::from(self.count))
    }

    /// Adds the allocation at `place`, unless it is known.
    #[inline]
    pub fn enter(&mut self, place: u16) {
        let first = bit(self.first);
        let places = self.places.get_or_insert_with(|| {
            let mut places = Box::new([0; WORDS]);
            places[first.0] |= first.1;
            places
        });
        let (word, bit) = bit(place);
        // The new allocation belongs to a living context, so the granule does not end with the other one.
        self.is_ending = false;
        // If the bit is set, the old allocation ended with a context whose end we missed, so the count stays.
        if places[word] & bit == 0 {
            places[word] |= bit;
            self.count += 1;
        }
    }

    /// Marks `place` as free, but does not change the count.
    #[inline]
    pub fn leave(&mut self, place: u16) {
        let (word, bit) = bit(place);
        if let Some(places) = &mut self.places {
            places[word] &= !bit;
        }
    }
}
