//! Hooks of NVML: programs see the share instead of the GPU.

pub(crate) mod devices;
pub(crate) mod export_table;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod usage;
pub(crate) mod whole;
