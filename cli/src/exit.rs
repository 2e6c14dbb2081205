//! Exit statuses of `vgpu` itself. `vgpu run` otherwise exits with COMMAND's status.

/// `vgpu allocate` and `vgpu explain`: the claims do not fit. `vgpu translate`: a pod is refused.
pub const NO: u8 = 1;
/// An error in the flags or the input, or a machine that does not support them.
pub const USAGE: u8 = 2;
/// COMMAND cannot be executed (the shells' status for it).
pub const NOT_EXECUTABLE: u8 = 126;
/// COMMAND was not found (the shells' status for it).
pub const NOT_FOUND: u8 = 127;
