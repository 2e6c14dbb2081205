//! Handlers of the hooked names, by subject. Each gets the state, its real function, and the
//! caller's arguments.

pub(crate) mod arrays;
pub(crate) mod contexts;
pub(crate) mod device_list;
pub(crate) mod errors;
pub(crate) mod export_table;
pub(crate) mod externals;
pub(crate) mod granules;
pub(crate) mod graph_calls;
pub(crate) mod graphs;
pub(crate) mod imports;
pub(crate) mod info;
pub(crate) mod init;
pub(crate) mod level;
pub(crate) mod locations;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod multicast;
pub(crate) mod nvml_devices;
pub(crate) mod nvml_info;
pub(crate) mod overhead;
pub(crate) mod pools;
pub(crate) mod proc_address;
pub(crate) mod shapes;
pub(crate) mod visible;
pub(crate) mod vmm;
