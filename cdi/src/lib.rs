//! Container Device Interface (CDI): the types of the documents that tell a container runtime which mounts,
//! devices and hooks a container gets, their validation, and a folder of spec files.
//!
//! ```text
//!  Spec::new(kind), devices, edits ─► validate ─► render (lowest cdiVersion) ─► store::Dir::write
//!                                        ▲                                           │ temp file, fsync,
//!  Spec::parse (unknown fields refused) ─┘                                           ▼ rename, fsync of the folder
//!                                                  /var/run/cdi/<vendor>-<class>_<id>.json ─► container runtime
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

mod document;
mod name;
mod path;
mod spec;
pub mod store;
mod strict;
mod validate;
mod version;

pub use document::ReadError;
pub use name::Kind;
pub use spec::{ContainerEdits, Device, DeviceNode, DeviceType, Hook, HookName, IntelRdt, Mount, NetDevice, Spec};
pub use validate::{Error, Problem};
pub use version::Version;
