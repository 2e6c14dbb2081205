//! Tools that the driver loads into a program: profilers, sanitizers, injected libraries.
//!
//! cuInit loads the library that CUDA_INJECTION64_PATH names and calls its InitializeInjection, as NVIDIA's driver
//! does. Such a tool registers callbacks for the driver's calls (CUPTI, NVBit), and may call the driver from them.
//! Here, a simpler interface replaces it: if the library exports `softGpuCallback(const char *name, size_t length)`, it
//! is called with the name of each function before the function runs, in the calling thread.
//!
//! How it fails: as with the driver, a library that cannot be loaded, or has no InitializeInjection, is left out.

#![allow(unsafe_code, reason = "calls what a library exports")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static IS_LOADED: AtomicBool = AtomicBool::new(false);
static CALLBACK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Callback = extern "C" fn(*const u8, usize);

/// Loads the library that CUDA_INJECTION64_PATH names, at the first call only.
pub(crate) fn load() {
    if IS_LOADED.swap(true, Ordering::Relaxed) {
        return;
    }
    let named = std::env::var_os("CUDA_INJECTION64_PATH").filter(|path| !path.is_empty());
    let Some(path) = named.and_then(|path| CString::new(path.into_vec()).ok()) else {
        return;
    };
    // SAFETY: a C string.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return;
    }
    CALLBACK.store(symbol(library, c"softGpuCallback"), Ordering::Release);
    let initialize = symbol(library, c"InitializeInjection");
    if !initialize.is_null() {
        // SAFETY: by its name, a function without arguments.
        let initialize: extern "C" fn() -> c_int = unsafe { std::mem::transmute(initialize) };
        initialize();
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: an open library, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Calls the injected library with the name of the function that begins.
#[inline]
pub(crate) fn begins(name: &'static str) {
    let callback = CALLBACK.load(Ordering::Acquire);
    if !callback.is_null() {
        // SAFETY: by its name, a function of this type.
        let callback: Callback = unsafe { std::mem::transmute(callback) };
        callback(name.as_ptr(), name.len());
    }
}
