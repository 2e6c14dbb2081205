//! Wraps every exported function.

use soft_gpu::c::{Code, Res};

use crate::codes::NOT_SUPPORTED;
use crate::library::{FAULTS, state};

pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Res) -> i32 {
    match FAULTS.hit(name).map_or_else(body, |code| Err(Code(code))) {
        Ok(()) => 0,
        Err(Code(code)) => code,
    }
}

/// A function that the model leaves out; `index` is its place in names/nvml.txt.
pub(crate) fn unsupported(index: usize) -> i32 {
    match state() {
        Ok(state) => {
            state.count_call(true, index);
            NOT_SUPPORTED.0
        }
        Err(Code(code)) => code,
    }
}
