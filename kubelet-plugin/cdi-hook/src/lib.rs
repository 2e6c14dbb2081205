//! vgpu-cdi-hook: a createContainer hook that puts libvgpu-preload.so into a container's
//! /etc/ld.so.preload, where the container's environment cannot take it away again.
//!
//! ```text
//!  runtime ──stdin──► state (id, bundle) ──► bundle/config.json ──► root.path
//!                                                                      │ rootfs: paths inside it
//!  arguments ──► --library ──────────────────────────────────────────► merge ──► <root>/etc/ld.so.preload
//!               --report   ◄── one line, where that cannot be and the container starts all the same
//! ```
//!
//! When it runs: the runtime has made the container's namespaces and its mounts, so what CDI mounts is
//! there, and has not yet called pivot_root, so this program, the bundle and the report are still found
//! by their paths on the node, and the container's files under `root.path`. It runs in the container's
//! mount namespace, as root there, once for each CDI device or claim that names it, before any program
//! of the container. It fails the container if it fails.
//!
//! The image is the tenant's. So the file is found by steps that cannot leave the root file system
//! ([`rootfs`]), what is read is bounded, and a folder that is mounted into the container is never
//! written to: it may be the node's own /etc.
//!
//! What can go wrong, and what follows:
//! - killed before the rename: the old file is whole; a temp file is left in the container's own layer;
//! - run again, or twice at once: the entry is there once;
//! - an image without glibc, a read-only root file system, a file or folder that is a mount: the
//!   container starts without the backstop, and the report says so;
//! - anything else: exit 1 and one line that names the container, the file and what to do.
#![forbid(unsafe_code)]

mod arguments;
mod list;
mod merge;
mod report;
mod rootfs;
mod state;

use std::{ffi::OsString, io::Read};

use arguments::{Command, Preload};
use merge::Outcome;
use state::Container;

/// What went wrong, as the pod's event shows it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("container {id}: {source}")]
    Merge { id: String, source: merge::Error },
}

/// Runs the hook; returns what goes to standard output.
///
/// # Errors
/// The container must not start.
pub fn run(arguments: impl Iterator<Item = OsString>, stdin: impl Read) -> Result<String, Error> {
    match Command::parse(arguments)? {
        Command::Help => Ok(arguments::HELP.to_owned()),
        Command::Version => Ok(format!("vgpu-cdi-hook {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Preload(preload) => preload_library(&preload, stdin).map(|()| String::new()),
    }
}

fn preload_library(preload: &Preload, stdin: impl Read) -> Result<(), Error> {
    let container = Container::read(stdin)?;
    match merge::merge(&container.root, &preload.library) {
        Ok(Outcome::Listed) => Ok(()),
        Ok(Outcome::Left(reason)) => {
            report::write(preload.report.as_deref(), &container.id, &reason);
            Ok(())
        }
        Err(source) => Err(Error::Merge {
            id: container.id,
            source,
        }),
    }
}
