//! Device addresses: allocates ranges that are unique and never host addresses, and finds the allocation of any address
//! in constant time.
//!
//! A lane belongs to a GPU, or is address space of no GPU; a class is a power of two. Addresses of class c in a lane
//! are `(lane + 1) * 2^48 + (c - 9) * 2^43 + index * 2^c`, so lane, class and index follow from the address. The kernel
//! places no host mapping there unless a program asks for the address. Freed indices are reused last in, first out.
//! Allocations below the granularity share blocks of one granule, as in real drivers: a block is charged with its first
//! entry and released with its last. This module does no accounting: `take` calls its caller to charge, `give` returns
//! the units to release.

use crate::profile::MAX_GPUS;

const LANE: u32 = 48;
/// The lane of reserved address ranges, which belong to no GPU. GPUs have the lanes below it.
pub const RESERVED_LANE: usize = MAX_GPUS;
/// The lane of GPU 0's memory pools; those of the other GPUs follow.
pub const POOL_LANE: usize = MAX_GPUS + 1;
/// The lane of addresses that GPU 0's graphs allocate; those of the other GPUs follow.
pub const GRAPH_LANE: usize = POOL_LANE + MAX_GPUS;
pub const LANES: usize = GRAPH_LANE + MAX_GPUS;
const FIRST_CLASS: u32 = 9;
const LAST_CLASS: u32 = 40;
const REGION: u32 = 43;
const CHUNK: usize = 1 << 10;

/// The data that the caller stores with an address range.
pub struct Entry<T> {
    pub base: u64,
    pub size: u64,
    pub value: T,
}

struct Class<T> {
    /// Chunks, so that growing never moves a million entries.
    chunks: Vec<Vec<Option<Entry<T>>>>,
    used: usize,
    freed: Vec<usize>,
    /// Number of entries in use in each shared block.
    blocks: Vec<u32>,
}

/// The addresses of one lane.
pub struct AddressMap<T> {
    classes: Vec<Class<T>>,
    base: u64,
    granularity: u64,
}

fn class_of(size: u64) -> Option<u32> {
    let class = size
        .max(1)
        .checked_next_power_of_two()?
        .trailing_zeros()
        .max(FIRST_CLASS);
    (class <= LAST_CLASS).then_some(class)
}

/// Returns the lane of an address, or None if it is not a device address.
pub fn lane_of(address: u64) -> Option<usize> {
    let lane = (address >> LANE).checked_sub(1)? as usize;
    (lane < LANES).then_some(lane)
}

impl<T> AddressMap<T> {
    pub fn new(lane: usize, granularity: u64) -> Self {
        let class = |_| Class {
            chunks: Vec::new(),
            used: 0,
            freed: Vec::new(),
            blocks: Vec::new(),
        };
        Self {
            classes: (FIRST_CLASS..=LAST_CLASS).map(class).collect(),
            base: (lane as u64 + 1) << LANE,
            granularity,
        }
    }

    fn place(&self, address: u64) -> Option<(usize, u32, usize)> {
        let offset = address.checked_sub(self.base).filter(|offset| offset >> LANE == 0)?;
        let list = (offset >> REGION) as usize;
        let class = FIRST_CLASS + list as u32;
        Some((list, class, ((offset & ((1 << REGION) - 1)) >> class) as usize))
    }

    /// Allocates a range of at least `size` bytes. Calls `charge` with the units that this needs now; `charge` may
    /// refuse.
    pub fn take<E>(
        &mut self,
        size: u64,
        value: T,
        full: E,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let Some(class) = class_of(size) else { return Err(full) };
        let list = &mut self.classes[(class - FIRST_CLASS) as usize];
        let index = match list.freed.last() {
            Some(index) => *index,
            None if list.used < 1 << (REGION - class) => list.used,
            None => return Err(full),
        };
        let shared = 1 << class < self.granularity;
        if shared {
            let block = index >> (self.granularity.trailing_zeros() - class);
            if list.blocks.len() <= block {
                list.blocks.resize(block + 1, 0);
            }
            if list.blocks[block] == 0 {
                charge(1)?;
            }
            list.blocks[block] += 1;
        } else {
            charge(size.div_ceil(self.granularity))?;
        }
        if list.freed.pop().is_none() {
            if list.used.is_multiple_of(CHUNK) {
                list.chunks.push(Vec::with_capacity(CHUNK));
            }
            list.chunks[index / CHUNK].push(None);
            list.used += 1;
        }
        let base = self.base + (u64::from(class - FIRST_CLASS) << REGION) + ((index as u64) << class);
        list.chunks[index / CHUNK][index % CHUNK] = Some(Entry { base, size, value });
        Ok(base)
    }

    /// Frees the range that begins at `base`. Returns its entry, and the units to release.
    pub fn give(&mut self, base: u64) -> Option<(Entry<T>, u64)> {
        let (list, class, index) = self.place(base)?;
        let list = &mut self.classes[list];
        let slot = list.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)?;
        let entry = slot.take_if(|entry| entry.base == base)?;
        list.freed.push(index);
        if 1 << class < self.granularity {
            let block = &mut list.blocks[index >> (self.granularity.trailing_zeros() - class)];
            *block -= 1;
            return Some((entry, u64::from(*block == 0)));
        }
        let units = entry.size.div_ceil(self.granularity);
        Some((entry, units))
    }

    /// Returns the entry whose range contains `address`.
    pub fn find(&mut self, address: u64) -> Option<&mut Entry<T>> {
        let (list, _, index) = self.place(address)?;
        let list = &mut self.classes[list];
        let entry = list.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)?.as_mut()?;
        (address - entry.base < entry.size.max(1)).then_some(entry)
    }

    /// Returns the start addresses of all ranges for which `pick` returns true.
    pub fn select(&self, pick: impl Fn(&T) -> bool) -> Vec<u64> {
        let entries = self
            .classes
            .iter()
            .flat_map(|class| class.chunks.iter().flatten())
            .flatten();
        entries
            .filter(|entry| pick(&entry.value))
            .map(|entry| entry.base)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn take(map: &mut AddressMap<u32>, size: u64, units: &mut i64) -> u64 {
        map.take(size, 7, (), |n| {
            *units += n as i64;
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn ranges_are_distinct_and_found_from_inside() {
        let (mut map, mut units) = (AddressMap::new(1, 2 * MIB), 0);
        let sizes = [1, 512, 513, MIB, 2 * MIB, 3 * MIB, 80 << 30];
        let mut ranges: Vec<(u64, u64)> = sizes.iter().map(|s| (take(&mut map, *s, &mut units), *s)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        for (base, size) in ranges {
            assert_eq!(map.find(base + size - 1).unwrap().base, base);
            assert!(map.find(base + size).is_none_or(|next| next.base != base));
            assert!(map.give(base + 1).is_none() || size == 1);
            assert_eq!(lane_of(base), Some(1));
        }
        assert!(map.find(0x7fff_0000_0000).is_none());
        assert_eq!(lane_of(0x7fff_ffff_ffff), None);
    }

    #[test]
    fn large_ones_cost_their_granules_and_small_ones_share() {
        let (mut map, mut units) = (AddressMap::new(1, 2 * MIB), 0);
        let large = take(&mut map, 2 * MIB + 1, &mut units);
        assert_eq!(units, 2);
        assert_eq!(map.give(large).unwrap().1, 2);
        units = 0;
        let small: Vec<u64> = (0..4096).map(|_| take(&mut map, 1024, &mut units)).collect();
        assert_eq!(units, 2, "4 MiB in pieces of 1 KiB");
        let back: u64 = small.iter().map(|base| map.give(*base).unwrap().1).sum();
        assert_eq!(back, 2);
        assert!(map.give(small[0]).is_none(), "freed twice");
    }

    #[test]
    fn a_refused_charge_changes_nothing() {
        let mut map = AddressMap::new(1, 2 * MIB);
        for size in [1024, 4 * MIB] {
            assert_eq!(map.take(size, 1, "full", |_| Err("full")), Err("full"));
            let mut units = 0;
            let first = take2(&mut map, size, &mut units);
            assert!(units > 0, "the refused one was not counted");
            map.give(first).unwrap();
        }
        fn take2(map: &mut AddressMap<i32>, size: u64, units: &mut u64) -> u64 {
            map.take(size, 1, "full", |n| {
                *units = n;
                Ok(())
            })
            .unwrap()
        }
    }

    #[test]
    fn a_million_live_ranges_take_constant_time_each() {
        let count = if cfg!(miri) { 1_000 } else { 1_000_000 };
        let (mut map, mut units) = (AddressMap::new(1, 2 * MIB), 0);
        let all: Vec<u64> = (0..count).map(|_| take(&mut map, 4096, &mut units)).collect();
        assert_eq!(units as u64, (count as u64 * 4096).div_ceil(2 * MIB));
        assert_eq!(map.select(|_| true).len(), count);
        for base in all.iter().rev() {
            map.give(*base).unwrap();
        }
    }
}
