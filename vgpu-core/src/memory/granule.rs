//! The sizes in which drivers take memory.

/// A driver takes the memory of a GPU in granules of this size.
pub const GRANULE: u64 = 2 << 20;
/// The largest alignment of the rows of a pitched allocation.
pub const PITCH: u64 = 512;

/// Returns `bytes` rounded up to whole granules, or None if that overflows.
#[inline]
#[must_use]
pub fn granules(bytes: u64) -> Option<u64> {
    crate::account::rounded(bytes, GRANULE)
}
