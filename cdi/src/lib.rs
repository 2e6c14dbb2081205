//! Container Device Interface (CDI): the documents that tell a container runtime which mounts, device nodes and hooks a
//! container of a claim gets, with their validation, and the folder of spec files. Supports only the CDI fields that
//! vgpu-kubelet-plugin writes.
//!
//! ```text
//!  Spec::new(kind), devices, edits ─► validate ─► render ─► store::Dir::update
//!                                                                │ temp file, rename
//!                                                                ▼
//!                        /var/run/cdi/<vendor>-<class>_<id>.json ─► container runtime
//! ```
//!
//! A runtime that finds an unknown field or version ignores the whole file, and reports only `unresolvable
//! CDI devices` when a container asks for it. So everything is checked before a file is written: every
//! runtime that supports the version accepts what [`Spec::render`] returns.
//!
//! Failure modes:
//! - a crash before the rename leaves a temp file that no runtime reads; [`store::Dir::sweep`] removes it;
//! - a crash after the rename leaves a complete spec, perhaps of a claim that no longer exists;
//!   [`store::Dir::ids`] lists all specs, so that the owner can remove unknown ones;
//! - a reader never sees an incomplete file; writing the same id again replaces the file atomically.
#![forbid(unsafe_code)]

mod name;
mod path;
mod render;
mod spec;
pub mod store;
mod validate;

pub use name::Kind;
pub use spec::{ContainerEdits, Device, DeviceNode, DeviceNumber, Hook, HookName, Mount, Spec, VERSION};
pub use validate::{Error, Problem};
