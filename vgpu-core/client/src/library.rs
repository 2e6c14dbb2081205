//! The libraries of the driver API and of NVML, opened and called as any program does it.

use std::ffi::{CStr, CString, c_void};

pub(crate) fn open(name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name");
    // SAFETY: a C string.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: dlerror's text lasts until the next call.
        let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
        panic!("{name:?}: {reason:?}");
    }
    library
}

/// Returns the result of a library's function, called as `fn(...) -> c_int`.
macro_rules! call {
    ($library:expr, $name:literal ($($kind:ty),*) ($($value:expr),*)) => {{
        let name = concat!($name, "\0");
        // SAFETY: the library's function of this name has this signature.
        unsafe {
            let address = libc::dlsym($library, name.as_ptr().cast());
            assert!(!address.is_null(), "{} is not exported", $name);
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($kind),*) -> std::ffi::c_int>(address)($($value),*)
        }
    }};
}
pub(crate) use call;

/// Launches a kernel without parameters in the default stream: `grid` blocks of `block` threads.
pub(crate) fn launch(cuda: *mut c_void, function: usize, grid: u32, block: u32) -> i32 {
    call!(
        cuda,
        "cuLaunchKernel"(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize)(
            function, grid, 1, 1, block, 1, 1, 0, 0, 0, 0
        )
    )
}

/// Parses a number, with KiB, MiB or GiB.
pub(crate) fn size(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => 0,
    };
    digits.parse::<u64>().unwrap_or(0) << shift
}
