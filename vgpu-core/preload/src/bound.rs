//! Redirects calls that the loader bound to a driver without asking this library: those of a program or plugin that is
//! linked with libcuda and finds a driver of the image by its RPATH or by LD_LIBRARY_PATH.
//!
//! ```text
//!  importer: DT_NEEDED libcuda.so.1 ─► slot of cuMemAlloc_v2 ─► the image's driver
//!                                             └── from here on ─► the shim
//! ```
//!
//! When: in the constructor, if a start-up object is a driver. That is before the program runs, but after constructors
//! of libraries. (DF_1_INITFIRST would put our constructor first, but also before libc's own: a dlopen there runs
//! libc's without arguments and environment, which are then lost.) Also at each call of this library after an object
//! was loaded, so at the latest when the functions of a plugin are looked up. The driver that the shim uses is not
//! changed, and neither are slots that do not lead to a driver, so an interposer keeps its place. An object needs no
//! DT_NEEDED of a driver to be changed: its calls may be bound to one that LD_PRELOAD or RTLD_GLOBAL put into the
//! global scope.
//!
//! Slots are changed under the loader's lock, which keeps objects loaded and other threads out. Pages that the loader
//! made read-only are made writable for the change and read-only again. A slot is one word, so a thread in a call sees
//! either value.
//!
//! How it fails: if pages cannot be made writable, the slots stay as they are. If there is no shim, they stay too; but if
//! there has to be one (`shim::is_demanded`), they lead to a function that fails.
#![allow(unsafe_code)] // Words of other objects.

use core::{
    ffi::c_int,
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, Release},
    },
};

use crate::{
    driver::{self, is_driver},
    elf::Object,
    loader::{self, LinkMap, Report, objects},
    machine::{SYS_MPROTECT, call},
    name::{self, Text},
    shim,
};

const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;

/// Number of objects that had been loaded at the last search.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// True if a driver has been seen, perhaps the shim's own.
static DRIVER: AtomicBool = AtomicBool::new(false);

/// The constructor. For programs that are linked with neither a driver nor the shim it only looks up two names in each
/// start-up object.
pub(crate) extern "C" fn redirect_at_start() {
    if loader::started_with(driver::looks_like_driver) {
        // Until the shim is known, it looks like a driver.
        if loader::started_with(shim::looks_like_it) {
            shim::find(true);
        }
        redirect_new();
    }
}

/// If objects were loaded since the last search, redirects their calls of a driver to the shim.
pub(crate) fn redirect_new() {
    let (mut new_driver, mut importer) = (false, false);
    let (mut index, mut count, mut new) = (0_u64, 0, 0);
    objects(&mut |report| {
        if index == 0 {
            // Relaxed: an unnecessary search is harmless, and the loader's lock orders the searches.
            new = report.loaded.wrapping_sub(SEEN.swap(report.loaded, Relaxed));
            if new == 0 {
                return true;
            }
            objects(&mut |_| {
                count += 1;
                false
            });
        }
        index += 1;
        // New objects are last in the list.
        new_driver |= index.saturating_add(new) > count && is_driver(report);
        false
    });
    if new_driver {
        DRIVER.store(true, Relaxed);
    }
    if new == 0 || !DRIVER.load(Relaxed) {
        return;
    }
    // Calls of older objects may not be bound yet, and may be bound to the new driver later.
    let first = if new_driver { 0 } else { count.saturating_sub(new) };
    each_from(first, &mut |report| importer |= imports_driver(report));
    // The shim cannot be opened under the loader's lock.
    if importer && let Some(functions) = Functions::find() {
        each_from(first, &mut |report| {
            if imports_driver(report) {
                redirect(report, &functions, is_first_in_driver);
            }
        });
    }
}

/// Calls `visitor` with the objects after the first `first`.
fn each_from(first: u64, visitor: &mut dyn FnMut(&Report)) {
    let mut index = 0;
    objects(&mut |report| {
        if index >= first {
            visitor(report);
        }
        index += 1;
        false
    });
}

/// Returns true if the object imports functions of a driver, and may not use the driver itself.
fn imports_driver(report: &Report) -> bool {
    let object = report.object();
    object.is_some_and(|object| object.imports_any(name::is_driver_function)) && !may_use_driver(report)
}

fn may_use_driver(report: &Report) -> bool {
    shim::is(report) || driver::is_of_shim(report)
}

/// Redirects an object of another namespace: every slot of a name for which `own` returns a function, and every slot
/// that leads to a driver. Objects that may use the driver are left out.
pub(crate) fn redirect_all(report: &Report, own: &dyn Fn(Text) -> Option<usize>) {
    let Some(object) = report.object() else {
        return;
    };
    if may_use_driver(report) {
        return;
    }
    store(report, &object, &|_, name| own(name));
    if object.imports_any(name::is_driver_function)
        && let Some(functions) = Functions::find()
    {
        // In another namespace, the target of a slot is unknown until its first use.
        redirect(report, &functions, |_| true);
    }
}

/// The new target of slots that led to a driver.
enum Functions {
    OfShim(Object),
    /// There has to be a shim, and it cannot be opened.
    Refusal,
}

impl Functions {
    /// Returns None if there is no shim and none is required.
    fn find() -> Option<Self> {
        match shim::find(true).and_then(LinkMap::object) {
            Some(shim) => Some(Self::OfShim(shim)),
            None => shim::is_demanded().then_some(Self::Refusal),
        }
    }

    fn get(&self, name: Text) -> Option<usize> {
        match self {
            Self::OfShim(shim) => shim.function(name),
            // This function returns text, the others return a code.
            Self::Refusal if name.is(Text::literal(c"nvmlErrorString")) => None,
            Self::Refusal => Some(refuse as *const () as usize),
        }
    }
}

/// Replaces any function of the driver. The code means "unknown error" in libcuda and in NVML.
extern "C" fn refuse() -> c_int {
    999
}

/// Redirects every slot of the object that leads to a driver. `later` returns true for a name whose slot will lead to a
/// driver at the first call.
fn redirect(report: &Report, functions: &Functions, later: fn(Text) -> bool) {
    let Some(object) = report.object() else {
        return;
    };
    store(report, &object, &|now, name| {
        if !name::is_driver_function(name) {
            return None;
        }
        let target = functions.get(name)?;
        // With lazy binding, the slot of a function that was never called leads back into the object.
        let leads_to_driver = now != target
            && if report.holds(now) {
                later(name)
            } else {
                driver::holds(now)
            };
        leads_to_driver.then_some(target)
    });
}

/// Calls `target` with the value and the name of each slot of the object, and stores the result, if any, in the slot.
fn store(report: &Report, object: &Object, target: &dyn Fn(usize, Text) -> Option<usize>) {
    let sealed = report.sealed(loader::page_size());
    let mut opened = false;
    object.imports(&mut |name, slot| {
        if !slot.is_aligned() {
            return false;
        }
        // SAFETY: an aligned word of a loaded object, which the loader has written; other threads may read it
        // meanwhile.
        let word = unsafe { AtomicUsize::from_ptr(slot) };
        let Some(target) = target(word.load(Relaxed), name) else {
            return false;
        };
        if let Some((start, length)) = sealed
            && !opened
        {
            opened = protect(start, length, PROT_READ | PROT_WRITE);
            if !opened && slot.addr().wrapping_sub(start) < length {
                return false;
            }
        }
        // Another thread that calls through the slot sees the whole shim.
        word.store(target, Release);
        false
    });
    if let (Some((start, length)), true) = (sealed, opened) {
        protect(start, length, PROT_READ);
    }
}

/// Returns true if the first object that defines `name` is a driver.
fn is_first_in_driver(name: Text) -> bool {
    let mut found = false;
    objects(&mut |report| {
        let defines = report.object().is_some_and(|object| object.function(name).is_some());
        found = defines && is_driver(report);
        defines
    });
    found
}

/// Calls mprotect without changing errno. Returns false if it fails.
fn protect(start: usize, length: usize, protection: usize) -> bool {
    call(SYS_MPROTECT, [start, length, protection, 0]) == 0
}
