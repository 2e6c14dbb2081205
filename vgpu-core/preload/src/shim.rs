//! Finds the shim, and decides which callers may open the real driver.
//!
//! It is opened with the real dlopen, in this order. The first place that has the shim is used:
//! 1. If /dev/vgpu/.lib/libcuda.so.1 exists (in a container), only there: root cannot replace it. The path is a
//!    constant, because the loader's name of this library is the program's to choose: LD_PRELOAD comes before the list,
//!    and may have a link to this library in any folder.
//! 2. `libcuda.so.1` in the folder of this library: `vgpu run` has both in one folder, so no RPATH can interfere.
//! 3. If this library is in /dev/vgpu: only the two other paths of the CDI spec.
//! 4. The shim that is appended to this file: see `embedded`.
//! 5. Its names without a path. A DT_RPATH of the program comes before LD_LIBRARY_PATH, and both before the cache. A
//!    driver that is loaded already answers to its DT_SONAME, `libcuda.so.1`, without a search; therefore the other
//!    names are tried too.
//!
//! Callers get the shim's path, as the loader knows it, instead of theirs: the loader finds a known name without
//! another search. The shim is never unloaded, so the path stays valid.
//!
//! The shim is looked for in places where a driver may be, so an object is taken for the shim if it has functions of
//! libcuda, of its debugger interface and of NVML. Neither a driver nor a program with its own `cuInit` has all three.
//! From then on only that object, and its copies in other namespaces, are the shim.
//!
//! How it fails: if the container's file exists and cannot be opened (no descriptor or memory is left), programs get no
//! driver at all, see [`is_demanded`]. If none of the places has the shim, an object that only looks like it is used if
//! it is found by name. That needs a search path of the program, so it happens only outside of containers. A shim of
//! another version is treated as a driver, and gets ours.
#![allow(unsafe_code)] // Calls of the real functions, and the loader's records.

use core::{
    ffi::c_int,
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use crate::{
    elf::Object,
    embedded,
    loader::{Function, LinkMap, Report, object_at, objects},
    name::Text,
    system_call::exists,
};

type Open = unsafe extern "C" fn(*const u8, c_int) -> *mut LinkMap;
type Close = unsafe extern "C" fn(*mut LinkMap) -> c_int;

const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
/// The kernel refuses paths that are not shorter.
const PATH_MAX: usize = 4096;

pub(crate) const SHIM_IN_CONTAINERS: Text = Text::literal(c"/dev/vgpu/.lib/libcuda.so.1");
const OWN_PATH_IN_CONTAINERS: Text = Text::literal(c"/dev/vgpu/.lib/libvgpu-preload.so");
const IN_CONTAINERS: [Text; 2] = [
    Text::constant(concat!("/usr/lib/", arch!(triplet), "/libcuda.so.1\0")),
    Text::literal(c"/usr/lib64/libcuda.so.1"),
];
const BARE: [Text; 3] = [
    Text::literal(c"libcuda.so.1"),
    Text::literal(c"libcuda.so"),
    Text::literal(c"libnvidia-ml.so.1"),
];

/// Functions that together only the shim has.
const EXPORTS: [Text; 3] = [
    Text::literal(c"cuInit"),
    Text::literal(c"cudbgGetAPIVersion"),
    Text::literal(c"nvmlInit_v2"),
];

static SHIM: AtomicPtr<LinkMap> = AtomicPtr::new(ptr::null_mut());

/// Returns the shim's record. If `load`, loads the shim if it is not loaded yet.
pub(crate) fn find(load: bool) -> Option<&'static LinkMap> {
    // SAFETY: the object in `SHIM` was opened once and never closed, so it stays.
    if let Some(shim) = unsafe { SHIM.load(Ordering::Acquire).as_ref() } {
        return Some(shim);
    }
    let errno = errno();
    // SAFETY: this thread's own errno, here and below.
    let saved = errno.map(|errno| unsafe { *errno });
    let shim = search(if load { RTLD_LAZY } else { RTLD_LAZY | RTLD_NOLOAD });
    if let (Some(errno), Some(saved)) = (errno, saved) {
        // SAFETY: as above.
        unsafe { *errno = saved };
    }
    shim
}

/// Returns true in a container that has the shim's file. A program there gets no driver if the shim cannot be opened:
/// otherwise it could bypass the shim by using up its descriptors or its memory limit.
pub(crate) fn is_demanded() -> bool {
    exists(SHIM_IN_CONTAINERS)
}

/// Returns true if `handle` belongs to the shim that [`find`] has found.
pub(crate) fn is_handle(handle: usize) -> bool {
    handle != 0 && SHIM.load(Ordering::Relaxed).addr() == handle
}

/// Returns true if an object is the shim that [`find`] has found, or its copy in another namespace.
pub(crate) fn is(report: &Report) -> bool {
    // SAFETY: as in `find`.
    let Some(shim) = (unsafe { SHIM.load(Ordering::Acquire).as_ref() }) else {
        return false;
    };
    let looks_like_it = || report.object().is_some_and(|object| looks_like_it(&object));
    report.is_of(shim) || looks_like_it() && report.is_copy_of(shim)
}

/// Returns true if an object has the shim's functions, which a driver's copy may also have.
pub(crate) fn looks_like_it(object: &Object) -> bool {
    object.has_all(&EXPORTS)
}

/// Returns true if the code at `address` is the shim's.
pub(crate) fn is_caller(address: usize) -> bool {
    // The last caller that was in the shim: the shim makes a thousand calls in a row from one address, and is never
    // unloaded.
    static LAST: AtomicUsize = AtomicUsize::new(0);
    if address == LAST.load(Ordering::Relaxed) && address != 0 {
        return true;
    }
    let mut may_be = false;
    object_at(address, &mut |report| {
        may_be = report.object().is_some_and(|object| looks_like_it(&object));
    });
    // The shim may call before anything has looked for it. It is loaded by then, so `find` loads nothing.
    if !may_be || find(true).is_none() {
        return false;
    }
    let mut shim = false;
    object_at(address, &mut |report| shim = is(report));
    if shim {
        LAST.store(address, Ordering::Relaxed);
    }
    shim
}

fn search(mode: c_int) -> Option<&'static LinkMap> {
    // Opened before its existence is tested, so a filter of system calls that fails `access` cannot lead elsewhere.
    if let Some(shim) = open(SHIM_IN_CONTAINERS, mode) {
        return Some(shim);
    }
    if exists(SHIM_IN_CONTAINERS) {
        return None;
    }
    let mut own = None;
    let here = search as *const () as usize;
    objects(&mut |report| {
        let ours = report.holds(here);
        if ours {
            // This library stays loaded while it runs, so its name stays.
            own = report.name();
        }
        ours
    });
    if let Some(own) = own {
        let mut buffer = MaybeUninit::uninit();
        if let Some(shim) = beside(own, BARE[0], &mut buffer).and_then(|path| open(path, mode)) {
            return Some(shim);
        }
        if own.is(OWN_PATH_IN_CONTAINERS) {
            // Not searched by name: the program may have search paths.
            return IN_CONTAINERS.iter().find_map(|path| open(*path, mode));
        }
        if mode & RTLD_NOLOAD == 0
            && let Some(shim) = embedded::with(own, |path| open(path, mode))
        {
            return Some(shim);
        }
    }
    BARE.iter().find_map(|name| open(*name, mode))
}

/// Returns the path of `name` in the folder of `own`.
fn beside(own: Text, name: Text, buffer: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<Text> {
    let folder = own.folder_len()?;
    let start = buffer.as_mut_ptr().cast::<u8>();
    let mut len = 0;
    for byte in own.bytes().take(folder).chain(name.bytes()) {
        if len + 1 >= PATH_MAX {
            return None;
        }
        // SAFETY: `len` is below PATH_MAX.
        unsafe { start.add(len).write(byte) };
        len += 1;
    }
    // SAFETY: `len` is below PATH_MAX; with its NUL the text is complete, and the buffer outlives its use.
    unsafe {
        start.add(len).write(0);
        Text::new(start)
    }
}

/// Opens `path` and keeps it open, if it is the shim.
fn open(path: Text, mode: c_int) -> Option<&'static LinkMap> {
    // SAFETY: the real functions have these types.
    let open = unsafe { core::mem::transmute::<usize, Open>(Function::Open.find()?) };
    // SAFETY: as above.
    let close = unsafe { core::mem::transmute::<usize, Close>(Function::Close.find()?) };
    // SAFETY: `path` is text; a handle is the loader's record.
    let handle = unsafe { open(path.pointer(), mode) };
    // SAFETY: the record of an open handle exists.
    let map = unsafe { handle.as_ref()? };
    if map.object().is_some_and(|object| looks_like_it(&object)) {
        if mode & RTLD_NOLOAD != 0 {
            // Not recorded as the shim: a place that comes earlier in the order may have one that is not loaded yet.
            return Some(map);
        }
        let first = SHIM.compare_exchange(ptr::null_mut(), handle, Ordering::AcqRel, Ordering::Acquire);
        // One shim for each process: if two threads have each opened a copy of the embedded shim, the first one is
        // used. The other copy has done nothing yet.
        return match first {
            // SAFETY: as in `find`.
            Err(other) => unsafe { other.as_ref() },
            Ok(_) => Some(map),
        };
    }
    // SAFETY: opened above, and not used any more.
    unsafe { close(handle) };
    None
}

/// Returns the address of this thread's errno.
fn errno() -> Option<*mut c_int> {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    let address = Function::Errno.find()?;
    // SAFETY: __errno_location has this type, and no conditions.
    Some(unsafe { core::mem::transmute::<usize, Location>(address)() })
}
