//! Writes through the pointers that a caller passes for results.

/// Writes a result where the caller wants it.
///
/// # Safety
/// `at` is null or may be written.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: as promised.
        unsafe { at.write(value) };
    }
}
