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

macro_rules! hook {
    ($api:ident, $class:ident, $name:ident, ($($argument:ident: $kind:ty),*), $handler:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            $crate::table::detour!($api, $class, $name, |ready, address| {
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

/// Runs a hook of one API.
macro_rules! detour {
    (cuda, $class:ident, $name:ident, $handle:expr) => {
        $crate::detour::cuda($crate::detour::Class::$class, $crate::names::slot::$name, $handle)
    };
    (nvml, $class:ident, $name:ident, $handle:expr) => {
        $crate::detour::nvml($crate::names::slot::$name, $handle)
    };
}

pub(crate) use {detour, hook};

pub(crate) mod cuda;
pub(crate) mod devices;
pub(crate) mod nvml;
