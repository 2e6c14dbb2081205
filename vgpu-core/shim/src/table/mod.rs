//! The hooked functions of the driver API and of NVML. A line of a table is
//!
//! ```text
//! class name, name: (argument: type, ...) => handler(value, ...);
//! class name, name: (argument: type, ...) => |argument, ...| handler(value, ...);
//! ```
//!
//! It exports one function for each name. The handler gets the state of the process, the values, and last a function
//! that makes the driver's call. That function takes the arguments between the bars, which the handler may replace, and
//! passes all others on as the program gave them. Values are expressions of the arguments, so functions that differ in
//! their types or versions share a handler. `..` as the last argument means all further arguments, which are passed on:
//! together at most six integers or pointers.
//!
//! Classes: `charged` (may allocate memory), `released` (may free it), `limited` (reports a limit or is subject to it),
//! `virtualised` (shows the share instead of the GPU). Threads in driver calls of the first three are tracked
//! (`vgpu_core::calls`).
//!
//! A handler that reads or writes through the program's pointers is unsafe. Its safety condition is that of the
//! driver's function: each pointer is null or valid for what the function does with it.

/// Exports the names of one API.
macro_rules! hooks {
    ($api:ident; $($lines:tt)*) => {
        $crate::table::lines!([#[unsafe(no_mangle)]] $api; $($lines)*);
    };
}

/// Declares functions that are bound only in processes whose GPU time is limited ([`crate::jump`]): each public name is
/// a jump, to the real function or to the one here.
macro_rules! limited_launches {
    ($($class:ident $($name:ident),+: $arguments:tt => $($handler:ident)::+ ($($values:tt)*);)*) => {
        pub(super) mod functions {
            #[allow(clippy::wildcard_imports)] // The types that the table names.
            use super::*;
            $crate::table::lines!([] time; $($class $($name),+: $arguments => $($handler)::+ ($($values)*);)*);
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

/// Defines the functions of a table's lines, and for each its type in `types`.
macro_rules! lines {
    ($attributes:tt $api:ident; $(
        $class:ident $($name:ident),+: $arguments:tt =>
            $(|$($changed:ident),+|)? $($handler:ident)::+ ($($values:tt)*);
    )*) => {
        /// The types of the functions, by their names.
        #[allow(dead_code, non_camel_case_types)]
        pub(crate) mod types {
            #[allow(clippy::wildcard_imports, unused_imports)] // The types that the table names.
            use super::*;
            $($crate::table::line_types!([$($name)+] $arguments);)*
        }
        $($crate::table::functions!(
            $attributes $api $class [$($name)+] $arguments [$($($changed),+)?] {$($handler)::+} ($($values)*)
        );)*
    };
}

/// Defines the types of one line.
macro_rules! line_types {
    ([$($name:ident)+] (..)) => {};
    ([$($name:ident)+] ($first:ident: $kind:ty, ..)) => {};
    ([$($name:ident)+] $arguments:tt) => {
        $($crate::table::line_types!(@one $name $arguments);)+
    };
    (@one $name:ident ($($argument:ident: $kind:ty),*)) => {
        pub(crate) type $name = unsafe extern "C" fn($($kind),*) -> core::ffi::c_int;
    };
}

/// Defines the functions of one line.
macro_rules! functions {
    ($attributes:tt $api:ident $class:ident [$($name:ident)+] $arguments:tt $changed:tt $handler:tt $values:tt) => {
        $($crate::table::function!($attributes $api $class $name $arguments $changed $handler $values);)+
    };
}

/// Defines one function.
macro_rules! function {
    ($attributes:tt $api:ident $class:ident $name:ident (..) $changed:tt $handler:tt $values:tt) => {
        $crate::table::function!($attributes $api $class $name (a: usize, ..) $changed $handler $values);
    };
    ($attributes:tt $api:ident $class:ident $name:ident ($first:ident: usize, ..) $changed:tt $handler:tt $values:tt) => {
        $crate::table::function!(
            $attributes $api $class $name ($first: usize, b: usize, c: usize, d: usize, e: usize, f: usize)
            $changed $handler $values
        );
    };
    (
        [$($attribute:tt)*] $api:ident $class:ident $name:ident ($($argument:ident: $kind:ty),*)
        [$($changed:ident),*] {$($handler:tt)+} ($($value:expr),*)
    ) => {
        $($attribute)*
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> core::ffi::c_int {
            // SAFETY: the caller's promises are passed on.
            let again = || unsafe { $name($($argument),*) };
            $crate::table::detour!($api, $class, $name, again, |ready, address| {
                // SAFETY: the real function of this very name has this signature.
                let real = unsafe {
                    core::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> core::ffi::c_int>(address)
                };
                // SAFETY: the program's arguments; what a handler replaces is as valid as what the program gave.
                let next = |$($changed),*| unsafe { real($($argument),*) };
                #[cfg(feature = "dissect")]
                if $crate::dissect::is_off(stringify!($($handler)+)) {
                    // The handler's part is switched off.
                    return next($($changed),*);
                }
                #[allow(unused_unsafe)] // Not every handler is unsafe.
                // SAFETY: the caller's promises to the driver are passed on.
                let result = unsafe { $($handler)+(ready, $($value,)* next) };
                result
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
    ($run:ident, $class:ident, $name:ident, $again:expr, $handle:expr) => {
        $crate::detour::$run($crate::names::slot::$name, $again, $handle)
    };
}

pub(crate) use {detour, function, functions, line_types, lines};

/// The types of the hooked functions, by their names.
pub(crate) mod types {
    pub(crate) use super::compute::functions::types::*;
    pub(crate) use super::cuda::types::*;
    pub(crate) use super::nvml::types::*;
}

pub(crate) mod compute;
pub(crate) mod cuda;
pub(crate) mod devices;
pub(crate) mod granted;
pub(crate) mod nvml;
