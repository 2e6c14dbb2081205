//! NVML's errors by their names.

use std::{ffi::c_int, fmt};

/// An nvmlReturn_t other than success, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const OPERATING_SYSTEM: Self = Self(17);
    /// Not NVML's: no answer in time.
    pub(crate) const HANGS: Self = Self(-1);
    /// Not NVML's: its process has ended.
    pub(crate) const ENDED: Self = Self(-2);

    /// Returns true if this does not say what the driver can do: NVML did not answer, or the driver or the GPU is in trouble.
    pub(crate) fn is_no_answer(self) -> bool {
        const UNKNOWN: c_int = 999;
        matches!(self, Self::HANGS | Self::ENDED) || matches!(self.0, 1 | 9 | 10 | 15 | 16 | 18 | UNKNOWN)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            -1 => return write!(f, "NVML does not answer"),
            -2 => return write!(f, "the process that called NVML has ended"),
            1 => "UNINITIALIZED",
            2 => "INVALID_ARGUMENT",
            3 => "NOT_SUPPORTED",
            4 => "NO_PERMISSION",
            6 => "NOT_FOUND",
            7 => "INSUFFICIENT_SIZE",
            9 => "DRIVER_NOT_LOADED",
            10 => "TIMEOUT",
            15 => "GPU_IS_LOST",
            16 => "RESET_REQUIRED",
            17 => "OPERATING_SYSTEM",
            18 => "LIB_RM_VERSION_MISMATCH",
            code => return write!(f, "NVML's error {code}"),
        };
        write!(f, "NVML_ERROR_{name}")
    }
}
