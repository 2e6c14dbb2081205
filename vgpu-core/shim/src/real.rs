//! Opens NVIDIA's real libraries by the paths in the limits file, and looks up their functions.
//!
//! At first, this file takes both driver names. The real file's DT_SONAME is `libcuda.so.1`. If it were opened while no
//! other object has that name, the loader would give it to the program's next dlopen of that name, instead of this
//! library. So both names are opened first with RTLD_NOLOAD, which makes the loader record them on this file (found by
//! the DT_RPATH $ORIGIN before any other place). Handles are never closed.
//!
//! libcuda is opened when the process's state is created. NVML, which many programs never need, is opened when the
//! first of its functions is called, by any thread, or by a fork child whose parent did not need it. Both names are
//! then taken again. A constructor that runs while NVML is opened may call the driver. So code that needs NVML while it
//! holds a lock of ours opens NVML before it takes the lock ([`need_nvml`]), and works without NVML if that failed
//! ([`has_nvml`]).
//!
//! How it fails:
//! - A driver was loaded before this library and keeps the name. For this case, the backstop library redirects the
//!   calls that the loader binds to that driver.
//! - NVML exists and cannot be opened: one line on stderr. Its functions return "not found", as if it did not exist,
//!   until it can be opened ([`BETWEEN`]). The memory of contexts is then not measured (`vgpu_core::memory::measure`).

use crate::codes::{missing_cuda, missing_nvml};
use crate::names::{COUNT, CUDA, exports, name};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_core::log;
use vgpu_core::os::{coarse_millis, errno, fork, stderr};

/// The real libraries' handles: libcuda, libnvidia-ml. A fork child keeps them.
static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
/// The real function of each slot; null until it is looked up.
static TABLE: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];
/// Milliseconds between two attempts to open NVML.
const BETWEEN: u64 = 2000;
/// The path of NVML; null: not known yet. Leaked, because it never changes.
static NVML: AtomicPtr<PathBuf> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the real function of a name. The tables have the types of hooked functions.
macro_rules! real {
    ($name:ident) => {
        $crate::real::function::<$crate::table::types::$name>($crate::names::slot::$name)
    };
    ($name:ident ($($kind:ty),*)) => {
        $crate::real::function::<unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>($crate::names::slot::$name)
    };
}
pub(crate) use real;

/// Opens `libcuda`, which must exist, and stores the path of NVML.
///
/// # Errors
/// One line that names the file.
pub(crate) fn open(libcuda: &Path, libnvidia_ml: &Path) -> Result<(), String> {
    take_names();
    load(&HANDLES[0], libcuda, (c"cuInit", exports::cuInit as *const ()))?;
    if NVML.load(Ordering::Acquire).is_null() {
        let path = Box::into_raw(Box::new(libnvidia_ml.to_owned()));
        NVML.store(path, Ordering::Release);
    }
    Ok(())
}

/// Returns the library of slot `index`, and opens it if necessary. Null: there is none.
fn library(index: usize) -> *mut c_void {
    if index < CUDA {
        return HANDLES[0].load(Ordering::Acquire);
    }
    let known = HANDLES[1].load(Ordering::Acquire);
    if known.is_null() { open_nvml() } else { known }
}

/// Opens NVML now, if possible.
pub(crate) fn need_nvml() {
    library(CUDA);
}

/// Returns true if NVML is open. A thread that holds a lock of ours must check this before it calls NVML, because the
/// call would open it.
pub(crate) fn has_nvml() -> bool {
    !HANDLES[1].load(Ordering::Acquire).is_null()
}

/// Opens NVML. Two threads at once get the same handle. A failure is retried later: perhaps the process only had no
/// free descriptor.
#[cold]
fn open_nvml() -> *mut c_void {
    static SAID: AtomicBool = AtomicBool::new(false);
    /// The time of the next attempt, by [`coarse_millis`].
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = coarse_millis();
    if now < NEXT.load(Ordering::Relaxed) {
        return core::ptr::null_mut();
    }
    // SAFETY: null, or a path that is leaked and never changed.
    let Some(path) = (unsafe { NVML.load(Ordering::Acquire).as_ref() }) else {
        return core::ptr::null_mut();
    };
    // A child that is forked during dlopen would inherit half-changed lists of the loader.
    let _no_fork = fork::guard();
    take_names();
    let own = exports::nvmlInit_v2 as *const ();
    if let Err(reason) = load(&HANDLES[1], path, (c"nvmlInit_v2", own)) {
        NEXT.store(now.saturating_add(BETWEEN), Ordering::Relaxed);
        // A container may have libcuda without NVML: then no line is written, and NVML's functions return "not found".
        if path.exists() && !SAID.swap(true, Ordering::Relaxed) {
            stderr::say(&reason);
        }
    }
    HANDLES[1].load(Ordering::Acquire)
}

/// Makes the loader resolve both names to this file, before anything else of that name is opened.
pub(crate) fn take_names() {
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        take(name);
    }
}

/// Makes the loader resolve `name` to this file.
fn take(name: &str) {
    if let Ok(name) = CString::new(name) {
        // SAFETY: a C string. The handle is never closed, which keeps the name.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    }
}

/// Opens the library at `path`. `own` is the name of a function that the library must have, and the address of our
/// function of that name, to detect that `path` is this library itself.
fn load(handle: &AtomicPtr<c_void>, path: &Path, own: (&CStr, *const ())) -> Result<(), String> {
    if !handle.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    // The backstop lets this spelling of an absolute path pass. It also knows our calls by their address, but not if
    // they pass through a program's own dlopen, as in programs with AddressSanitizer.
    let slashes: &[u8] = if path.is_absolute() { b"//" } else { b"" };
    let name = CString::new([slashes, path.as_os_str().as_bytes()].concat())
        .map_err(|_| format!("driver library {path:?}: bad path"))?;
    // SAFETY: a C string; the library's constructors are the driver's.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: dlerror gives null or a C string that lasts until this thread's next dl call.
        let reason = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
        let reason = reason.map_or("cannot be opened".into(), |text| text.to_string_lossy().into_owned());
        return Err(format!(
            "driver library {}: {reason}; the limits file names it, check the driver on this node",
            path.display()
        ));
    }
    // A function that every driver has: before glibc 2.34, a failed look-up ends a program in a dlmopen namespace.
    // SAFETY: a handle from dlopen and a C string.
    let found = unsafe { libc::dlsym(library, own.0.as_ptr()) };
    if core::ptr::eq(found.cast_const().cast(), own.1) {
        return Err(format!(
            "driver library {}: a look-up in it finds libvgpu.so: either the limits file names this library as the driver, or \
             a preloaded library answers look-ups itself (dlsym; LD_PRELOAD is {:?})",
            path.display(),
            std::env::var_os("LD_PRELOAD").unwrap_or_default()
        ));
    }
    handle.store(library, Ordering::Release);
    log::library(path);
    Ok(())
}

/// Returns the real function of slot `index` as a function pointer of type `F`. Only calling it is unsafe: `F` must
/// have NVIDIA's signature.
#[inline(always)]
pub(crate) fn function<F: Copy>(index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: F is as large as an address. It is the real function of that name, or one of ours that ignores its
    // arguments and returns "not supported".
    unsafe { core::mem::transmute_copy(&address(index)) }
}

/// Returns the real function of slot `index`, or one that returns "not supported" if the library lacks it.
#[inline(always)]
pub(crate) fn address(index: usize) -> *const () {
    let address = TABLE[index].load(Ordering::Acquire);
    if address.is_null() { look_up(index) } else { address }
}

/// Returns what [`address`] has found for slot `index`. None if it was not looked up yet, or if the library could not
/// be opened, which will be tried again.
pub(crate) fn known(index: usize) -> Option<*const ()> {
    let address = TABLE[index].load(Ordering::Acquire);
    (!address.is_null()).then_some(address.cast_const())
}

#[cold]
fn look_up(index: usize) -> *const () {
    let missing = if index < CUDA {
        missing_cuda as *const ()
    } else {
        missing_nvml as *const ()
    };
    let _kept = errno::keep();
    let library = library(index);
    if library.is_null() {
        return missing;
    }
    // SAFETY: a handle from dlopen and a C string.
    let found = unsafe { libc::dlsym(library, name(index).as_ptr()) }
        .cast_const()
        .cast::<()>();
    let found = if found.is_null() { missing } else { found };
    TABLE[index].store(found.cast_mut(), Ordering::Release);
    found
}

/// Returns true if the real library has the function of slot `index`.
pub(crate) fn has(index: usize) -> bool {
    let address = address(index);
    address != missing_cuda as *const () && address != missing_nvml as *const ()
}

/// Returns VGPU_RUN_DIR.
pub(crate) fn run_dir() -> Option<std::ffi::OsString> {
    variable(vgpu_abi::paths::RUN_DIR_VARIABLE)
}

/// Returns an environment variable, or None if the program is setuid.
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    unsafe extern "C" {
        fn secure_getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char;
    }
    let name = CString::new(name).ok()?;
    // SAFETY: a C string in, null or a C string out, copied at once.
    let value = unsafe { secure_getenv(name.as_ptr()).as_ref().map(|value| CStr::from_ptr(value)) }?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value.to_bytes())).into_os_string())
}
