//! A live allocation, or a granule that small allocations share.

use super::granule::GRANULE;
use crate::account::Charge;

/// Pointers are multiples of this.
pub const STEP: u64 = 256;
/// Stands for no place: the allocation has its granules to itself.
const OWN: u16 = u16::MAX;
const WORDS: usize = (GRANULE / STEP / 64) as usize;

/// One allocation, or a granule that several share.
#[derive(Debug)]
pub struct Live {
    gpu: u16,
    /// Allocations in the granule, leaving ones included.
    count: u16,
    /// The one for which a shared granule was made, or [`OWN`].
    first: u16,
    /// NVML lists it in no process's figure.
    is_unlisted: bool,
    /// Which pointers are in a shared granule; None: the first alone.
    places: Option<Box<Places>>,
    charge: Charge,
}

/// A bit a possible pointer.
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
            places: None,
            charge,
        }
    }

    /// Managed memory, which NVML lists in no process's figure.
    #[must_use]
    pub fn unlisted(self) -> Self {
        Self {
            is_unlisted: true,
            ..self
        }
    }

    /// Returns true if NVML lists it in no process's figure.
    #[inline(always)]
    pub fn is_unlisted(&self) -> bool {
        self.is_unlisted
    }

    /// Returns the charge, to be given back to its GPU.
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

    /// Returns true if it has its granules to itself.
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

    /// Counts one out. Returns true if none is left.
    #[inline]
    pub fn count_out(&mut self) -> bool {
        self.count = self.count.saturating_sub(1);
        self.count == 0
    }

    /// Returns the bytes that it is charged.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Returns true if it lies on the host.
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

    /// Returns true if a thread is about to free a part of it.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        let known = self
            .places
            .as_ref()
            .map(|places| places.iter().map(|word| word.count_ones()).sum());
        known.is_some_and(|known: u32| known != u32::from(self.count))
    }

    /// Counts the allocation at `place`, unless it is known.
    #[inline]
    pub fn enter(&mut self, place: u16) {
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
    #[inline]
    pub fn leave(&mut self, place: u16) {
        let (word, bit) = bit(place);
        if let Some(places) = &mut self.places {
            places[word] &= !bit;
        }
    }
}
