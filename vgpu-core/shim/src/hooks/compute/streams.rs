//! Streams: the GPU of each; those that are captured into graphs, which are counted, because launches in them are none; and
//! those that end.

use super::forget_stream;
use crate::codes::SUCCESS;
use crate::driver::Real;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::arbiter::stream_gpus::StreamGpus;
use vgpu_core::arbiter::{capture_begun, capture_ended, is_of_a_context, per_thread};
use vgpu_core::memory::driver::Streams;

static GPUS: StreamGpus = StreamGpus::new();

/// Streams are about to end: their GPUs are forgotten now, and again when this is dropped after the driver's call.
#[must_use]
pub(crate) struct Ending(());

impl Ending {
    pub(super) fn new() -> Self {
        GPUS.forget();
        Self(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        GPUS.forget();
    }
}

/// Returns the GPU of a stream, or that of the current context if the handle means a stream of that.
#[inline(always)]
pub(super) fn gpu_of(ready: &'static Ready, stream: usize) -> Option<usize> {
    if let Some(only) = ready.only_gpu() {
        return Some(only);
    }
    let known = match is_of_a_context(stream) {
        true => None,
        false => GPUS.get(stream, || of_driver(ready, stream)),
    };
    known.or_else(|| ready.current())
}

/// Asks the driver for the GPU of a stream.
#[cold]
pub(super) fn of_driver(ready: &'static Ready, stream: usize) -> Option<usize> {
    let context = Real.stream_context(stream).ok()?;
    (Real.push_context(context) == SUCCESS).then_some(())?;
    let gpu = ready.current();
    Real.pop_context();
    gpu
}

pub(crate) fn begin_capture(_ready: &'static Ready, _stream: usize, call: impl FnOnce() -> c_int) -> c_int {
    // Counted before: a launch of another thread asks the driver meanwhile.
    capture_begun();
    let result = call();
    if result != SUCCESS {
        capture_ended();
    }
    result
}

/// Ends the capture of `stream` by `call`, and counts it. The default stream cannot be captured, so 0 is the thread's own. A
/// capture that was broken may end with any code.
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
