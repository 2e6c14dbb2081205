//! Re-exports `vgpu_node::tmpfs`.

pub use vgpu_node::tmpfs::*;

#[cfg(test)]
#[path = "../node/src/can_mount_test.rs"]
pub(crate) mod tests;
