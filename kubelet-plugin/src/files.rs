//! Files by `vgpu_node::files`.

pub use vgpu_node::files::*;
