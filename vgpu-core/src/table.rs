//! A map from a driver's handle to its charge.
//!
//! The map has shards with a lock each, so that threads seldom contend, and open addressing with linear probing and
//! backward shifts, so that removal leaves no tombstones and the cost does not grow with the number of entries or
//! removals. Handles are addresses: neighbours share cache lines of a shard.
//!
//! How it fails: host memory runs out when a shard has to grow. Once the shard is full, further values are leaked, not
//! dropped, so their charges stay until the process ends, and no limit is exceeded. The same happens to a value for key
//! 0, which no driver returns.

use crate::os::spin::Spin;
use std::num::NonZeroU64;
use std::sync::OnceLock;

const SHARDS: usize = 32;
/// Slots of a shard's first array.
const FIRST: usize = 64;

/// A map from non-zero handles to values.
#[derive(Debug)]
pub struct Table<V> {
    /// Created at first use: most processes use few tables, and each page that is touched makes the start slower.
    shards: OnceLock<Box<Shards<V>>>,
}

type Shards<V> = [Spin<Run<V>>; SHARDS];

/// The entries that share a lock: whole runs of addresses.
#[derive(Debug)]
pub struct Run<V> {
    /// Empty, or its length is a power of two.
    slots: Vec<Slot<V>>,
    used: usize,
}

/// A key is not 0, so that an empty slot needs no extra word.
type Slot<V> = Option<(NonZeroU64, V)>;

impl<V> Default for Run<V> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
        }
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            shards: OnceLock::new(),
        }
    }
}

impl<V> Table<V> {
    /// Inserts `value` for `key`. Returns the previous value.
    #[inline(always)]
    pub fn insert(&self, key: u64, value: V) -> Option<V> {
        self.shard(key).lock().insert(key, value)
    }

    /// Removes and returns the value of `key`.
    #[inline(always)]
    pub fn remove(&self, key: u64) -> Option<V> {
        self.shard(key).lock().remove(key)
    }

    /// Calls `look` with the value of `key`; `look` may change it.
    #[inline]
    pub fn with<T>(&self, key: u64, look: impl FnOnce(&mut V) -> T) -> Option<T> {
        self.run(key, |run| run.get(key).map(look))
    }

    /// Calls `act` with the run of `key`, the entries of 128 MiB of addresses, under its lock.
    #[inline(always)]
    pub fn run<T>(&self, key: u64, act: impl FnOnce(&mut Run<V>) -> T) -> T {
        act(&mut self.shard(key).lock())
    }

    /// Removes and returns every value for which `pick` returns true. `pick` may change the others.
    pub fn drain(&self, mut pick: impl FnMut(u64, &mut V) -> bool) -> Vec<V> {
        let mut taken = Vec::new();
        for shard in self.made() {
            let mut shard = shard.lock();
            let keys: Vec<u64> = shard
                .slots
                .iter_mut()
                .flatten()
                .filter_map(|(k, v)| pick(k.get(), v).then_some(k.get()))
                .collect();
            taken.extend(keys.into_iter().filter_map(|key| shard.remove(key)));
        }
        taken
    }

    /// Calls `look` with every entry.
    pub fn each(&self, mut look: impl FnMut(u64, &V)) {
        for shard in self.made() {
            let shard = shard.lock();
            shard
                .slots
                .iter()
                .flatten()
                .for_each(|(key, value)| look(key.get(), value));
        }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.made().map(|shard| shard.lock().used).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    fn shard(&self, key: u64) -> &Spin<Run<V>> {
        // A shard has whole runs of 64 granules, so that the entries of a run share cache lines.
        let shards = match self.shards.get() {
            Some(shards) => shards,
            None => self.make(),
        };
        &shards[(mix(key >> 27) >> 59) as usize % SHARDS]
    }

    #[cold]
    fn make(&self) -> &Shards<V> {
        self.shards
            .get_or_init(|| Box::new(std::array::from_fn(|_| Spin::default())))
    }

    /// Returns the shards, or none if nothing was ever inserted.
    fn made(&self) -> impl Iterator<Item = &Spin<Run<V>>> {
        self.shards.get().into_iter().flat_map(|shards| shards.iter())
    }
}

impl<V> Run<V> {
    /// Returns the value of `key`.
    #[inline(always)]
    pub fn get(&mut self, key: u64) -> Option<&mut V> {
        let place = self.find(key)?;
        self.at(place).map(|(_, value)| value)
    }

    /// Returns the entry at an index that a search returned.
    #[inline(always)]
    pub fn at(&mut self, place: usize) -> Option<&mut (NonZeroU64, V)> {
        self.slots.get_mut(place)?.as_mut()
    }

    /// Inserts `value` for `key`. If there is a value already, `meet` merges the two and returns what is left over.
    #[inline(always)]
    pub fn meet(&mut self, key: u64, value: V, meet: impl FnOnce(&mut V, V) -> Option<V>) -> Option<V> {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let (Some(mask), Some(kept)) = (self.slots.len().checked_sub(1), NonZeroU64::new(key)) else {
            std::mem::forget(value);
            return None;
        };
        let mut at = home(key, mask);
        loop {
            match &mut self.slots[at] {
                Some((known, old)) if *known == kept => return meet(old, value),
                Some(_) => at = (at + 1) & mask,
                // The last free slot stays free, because it ends every search.
                None if self.used == mask => {
                    std::mem::forget(value);
                    return None;
                }
                free => {
                    // The slot is free. An assignment would generate code to drop its old value.
                    std::mem::forget(free.replace((kept, value)));
                    self.used += 1;
                    return None;
                }
            }
        }
    }

    /// Inserts `value` for `key`. Returns the previous value.
    #[inline(always)]
    pub fn insert(&mut self, key: u64, value: V) -> Option<V> {
        self.meet(key, value, |old, value| Some(std::mem::replace(old, value)))
    }

    /// Returns the index of `key`.
    #[inline(always)]
    pub fn find(&self, key: u64) -> Option<usize> {
        self.find_either(key, key)
    }

    /// Returns the index of one of two keys that differ only in their lowest 9 bits.
    #[inline(always)]
    pub fn find_either(&self, one: u64, other: u64) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = home(one, mask);
        loop {
            match &self.slots[at] {
                Some((known, _)) if known.get() == one || known.get() == other => return Some(at),
                Some(_) => at = (at + 1) & mask,
                None => return None,
            }
        }
    }

    /// Removes and returns the value of `key`.
    #[inline(always)]
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let place = self.find(key)?;
        self.remove_at(place)
    }

    /// Removes and returns the value at an index that a search returned.
    #[inline(always)]
    pub fn remove_at(&mut self, mut hole: usize) -> Option<V> {
        let mask = self.slots.len().checked_sub(1)?;
        let (_, value) = self.slots.get_mut(hole)?.take()?;
        self.used -= 1;
        // Entries that collided with the removed one move up.
        let mut at = (hole + 1) & mask;
        while let Some((known, _)) = &self.slots[at] {
            let from_home = at.wrapping_sub(home(known.get(), mask)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at].take();
                hole = at;
            }
            at = (at + 1) & mask;
        }
        Some(value)
    }

    #[cold]
    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(FIRST);
        let mut slots = Vec::new();
        if no_memory() || slots.try_reserve_exact(size).is_err() {
            return;
        }
        slots.resize_with(size, || None);
        let old = std::mem::replace(&mut self.slots, slots);
        self.used = 0;
        for (key, value) in old.into_iter().flatten() {
            self.insert(key.get(), value);
        }
    }
}

/// Returns true if a test simulates that host memory has run out.
#[cfg(test)]
use tests::no_memory;
#[cfg(not(test))]
fn no_memory() -> bool {
    false
}

#[inline(always)]
fn home(key: u64, mask: usize) -> usize {
    // The lowest bits of addresses carry no information, because addresses are multiples of a granule. Runs of granules
    // stay together.
    let key = key >> 9;
    (key ^ (key >> 12)) as usize & mask
}

#[inline(always)]
fn mix(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    thread_local! {
        static NO_MEMORY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    pub(super) fn no_memory() -> bool {
        NO_MEMORY.get()
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks, as it says")]
    fn without_memory_to_grow_a_full_shard_leaks_what_it_cannot_keep() {
        let (table, dropped) = (Table::default(), std::rc::Rc::new(()));
        let key = |index: u64| 0x7f00_0000_0000 + (index << 9);
        NO_MEMORY.set(true);
        assert!(table.insert(key(0), dropped.clone()).is_none(), "nowhere to put it");
        NO_MEMORY.set(false);
        assert!(
            table.insert(0, dropped.clone()).is_none() && table.is_empty(),
            "no handle"
        );
        // The keys are neighbours, so all are in one shard, whose first array is allocated now.
        table.insert(key(0), dropped.clone());
        NO_MEMORY.set(true);
        for index in 0..200 {
            table.insert(key(index), dropped.clone());
        }
        assert_eq!(table.len(), FIRST - 1);
        assert_eq!(
            std::rc::Rc::strong_count(&dropped),
            203,
            "none was dropped but the one that was replaced"
        );
        assert!(table.with(key(0), |_| ()).is_some() && table.with(key(199), |_| ()).is_none());
        assert!(table.remove(key(0)).is_some() && table.remove(key(199)).is_none());
        NO_MEMORY.set(false);
        for index in 0..200 {
            table.insert(key(index), dropped.clone());
        }
        assert_eq!(table.len(), 200, "once there is memory again");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0_u64..300, any::<u32>()), 0..600)) {
            let table = Table::default();
            let mut model = HashMap::new();
            for (insert, key, value) in steps {
                // Keys that share all but the lowest bits of their home slot.
                let key = 0x7f00_0000_0000 + (key << 21);
                if insert {
                    prop_assert_eq!(table.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(table.remove(key), model.remove(&key));
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for (key, value) in &model {
                prop_assert_eq!(table.with(*key, |v| *v), Some(*value));
            }
            let mut seen = HashMap::new();
            table.each(|key, value| assert_eq!(seen.insert(key, *value), None));
            prop_assert_eq!(&seen, &model);
            prop_assert_eq!(table.drain(|_, _| true).len(), model.len());
            prop_assert!(table.is_empty());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a million entries are too many for an interpreter")]
    fn probes_stay_short_at_a_million() {
        let table = Table::default();
        for index in 0..1_000_000_u64 {
            table.insert(0x7f00_0000_0000 + (index << 21), index);
        }
        assert_eq!(table.len(), 1_000_000);
        let mut longest = 0;
        for shard in table.made() {
            let shard = shard.lock();
            let mask = shard.slots.len() - 1;
            for (at, slot) in shard.slots.iter().enumerate() {
                if let Some((key, _)) = slot {
                    longest = longest.max(at.wrapping_sub(home(key.get(), mask)) & mask);
                }
            }
        }
        assert!(longest < 200, "a probe of {longest} slots");
        for index in (0..1_000_000_u64).rev() {
            assert_eq!(table.remove(0x7f00_0000_0000 + (index << 21)), Some(index));
        }
    }
}
