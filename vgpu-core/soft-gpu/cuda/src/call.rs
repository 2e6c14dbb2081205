//! What surrounds every exported function: injected failures, the code that C sees, calls of what is not modelled.

#![allow(unsafe_code)] // #[unsafe(no_mangle)] in the macro.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, NOT_SUPPORTED, Res};
use crate::driver;

/// Exports functions under their C names. A body gives `Res`; C gets its code.
#[macro_export]
macro_rules! api {
    ($( $(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block )*) => { $(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "exported under its C name")]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::call::call(stringify!($name), move || -> $crate::code::Res { $body })
        }
    )* };
}

/// Set once the profile is known to inject failures, so that others pay one load.
static FAULTS: AtomicBool = AtomicBool::new(false);

pub(crate) fn arm_faults() {
    FAULTS.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Res) -> i32 {
    if FAULTS.load(Ordering::Relaxed)
        && let Some(code) = injected(name)
    {
        return code;
    }
    match body() {
        Ok(()) => 0,
        Err(Code(code)) => code,
    }
}

/// A profile names a function with or without its version.
#[cold]
pub(crate) fn injected(name: &'static str) -> Option<i32> {
    static CALLS: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);
    let faults = &driver::get().ok()?.state().profile().faults;
    let base = name.rsplit_once("_v").map_or(name, |(base, _)| base);
    let fault = faults
        .iter()
        .find(|fault| fault.function == name || fault.function == base)?;
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = calls.get_or_insert_default().entry(name).or_default();
    *count += 1;
    fault.hits(*count).then_some(fault.code)
}

/// A function that the model leaves out; `index` is its place in names/cuda.txt.
pub(crate) fn unsupported(index: usize) -> i32 {
    if let Ok(driver) = driver::get() {
        driver.state().count_call(false, index);
    }
    NOT_SUPPORTED.0
}
