//! Calls of NVML that nvml-wrapper has no function for: its types have no name outside nvml-wrapper.

#![allow(unsafe_code)] // zeros as a value of a C structure.

/// Returns a value of the type that a function writes, all of whose bytes are zero. nvml-wrapper does not name the type.
///
/// # Safety
/// Zeros are a value of `T`.
pub unsafe fn zeroed<D, T, R>(_writer: &unsafe extern "C" fn(D, *mut T) -> R) -> T {
    // SAFETY: as promised.
    unsafe { std::mem::zeroed() }
}

/// Same as [`zeroed`], for a function with a second argument.
///
/// # Safety
/// Zeros are a value of `T`.
pub unsafe fn zeroed_second<D, A, T, R>(_writer: &unsafe extern "C" fn(D, A, *mut T) -> R) -> T {
    // SAFETY: as promised.
    unsafe { std::mem::zeroed() }
}

/// Same as [`zeroed`], for a function with a second and a third argument.
///
/// # Safety
/// Zeros are a value of `T`.
pub unsafe fn zeroed_third<D, A, B, T, R>(_writer: &unsafe extern "C" fn(D, A, B, *mut T) -> R) -> T {
    // SAFETY: as promised.
    unsafe { std::mem::zeroed() }
}
