//! Wraps every exported function: calls an injected library back, injects failures, converts results to codes, counts calls
//! of functions that are not modelled.

use soft_gpu::faults::Faults;

use crate::code::{Code, NOT_SUPPORTED, Res};
use crate::driver;

pub(crate) static FAULTS: Faults = Faults::none();

#[inline]
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Res) -> i32 {
    crate::injection::begins(name);
    match FAULTS.hit(name).map_or_else(body, |code| Err(Code(code))) {
        Ok(()) => 0,
        Err(Code(code)) => code,
    }
}

/// A function that the model leaves out; `index` is its place in shim/names/cuda.txt.
pub(crate) fn unsupported(index: usize) -> i32 {
    match driver::get() {
        Ok(driver) => {
            driver.state().count_call(false, index);
            NOT_SUPPORTED.0
        }
        Err(Code(code)) => code,
    }
}
