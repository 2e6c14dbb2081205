//! Captures of streams into graphs, which are counted: launches in them are none.

use crate::codes::SUCCESS;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::arbiter::{capture_begun, capture_ended};

/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: the capture ends, without a graph.
const INVALIDATED: c_int = 901;

pub(crate) fn begin(_ready: &'static Ready, call: impl FnOnce() -> c_int) -> c_int {
    // Counted before: a launch of another thread asks the driver meanwhile.
    capture_begun();
    let result = call();
    if result != SUCCESS {
        capture_ended();
    }
    result
}

pub(crate) fn end(_ready: &'static Ready, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if matches!(result, SUCCESS | INVALIDATED) {
        capture_ended();
    }
    result
}
