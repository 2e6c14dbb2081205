//! Counts captures of streams into graphs: during one, a launch may only add a node, which takes no GPU time, and our own
//! calls could invalidate the capture.
//!
//! How it fails: if the end of a capture is not seen, the count stays above 0. Each launch and each event then costs a
//! call of the driver.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use core::ffi::c_int;

use crate::memory::driver::Streams;

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Notes that a capture has begun.
pub fn begun() {
    UNDER_WAY.fetch_add(1, Relaxed);
}

/// Notes that a capture has ended.
pub fn ended() {
    let less = |count: u32| count.checked_sub(1);
    let _ = UNDER_WAY.fetch_update(Relaxed, Relaxed, less);
}

/// Returns true if a stream may be captured at the moment.
#[inline(always)]
pub(super) fn may_be_under_way() -> bool {
    UNDER_WAY.load(Relaxed) != 0
}

/// While this exists, calls of this thread do not invalidate captures of other threads.
pub(super) struct Unharmful<'a, D: Streams> {
    driver: &'a D,
    before: c_int,
}

/// Also used while no capture is known, because another thread may begin one at any moment.
pub(super) fn spare<D: Streams>(driver: &D) -> Unharmful<'_, D> {
    /// CU_STREAM_CAPTURE_MODE_RELAXED.
    const RELAXED: c_int = 2;
    Unharmful {
        driver,
        before: driver.exchange_capture_mode(RELAXED),
    }
}

impl<D: Streams> Drop for Unharmful<'_, D> {
    fn drop(&mut self) {
        self.driver.exchange_capture_mode(self.before);
    }
}
