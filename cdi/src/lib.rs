//! Container Device Interface: the document that tells a container runtime what a claim's containers
//! get. Types, validation, the lowest version that says it, and a folder of spec files.
//!
//! ```text
//!  Spec::new(kind), devices, edits ─► validate ─► render (lowest cdiVersion) ─► store::Dir::write
//!                                        ▲                                           │ temp file, fsync,
//!  Spec::parse (unknown fields refused) ─┘                                           ▼ rename, fsync of the folder
//!                                                  /var/run/cdi/<vendor>-<class>_<id>.json ─► container runtime
//! ```
//!
//! A runtime that finds a field or a version it does not know drops the whole file and says no more than
//! `unresolvable CDI devices` when a container asks for it. So everything here is decided before a file
//! exists: what [`Spec::render`] returns is accepted by every runtime that knows its version.
//!
//! Where it fails, and what happens then:
//! - a crash before the rename leaves a temp file that no runtime reads; [`store::Dir::sweep`] collects it;
//! - a crash after the rename leaves a whole spec of a claim that may be gone: [`store::Dir::ids`] lists
//!   them all, so that the owner can remove what it does not know;
//! - a reader never sees half a file, and a rewrite of the same id replaces the old file as one step.
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
