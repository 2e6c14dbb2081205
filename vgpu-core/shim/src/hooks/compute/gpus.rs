//! The GPU of each stream: a launch goes there, whatever context is current.

use crate::codes::SUCCESS;
use crate::driver::Real;
use crate::process::Ready;
use vgpu_core::arbiter::is_of_a_context;
use vgpu_core::arbiter::stream_gpus::StreamGpus;
use vgpu_core::memory::driver::Streams;

static GPUS: StreamGpus = StreamGpus::new();

/// Streams are about to end: their GPUs are forgotten now, before the driver's call, and again after it when this value
/// is dropped.
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

/// Returns the GPU of a stream, or that of the current context if the handle means a stream of that context. The driver
/// is not asked before it is initialised: NVIDIA's driver would crash for an invalid handle, for which a launch returns
/// an error.
#[inline(always)]
pub(super) fn of_stream(ready: &'static Ready, stream: usize) -> Option<usize> {
    if is_of_a_context(stream) || !ready.has_several_gpus() {
        return ready.current();
    }
    GPUS.get(stream, || of_driver(ready, stream))
        .or_else(|| ready.current())
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
