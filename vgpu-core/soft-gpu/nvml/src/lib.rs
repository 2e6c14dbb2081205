//! libnvidia-ml.so.1 of the software GPU.
//!
//! ```text
//!  C client ──► api! functions (library, system, device, usage, sensors, export_table)
//!      │                    │
//!      │                    ▼  usage: soft_gpu::state::State::look, one consistent picture a call
//!      └──► stubs (generated): names that are not modelled answer NOT_SUPPORTED and are counted
//! ```
//!
//! It only looks: no process becomes a user of a GPU by calling NVML. On the host it shows every process with its
//! host PID; in a container those of its own PID namespace, while memory counts everybody, as the real one does.
//! How it fails: without a usable state nvmlInit answers DRIVER_NOT_LOADED and says why in one line on stderr.

#![allow(non_snake_case, reason = "the names are C's")]

mod call;
mod device;
mod export_table;
mod library;
mod sensors;
mod stubs;
mod system;
mod usage;
