//! The real libraries: opened by the path in the limits file, once our own file holds both names.
//!
//! The real file's DT_SONAME is `libcuda.so.1`: opened while nothing else holds that name, it would
//! answer the program's next dlopen of it in our place. So both names are asked for first, with
//! RTLD_NOLOAD, which makes the loader note them on our file (found through our DT_RPATH $ORIGIN, before
//! any other place). Handles are never closed.
//!
//! How it fails: a driver was loaded before us and holds the name. It keeps it; the backstop library is
//! there for that, and leads what the loader binds to it to us.

use crate::jump::{TABLE, bind};
use crate::names::{CUDA, NAMES};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};

/// The real libraries' handles: libcuda, libnvidia-ml. A fork child keeps them.
static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// The real functions of hooked names, called with the hook's signature.
macro_rules! real {
    ($name:ident ($($kind:ty),*)) => {
        $crate::real::function::<unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>($crate::names::slot::$name)
    };
}
pub(crate) use real;

/// Opens both, `libcuda` being the one that must be there.
///
/// # Errors
/// One line that names the file.
pub(crate) fn open(libcuda: &Path, libnvidia_ml: &Path) -> Result<(), String> {
    take_names();
    let (cuda, nvml) = (
        crate::table::cuda::cuInit as *const (),
        crate::table::nvml::nvmlInit_v2 as *const (),
    );
    load(&HANDLES[0], libcuda, (c"cuInit", cuda))?;
    // A container may have the one without the other; who asks for it then hears "not found".
    let nvml = load(&HANDLES[1], libnvidia_ml, (c"nvmlInit_v2", nvml));
    if libnvidia_ml.exists() { nvml } else { Ok(()) }
}

/// Makes the loader answer both names with this file, before anything else of that name is opened.
pub(crate) fn take_names() {
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        take(name);
    }
}

/// Makes the loader answer `name` with this file.
fn take(name: &str) {
    if let Ok(name) = CString::new(name) {
        // SAFETY: a C string. The handle is kept for good: that is what holds the name.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    }
}

/// `own`: a function that the library has, and where it would be if that were us.
fn load(handle: &AtomicPtr<c_void>, path: &Path, own: (&CStr, *const ())) -> Result<(), String> {
    if !handle.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("driver library {path:?}: bad path"))?;
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
    // It has that function: before glibc 2.34 a look-up that fails ends a program in a dlmopen namespace.
    // SAFETY: a handle from dlopen and a C string.
    let found = unsafe { libc::dlsym(library, own.0.as_ptr()) };
    if core::ptr::eq(found.cast_const().cast(), own.1) {
        return Err(format!(
            "driver library {} is libvgpu.so itself, not the driver: check the limits file",
            path.display()
        ));
    }
    handle.store(library, Ordering::Release);
    Ok(())
}

/// The real function of slot `index` as an `F`, a function pointer; calling it is what is unsafe: `F`
/// must have NVIDIA's signature.
#[inline(always)]
pub(crate) fn function<F: Copy>(index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: F is as large as an address; it is the real function of that name, or one of ours that
    // takes any arguments and answers "not supported".
    unsafe { core::mem::transmute_copy(&address(index)) }
}

/// The real function of slot `index`; one that answers "not supported" if the library lacks it.
#[inline(always)]
pub(crate) fn address(index: usize) -> *const () {
    let address = TABLE[index].load(Ordering::Acquire);
    if core::ptr::eq(address, bind as *const ()) {
        look_up(index)
    } else {
        address
    }
}

#[cold]
fn look_up(index: usize) -> *const () {
    let (library, missing) = if index < CUDA {
        (&HANDLES[0], crate::detour::missing_cuda as *const ())
    } else {
        (&HANDLES[1], crate::detour::missing_nvml as *const ())
    };
    let library = library.load(Ordering::Acquire);
    if library.is_null() {
        return missing;
    }
    let _kept = vgpu_core::os::errno::keep();
    // SAFETY: a handle from dlopen and a C string.
    let found = unsafe { libc::dlsym(library, NAMES[index].as_ptr()) }
        .cast_const()
        .cast::<()>();
    let found = if found.is_null() { missing } else { found };
    TABLE[index].store(found.cast_mut(), Ordering::Release);
    found
}

/// Whether the real library has the function of slot `index`.
pub(crate) fn has(index: usize) -> bool {
    let address = address(index);
    address != crate::detour::missing_cuda as *const () && address != crate::detour::missing_nvml as *const ()
}

/// VGPU_RUN_DIR.
pub(crate) fn run_dir() -> Option<std::ffi::OsString> {
    variable(vgpu_abi::paths::RUN_DIR_VARIABLE)
}

/// A variable, ignored where the program is setuid.
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    unsafe extern "C" {
        fn secure_getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char;
    }
    let name = CString::new(name).ok()?;
    // SAFETY: a C string in, null or a C string out, copied at once.
    let value = unsafe { secure_getenv(name.as_ptr()).as_ref().map(|value| CStr::from_ptr(value)) }?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value.to_bytes())).into_os_string())
}
