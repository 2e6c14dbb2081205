//! kubelet's calls: registration, and Prepare and Unprepare of claims.
//!
//! ```text
//!  kubelet ─► registration (instance: sockets)
//!          ─► server ─► node: turn ─► claim, metadata, edits, claimdir, library ─► CDI files
//!               └─► waiting, for the room of claims that are gone
//!          ◄─ health
//! ```
//!
//! `keep` installs the library and renews CDI files; `clean_up` releases claims that ended without an Unprepare (`stale`,
//! `mount_users`), and reports shares whose claim is gone (`unclaimed`). `claim_access` waits until claims can be read.

pub mod checkpoint;
pub mod claim;
pub mod claim_access;
pub mod claimdir;
pub mod clean_up;
pub mod edits;
pub mod health;
pub mod instance;
pub mod keep;
pub(crate) mod library;
pub mod limit_hook;
pub mod metadata;
pub mod mount_users;
pub mod node;
pub mod registration;
pub mod server;
pub mod share;
pub mod stale;
pub(crate) mod unclaimed;
pub mod waiting;
