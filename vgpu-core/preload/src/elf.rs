//! A loaded ELF object, as its dynamic section describes it: look-ups of defined symbols.
//!
//! Only objects that the loader has accepted come here, so their tables are what it uses itself.
#![allow(unsafe_code)] // Tables are reached through addresses that the loader has written.

use crate::name::Text;

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

const _: () = assert!(size_of::<Dynamic>() == 16 && size_of::<Symbol>() == 24);

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STB_LOCAL: u8 = 0;
/// In a version index: not the default version of this name.
const VERSION_HIDDEN: u16 = 0x8000;

/// Base address and tables of an object.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    base: usize,
    strings: *const u8,
    symbols: *const Symbol,
    gnu_hash: *const u32,
    hash: *const u32,
    versions: *const u16,
}

impl Object {
    /// # Safety
    /// `base` and `dynamic` are the load address and the dynamic section of an object that stays loaded
    /// while the value is used.
    pub(crate) unsafe fn new(base: usize, dynamic: usize) -> Option<Self> {
        let (mut strings, mut symbols, mut gnu_hash, mut hash, mut versions) = (0, 0, 0, 0, 0);
        let mut entry = core::ptr::with_exposed_provenance::<Dynamic>(dynamic);
        if entry.is_null() {
            return None;
        }
        loop {
            // SAFETY: a dynamic section ends with DT_NULL, at which this loop stops.
            let Dynamic { tag, value } = unsafe { *entry };
            // glibc turns these offsets into addresses in place, other loaders and the vDSO do not.
            let address = if value < base { base + value } else { value };
            match tag {
                DT_NULL => break,
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu_hash = address,
                DT_HASH => hash = address,
                DT_VERSYM => versions = address,
                _ => (),
            }
            // SAFETY: not at DT_NULL, so there is one more entry.
            entry = unsafe { entry.add(1) };
        }
        if strings == 0 || symbols == 0 {
            return None;
        }
        Some(Self {
            base,
            strings: core::ptr::with_exposed_provenance(strings),
            symbols: core::ptr::with_exposed_provenance(symbols),
            gnu_hash: core::ptr::with_exposed_provenance(gnu_hash),
            hash: core::ptr::with_exposed_provenance(hash),
            versions: core::ptr::with_exposed_provenance(versions),
        })
    }

    /// The address of the function `name` that this object defines: of its default version, as a
    /// reference without a version gets it. Variables of that name are none.
    pub(crate) fn function(&self, name: Text) -> Option<usize> {
        if !self.gnu_hash.is_null() {
            self.in_gnu_hash(name)
        } else if !self.hash.is_null() {
            self.in_hash(name)
        } else {
            None
        }
    }

    fn in_gnu_hash(&self, name: Text) -> Option<usize> {
        let hash = name.bytes().fold(5381_u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        // SAFETY: the table starts with buckets, first symbol, bloom words (a power of two), bloom shift;
        // then 64-bit bloom words, buckets, and one chain word for each symbol from the first on. A chain
        // ends at a word whose lowest bit is set. The loader follows the same pointers.
        unsafe {
            let table = self.gnu_hash;
            let (buckets, first, words, shift) = (*table, *table.add(1), *table.add(2), *table.add(3));
            let bloom = table.add(4).cast::<u64>();
            let word = bloom
                .add(((hash / 64) & words.wrapping_sub(1)) as usize)
                .read_unaligned();
            let mask = (1_u64 << (hash % 64)) | (1_u64 << (hash.wrapping_shr(shift) % 64));
            if word & mask != mask || buckets == 0 {
                return None;
            }
            let bucket = bloom.add(words as usize).cast::<u32>();
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            let chain = bucket.add(buckets as usize);
            loop {
                let word = *chain.add((index - first) as usize);
                if word | 1 == hash | 1
                    && let Some(address) = self.defined(index, name)
                {
                    return Some(address);
                }
                if word & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }

    fn in_hash(&self, name: Text) -> Option<usize> {
        let hash = name.bytes().fold(0_u32, |hash, byte| {
            let next = (hash << 4).wrapping_add(u32::from(byte));
            let high = next & 0xf000_0000;
            (next ^ (high >> 24)) & !high
        });
        // SAFETY: the table holds bucket and chain counts, buckets, and one chain word for each symbol;
        // a chain ends with 0.
        unsafe {
            let table = self.hash;
            let buckets = *table;
            if buckets == 0 {
                return None;
            }
            let mut index = *table.add(2 + (hash % buckets) as usize);
            while index != 0 {
                if let Some(address) = self.defined(index, name) {
                    return Some(address);
                }
                index = *table.add(2 + buckets as usize + index as usize);
            }
        }
        None
    }

    /// The address of symbol `index`, where it is a function called `name` that others may use.
    fn defined(&self, index: u32, name: Text) -> Option<usize> {
        // SAFETY: `index` comes from the hash table, which has symbols of this table alone; names are
        // offsets into the string table; versions, where there are any, go along with symbols.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let function = matches!(symbol.info & 0xf, STT_FUNC | STT_NOTYPE);
            if symbol.section == 0 || !function || symbol.info >> 4 == STB_LOCAL {
                return None;
            }
            if !self.versions.is_null() && *self.versions.add(index as usize) & VERSION_HIDDEN != 0 {
                return None;
            }
            let found = Text::new(self.strings.add(symbol.name as usize))?;
            found.is(name).then(|| self.base.wrapping_add(symbol.value))
        }
    }
}
