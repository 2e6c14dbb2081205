//! Wraps every exported function.

use std::time::Duration;

use soft_gpu::c::{Code, Res};

use crate::codes::NOT_SUPPORTED;
use crate::library::{FAULTS, state};

/// How often a call that hangs checks whether the fault is still set.
const STILL: Duration = Duration::from_millis(10);

pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Res) -> i32 {
    while state().is_ok_and(|state| state.control().hangs) {
        std::thread::sleep(STILL);
    }
    match FAULTS.hit(name).map_or_else(body, |code| Err(Code(code))) {
        Ok(()) => 0,
        Err(Code(code)) => code,
    }
}

/// A function that the model leaves out; `index` is its place in shim/names/nvml.txt.
pub(crate) fn unsupported(index: usize) -> i32 {
    match state() {
        Ok(state) => {
            state.count_call(true, index);
            NOT_SUPPORTED.0
        }
        Err(Code(code)) => code,
    }
}
