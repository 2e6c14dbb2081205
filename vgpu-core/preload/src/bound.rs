//! Redirects calls that the loader bound to a driver before this library was asked: those of a program or plugin that
//! is linked with libcuda and finds a driver of the image by its RPATH or by LD_LIBRARY_PATH.
//!
//! ```text
//!  importer: DT_NEEDED libcuda.so.1 ─► slot of cuMemAlloc_v2 ─► the image's driver
//!                                             └── from here on ─► the shim
//! ```
//!
//! When: in the constructor, if a start-up object has a driver's name. That is before the program runs, but after
//! constructors of libraries. And at each call of this library after an object was loaded, so at the latest when the
//! functions of a plugin are looked up. Objects of the driver itself are not changed, and neither is a slot that does
//! not lead to a driver: an interposer keeps its place.
//!
//! Slots are changed under the loader's lock, which keeps objects loaded and other threads out. Pages that the loader
//! made read-only are made writable for the change and read-only again. A slot is one word, so a thread in a call sees
//! either value.
//!
//! How it fails: if there is no shim, or pages cannot be made writable, the slots stay as they are.
#![allow(unsafe_code)] // A system call, and words of other objects.

use core::{
    arch::asm,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::{
    elf::Object,
    loader::{self, LinkMap, Report, objects},
    name::{self, Text},
    shim,
};

const SYS_MPROTECT: usize = 10;
const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;

/// How many objects had been loaded at the last search.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// The constructor. For programs without a driver it only compares a few names.
pub(crate) extern "C" fn redirect_at_start() {
    if loader::started_with(name::is_driver_library) {
        redirect_new();
    }
}

/// If objects were loaded since the last search, redirects their calls of a driver to the shim.
pub(crate) fn redirect_new() {
    let (mut driver, mut importer) = (false, false);
    let (mut index, mut count, mut new) = (0_u64, 0, 0);
    objects(&mut |report| {
        if index == 0 {
            // Relaxed: one search too many does no harm, and the loader's lock orders the searches.
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
        if is_driver(report) {
            driver |= !is_shim(report);
        } else if index.saturating_add(new) > count {
            // A new object: they are last in the list. What it needs was loaded before it or with it.
            importer |= imports_driver(report);
        }
        false
    });
    // The shim cannot be opened under the loader's lock.
    if driver
        && importer
        && let Some(shim) = shim::find(true).and_then(LinkMap::object)
    {
        objects(&mut |report| {
            if !is_driver(report) && imports_driver(report) {
                redirect(report, &shim);
            }
            false
        });
    }
}

fn is_driver(report: &Report) -> bool {
    report.name().is_some_and(name::is_driver_library)
}

fn is_shim(report: &Report) -> bool {
    report.object().is_some_and(|object| shim::is_shim(&object))
}

fn imports_driver(report: &Report) -> bool {
    report
        .object()
        .is_some_and(|object| object.needs(name::is_driver_library))
}

/// Redirects every slot of the object that leads to a driver.
fn redirect(report: &Report, shim: &Object) {
    let Some(object) = report.object() else {
        return;
    };
    let sealed = report.sealed();
    let mut opened = false;
    object.imports(&mut |name, slot| {
        if !name::is_driver_function(name) {
            return;
        }
        let Some(target) = shim.function(name) else {
            return;
        };
        if !slot.is_aligned() {
            return;
        }
        // SAFETY: an aligned word of a loaded object, which the loader has written; other threads may read it
        // meanwhile.
        let word = unsafe { AtomicUsize::from_ptr(slot) };
        let now = word.load(Relaxed);
        // With lazy binding, the slot of a function that was never called leads back into the object.
        let leads_to_driver = now != target
            && if report.holds(now) {
                is_first_in_driver(name)
            } else {
                is_in_driver(now)
            };
        if !leads_to_driver {
            return;
        }
        if let Some((start, length)) = sealed
            && !opened
        {
            opened = protect(start, length, PROT_READ | PROT_WRITE);
            if !opened && slot.addr().wrapping_sub(start) < length {
                return;
            }
        }
        word.store(target, Relaxed);
    });
    if let (Some((start, length)), true) = (sealed, opened) {
        protect(start, length, PROT_READ);
    }
}

/// Returns true if an address is in a driver library other than the shim.
fn is_in_driver(address: usize) -> bool {
    let mut found = false;
    objects(&mut |report| {
        let holds = report.holds(address);
        found = holds && is_driver(report) && !is_shim(report);
        holds
    });
    found
}

/// Returns true if the first object that defines `name` is a driver library other than the shim.
fn is_first_in_driver(name: Text) -> bool {
    let mut found = false;
    objects(&mut |report| {
        let defines = report.object().is_some_and(|object| object.function(name).is_some());
        found = defines && is_driver(report) && !is_shim(report);
        defines
    });
    found
}

/// mprotect that does not change errno. Returns false if it fails.
fn protect(start: usize, length: usize, protection: usize) -> bool {
    let result: isize;
    // SAFETY: changes the protection of pages that the loader sealed; the kernel touches nothing else.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_MPROTECT => result,
            in("rdi") start,
            in("rsi") length,
            in("rdx") protection,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    result == 0
}
