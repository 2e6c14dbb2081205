//! Result codes of both APIs that the library returns itself, and functions that only return one.

use core::ffi::c_int;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const NOT_PERMITTED: c_int = 800;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const UNSUPPORTED_LIMIT: c_int = 215;
pub(crate) const UNKNOWN: c_int = 999;

pub(crate) const NVML_SUCCESS: c_int = 0;
pub(crate) const NVML_UNINITIALIZED: c_int = 1;
pub(crate) const NVML_INVALID_ARGUMENT: c_int = 2;
pub(crate) const NVML_NOT_SUPPORTED: c_int = 3;
pub(crate) const NVML_NO_PERMISSION: c_int = 4;
pub(crate) const NVML_NOT_FOUND: c_int = 6;
pub(crate) const NVML_INSUFFICIENT_SIZE: c_int = 7;
pub(crate) const NVML_FUNCTION_NOT_FOUND: c_int = 13;

/// Accepts any arguments: in this ABI the caller removes them.
pub(crate) extern "C" fn refused_cuda() -> c_int {
    NOT_PERMITTED
}
pub(crate) extern "C" fn refused_nvml() -> c_int {
    NVML_NO_PERMISSION
}
pub(crate) extern "C" fn missing_cuda() -> c_int {
    NOT_SUPPORTED
}
pub(crate) extern "C" fn missing_nvml() -> c_int {
    NVML_FUNCTION_NOT_FOUND
}
