//! The hooked names. A line of a table is
//!
//! ```text
//! class name, name: (argument: type, ...) => handler;
//! ```
//!
//! and exports one function for each name, which passes the real function of that name to the handler. Classes: `charged`
//! (may allocate memory), `released` (may free it), `limited` (reports a limit or is subject to it), `virtualised` (shows
//! the share instead of the GPU). Threads in calls of the first three are tracked (`vgpu_core::calls`).

/// Exports `names` of one API.
macro_rules! hooks {
    ($api:ident; $($class:ident $($name:ident),+: $arguments:tt => $handler:path;)*) => {
        $($($crate::table::hook!($api, $class, $name, $arguments, $handler);)+)*
    };
}

macro_rules! hook {
    ($api:ident, $class:ident, $name:ident, ($($argument:ident: $kind:ty),*), $handler:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            $crate::detour::$api($crate::detour::class::$class, $crate::names::slot::$name, |ready, address| {
                // SAFETY: the real function of this very name has this signature.
                let real = unsafe {
                    core::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>(address)
                };
                // SAFETY: the caller's promises to the driver are passed on.
                unsafe { $handler(ready, real, $($argument),*) }
            })
        }
    };
}

pub(crate) use hook;

pub(crate) mod cuda;
pub(crate) mod devices;
pub(crate) mod nvml;
