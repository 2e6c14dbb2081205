//! Gives the runtimes of sanitizers the options that the libraries of a share need, in the documented way: a runtime
//! calls a function of a known name, and reads options from its answer. Options of the environment (ASAN_OPTIONS,
//! TSAN_OPTIONS) override these, and suppressions of the environment are added. If a program has its own function of
//! that name, that is called instead: docs/loading.md says what it has to answer.
//!
//! AddressSanitizer's shared runtime, gcc's default, ends a program if another library is first in the list, because
//! that library could have its own malloc. The list of /etc/ld.so.preload is always first. Of the functions that the
//! runtime intercepts, this library has only `dlopen`, whose next definition it calls. So it switches the check off.
//!
//! ThreadSanitizer sees what uncompiled libraries do with memory (malloc, memcpy), and not the locks by which their
//! threads agree on that. It would find races in the shim, and end an honest program with exit status 66. So reports
//! with a frame of the shim or the driver in one of their stacks are suppressed, including those on functions of the
//! program that the driver calls back. (`called_from_lib` would leave them in, but the runtime ends a process in which
//! two libraries have the name, as shim and driver do.)
#![allow(unsafe_code)] // Exported names.

use core::ffi::{CStr, c_char};

const SUPPRESSIONS: &CStr = c"race:libcuda.so.1\nrace:libnvidia-ml.so.1\n";

/// const char *__asan_default_options(void)
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// const char *__tsan_default_options(void)
#[unsafe(no_mangle)]
extern "C" fn __tsan_default_options() -> *const c_char {
    // Otherwise, suppressions that matched are listed on stderr.
    c"print_suppressions=0".as_ptr()
}

/// const char *__tsan_default_suppressions(void)
#[unsafe(no_mangle)]
extern "C" fn __tsan_default_suppressions() -> *const c_char {
    SUPPRESSIONS.as_ptr()
}
