//! Records calls that return out of memory in the ledgers (`vgpu_core::memory::refusal`).

use crate::process::Ready;
use crate::real::real;
use vgpu_core::memory::refusal;
use vgpu_core::os::errno;

/// Records that a call returns out of memory.
#[cold]
#[inline(never)]
pub(crate) fn record(ready: &Ready) {
    let _kept = errno::keep();
    refusal::record(&ready.gpus, ready.current(), free);
}

/// Returns the free bytes of the current context's GPU; None without a context.
fn free() -> Option<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are to be written.
    let result = unsafe { real!(cuMemGetInfo_v2)(&mut free, &mut total) };
    (result == crate::codes::SUCCESS).then_some(free as u64)
}
