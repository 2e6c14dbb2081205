//! Calls that the loader bound to a driver before anybody asked us: a program or a plugin that is linked
//! with libcuda and finds a driver of the image by its RPATH or by LD_LIBRARY_PATH.
//!
//! ```text
//!  importer: DT_NEEDED libcuda.so.1 ─► slot of cuMemAlloc_v2 ─► the image's driver
//!                                             └── from here on ─► the shim
//! ```
//!
//! When: in our constructor, where a start-up object has a driver's name, which is before the program
//! runs (constructors of libraries run earlier); and at each of our calls after an object was loaded, so
//! that a plugin is seen at the latest when its functions are looked up. Objects of the driver itself stay
//! as they are, and so does whatever leads to anybody but a driver: an interposer keeps its place.
//!
//! All is done under the loader's lock, which keeps objects loaded and other threads out; what the loader
//! sealed is opened for the write and sealed again. A slot is one word: a thread in a call sees the one or
//! the other. Where there is no shim, nothing is changed.
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

/// How many objects had been loaded at the last look.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// For programs without a driver: a comparison of a few names.
pub(crate) extern "C" fn redirect_at_start() {
    if loader::started_with(name::is_driver_library) {
        redirect_new();
    }
}

/// Where objects were loaded since the last look: leads their calls of a driver to the shim.
pub(crate) fn redirect_new() {
    let (mut driver, mut importer) = (false, false);
    let (mut index, mut count, mut new) = (0_u64, 0, 0);
    objects(&mut |report| {
        if index == 0 {
            // Relaxed: a look too many does no harm, and the loader's lock orders the looks themselves.
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
            // One of the newest, which come last. What they need was loaded before them or with them.
            importer |= imports_driver(report);
        }
        false
    });
    // Opening the shim is not possible under the lock.
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

/// Every slot of the object that leads to a driver.
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
        // SAFETY: the loader has written this word of a loaded object, it is aligned, and others may read it
        // meanwhile.
        let word = unsafe { AtomicUsize::from_ptr(slot) };
        let now = word.load(Relaxed);
        // A call that was never made leads back into the object, where the loader will be asked.
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

/// Returns true if an address is a driver's that is not the shim.
fn is_in_driver(address: usize) -> bool {
    let mut found = false;
    objects(&mut |report| {
        let holds = report.holds(address);
        found = holds && is_driver(report) && !is_shim(report);
        holds
    });
    found
}

/// Returns true if the loader would find `name` in a driver first.
fn is_first_in_driver(name: Text) -> bool {
    let mut found = false;
    objects(&mut |report| {
        let defines = report.object().is_some_and(|object| object.function(name).is_some());
        found = defines && is_driver(report) && !is_shim(report);
        defines
    });
    found
}

/// mprotect, without errno.
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
