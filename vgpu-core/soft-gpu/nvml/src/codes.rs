//! The codes and pointer types of NVML.

use soft_gpu::c::{Code, Res};

/// The code for a null pointer: NVML_ERROR_INVALID_ARGUMENT.
pub(crate) type Out<T> = soft_gpu::c::Out<T, 2>;
pub(crate) type In<T> = soft_gpu::c::In<T, 2>;
pub(crate) type Text = soft_gpu::c::Text<2>;

pub(crate) const UNINITIALIZED: Code = Code(1);
pub(crate) const INVALID_ARGUMENT: Code = Code(2);
pub(crate) const NOT_SUPPORTED: Code = Code(3);
pub(crate) const NO_PERMISSION: Code = Code(4);
pub(crate) const NOT_FOUND: Code = Code(6);
pub(crate) const INSUFFICIENT_SIZE: Code = Code(7);
pub(crate) const DRIVER_NOT_LOADED: Code = Code(9);
pub(crate) const TIMEOUT: Code = Code(10);
pub(crate) const GPU_IS_LOST: Code = Code(15);
pub(crate) const RESET_REQUIRED: Code = Code(16);
pub(crate) const OPERATING_SYSTEM: Code = Code(17);
pub(crate) const IN_USE: Code = Code(19);
pub(crate) const INSUFFICIENT_RESOURCES: Code = Code(23);
pub(crate) const VERSION_MISMATCH: Code = Code(25);
pub(crate) const UNKNOWN: Code = Code(999);

/// Writes text into a caller's buffer, which must hold all of it.
pub(crate) fn text(out: Out<u8>, room: u32, text: &str) -> Res {
    if text.len() >= room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    out.text(text, i32::try_from(room).unwrap_or(i32::MAX))
}
