//! The hooked functions of the driver API and of NVML. A line of a table is
//!
//! ```text
//! class name, name: (argument: type, ...) => handler;
//! ```
//!
//! It exports one function for each name, which passes the real function of that name to the handler. Classes: `charged`
//! (may allocate memory), `released` (may free it), `limited` (reports a limit or is subject to it), `virtualised` (shows
//! the share instead of the GPU). Threads in driver calls of the first three are tracked (`vgpu_core::calls`).

/// Exports the names of one API.
macro_rules! hooks {
    ($api:ident; $($class:ident $($name:ident),+: $arguments:tt => $handler:path;)*) => {
        $($($crate::table::hook!($api, $class, $name, $arguments, $handler);)+)*
    };
}

/// Declares functions that are bound only in processes whose GPU time is limited ([`crate::jump`]): each public name is
/// a jump, to the real function or to the one here. `registers` stands for any arguments
/// that fit in six registers; the handler gets the first of them.
macro_rules! limited_launches {
    ($($class:ident $($name:ident),+: $arguments:tt => $handler:path;)*) => {
        pub(super) mod functions {
            #[allow(clippy::wildcard_imports)] // The types that the table names.
            use super::*;
            $($($crate::table::function!($name, $arguments, $handler);)+)*
        }

        /// Returns the function to bind for a slot, or None if it is not declared here.
        pub(crate) fn bound(slot: usize) -> Option<*const ()> {
            match slot {
                $($($crate::names::slot::$name => Some(functions::$name as *const ()),)+)*
                _ => None,
            }
        }
    };
}

macro_rules! function {
    ($name:ident, ($($argument:ident: $kind:ty),*), $handler:path) => {
        pub(in crate::table) unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            // SAFETY: the caller's promises are passed on.
            let again = || unsafe { $name($($argument),*) };
            $crate::detour::time($crate::names::slot::$name, again, |ready, address| {
                // SAFETY: the real function of this very name has this signature.
                let real = unsafe {
                    core::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>(address)
                };
                $crate::table::dissected!($handler, real($($argument),*));
                // SAFETY: the caller's promises to the driver are passed on.
                unsafe { $handler(ready, real, $($argument),*) }
            })
        }
    };
    // Integers or pointers, each of which takes one register.
    ($name:ident, registers, $handler:path) => {
        pub(in crate::table) unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> core::ffi::c_int {
            // SAFETY: registers are passed on as they came.
            let again = || unsafe { $name(a, b, c, d, e, f) };
            $crate::detour::time($crate::names::slot::$name, again, |ready, address| {
                // SAFETY: registers are passed on as they came.
                let real = unsafe {
                    core::mem::transmute::<
                        *const (),
                        unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> core::ffi::c_int,
                    >(address)
                };
                $crate::table::dissected!($handler, real(a, b, c, d, e, f));
                // SAFETY: as above.
                $handler(ready, a, || unsafe { real(a, b, c, d, e, f) })
            })
        }
    };
}

macro_rules! hook {
    ($api:ident, $class:ident, $name:ident, ($($argument:ident: $kind:ty),*), $handler:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            // SAFETY: the caller's promises are passed on.
            let again = || unsafe { $name($($argument),*) };
            $crate::table::detour!($api, $class, $name, again, |ready, address| {
                // SAFETY: the real function of this very name has this signature.
                let real = unsafe {
                    core::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>(address)
                };
                $crate::table::dissected!($handler, real($($argument),*));
                // SAFETY: the caller's promises to the driver are passed on.
                unsafe { $handler(ready, real, $($argument),*) }
            })
        }
    };
}

/// Runs a hook of one API.
macro_rules! detour {
    (cuda, $class:ident, $name:ident, $again:expr, $handle:expr) => {
        $crate::detour::cuda(
            $crate::detour::Class::$class,
            $crate::names::slot::$name,
            $again,
            $handle,
        )
    };
    (nvml, $class:ident, $name:ident, $again:expr, $handle:expr) => {
        $crate::detour::nvml($crate::names::slot::$name, $again, $handle)
    };
}

/// Calls the driver instead if the handler's part is switched off: in libvgpu-dissect.so alone.
macro_rules! dissected {
    ($handler:path, $call:expr) => {
        #[cfg(feature = "dissect")]
        if $crate::dissect::is_off(stringify!($handler)) {
            // SAFETY: the caller's promises to the driver are passed on.
            return unsafe { $call };
        }
    };
}

pub(crate) use {detour, dissected, function, hook};

pub(crate) mod compute;
pub(crate) mod cuda;
pub(crate) mod devices;
pub(crate) mod granted;
pub(crate) mod nvml;
