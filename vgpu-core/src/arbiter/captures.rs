//! Counts streams that are being captured into graphs: a launch may be a node, which takes no GPU time, and calls of
//! ours could end the capture.
//!
//! How it fails: a capture whose end is not seen keeps the count up. Each launch and each event then costs a question to
//! the driver.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use core::ffi::c_int;

use crate::memory::driver::Streams;

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// A capture has begun.
pub fn begun() {
    UNDER_WAY.fetch_add(1, Relaxed);
}

/// One has ended.
pub fn ended() {
    let less = |count: u32| count.checked_sub(1);
    let _ = UNDER_WAY.fetch_update(Relaxed, Relaxed, less);
}

/// Returns true if a stream may be captured at the moment.
#[inline(always)]
pub(super) fn may_be_under_way() -> bool {
    UNDER_WAY.load(Relaxed) != 0
}

/// While it lives, calls of this thread do not end a capture of another one.
pub(super) struct Unharmful<'a, D: Streams> {
    driver: &'a D,
    before: c_int,
}

/// Returns a guard. Also where no capture is known: one may begin at any moment.
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
