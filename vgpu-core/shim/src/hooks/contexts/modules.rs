//! Hooks for modules, libraries and limits of contexts: the memory of code, static variables, heaps and stacks is
//! charged before the driver is asked, as far as arguments and files tell, and then measured
//! ([`measure`](super::measure)). If it cannot be charged, the call is undone.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::{SUCCESS, UNKNOWN, UNSUPPORTED_LIMIT};
use crate::driver::Real;
use crate::hooks::contexts::code;
use crate::hooks::contexts::measure::{expect_growth, giving_back, may_have_context, taking};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_char, c_int, c_uint, c_void};
use vgpu_core::memory::driver::Streams;
use vgpu_core::memory::expected::{Ahead, Code, Limit};
use vgpu_core::memory::overhead::Thing;

type Load = unsafe extern "C" fn(*mut usize, *const c_void) -> c_int;
type LoadEx = unsafe extern "C" fn(*mut usize, *const c_void, c_uint, *mut c_int, *mut *mut c_void) -> c_int;
type LoadLibrary = unsafe extern "C" fn(
    *mut usize,
    *const c_void,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
) -> c_int;

/// The code whose handle a call has written, and the context with which it goes.
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

/// Describes the code to be loaded. Without a place for its handle the driver refuses the call, perhaps before it reads
/// the code.
fn code_for(handle: *const usize, code: impl FnOnce() -> Code) -> Ahead {
    Ahead::Code(if handle.is_null() { Code::default() } else { code() })
}

/// Loads a module.
///
/// # Safety
/// `module` is null or written when `load` succeeds.
unsafe fn load_module(
    ready: &'static Ready,
    module: *mut usize,
    code: impl FnOnce() -> Code,
    load: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the driver has just made it.
    let undo = || unsafe { module.as_ref() }.map_or(SUCCESS, |module| unsafe { real!(cuModuleUnload(usize))(*module) });
    // SAFETY: as promised.
    let thing = || unsafe { loaded(module, context()) };
    taking(ready, || code_for(module, code), load, thing, undo)
}

/// cuModuleLoad.
pub(crate) unsafe fn load(ready: &'static Ready, real: Load, module: *mut usize, path: *const c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { load_module(ready, module, || code::in_file(path), || real(module, path)) }
}

/// cuModuleLoadData and cuModuleLoadFatBinary.
pub(crate) unsafe fn load_data(ready: &'static Ready, real: Load, module: *mut usize, image: *const c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { load_module(ready, module, || code::in_memory(image), || real(module, image)) }
}

pub(crate) unsafe fn load_ex(
    ready: &'static Ready,
    real: LoadEx,
    module: *mut usize,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        load_module(
            ready,
            module,
            || code::in_memory(image),
            || real(module, image, count, options, values),
        )
    }
}

/// cuLibraryUnload.
pub(crate) unsafe fn unload_library(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    library: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { unload(ready, real, library) };
    if result == SUCCESS {
        ready.tables.libraries.forget(library);
    }
    result
}

/// cuModuleUnload.
pub(crate) unsafe fn unload(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, module: usize) -> c_int {
    // SAFETY: passed on.
    giving_back(ready, Thing::Code(module, 0), || unsafe { real(module) })
}

/// Loads a library.
///
/// # Safety
/// `library` is null or written when `load` succeeds.
unsafe fn load_library(
    ready: &'static Ready,
    library: *mut usize,
    code: impl FnOnce() -> Code,
    load: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the driver has just made it.
    let undo =
        || unsafe { library.as_ref() }.map_or(SUCCESS, |library| unsafe { real!(cuLibraryUnload(usize))(*library) });
    // SAFETY: as promised.
    let thing = || unsafe { loaded(library, 0) };
    if may_have_context(ready) {
        return taking(ready, || code_for(library, code), load, thing, undo);
    }
    // Before the call: the driver may keep a pointer to the code, but the program need not keep the code.
    let code = if library.is_null() { Code::default() } else { code() };
    let result = load();
    // SAFETY: written, if it succeeded.
    let Some(handle) = unsafe { library.as_ref() }.filter(|_| result == SUCCESS) else {
        return result;
    };
    ready.tables.libraries.note(*handle, &code);
    // Another thread may have made a context meanwhile, and not have seen the note when it charged it.
    let result = match may_have_context(ready) {
        true => taking(ready, || Ahead::Code(code), || result, thing, undo),
        false => result,
    };
    if result != SUCCESS {
        ready.tables.libraries.forget(*handle);
    }
    result
}

pub(crate) unsafe fn library_of_data(
    ready: &'static Ready,
    real: LoadLibrary,
    library: *mut usize,
    image: *const c_void,
    jit: *mut c_int,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: passed on.
    let load = || unsafe { real(library, image, jit, jit_values, jit_count, options, values, count) };
    // SAFETY: as promised.
    unsafe { load_library(ready, library, || code::in_memory(image), load) }
}

pub(crate) unsafe fn library_of_file(
    ready: &'static Ready,
    real: LoadLibrary,
    library: *mut usize,
    path: *const c_void,
    jit: *mut c_int,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: passed on.
    let load = || unsafe { real(library, path, jit, jit_values, jit_count, options, values, count) };
    // SAFETY: as promised.
    unsafe { load_library(ready, library, || code::in_file(path), load) }
}

/// The program finds a function: a driver that loads lazily does so at its first launch.
pub(crate) unsafe fn named_function(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, *const c_char) -> c_int,
    function: *mut usize,
    module: usize,
    name: *const c_char,
) -> c_int {
    expect_growth(ready);
    // SAFETY: passed on.
    unsafe { real(function, module, name) }
}

pub(crate) unsafe fn function_of_kernel(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize) -> c_int,
    function: *mut usize,
    kernel: usize,
) -> c_int {
    expect_growth(ready);
    // SAFETY: passed on.
    unsafe { real(function, kernel) }
}

/// cuFuncLoad loads at once.
pub(crate) unsafe fn load_function(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    function: usize,
) -> c_int {
    // A handle may be that of another function later: nothing is remembered of it.
    let code = Code::default;
    // SAFETY: passed on. What is loaded cannot be unloaded alone: it stays, charged as far as that goes.
    taking(
        ready,
        || Ahead::Code(code()),
        || unsafe { real(function) },
        || Thing::Code(function, context()),
        || UNKNOWN,
    )
}

pub(crate) unsafe fn set_limit(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_int, usize) -> c_int,
    limit: c_int,
    value: usize,
) -> c_int {
    let mut before = 0_usize;
    // SAFETY: to be written.
    let answer = unsafe { real!(cuCtxGetLimit(*mut usize, c_int))(&mut before, limit) };
    let known = answer == SUCCESS;
    if answer == UNSUPPORTED_LIMIT {
        // This GPU has no such limit, and nothing is reserved for it.
        // SAFETY: passed on.
        return unsafe { real(limit, value) };
    }
    let asked = Limit {
        context: context(),
        number: limit,
        // Not known: all of the new value counts.
        now: if known { before as u64 } else { 0 },
        value: value as u64,
        threads: threads(),
    };
    // SAFETY: passed on.
    let set = |value| unsafe { real(limit, value) };
    let undo = || if known { set(before) } else { UNKNOWN };
    taking(ready, || Ahead::Limit(asked), || set(value), || asked.thing(), undo)
}

/// Threads that the current GPU can run at once.
fn threads() -> u64 {
    const MULTIPROCESSORS: c_int = 16;
    const THREADS_OF_ONE: c_int = 39;
    /// More than any GPU has, where the driver does not tell.
    const MANY: u64 = 512 * 2048;
    let mut device = 0;
    // SAFETY: to be written.
    if unsafe { real!(cuCtxGetDevice(*mut c_int))(&mut device) } != SUCCESS {
        return MANY;
    }
    let attribute = |attribute: c_int| {
        let mut value: c_int = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuDeviceGetAttribute(*mut c_int, c_int, c_int))(&mut value, attribute, device) };
        u64::try_from(value)
            .ok()
            .filter(|value| result == SUCCESS && *value > 0)
    };
    let threads = attribute(MULTIPROCESSORS).zip(attribute(THREADS_OF_ONE));
    threads.map_or(MANY, |(processors, threads)| processors * threads)
}
