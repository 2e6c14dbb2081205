//! MIG instances that claims make: which ones a GPU can offer, and how they come and go.
//!
//! ```text
//!  profiles, administrator's instances ─► candidates ─► counters and devices of a pool      (pure)
//!
//!  Prepare, Unprepare, start ─► instances ─┬─► records   a file for each instance, before it is made
//!                                          └─► driver ─► nvml   in the child process that has NVML
//! ```
//!
//! The plugin decides which GPUs are dynamic, holds the node's lock around each call of [`Instances`], and passes calls of
//! [`MigDriver`] to its child (`dra/node/instances.rs`, `publish/gpus/dynamic.rs` and `nvml` there).
#![deny(unsafe_code)] // allowed in nvml.rs alone: nvml-wrapper has no functions for instances

pub mod candidates;
pub mod driver;
pub mod error;
pub mod instances;
pub mod nvml;
pub mod records;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tables;

pub use candidates::{Candidate, Pool};
pub use driver::{Answer, Call, Code, MigDriver, Refused};
pub use error::Error;
pub use instances::{Asked, Instances, Known, Made, Report, Settings};
pub use records::{Folder, Record, Store};
