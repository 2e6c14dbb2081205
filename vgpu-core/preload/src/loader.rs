//! Finds the real dlopen, dlmopen, dlsym and dlvsym by walking the loader's list of objects.
//!
//! The real function is the one that the loader itself would find after this library: the next definition in the order
//! of the start-up objects. So other interposers (a sanitizer, a tracer) stay in the chain.
//!
//! From glibc 2.34 on the functions are in libc.so.6. Before 2.34, they are in libdl.so.2:
//! - If libdl.so.2 was loaded at start-up, it is found in the same way.
//! - If it was loaded later, as a dependency of a library, it is found by `dl_iterate_phdr`. It is searched each time,
//!   because it may be unloaded again with that library.
//! - If it is not loaded, no program can expect dlopen to exist. A program that finds ours by a weak reference gets
//!   null, as from a dlopen that fails.
//!
//! The list is read without the loader's lock. This is sound for its beginning: start-up objects are never unloaded,
//! and later ones come after them. No start-up object comes after the loader's own record.
#![allow(unsafe_code)] // Structures of the loader, by pointer.

use core::{
    ffi::c_int,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::{
    elf::Object,
    machine::{CodeEnd, imports, own_dynamic},
    name::Text,
};

/// The public part of the loader's record of an object. A dlopen handle points to one.
#[repr(C)]
pub(crate) struct LinkMap {
    base: usize,
    name: *const u8,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// `r_debug`, which the loader keeps for debuggers.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
    breakpoint: usize,
    state: c_int,
    loader_base: usize,
}

const _: () = assert!(size_of::<LinkMap>() == 40 && size_of::<Debug>() == 40);

/// `dl_phdr_info`, which `dl_iterate_phdr` passes for each object: the fields that every glibc since 2.4 has.
#[repr(C)]
pub(crate) struct Report {
    base: usize,
    name: *const u8,
    headers: *const ProgramHeader,
    count: u16,
    /// `dlpi_adds`: how many objects were ever loaded.
    pub(crate) loaded: u64,
}

#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: usize,
    physical: u64,
    file_size: u64,
    size: usize,
    align: u64,
}

/// The header of an ELF file.
#[repr(C)]
struct FileHeader {
    identification: [u64; 2],
    kind: u32,
    version: u32,
    entry: u64,
    headers: usize,
    sections: u64,
    flags: u32,
    own_size: u16,
    header_size: u16,
    count: u16,
    others: [u16; 3],
}

const _: () = assert!(size_of::<ProgramHeader>() == 56 && size_of::<FileHeader>() == 64);

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;

impl ProgramHeader {
    /// Returns true for a part of the file that is mapped and cannot be written to.
    fn is_constant(&self) -> bool {
        const READ: u32 = 4;
        const WRITE: u32 = 2;
        self.kind == PT_LOAD && self.flags & (READ | WRITE) == READ
    }
}

impl LinkMap {
    /// Returns the path by which the object was loaded; empty for the program itself.
    pub(crate) fn name(&self) -> Option<Text> {
        // SAFETY: the loader keeps the name as long as the record.
        unsafe { Text::new(self.name) }
    }

    /// Returns an address in the object.
    pub(crate) fn place(&self) -> usize {
        self.dynamic
    }

    /// Returns the first object of this object's namespace. Must be called under the loader's lock.
    pub(crate) fn first(&self) -> &Self {
        let mut first = self;
        // SAFETY: the lock keeps the records of a list.
        while let Some(previous) = unsafe { first.previous.as_ref() } {
            first = previous;
        }
        first
    }

    /// Returns this object and those after it in its namespace. Must be called under the loader's lock.
    pub(crate) fn and_later(&self) -> impl Iterator<Item = &Self> {
        // SAFETY: as in `first`.
        core::iter::successors(Some(self), |map| unsafe { map.next.as_ref() })
    }

    pub(crate) fn object(&self) -> Option<Object> {
        // SAFETY: a record and its object live equally long.
        unsafe { Object::new(self.base, self.dynamic) }
    }
}

impl Report {
    pub(crate) fn name(&self) -> Option<Text> {
        // SAFETY: as long as the report, which is as long as the callback.
        unsafe { Text::new(self.name) }
    }

    pub(crate) fn object(&self) -> Option<Object> {
        // SAFETY: the loader's lock keeps the object while its callback runs.
        unsafe { Object::new(self.base, self.dynamic()?) }
    }

    /// Returns true if the record `map` is of this object. No two objects have the same dynamic section, but a file
    /// that is not linked from address 0 on may have the same base as another one.
    pub(crate) fn is_of(&self, map: &LinkMap) -> bool {
        self.base == map.base && self.dynamic() == Some(map.dynamic)
    }

    fn dynamic(&self) -> Option<usize> {
        let header = self.headers().find(|header| header.kind == PT_DYNAMIC)?;
        Some(self.base.wrapping_add(header.address))
    }

    /// Returns true if the loaded parts of its file that cannot change are equal to those of `other`'s object: another
    /// namespace has a copy of each library. `other` was linked from address 0 on, as shared libraries are.
    pub(crate) fn is_copy_of(&self, other: &LinkMap) -> bool {
        let header = core::ptr::with_exposed_provenance::<FileHeader>(other.base);
        // SAFETY: an object's first mapping begins with its file's header, and the object stays.
        let FileHeader { headers, count, .. } = unsafe { header.read() };
        let same = |ours: usize, theirs: usize, length: usize| {
            (0..length / size_of::<u64>()).all(|index| {
                let [ours, theirs] = [ours, theirs].map(core::ptr::with_exposed_provenance::<u64>);
                // SAFETY: both are mapped and readable for `length` bytes, see below.
                unsafe { ours.add(index).read_unaligned() == theirs.add(index).read_unaligned() }
            })
        };
        let length = usize::from(count).saturating_mul(size_of::<ProgramHeader>());
        // If headers are equal, the same parts are mapped, from the same offsets on.
        self.count == count
            && same(self.headers.addr(), other.base.wrapping_add(headers), length)
            && self.headers().filter(|header| header.is_constant()).all(|header| {
                let [ours, theirs] = [self.base, other.base].map(|base| base.wrapping_add(header.address));
                usize::try_from(header.file_size).is_ok_and(|length| same(ours, theirs, length))
            })
    }

    pub(crate) fn holds(&self, address: usize) -> bool {
        self.headers().any(|header| {
            header.kind == PT_LOAD && address.wrapping_sub(self.base.wrapping_add(header.address)) < header.size
        })
    }

    /// Returns instructions by which a called function can return to us, from its code if that can be read.
    pub(crate) fn code_end(&self) -> Option<CodeEnd> {
        const READ_AND_EXECUTE: u32 = 5;
        let code =
            |header: &&ProgramHeader| header.kind == PT_LOAD && header.flags & READ_AND_EXECUTE == READ_AND_EXECUTE;
        self.headers().filter(code).find_map(|header| {
            let start = self.base.wrapping_add(header.address);
            let end = start.wrapping_add(usize::try_from(header.file_size).ok()?);
            // SAFETY: mapped and readable, by its header, and the loader's lock keeps it.
            unsafe { CodeEnd::find(start, end) }
        })
    }

    /// Returns start and length, in whole pages, of the part that the loader made read-only after relocation (RELRO).
    pub(crate) fn sealed(&self, page: usize) -> Option<(usize, usize)> {
        let header = self.headers().find(|header| header.kind == PT_GNU_RELRO)?;
        let start = self.base.wrapping_add(header.address);
        let (start, end) = (start & !(page - 1), (start + header.size) & !(page - 1));
        (start < end).then(|| (start, end - start))
    }

    fn headers(&self) -> impl Iterator<Item = &ProgramHeader> {
        // SAFETY: the loader reports as many headers as it counts, and keeps them for the callback.
        (0..usize::from(self.count)).map(|index| unsafe { &*self.headers.add(index) })
    }
}

/// The functions that this library interposes, and those that it uses itself. Each is looked up on first use.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Open,
    OpenInNamespace,
    Symbol,
    VersionedSymbol,
    Close,
    Locate,
    Error,
    Iterate,
    Errno,
    PageSize,
}

static FOUND: [AtomicUsize; 10] = [const { AtomicUsize::new(0) }; 10];

impl Function {
    fn name(self) -> Text {
        Text::literal(match self {
            Self::Open => c"dlopen",
            Self::OpenInNamespace => c"dlmopen",
            Self::Symbol => c"dlsym",
            Self::VersionedSymbol => c"dlvsym",
            Self::Close => c"dlclose",
            Self::Locate => c"dladdr1",
            Self::Error => c"dlerror",
            Self::Iterate => c"dl_iterate_phdr",
            Self::Errno => c"__errno_location",
            Self::PageSize => c"getpagesize",
        })
    }

    /// Returns the address of the real function.
    pub(crate) fn find(self) -> Option<usize> {
        let cell = FOUND.get(self as usize)?;
        // Relaxed: only the address matters, and every thread finds the same.
        match cell.load(Relaxed) {
            0 => (),
            found => return Some(found),
        }
        if let Some(found) = next_definition(self.name()) {
            cell.store(found, Relaxed);
            return Some(found);
        }
        match self {
            Self::Iterate | Self::Errno | Self::PageSize => None,
            _ => in_late_libdl(self.name()),
        }
    }
}

/// Returns the size of a page, a power of two: on arm64 the kernel's builder chooses it. If libc does not say, the smallest:
/// where that is wrong, the kernel refuses to change pages, as it may for other reasons.
pub(crate) fn page_size() -> usize {
    type PageSize = unsafe extern "C" fn() -> c_int;
    let asked = || {
        let address = Function::PageSize.find()?;
        // SAFETY: getpagesize has this type, and no conditions.
        let size = unsafe { core::mem::transmute::<usize, PageSize>(address)() };
        usize::try_from(size).ok().filter(|size| size.is_power_of_two())
    };
    asked().unwrap_or(4096)
}

/// Returns the next definition after this library among the start-up objects.
fn next_definition(name: Text) -> Option<usize> {
    // SAFETY: the loader's records of start-up objects are complete before any code of this library runs, and are never
    // removed.
    let debug = unsafe { debug()?.as_ref()? };
    let after_us = |passed: &mut bool, map: &LinkMap| {
        let own = map.dynamic == own_dynamic();
        *passed |= own;
        *passed && !own
    };
    // musl's loader is before this library in its own list, so no object after this library has the name.
    let not_us_nor_the_program = |passed: &mut bool, map: &LinkMap| {
        let first = !*passed;
        *passed = true;
        !first && map.dynamic != own_dynamic()
    };
    first_of(debug, after_us, name).or_else(|| first_of(debug, not_us_nor_the_program, name))
}

fn first_of(debug: &Debug, wanted: impl Fn(&mut bool, &LinkMap) -> bool, name: Text) -> Option<usize> {
    let mut state = false;
    let mut next = debug.first;
    // SAFETY: as in `next_definition`; the walk ends with the loader's own record, or with the list.
    while let Some(map) = unsafe { next.as_ref() } {
        if wanted(&mut state, map)
            && let Some(found) = map.object().and_then(|object| object.function(name))
        {
            return Some(found);
        }
        if map.base == debug.loader_base {
            return None;
        }
        next = map.next;
    }
    None
}

/// Returns true if a start-up object is `wanted`.
pub(crate) fn started_with(wanted: fn(&Object) -> bool) -> bool {
    // SAFETY: as in `next_definition`.
    let Some(debug) = (unsafe { debug().and_then(|debug| debug.as_ref()) }) else {
        return false;
    };
    let mut next = debug.first;
    // SAFETY: as in `first_of`; no later object comes before the loader's own record.
    while let Some(map) = unsafe { next.as_ref() } {
        if map.object().is_some_and(|object| wanted(&object)) {
            return true;
        }
        next = map.next;
    }
    false
}

/// Returns the function in a libdl.so.2 that was loaded after start-up (before glibc 2.34).
fn in_late_libdl(name: Text) -> Option<usize> {
    let mut found = None;
    objects(&mut |report| {
        if report
            .name()
            .is_some_and(|path| path.is_file(Text::literal(c"libdl.so.2")))
        {
            found = report.object().and_then(|object| object.function(name));
        }
        found.is_some()
    });
    found
}

type Visitor<'a> = &'a mut dyn FnMut(&Report) -> bool;

/// Calls `visitor` with every object until it returns true, under the loader's lock. Returns false if
/// `dl_iterate_phdr` was not found.
pub(crate) fn objects(visitor: Visitor<'_>) -> bool {
    type Iterate = unsafe extern "C" fn(
        unsafe extern "C" fn(&Report, usize, *mut Visitor<'_>) -> c_int,
        *mut Visitor<'_>,
    ) -> c_int;

    unsafe extern "C" fn visit(report: &Report, _size: usize, visitor: *mut Visitor<'_>) -> c_int {
        // SAFETY: `objects` passes its own visitor, which outlives the iteration.
        c_int::from(unsafe { (*visitor)(report) })
    }

    let Some(iterate) = Function::Iterate.find() else {
        return false;
    };
    // SAFETY: dl_iterate_phdr has this type in every libc.
    let iterate: Iterate = unsafe { core::mem::transmute(iterate) };
    let mut visitor = visitor;
    // SAFETY: `visit` takes what is passed here.
    unsafe { iterate(visit, &raw mut visitor) };
    true
}

/// Calls `visitor` with the object at `address`, in any namespace. Returns false if there is none.
///
/// The caller uses that object, so it stays loaded.
pub(crate) fn object_at(address: usize, visitor: &mut dyn FnMut(&Report)) -> bool {
    let mut found = false;
    // Most objects are in our own namespace, and this is faster than dladdr1.
    objects(&mut |report| {
        found = report.holds(address);
        if found {
            visitor(report);
        }
        found
    });
    found || elsewhere(address, visitor)
}

/// The same as [`object_at`] for other namespaces, which `dl_iterate_phdr` leaves out. Does not take the loader's lock.
pub(crate) fn elsewhere(address: usize, visitor: &mut dyn FnMut(&Report)) -> bool {
    type Locate = unsafe extern "C" fn(usize, *mut [usize; 4], *mut *const LinkMap, c_int) -> c_int;
    const RTLD_DL_LINKMAP: c_int = 2;
    let Some(locate) = Function::Locate.find() else {
        return false;
    };
    // Dl_info: file name, start of the object, symbol name, symbol.
    let (mut info, mut map) = ([0; 4], core::ptr::null());
    // SAFETY: dladdr1 has this type, and stores the object's record for this flag.
    let map = unsafe {
        let locate = core::mem::transmute::<usize, Locate>(locate);
        if locate(address, &raw mut info, &raw mut map, RTLD_DL_LINKMAP) == 0 {
            return false;
        }
        map.as_ref()
    };
    let [_, start, ..] = info;
    let Some(map) = map else { return false };
    let header = core::ptr::with_exposed_provenance::<FileHeader>(start);
    // SAFETY: an object's first mapping begins with its file's header, and the object stays.
    let FileHeader { headers, count, .. } = unsafe { header.read() };
    visitor(&Report {
        base: map.base,
        name: map.name,
        headers: core::ptr::with_exposed_provenance(start.wrapping_add(headers)),
        count,
        loaded: 0,
    });
    true
}

/// Returns the loader's record of its objects: glibc exports it as `_r_debug`, musl a pointer to it as `_dl_debug_addr`.
/// These are the only imports of this library. They are weak, so that a loader without them causes no error.
fn debug() -> Option<*const Debug> {
    match imports() {
        (0, 0) => None,
        (0, musl) => {
            // SAFETY: a variable of musl's loader, which nothing changes.
            let debug = unsafe { core::ptr::with_exposed_provenance::<usize>(musl).read() };
            Some(core::ptr::with_exposed_provenance(debug))
        }
        (glibc, _) => Some(core::ptr::with_exposed_provenance(glibc)),
    }
}

/// Returns true if the address `place` is in this library, which is in the program's namespace.
pub(crate) fn is_ours(place: usize) -> bool {
    place == own_dynamic()
}
