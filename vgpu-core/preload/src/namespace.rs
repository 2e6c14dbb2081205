//! Redirects the objects of another namespace, which dlmopen makes: a plugin there is bound to its own libc, and
//! perhaps to a driver of the image.
//!
//! ```text
//!  plugin: slot of cuMemAlloc_v2 ─► the image's driver          from here on ─► the shim
//!  plugin: slots of dlopen ... ─► the libc of its namespace     from here on ─► ours ─► libc's, with its own caller
//! ```
//!
//! All namespaces have the same loader, which finds a caller's namespace by its address. So our functions, and the libc
//! of the program behind them, do for a plugin what its own libc would do.
//!
//! When: at each look-up in such an object through this library, which is how the program gets at its functions.
//! `bound` redirects the objects of our own namespace.
//!
//! How it fails: constructors of such a plugin run before it is redirected. With more than [`MOST`] objects, the others
//! stay as they are.
#![allow(unsafe_code)] // The loader's records.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::{
    bound,
    loader::{LinkMap, elsewhere, is_ours, objects},
    name::Text,
};

/// The largest number of objects of a namespace.
const MOST: usize = 128;

/// True if the program has opened something in another namespace.
static USED: AtomicBool = AtomicBool::new(false);
/// The object that was last searched, and how many objects had been loaded at that time.
static LAST: (AtomicUsize, AtomicU64) = (AtomicUsize::new(0), AtomicU64::new(0));

/// Notes that the program opens something in another namespace.
pub(crate) fn note_used() {
    USED.store(true, Relaxed);
}

/// Redirects the objects in the namespace of `handle`, unless it is the program's. `own` returns our replacement for a
/// function of the loader, if there is one.
pub(crate) fn redirect(handle: usize, own: fn(Text) -> Option<usize>) {
    if !USED.load(Relaxed) {
        return;
    }
    // SAFETY: a handle is an open object's record, as dlsym demands.
    let Some(map) = (unsafe { core::ptr::with_exposed_provenance::<LinkMap>(handle).as_ref() }) else {
        return;
    };
    let mut places = MaybeUninit::<[usize; MOST]>::uninit();
    let start = places.as_mut_ptr().cast::<usize>();
    let (mut count, mut ours) = (0, false);
    objects(&mut |report| {
        // Relaxed: an unnecessary search is harmless.
        let mut new = LAST.0.swap(handle, Relaxed) != handle;
        new |= LAST.1.swap(report.loaded, Relaxed) != report.loaded;
        if new {
            // This runs under the loader's lock, so the records stay.
            for map in map.first().and_later().take(MOST) {
                ours |= is_ours(map.place());
                // SAFETY: `count` is below MOST.
                unsafe { start.add(count).write(map.place()) };
                count += 1;
            }
        }
        true
    });
    if ours {
        return;
    }
    for index in 0..count {
        // dladdr1 takes another lock of the loader, and finds nothing if the object is gone meanwhile.
        // SAFETY: `count` words were written.
        elsewhere(unsafe { start.add(index).read() }, &mut |report| {
            let libc = report
                .object()
                .is_none_or(|object| object.function(Text::literal(c"dlopen")).is_some());
            if !libc {
                bound::redirect_all(report, &own);
            }
        });
    }
}
