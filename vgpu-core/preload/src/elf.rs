//! Reads the dynamic section of a loaded ELF object: looks up defined functions, and lists the slots into which the
//! loader wrote the addresses of imported functions.
//!
//! Only objects that the loader has accepted are read, so their tables are those that the loader itself uses.
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

#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: usize,
    kind: u32,
    symbol: u32,
    addend: i64,
}

const _: () = assert!(size_of::<Dynamic>() == 16 && size_of::<Symbol>() == 24 && size_of::<Relocation>() == 24);

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_RELACOUNT: i64 = 0x6fff_fff9;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// Relocations that store the address of a function in a word: in data, in the GOT, in the PLT's slots.
const STORES: [u32; 3] = [arch!(relocation_word), arch!(relocation_got), arch!(relocation_plt)];

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STB_LOCAL: u8 = 0;
/// Bit of a version index: not the default version of this name.
const VERSION_HIDDEN: u16 = 0x8000;

/// The entries of a dynamic section.
///
/// # Safety
/// `dynamic` is a dynamic section that stays loaded.
unsafe fn entries(dynamic: *const Dynamic) -> impl Iterator<Item = Dynamic> {
    let mut next = dynamic;
    core::iter::from_fn(move || {
        // SAFETY: a dynamic section ends with DT_NULL, behind which `next` never moves.
        let entry = unsafe { *next };
        if entry.tag == DT_NULL {
            return None;
        }
        // SAFETY: not at DT_NULL, so there is one more entry.
        next = unsafe { next.add(1) };
        Some(entry)
    })
}

/// glibc replaces these offsets by addresses in memory; other loaders and the vDSO do not. That of user-mode Linux is linked
/// for addresses of the kernel, which no object has: its offsets are negative.
fn address(base: usize, value: usize) -> usize {
    if value < base || isize::try_from(value).is_err() {
        base.wrapping_add(value)
    } else {
        value
    }
}

/// Base address and tables of an object.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    base: usize,
    dynamic: *const Dynamic,
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
        let dynamic = core::ptr::with_exposed_provenance::<Dynamic>(dynamic);
        if dynamic.is_null() {
            return None;
        }
        // SAFETY: as promised.
        for Dynamic { tag, value } in unsafe { entries(dynamic) } {
            let address = address(base, value);
            match tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu_hash = address,
                DT_HASH => hash = address,
                DT_VERSYM => versions = address,
                _ => (),
            }
        }
        if strings == 0 || symbols == 0 {
            return None;
        }
        Some(Self {
            base,
            dynamic,
            strings: core::ptr::with_exposed_provenance(strings),
            symbols: core::ptr::with_exposed_provenance(symbols),
            gnu_hash: core::ptr::with_exposed_provenance(gnu_hash),
            hash: core::ptr::with_exposed_provenance(hash),
            versions: core::ptr::with_exposed_provenance(versions),
        })
    }

    /// Returns the address of the function `name` that this object defines, in its default version, as for a reference
    /// without a version. A variable of this name is ignored.
    pub(crate) fn function(&self, name: Text) -> Option<usize> {
        if !self.gnu_hash.is_null() {
            self.in_gnu_hash(name)
        } else if !self.hash.is_null() {
            self.in_hash(name)
        } else {
            None
        }
    }

    /// Returns true if the object defines every function of `names`.
    pub(crate) fn has_all(&self, names: &[Text]) -> bool {
        names.iter().all(|name| self.function(*name).is_some())
    }

    /// Returns true if the object imports a function whose name is `wanted`, from any library.
    pub(crate) fn imports_any(&self, wanted: fn(Text) -> bool) -> bool {
        let mut found = false;
        self.imports(&mut |name, _| {
            found = wanted(name);
            found
        });
        found
    }

    /// Calls `visitor` until it returns true, for each imported function: with its name and the word for its address,
    /// which may be resolved only at the first call.
    pub(crate) fn imports(&self, visitor: &mut dyn FnMut(Text, *mut usize) -> bool) {
        // Large libraries have a hundred thousand relocations without a symbol. The linker puts those first.
        let without_symbol = self.words(DT_RELACOUNT).next().unwrap_or(0);
        for (table, size, first) in [(DT_RELA, DT_RELASZ, without_symbol), (DT_JMPREL, DT_PLTRELSZ, 0)] {
            let (Some(table), Some(size)) = (self.words(table).next(), self.words(size).next()) else {
                continue;
            };
            let table = core::ptr::with_exposed_provenance::<Relocation>(address(self.base, table));
            for index in first..size / size_of::<Relocation>() {
                // SAFETY: the table has `size` bytes; the loader has gone through it.
                let relocation = unsafe { *table.add(index) };
                if !STORES.contains(&relocation.kind) || relocation.symbol == 0 || relocation.addend != 0 {
                    continue;
                }
                // SAFETY: a relocation's symbol is one of this object's table.
                let symbol = unsafe { *self.symbols.add(relocation.symbol as usize) };
                if let (0, Some(name)) = (symbol.section, self.string(symbol.name as usize)) {
                    let slot = self.base.wrapping_add(relocation.offset);
                    if visitor(name, core::ptr::with_exposed_provenance_mut(slot)) {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the values of `tag`.
    fn words(&self, tag: i64) -> impl Iterator<Item = usize> + use<> {
        // SAFETY: by `new`, the dynamic section stays while the value is used.
        let all = unsafe { entries(self.dynamic) };
        all.filter(move |entry| entry.tag == tag).map(|entry| entry.value)
    }

    fn string(&self, offset: usize) -> Option<Text> {
        // SAFETY: names are offsets into the string table, each ends with a NUL.
        unsafe { Text::new(self.strings.add(offset)) }
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

    /// Returns the address of symbol `index`, if it is an exported function called `name`.
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
