//! Tells AddressSanitizer that this library may come before its runtime.
//!
//! Its shared runtime, gcc's default, ends a program in whose list of libraries another one is first: that one could
//! have its own malloc. The list of /etc/ld.so.preload is always first. This library has nothing that the runtime
//! intercepts but `dlopen`, whose next definition it calls. So it switches the check off, in the way that the runtime
//! documents: it calls a function of this name and reads options from the answer. Options of ASAN_OPTIONS override
//! these, and a program that has the function itself has to set `verify_asan_link_order=0` there.
#![allow(unsafe_code)] // An exported name.

/// const char *__asan_default_options(void)
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"verify_asan_link_order=0".as_ptr()
}
