//! Streams that end, and streams that are captured into graphs, in which launches do not run: captures are counted.

use super::{forget_stream, gpus};
use crate::codes::SUCCESS;
use crate::driver::Real;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::arbiter::{capture_begun, capture_ended, per_thread};
use vgpu_core::memory::driver::Streams;

pub(crate) fn begin_capture(ready: &'static Ready, stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    let begin = || {
        // Counted before the call: a launch of another thread then asks the driver whether its stream is captured.
        capture_begun();
        let result = call();
        if result != SUCCESS {
            capture_ended();
        }
        result
    };
    let gpu = gpus::of_stream(ready, stream).and_then(|gpu| ready.times.get(gpu)?.as_ref()?.arbiter_in_use());
    match gpu {
        Some(arbiter) => arbiter.without_events(begin),
        None => begin(),
    }
}

/// Ends the capture of `stream` by `call`, and counts its end. The default stream cannot be captured, so 0 means the
/// thread's own stream. The call may return any code if the capture was invalidated.
pub(crate) fn capture_ends(stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    let stream = per_thread(stream);
    let was_captured = is_captured(stream);
    let result = call();
    if was_captured && !is_captured(stream) {
        capture_ended();
    }
    result
}

pub(crate) fn destroy(ready: &'static Ready, stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    let was_captured = is_captured(stream);
    let _ending = forget_stream(ready, stream);
    let result = call();
    if was_captured && result == SUCCESS {
        capture_ended();
    }
    result
}

fn is_captured(stream: usize) -> bool {
    Real.is_capturing(stream) == Ok(true)
}
