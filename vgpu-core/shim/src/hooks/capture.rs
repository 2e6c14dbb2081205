//! Asks the driver about stream captures.

use crate::codes::SUCCESS;
use crate::real::real;
use core::ffi::c_int;

/// Returns true if an allocation in `stream` becomes a node of a graph, and takes no memory yet.
pub(crate) fn is_captured(stream: usize) -> bool {
    /// The default stream that can be captured: the thread's own.
    const PER_THREAD: usize = 2;
    let (stream, mut status) = (if stream == 0 { PER_THREAD } else { stream }, 0);
    // SAFETY: to be written.
    let result = unsafe { real!(cuStreamIsCapturing(usize, *mut c_int))(stream, &mut status) };
    result == SUCCESS && status != 0
}
