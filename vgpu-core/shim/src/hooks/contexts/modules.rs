//! Hooks for modules, libraries and limits of contexts: the memory of code, static variables, heaps and stacks is
//! charged before the driver is asked, as far as arguments and files show, and then measured
//! ([`measure`](super::measure)). If it cannot be charged, the call is undone.

use crate::codes::{SUCCESS, UNKNOWN, UNSUPPORTED_LIMIT};
use crate::driver::Real;
use crate::hooks::contexts::measure::{expect_growth, giving_back, may_have_context, taking};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_void};
use vgpu_core::memory::driver::Streams;
use vgpu_core::memory::expected::{Ahead, Code, Limit};
use vgpu_core::memory::overhead::Thing;

/// Returns the code whose handle a call has written, and the context with which it ends.
///
/// # Safety
/// `handle` is null or was written.
unsafe fn loaded(handle: *const usize, context: usize) -> Thing {
    // SAFETY: as promised.
    Thing::Code(unsafe { handle.as_ref() }.map_or(0, |handle| *handle), context)
}

/// The current context.
fn context() -> usize {
    Real.current_context().unwrap_or(0)
}

/// Reads code that a program names by its address or its path.
type Read = fn(*const c_void) -> Code;

/// Describes the code to be loaded. Without a pointer for the handle the code is not read: the driver refuses the call,
/// perhaps before it reads the code.
fn code_for(handle: *const usize, read: Read, from: *const c_void) -> Code {
    if handle.is_null() { Code::default() } else { read(from) }
}

pub(crate) unsafe fn load_module(
    ready: &'static Ready,
    module: *mut usize,
    read: Read,
    from: *const c_void,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the driver has just made it.
    let undo = || unsafe { module.as_ref() }.map_or(SUCCESS, |module| unsafe { real!(cuModuleUnload)(*module) });
    // SAFETY: null, or the driver has written it.
    let thing = || unsafe { loaded(module, context()) };
    taking(ready, || Ahead::Code(code_for(module, read, from)), next, thing, undo)
}

pub(crate) fn unload_library(ready: &'static Ready, library: usize, next: impl FnOnce() -> c_int) -> c_int {
    let result = unload_module(ready, library, next);
    if result == SUCCESS {
        ready.tables.libraries.forget(library);
    }
    result
}

pub(crate) fn unload_module(ready: &'static Ready, module: usize, next: impl FnOnce() -> c_int) -> c_int {
    giving_back(ready, Thing::Code(module, 0), next)
}

pub(crate) unsafe fn load_library(
    ready: &'static Ready,
    library: *mut usize,
    read: Read,
    from: *const c_void,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the driver has just made it.
    let undo = || unsafe { library.as_ref() }.map_or(SUCCESS, |library| unsafe { real!(cuLibraryUnload)(*library) });
    // SAFETY: null, or the driver has written it.
    let thing = || unsafe { loaded(library, 0) };
    if may_have_context(ready) {
        return taking(ready, || Ahead::Code(code_for(library, read, from)), next, thing, undo);
    }
    // Read before the call: the driver may keep a pointer to the code, but the program need not keep the code.
    let code = code_for(library, read, from);
    let result = next();
    // SAFETY: written, if it succeeded.
    let Some(handle) = unsafe { library.as_ref() }.filter(|_| result == SUCCESS) else {
        return result;
    };
    ready.tables.libraries.note(*handle, &code);
    // Meanwhile another thread may have created a context, and charged it before it could see the noted library.
    let result = match may_have_context(ready) {
        true => taking(ready, || Ahead::Code(code), || result, thing, undo),
        false => result,
    };
    if result != SUCCESS {
        ready.tables.libraries.forget(*handle);
    }
    result
}

/// Finds a function for the program. A driver that loads lazily loads the function at its first launch, so memory may
/// grow later.
pub(crate) fn find_function(ready: &'static Ready, next: impl FnOnce() -> c_int) -> c_int {
    expect_growth(ready);
    next()
}

/// Handles cuFuncLoad, which loads at once.
pub(crate) fn load_function(ready: &'static Ready, function: usize, next: impl FnOnce() -> c_int) -> c_int {
    // The handle may later be another function's, so nothing is remembered about it.
    let ahead = || Ahead::Code(Code::default());
    // A function cannot be unloaded separately, so a call that does not fit is not undone. It is charged as far as
    // memory is free.
    taking(ready, ahead, next, || Thing::Code(function, context()), || UNKNOWN)
}

pub(crate) fn set_limit(ready: &'static Ready, limit: c_int, value: usize, next: impl Fn(usize) -> c_int) -> c_int {
    let mut before = 0_usize;
    // SAFETY: to be written.
    let answer = unsafe { real!(cuCtxGetLimit(*mut usize, c_int))(&mut before, limit) };
    let known = answer == SUCCESS;
    if answer == UNSUPPORTED_LIMIT {
        // This GPU has no such limit, and nothing is reserved for it.
        return next(value);
    }
    let asked = Limit {
        context: context(),
        number: limit,
        // If the old value is unknown, the whole new value is charged.
        now: if known { before as u64 } else { 0 },
        value: value as u64,
        threads: threads(),
    };
    let undo = || if known { next(before) } else { UNKNOWN };
    taking(ready, || Ahead::Limit(asked), || next(value), || asked.thing(), undo)
}

/// Returns the number of threads that the current GPU can run at once.
fn threads() -> u64 {
    const MULTIPROCESSORS: c_int = 16;
    const THREADS_OF_ONE: c_int = 39;
    /// More than any GPU has, used if the driver does not say.
    const MANY: u64 = 512 * 2048;
    let Ok(device) = Real.current_device() else {
        return MANY;
    };
    let attribute = |attribute: c_int| {
        let value = u64::try_from(Real.device_attribute(attribute, device).ok()?);
        value.ok().filter(|value| *value > 0)
    };
    let threads = attribute(MULTIPROCESSORS).zip(attribute(THREADS_OF_ONE));
    threads.map_or(MANY, |(processors, threads)| processors * threads)
}
