//! What the OCI hooks vgpu-cdi-hook and vgpu-driver-limit have in common. Few dependencies, because the former is static and
//! small.
//!
//! ```text
//!  runtime ──stdin──► state ──► the container's id, and the fields that a hook reads
//!  /proc/self/mountinfo ──► mount ──► where a file system is mounted
//!  a reason ──► report ──► a line in a file of the claim's directory, or on stderr
//! ```
#![forbid(unsafe_code)]

pub mod mount;
pub mod report;
pub mod state;
pub mod text;
