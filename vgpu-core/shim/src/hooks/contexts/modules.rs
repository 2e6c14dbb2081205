//! Hooks for modules, libraries and limits of contexts: the memory of code, static variables, heaps and stacks is
//! measured ([`measure`](super::measure)). If it cannot be charged, the call is undone.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::SUCCESS;
use crate::hooks::contexts::measure::measured;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::memory::measure::Change;

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

/// Loads a module.
///
/// # Safety
/// `module` is null or written when `load` succeeds.
unsafe fn loaded(ready: &'static Ready, module: *mut usize, load: impl FnOnce() -> c_int) -> c_int {
    measured(ready, Change::Takes, load, || {
        // SAFETY: as promised; the driver has just made it.
        if let Some(module) = unsafe { module.as_ref() } {
            // SAFETY: as above.
            unsafe { real!(cuModuleUnload(usize))(*module) };
        }
    })
}

/// cuModuleLoad, cuModuleLoadData and cuModuleLoadFatBinary.
pub(crate) unsafe fn load(ready: &'static Ready, real: Load, module: *mut usize, image: *const c_void) -> c_int {
    // SAFETY: passed on.
    unsafe { loaded(ready, module, || real(module, image)) }
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
    unsafe { loaded(ready, module, || real(module, image, count, options, values)) }
}

/// cuModuleUnload and cuLibraryUnload.
pub(crate) unsafe fn unload(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, module: usize) -> c_int {
    // SAFETY: passed on.
    measured(ready, Change::GivesBack, || unsafe { real(module) }, || {})
}

/// cuLibraryLoadData and cuLibraryLoadFromFile.
pub(crate) unsafe fn load_library(
    ready: &'static Ready,
    real: LoadLibrary,
    library: *mut usize,
    code: *const c_void,
    jit: *mut c_int,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: passed on.
    let load = || unsafe { real(library, code, jit, jit_values, jit_count, options, values, count) };
    measured(ready, Change::Takes, load, || {
        // SAFETY: null, or the driver has just made it.
        if let Some(library) = unsafe { library.as_ref() } {
            // SAFETY: as above.
            unsafe { real!(cuLibraryUnload(usize))(*library) };
        }
    })
}

/// cuModuleGetFunction and cuLibraryGetKernel do not take part: drivers that load lazily do so at the
/// first launch. cuFuncLoad is the call that loads at once.
pub(crate) unsafe fn load_function(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    function: usize,
) -> c_int {
    // SAFETY: passed on. What is loaded cannot be unloaded alone: it stays, charged as far as that goes.
    let mut result = SUCCESS;
    measured(
        ready,
        Change::Takes,
        || {
            // SAFETY: passed on.
            result = unsafe { real(function) };
            result
        },
        || {},
    );
    result
}

pub(crate) unsafe fn set_limit(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_int, usize) -> c_int,
    limit: c_int,
    value: usize,
) -> c_int {
    let mut before = 0;
    // SAFETY: to be written.
    let known = unsafe { real!(cuCtxGetLimit(*mut usize, c_int))(&mut before, limit) } == SUCCESS;
    // SAFETY: passed on.
    let set = |value| unsafe { real(limit, value) };
    measured(
        ready,
        Change::Either,
        || set(value),
        || {
            if known {
                set(before);
            }
        },
    )
}
